"""The arithmetic of the load test: percentiles, lag, share error, and what became of every task."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attrs import frozen


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of all values do not exceed (nearest rank); nan for none."""
    if not values:
        return math.nan
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p99 and max."""
    return {f"p{p}": round(percentile(values, p), 2) for p in (50, 90, 99)} | {
        "max": round(max(values, default=math.nan), 2)
    }


def lags(weights: Mapping[str, float], served: Mapping[str, int]) -> dict[str, float]:
    """Return, per tenant, how many tasks it is behind (positive) or ahead of its share of all that was served.

    All tenants must have been backlogged all the time: a tenant's due is then weight / (sum of weights) of the total.
    """
    total, weight_sum = sum(served.values()), sum(weights.values())
    return {tenant: total * weight / weight_sum - served.get(tenant, 0) for tenant, weight in weights.items()}


@frozen
class Lag:
    """How far tenants are from their due, in tasks, whether behind or ahead."""

    dispatches: int
    max: float
    mean: float

    @classmethod
    def of(cls, weights: Mapping[str, float], served: Mapping[str, int]) -> Lag:
        """Sum up `lags`."""
        sizes = [abs(lag) for lag in lags(weights, served).values()]
        return cls(sum(served.values()), round(max(sizes), 2), round(sum(sizes) / len(sizes), 3))


def share_error(weights: Mapping[str, float], received: Mapping[str, float]) -> float:
    """Return the largest deviation of a tenant's part from its due, as a part of that due: 0.02 is 2 %."""
    total, weight_sum = sum(received.values()), sum(weights.values())
    if not total:
        return math.nan
    return max(abs(received.get(t, 0.0) / total * weight_sum / weight - 1) for t, weight in weights.items())


class Record(NamedTuple):
    """One start of a task, as a worker's handler noted it (handlers.py)."""

    id: str
    tenant: str
    dwell_ms: float
    started_ms: float
    worked_ms: float


def read_records(path: Path) -> list[Record]:
    """Read what a worker wrote down; nothing if it did not come to that."""
    if not path.exists():
        return []
    rows = (line.split(" ") for line in path.read_text(encoding="ascii").splitlines())
    return [Record(id, tenant, float(dwell), float(at), float(ms)) for id, tenant, dwell, at, ms in rows]


@frozen
class Verdict:
    """What became of the tasks of one measurement. `lost`, `duplicated` and `strange` (never enqueued) are ids."""

    expected: int
    seen: int
    lost: list[str]
    duplicated: list[str]
    strange: list[str]

    @property
    def is_clean(self) -> bool:
        """Every task ran exactly once, and nothing else did."""
        return not (self.lost or self.duplicated or self.strange)

    def __str__(self) -> str:
        """Name the ids, twenty of a kind."""
        parts = []
        for what in ("lost", "duplicated", "strange"):
            if ids := getattr(self, what):
                more = f" and {len(ids) - 20:,} more" if len(ids) > 20 else ""
                parts.append(f"{len(ids):,} {what}: {', '.join(ids[:20])}{more}")
        return "; ".join(parts) or f"{self.expected:,} tasks, each exactly once"


def judge(expected: Collection[str], seen: Iterable[str], *, left: int = 0) -> Verdict:
    """Compare the enqueued tasks with the executed ones, when `left` tasks are still in the queue.

    Of tasks left in a queue only the number is known, so that many of those that did not run are no loss.
    """
    counts, known = Counter(seen), set(expected)
    missing = sorted(known - counts.keys())
    return Verdict(
        expected=len(known),
        seen=sum(counts.values()),
        lost=missing[left:],
        duplicated=sorted(id for id, count in counts.items() if count > 1),
        strange=sorted(counts.keys() - known),
    )
