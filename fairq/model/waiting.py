"""Why a task waits, and when it may start: pure functions of what is known at one moment.

A task waits until all of its causes end. The first cause is the one to look at first:

1. `queue_repairing`: no task starts until the repair is done; `queue_paused`, `tenant_paused`: paused by an operator.
   None of these ends by time.
2. `queue_closed`, `tenant_closed`: outside its opening hours.
3. `start`, `retry`: its own start, or that of its next attempt, has not come.
4. `no_worker`: none is attached that takes tasks of the queue.
5. `rate`, `max_running`, `batch_max_running`: a limit of its tenant, or of its batch.
6. `backlog`: other tasks of its tenant (pending: of its batch) come first, or have the slots.
7. `reserve`: the slots that are left are kept for tenants that have nothing running.
8. `share`: other tenants' tasks have the slots.

The start time is an estimate: its tenant proceeds at the slowest of its paces, which are its share of the slots (or its
guarantee), its max_running, its batch's (each divided by the duration of its tasks) and its rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from attrs import field, frozen

from fairq.model.workers import SilentWorker

Cause = Literal[
    "queue_repairing", "queue_paused", "tenant_paused", "queue_closed", "tenant_closed", "start", "retry", "no_worker",
    "rate", "max_running", "batch_max_running", "backlog", "reserve", "share",
]  # fmt: skip
# what blocks a tenant or a queue: bits of lua/pick/limits.lua
PAUSED, CLOSED, RATE_LIMITED, AT_MAX_RUNNING, REPAIRING = 1, 2, 4, 8, 16
FOREVER = math.inf

# What the waiting time of tasks that have started was for; where two held at once, the one that stands first.
WaitCause = Literal["paused", "closed", "no_worker", "rate", "max_running", "backlog", "share"]
WAIT_CAUSES: tuple[WaitCause, ...] = get_args(WaitCause)
WAITED_FOR: Mapping[WaitCause, str] = {
    "paused": "an operator paused the tenant or the queue",
    "closed": "outside the opening hours of the tenant or the queue",
    "no_worker": "no worker was attached to the server that started it",
    "rate": "the tenant had reached its rate",
    "max_running": "the tenant had reached its max_running",
    "backlog": "the tenant's own tasks came first",
    "share": "other tenants used the slots",
}

_CAUSES: dict[int, WaitCause] = {PAUSED | REPAIRING: "paused", CLOSED: "closed", RATE_LIMITED: "rate"}


def cause_of(bits: int) -> WaitCause:
    """Return what blocks a tenant, or a queue."""
    return next((cause for blocks, cause in _CAUSES.items() if bits & blocks), "max_running")


class BlockedInterval(NamedTuple):
    """A time (ms) for which a tenant (empty: the queue) was blocked."""

    tenant: str
    cause: WaitCause
    begin: int
    end: int


@frozen
class Part:
    """One cause of the waiting time of a tenant's tasks: its part of the total, and its time per task."""

    cause: WaitCause
    part: float
    p50_ms: int
    p99_ms: int


@frozen
class Report:
    """How long a tenant's tasks that started in the last minutes had waited, for what, and the tenant's share.

    `delivered`, of that `free`, and `entitled` (seconds of worker time, or tasks; as in TenantTotals) are those of the
    last `share_over_ms`; 0: not known.
    `unanswered`: servers that did not answer in time; their starts are missing.
    """

    tenant: str
    starts: int = 0
    p50_ms: int = 0
    p99_ms: int = 0
    parts: list[Part] = field(factory=list)
    delivered: float = 0.0
    entitled: float = 0.0
    free: float = 0.0
    share_over_ms: int = 0
    unanswered: int = 0


@frozen
class Facts:
    """The store's facts about a waiting task (lua/inspect/why.lua). Weights in thousandths, times in ms; 0 is none."""

    ahead: float
    is_exact: float
    batch_max_running: float
    group_ahead: float
    groups: float
    weight: float
    estimate: float
    ready: float
    leased: float
    blocked: float
    theoretical_arrival: float
    max_running: float
    guaranteed: float
    rate: float
    burst: float
    debt: float
    competes: float
    is_awake: float
    opening_changes_at: float
    queue_weight_sum: float
    queue_estimate: float
    queue_leased: float
    queue_blocked: float
    queue_opening_changes_at: float
    queue_slots: float
    queue_kept: float
    lost_leases: float
    max_lost_leases: float
    was_lost: float
    runs_alone: float

    @property
    def task_ms(self) -> float:
        """How long its tenant's tasks take."""
        return self.estimate or self.queue_estimate

    @property
    def share(self) -> float:
        """Its tenant's part of the slots, once it is let in."""
        others = self.queue_weight_sum - (self.weight if self.competes else 0)
        return self.weight / (max(others, 0) + self.weight)

    @property
    def is_kept_out(self) -> bool:
        """True if all slots that its tenant may have are in use, and others are kept."""
        return self.queue_kept > 0 and self.leased >= max(self.guaranteed, 1)


@frozen
class Waiting:
    """A task, the store's facts about it, and the workers that could take it."""

    now_ms: int
    state: str
    attempt: int = 0
    at_ms: int = 0
    facts: Facts | None = None


@frozen
class Why:
    """Why a task waits: its causes, the first to look at first; none if it does not, or is about to start.

    `ahead`: how many tasks of its tenant (pending: of its batch) come before it, at least, unless that is exact;
    where groups take turns, `group_ahead` of its own group (None for tasks without one), one of `groups`.
    `until_ms`: the earliest start by the clock. `starts_at_ms`: when it may start, if all goes on as it does; None if
    that cannot be estimated. `share`: its tenant's part of the queue's slots, once it is let in. `kept`: slots,
    of `kept_of` in all, that are kept for tenants with nothing running, where all others are in use. `served`: queues
    that workers take tasks of, where none takes this one's. `lost_leases`: how often its worker's process died;
    `max_lost_leases`: how often it may, before the task is dead (0: no limit). `was_lost`: its last lease was lost.
    `runs_alone`: its next attempt has its worker's process for itself.
    `silent`: workers of the queue from which nothing comes, at most ten; of a leased task, the one that holds it.
    """

    id: str
    state: str
    now_ms: int
    causes: list[Cause] = field(factory=list)
    starts_at_ms: int | None = None
    until_ms: int = 0
    ahead: int = 0
    is_ahead_exact: bool = False
    group_ahead: int = 0
    groups: int = 0
    running: int = 0
    share: float = 0.0
    slots: float = 0.0
    max_running: int = 0
    batch_max_running: int = 0
    rate: float = 0.0
    kept: int = 0
    kept_of: int = 0
    lost_leases: int = 0
    max_lost_leases: int = 0
    was_lost: bool = False
    runs_alone: bool = False
    served: list[str] = field(factory=list)
    silent: list[SilentWorker] = field(factory=list)


def explain(id: str, task: Waiting, slots: float) -> Why:
    """Explain why a task waits, when workers of its queue offer this many slots."""
    facts = task.facts
    if facts is None:
        return Why(id, task.state, task.now_ms)
    causes = _causes(task, facts, slots)
    until = _until(task, facts)
    starts = max(until, task.now_ms + _wait_ms(task, facts, slots))
    if {"queue_repairing", "queue_paused", "tenant_paused", "no_worker"}.intersection(causes):
        starts = FOREVER
    return Why(
        id=id,
        state=task.state,
        now_ms=task.now_ms,
        causes=causes,
        starts_at_ms=None if starts == FOREVER else math.ceil(starts),
        until_ms=math.ceil(until) if until > task.now_ms else 0,
        ahead=int(facts.ahead),
        is_ahead_exact=bool(facts.is_exact),
        group_ahead=int(facts.group_ahead),
        groups=int(facts.groups),
        running=int(facts.leased),
        share=facts.share,
        slots=slots,
        max_running=int(facts.max_running),
        batch_max_running=int(facts.batch_max_running),
        rate=facts.rate,
        kept=int(facts.queue_kept),
        kept_of=int(facts.queue_slots) if facts.queue_kept else 0,
        lost_leases=int(facts.lost_leases),
        max_lost_leases=int(facts.max_lost_leases) if facts.lost_leases else 0,
        was_lost=bool(facts.was_lost),
        runs_alone=bool(facts.runs_alone),
    )


def _causes(task: Waiting, facts: Facts, slots: float) -> list[Cause]:
    is_ready = task.state == "ready"
    others, blocked = facts.queue_leased - facts.leased, int(facts.blocked)
    is_full = facts.queue_leased >= slots
    is_at_max_running = 0 < facts.max_running <= facts.leased
    is_own = is_ready and is_full and others <= 0 < facts.leased
    found: dict[Cause, bool] = {
        "queue_repairing": bool(int(facts.queue_blocked) & REPAIRING),
        "queue_paused": bool(int(facts.queue_blocked) & PAUSED),
        "tenant_paused": bool(blocked & PAUSED),
        "queue_closed": bool(int(facts.queue_blocked) & CLOSED),
        "tenant_closed": bool(blocked & CLOSED),
        "start": task.state == "delayed" and not task.attempt,
        "retry": task.state == "delayed" and bool(task.attempt),
        "no_worker": not slots,
        "rate": is_ready and bool(blocked & RATE_LIMITED),
        "max_running": is_ready and is_at_max_running,
        "batch_max_running": task.state == "pending",
        "backlog": task.state != "delayed" and (facts.ahead > 0 or is_own),
        "reserve": is_ready and not blocked and not is_at_max_running and facts.is_kept_out,
        "share": is_ready and not blocked and not is_at_max_running and is_full and others > 0,
    }
    return [cause for cause, holds in found.items() if holds]


def _until(task: Waiting, facts: Facts) -> float:
    """Return when the last clock lets it start: its start, its opening hours, its tenant's tokens."""
    until = [float(task.now_ms)]
    if task.state == "delayed":
        until.append(task.at_ms)
    if int(facts.queue_blocked) & CLOSED:
        until.append(facts.queue_opening_changes_at)
    if int(facts.blocked) & CLOSED:
        until.append(facts.opening_changes_at)
    if facts.rate and task.state != "delayed":
        until.append(_token_at(task.now_ms, facts, int(facts.ahead)))
    return max(until)


def _token_at(now_ms: int, facts: Facts, ahead: int) -> float:
    """Return when there is a token for it, by its tenant's bucket (lua/pick/limits.lua), after those before it."""
    burst = facts.burst or max(1, math.floor(facts.rate))
    return max(facts.theoretical_arrival, now_ms) + (ahead - burst + 1) * 1000 / facts.rate


def _wait_ms(task: Waiting, facts: Facts, slots: float) -> float:
    """Return how long it waits for slots and places, at its tenant's slowest pace."""
    if not slots:
        return FOREVER
    ahead = facts.ahead + (facts.ready if task.state == "pending" else 0)
    is_free = facts.queue_leased < slots and not facts.is_kept_out
    if is_free and not ahead and task.state != "pending" and not 0 < facts.max_running <= facts.leased:
        return 0
    if not facts.task_ms:
        return FOREVER
    shared, guaranteed = facts.share * slots, min(facts.guaranteed, slots)
    first_ms = 0 if is_free else facts.queue_estimate / slots if facts.is_awake else facts.task_ms / shared
    paces = [(ahead * facts.task_ms + facts.debt) / shared]
    if guaranteed:
        paces.append(ahead * facts.task_ms / guaranteed)  # whatever it had before
    waits = [first_ms + min(paces)]
    if facts.max_running:
        room = max(0, facts.max_running - facts.leased)
        waits.append(max(0, ahead + 1 - room) * facts.task_ms / facts.max_running)
    if task.state == "pending" and facts.batch_max_running:
        waits.append((facts.ahead + 1) * facts.task_ms / facts.batch_max_running)
    return max(waits)
