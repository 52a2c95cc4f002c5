"""The demonstration's report: the proof, the contrast, and the JSON object with both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import asdict, frozen

from fairq.demo.executions import Execution
from fairq.demo.phase import Progress
from fairq.demo.scenario import FAIR, FIFO, QUIET, SHARES, WEIGHTS, Planned
from fairq.model.fairness import NOTHING, shares, split_service


@frozen
class Proof:
    """The comparison of enqueued tasks with the executions recorded by the workers.

    `processed` counts executed tasks, `lost` tasks that were not executed, `duplicated` tasks executed more than once,
    `unexpected` executions of tasks that were not enqueued, `digest_mismatches` executions with another file or digest
    than the one computed directly.
    """

    tasks: int
    processed: int
    lost: int
    duplicated: int
    unexpected: int
    digest_mismatches: int

    @property
    def holds(self) -> bool:
        """True if every task was processed exactly once, with the right result."""
        wrong = self.lost or self.duplicated or self.unexpected or self.digest_mismatches
        return not wrong and self.processed == self.tasks


def prove(planned: Iterable[Planned], executions: Iterable[Execution], digests: Mapping[str, str]) -> Proof:
    """Compare the enqueued tasks with the executed ones; `digests` maps paths to digests computed directly."""
    paths = {task.id: task.path for task in planned}
    counts: Counter[str] = Counter()
    unexpected = mismatches = 0
    for execution in executions:
        if execution.id not in paths:
            unexpected += 1
            continue
        counts[execution.id] += 1
        if execution.path != paths[execution.id] or execution.digest != digests.get(execution.path):
            mismatches += 1
    return Proof(
        tasks=len(paths),
        processed=len(counts),
        lost=len(paths) - len(counts),
        duplicated=sum(count > 1 for count in counts.values()),
        unexpected=unexpected,
        digest_mismatches=mismatches,
    )


def _contrast(progress: Progress) -> dict[str, Any]:
    return {
        "quiet_p50_ms": progress.wait_ms(50, *QUIET),
        "quiet_p99_ms": progress.wait_ms(99, *QUIET),
        "seconds": round(progress.seconds, 3),
    }


def tenant_rows(progress: Mapping[str, Progress]) -> list[dict[str, Any]]:
    """Describe every tenant.

    `tasks`, `p50_ms` and `p99_ms` (waiting times) are of the fair phase. `entitled` and `delivered` are parts (0 to 1)
    of the worker time that the service accounted for in the shares phase, by its last report with tasks of every
    tenant waiting: only then do the weights alone decide.
    """
    fair, rows = progress[FAIR], progress[SHARES].backlogged_rows
    parts = shares(split_service({row["tenant"]: (row["delivered"], row["entitled"]) for row in rows}))
    return [
        {
            "name": name,
            "weight": weight,
            "entitled": round(parts.get(name, NOTHING).due or 0.0, 4),
            "delivered": round(parts.get(name, NOTHING).delivered or 0.0, 4),
            "p50_ms": fair.wait_ms(50, name),
            "p99_ms": fair.wait_ms(99, name),
            "tasks": len(fair.wait_times(name)),
        }
        for name, weight in WEIGHTS.items()
    ]


@frozen
class Report:
    """The results of the demonstration."""

    proof: Proof
    fifo: Mapping[str, Any]
    fair: Mapping[str, Any]
    tenants: Sequence[Mapping[str, Any]]
    files: int
    direct_seconds: float
    seconds: float

    @property
    def times_shorter(self) -> float | None:
        """How many times shorter the quiet tenants' p99 wait is in the fair phase."""
        fifo, fair = self.fifo["quiet_p99_ms"], self.fair["quiet_p99_ms"]
        return None if fifo is None or fair is None else round(fifo / max(fair, 1), 1)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        whole = asdict(self, recurse=False)
        proof = whole.pop("proof")
        return {**asdict(proof), "is_proven": proof.holds, **whole, "times_shorter": self.times_shorter}


def make_report(
    progress: Mapping[str, Progress], digests: Mapping[str, str], direct_seconds: float, seconds: float
) -> Report:
    """Make the report, after all phases are over and the workers have ended."""
    planned = [task for part in progress.values() for task in part.phase.tasks]
    executions = [execution for part in progress.values() for execution in part.executions]
    return Report(
        proof=prove(planned, executions, digests),
        fifo=_contrast(progress[FIFO]),
        fair=_contrast(progress[FAIR]),
        tenants=tenant_rows(progress),
        files=len(digests),
        direct_seconds=round(direct_seconds, 3),
        seconds=round(seconds, 3),
    )
