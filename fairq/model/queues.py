"""Queues: settings, counts, ticks and repairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, fields, frozen

from fairq.model.places import AwayPartition
from fairq.model.rules import WEIGHT, one_of, some_of, whole
from fairq.model.tasks import MAX_ATTEMPTS

AHEAD_MS = 60_000  # by a store's clock that is ahead of the servers' by more, nothing expires and no schedule fires
SHARES = ("time", "count")


@frozen
class Tick:
    """The counts of one tick, and when (in the store's ms) the next will find work; -1 when nothing waits.

    `fires`: how many schedules are due. `ahead_ms`: by how much the store's clock is ahead of this process's.
    """

    now_ms: int
    next_due_ms: int
    ready: int
    promoted: int
    expired: int
    reaped: int
    trimmed: int
    fires: int = 0
    opening_changes: int = 0
    ahead_ms: int = 0


def _whole(default: int, minimum: int, maximum: int) -> Any:
    return field(default=default, metadata={"range": (minimum, maximum)})


@frozen
class QueueSettings:
    """The settings of a queue, each with default, minimum and maximum; wire/VERBS.md has the meanings."""

    share: str = "time"
    lease_ms: int = _whole(30_000, 100, 86_400_000)
    max_attempts: int = _whole(25, 0, MAX_ATTEMPTS)
    retry_base_ms: int = _whole(1_000, 1, 86_400_000)
    retry_cap_ms: int = _whole(3_600_000, 1, 604_800_000)
    dead_keep_ms: int = _whole(14 * 86_400_000, 1_000, 31_536_000_000)
    dead_keep: int = _whole(100_000, 0, 10_000_000)
    events_keep: int = _whole(10_000, 0, 1_000_000)
    max_tenants: int = _whole(1_000_000, 1, 100_000_000)
    reserve: int = _whole(0, 0, 90)
    run_timeout_ms: int = _whole(0, 0, 604_800_000)
    queue_weight: float = 1.0
    max_lost_leases: int = _whole(3, 0, 100)
    partitions: int = _whole(1, 1, 64)


def longest_wait_ms(base_ms: int, cap_ms: int, attempts: int) -> int:
    """Return the longest wait after so many attempts that count: it doubles with each, up to the cap."""
    return min(cap_ms, base_ms << min(attempts - 1, 40))


def longest_retries_ms(settings: QueueSettings) -> int:
    """Return the longest sum of the waits between all attempts of a task; on average it is half of that."""
    base, cap = settings.retry_base_ms, settings.retry_cap_ms
    return sum(longest_wait_ms(base, cap, n) for n in range(1, max(settings.max_attempts, 1)))


SETTING_RANGES: dict[str, tuple[int, int]] = {
    each.name: each.metadata["range"] for each in fields(QueueSettings) if each.metadata
}


def kept_slots(slots: int, reserve: int) -> int:
    """Return how many slots are kept for tenants with nothing running; never the last slot (lua/pick/reserve.lua)."""
    return max(0, min(-(-slots * reserve // 100), slots - 1))


SETTING_RULES = {
    "share": one_of(*SHARES),
    **{name: whole(*both) for name, both in SETTING_RANGES.items()},
    "queue_weight": WEIGHT,
}
SETTINGS = some_of(SETTING_RULES, "setting")


def stored_setting(name: str, value: Any) -> int:
    """Return a setting as the store has it: all are whole numbers."""
    if name == "share":
        return SHARES.index(value)
    return max(1, round(value * 1000)) if name == "queue_weight" else int(value)


def settings_from(stored: Mapping[str, int]) -> QueueSettings:
    """Return settings that the store has; unknown ones are left out."""
    values: dict[str, Any] = {each.name: stored[each.name] for each in fields(QueueSettings)}
    return QueueSettings(**values | {"share": SHARES[values["share"]], "queue_weight": values["queue_weight"] / 1000})


@frozen
class Repair:
    """The progress of a repair: `more`, `done` or `gone` (another call has ended it); its step and counts.

    `away`: partitions that did not answer, and were passed over in this step.
    """

    outcome: str
    number: int
    doing: str
    tasks: int
    tenants: int
    away: list[AwayPartition] = field(factory=list)


@frozen
class QueueState:
    """A queue's counts (tasks by state now, totals since the beginning), settings, and the tenant that made it."""

    queue: str
    ready: int
    pending: int
    delayed: int
    leased: int
    dead: int
    enqueued: int
    done: int
    expired: int
    cancelled: int
    is_paused: bool
    is_closed: bool
    is_deleting: bool
    is_repairing: bool
    settings: QueueSettings
    made_by: str = ""  # empty: an operator
    made_at_ms: int = 0  # 0: not made yet


def unread_state(queue: str) -> QueueState:
    """Return the state of a queue that cannot be read: no counts, and the settings of a new one."""
    return QueueState(queue, *(0,) * 9, *(False,) * 4, settings=QueueSettings())
