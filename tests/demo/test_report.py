"""The proof finds what it is there to find."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
import pytest
import trio
from attrs import evolve
from rich.console import Console

from fairq.demo import run
from fairq.demo.executions import Execution
from fairq.demo.phase import Progress
from fairq.demo.report import Proof, Report, make_report, prove
from fairq.demo.scenario import FAIR, FIFO, QUIET, SHARES, WEIGHTS, Planned, plan_phases
from fairq.demo.summary import describe_proof, print_summary

PLANNED = [Planned(f"fair-{i}", f"/file-{i}", "ada") for i in range(3)]
DIGESTS = {task.path: f"digest of {task.path}" for task in PLANNED}
OTHER = DIGESTS["/file-0"]


def executed(task: Planned, **changes: Any) -> Execution:
    queue = task.id.rpartition("-")[0]
    made = Execution(task.id, queue, task.owner, task.owner, task.path, DIGESTS.get(task.path, ""), 1, 5)
    return evolve(made, **changes)


ALL = [executed(task) for task in PLANNED]


def test_each_task_executed_once_with_the_right_digest_is_proven() -> None:
    proof = prove(PLANNED, reversed(ALL), DIGESTS)
    assert proof == Proof(tasks=3, processed=3, lost=0, duplicated=0, unexpected=0, digest_mismatches=0)
    assert proof.holds
    assert describe_proof(proof).startswith("Proof: 3 tasks")


WRONG: dict[str, tuple[list[Execution], dict[str, str], dict[str, int]]] = {
    "lost": (ALL[:2], DIGESTS, {"processed": 2, "lost": 1}),
    "all lost": ([], DIGESTS, {"processed": 0, "lost": 3}),
    "tripled": ([*ALL, ALL[0], ALL[0]], DIGESTS, {"duplicated": 1}),
    "of another file": (
        [*ALL[:2], executed(PLANNED[2], path="/file-0", digest=OTHER)],
        DIGESTS,
        {"digest_mismatches": 1},
    ),
    "unexpected": ([*ALL, executed(Planned("fair-9", "/file-0", "ada"))], DIGESTS, {"unexpected": 1}),
    "lost and duplicated": ([*ALL[:2], ALL[0]], DIGESTS, {"processed": 2, "lost": 1, "duplicated": 1}),
    "none direct": (ALL, {}, {"digest_mismatches": 3}),
}


@pytest.mark.parametrize(("executions", "digests", "wrong"), WRONG.values(), ids=WRONG)
def test_proof_finds_what_is_wrong(executions: list[Execution], digests: dict[str, str], wrong: dict[str, int]) -> None:
    proof = prove(PLANNED, executions, digests)
    right = {"tasks": 3, "processed": 3, "lost": 0, "duplicated": 0, "unexpected": 0, "digest_mismatches": 0}
    assert proof == Proof(**{**right, **wrong})
    assert not proof.holds
    assert describe_proof(proof).startswith("NOT PROVEN")


def report_of(lost: int = 0) -> Report:
    """A report on phases in which a quiet task waits 1 s in fifo, 20 ms in fair, and `lost` tasks did not run."""
    paths = [f"/file-{i}" for i in range(200)]
    digests = {path: f"digest of {path}" for path in paths}
    progress = {phase.queue: Progress(phase, seconds=3) for phase in plan_phases(paths, 3)}
    for queue, part in progress.items():
        for task in part.phase.tasks[lost:]:
            wait = 20 if queue == FAIR and task.owner in QUIET else 1_000
            part.saw_execution(executed(task, queue=queue, digest=digests[task.path], wait_ms=wait))
    progress[SHARES].saw_rows([
        {"tenant": name, "ready": 3, "delivered": 150.0 * weight, "entitled": 147.0 * weight}
        for name, weight in WEIGHTS.items()
    ])  # fmt: skip
    return make_report(progress, digests, 2.0, 11.0)


def test_report_has_what_scripts_read() -> None:
    report = orjson.loads(orjson.dumps(report_of().as_json()))
    assert {name: report[name] for name in ("lost", "duplicated", "digest_mismatches", "is_proven")} == {
        "lost": 0,
        "duplicated": 0,
        "digest_mismatches": 0,
        "is_proven": True,
    }
    assert report["processed"] == report["tasks"] == 200 + 200 + 90
    assert report[FIFO] == {"quiet_p50_ms": 1_000, "quiet_p99_ms": 1_000, "seconds": 3}
    assert report[FAIR] == {"quiet_p50_ms": 20, "quiet_p99_ms": 20, "seconds": 3}
    assert report["times_shorter"] == 50
    rows = {row["name"]: row for row in report["tenants"]}
    assert list(rows) == list(WEIGHTS)
    assert (rows["eve"]["delivered"], rows["eve"]["entitled"]) == (0.2667, 0.2613)  # both of all that was delivered
    assert rows["eve"]["p99_ms"] == 20
    assert sum(row["tasks"] for row in rows.values()) == 200


def test_report_of_nothing_executed_has_no_figures_and_does_not_fail() -> None:
    report = report_of(lost=200)
    assert report.proof.lost == report.proof.tasks == 490
    assert report.as_json()["fair"]["quiet_p99_ms"] is None
    assert report.times_shorter is None
    print_summary(Console(width=120), report)


@pytest.mark.parametrize(("lost", "code"), [(0, 0), (1, 1)])
@pytest.mark.parametrize("as_json", [False, True])
def test_exit_code_tells_whether_the_proof_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lost: int, code: int, as_json: bool
) -> None:
    async def demonstrate(*_: object) -> tuple[Report, str]:
        return report_of(lost), ""

    monkeypatch.setattr(run, "_demonstrate", demonstrate)
    assert trio.run(partial(run.run_demo, as_json=as_json)) == code
    shown = capsys.readouterr().out
    said = orjson.loads(shown)["is_proven"] if as_json else "every one processed exactly once" in shown
    assert said is (code == 0)
    assert as_json or ("NOT PROVEN" in shown) is (code == 1)
    assert as_json or code or "50.0 times shorter" in shown
