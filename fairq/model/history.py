"""The history of a queue: counts, waiting times and shares, by intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from attrs import field, frozen

from fairq.model.places import AwayPartition
from fairq.model.rules import TENANT, many, one_of

Period = Literal["1h", "24h", "14d"]
PERIODS: tuple[Period, ...] = get_args(Period)
PERIOD = one_of(*PERIODS)
STEPS: Mapping[str, tuple[int, int]] = {"1h": (10, 360), "24h": (60, 1_440), "14d": (900, 1_344)}  # s, intervals
OTHERS = ""  # in place of a name: all tenants that have no row of their own
MAX_NAMED, NAMED = 20, 10  # tenants in one reply: how many may be asked for, and how many there are unless asked for
TENANTS = many(TENANT, 1, MAX_NAMED, once=True)
LAST_BUCKET = 60  # of waiting times: bucket n ends at 2 ** (n / 2) ms, the last one never


def middle_of(bucket: int) -> float:
    """Return the middle of a bucket, in ms."""
    return float(2 ** (bucket / 2 - 0.25)) if bucket else 0.0


def percentile_of(waits: Mapping[int, int], percent: int) -> int | None:
    """Return a percentile of waiting times (ms): the middle of its bucket; None without any."""
    rank = -(-sum(waits.values()) * percent // 100)
    for bucket in sorted(waits):
        rank -= waits[bucket]
        if rank <= 0:
            return round(middle_of(bucket))
    return None


class Row(NamedTuple):
    """The counts of one tenant (or all others) in an interval; service is in ms of worker time or tasks."""

    tenant: str
    enqueued: int
    started: int
    done: int
    failed: int
    delivered: float
    entitled: float
    waits: Mapping[int, int]  # bucket -> starts
    free: float = 0.0  # of `delivered`; computed, not stored


class Slot(NamedTuple):
    """One interval: its number, the queue's counts, and the rows of tenants."""

    number: int
    enqueued: int
    done: int
    dead: int
    expired: int
    cancelled: int
    lost: int
    rows: Sequence[Row]


@frozen
class QueueTotals:
    """A queue's sums over a period. `failed` counts attempts, `lost` leases that ran out; waiting times are those of
    first attempts, rounded to about 20 %; None: none started.
    """

    enqueued: int = 0
    started: int = 0
    done: int = 0
    failed: int = 0
    lost: int = 0
    dead: int = 0
    expired: int = 0
    cancelled: int = 0
    p50_ms: int | None = None
    p99_ms: int | None = None


@frozen
class QueueSeries:
    """A queue's counts in each interval; fields as in QueueTotals."""

    enqueued: list[int]
    started: list[int]
    done: list[int]
    failed: list[int]
    lost: list[int]
    dead: list[int]
    expired: list[int]
    cancelled: list[int]
    p50_ms: list[int | None]
    p99_ms: list[int | None]


@frozen
class TenantTotals:
    """A tenant's sums over a period, in seconds of worker time, or tasks.

    `free` is the part of `delivered` that no tenant waited for. The rest was contested: it is compared with `entitled`,
    the tenant's due meanwhile. The parts (0 to 1) are of all service; None: there was no service, or no contest, and so
    no entitlement.
    """

    enqueued: int = 0
    started: int = 0
    done: int = 0
    failed: int = 0
    delivered: float = 0.0
    entitled: float = 0.0
    free: float = 0.0
    delivered_part: float | None = None
    entitled_part: float | None = None
    free_part: float | None = None
    p50_ms: int | None = None
    p99_ms: int | None = None

    @property
    def contested(self) -> float:
        """The service that it got while tenants waited."""
        return round(self.delivered - self.free, 3)

    @property
    def contested_part(self) -> float | None:
        """The same as a part of all; None without a contest."""
        if self.entitled_part is None or self.delivered_part is None:
            return None
        return round(self.delivered_part - (self.free_part or 0.0), 4)


@frozen
class TenantSeries:
    """A tenant's counts in each interval; of all others if the name is empty.

    `delivered`, `entitled` and `free` are parts of what all tenants got in that interval, as in the totals.
    """

    tenant: str
    enqueued: list[int]
    started: list[int]
    done: list[int]
    failed: list[int]
    delivered: list[float | None]
    entitled: list[float | None]
    p50_ms: list[int | None]
    p99_ms: list[int | None]
    totals: TenantTotals
    free: list[float | None] = field(factory=list)


@frozen
class History:
    """A queue's history over a period: `times_ms` is when each interval of `step_ms` begins; the last is not over.

    `away`: partitions that do not answer; what happened there is left out.
    """

    now_ms: int
    step_ms: int
    times_ms: list[int]
    queue: QueueSeries
    totals: QueueTotals
    tenants: list[TenantSeries]
    away: list[AwayPartition] = field(factory=list)
