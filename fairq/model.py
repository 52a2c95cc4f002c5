"""The nouns of fairq, and the rules that their values keep."""

from __future__ import annotations

import math
import re
from typing import Any, Literal, NamedTuple

from attrs import frozen

from fairq.errors import BadRequest, TooOld

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
TASK_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
FULL_ID_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}/[A-Za-z0-9_-]{1,64}\Z")
BATCH_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,40}\Z")
WORKER_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
MIN_WEIGHT, MAX_WEIGHT = 0.001, 10_000.0
MAX_ATTEMPTS = 1_000
DEFAULT_PRIORITY, MAX_PRIORITY = 50, 99  # 0 is the most urgent
MAX_KEY_BYTES = 255  # of a dedupe key
MAX_LEASE = (1 << 53) - 1  # the number of a lease
MAX_SPAN_MS = 400 * 86_400_000  # the longest delay or window
MAX_TIME_MS = 1 << 50
MAX_BATCH = 500  # tasks, settlements or ids in one request
SPECIAL_PLACES = 3  # of these, for a task that asks for what few tasks ask for: the store takes that much longer
MAX_ERROR_CHARS = 2_048
MAX_SEARCH_CHARS = 100  # of the error text to search dead letters for
MAX_CURSOR_CHARS = 200
MAX_PAYLOAD_BYTES = 1 << 20
MAX_RESULT_BYTES = 1 << 18
MAX_CALLBACK_BYTES = 65_535
MOST_RUNNING = 1_000_000  # on tasks running at once, of a batch or a tenant
MAX_PROGRESS_CHARS = 200
SCHEDULE_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}\Z")  # shorter than a task's id by the time of a fire
MISFIRES = ("skip", "once")
MIN_EVERY_MS = 1_000
MAX_SCHEDULES = 1_000  # of a tenant in a queue
MAX_CRON_CHARS = 200
MAX_SPANS = 32  # of one text of windows
MAX_OPENING_HOURS_CHARS = 1_000
AHEAD_MS = 60_000  # a store's clock that is ahead of the servers' by more lets nothing expire
MAX_EVENT_ID = 1 << 50
MAX_DETAIL_BYTES = 256  # of an event

Action = Literal["ack", "nack", "reject", "release", "reap", "extend", "take"]
Outcome = Literal["ok", "expired", "gone", "stale", "running", "cancelled"]
ACTIONS: tuple[Action, ...] = (
    "ack",
    "nack",
    "reject",
    "release",
    "extend",
)  # those of a worker; the server also reaps and takes
SHARES = ("time", "count")
REASONS = ("exhausted", "rejected", "expired", "lease_lost")


def check_name(value: object, what: str) -> str:
    """Return the name of a queue or tenant if it keeps the name rule. Raises: BadRequest."""
    if isinstance(value, str) and NAME_PATTERN.match(value):
        return value
    raise BadRequest(
        f"{what} must be 1 to 63 of a-z, 0-9, '-', '_' and begin with a letter or digit, not {value!r:.80}", field=what
    )


def check_task_id(value: object, what: str = "id") -> str:
    """Return the task id if it keeps the id rule. Raises: BadRequest."""
    if isinstance(value, str) and TASK_ID_PATTERN.match(value):
        return value
    raise BadRequest(f"{what} must be 1 to 64 of A-Z, a-z, 0-9, '-', '_', not {value!r:.80}", field=what)


def check_batch_id(value: object, what: str = "id") -> str:
    """Return the batch's id if it leaves room for what its callback tasks' ids end in. Raises: BadRequest."""
    if isinstance(value, str) and BATCH_ID_PATTERN.match(value):
        return value
    raise BadRequest(f"{what} must be 1 to 40 of A-Z, a-z, 0-9, '-', '_', not {value!r:.80}", field=what)


def full_id(tenant: str, id: str) -> str:
    """Return the id that a task has in its queue: tenants choose ids without knowing of each other."""
    return f"{tenant}/{id}"


def bare_id(id: str) -> str:
    """Return the id that the tenant chose."""
    return id.rpartition("/")[2]


def check_full_id(value: object, what: str = "id") -> str:
    """Return the full id, `<tenant>/<id>`, if it keeps the id rule. Raises: BadRequest."""
    if isinstance(value, str) and FULL_ID_PATTERN.match(value):
        return value
    raise BadRequest(f"{what} must be a full id, <tenant>/<id>, not {value!r:.80}", field=what)


def check_schedule_name(value: object, what: str = "name") -> str:
    """Return the name of a schedule if it keeps the rule. Raises: BadRequest."""
    if isinstance(value, str) and SCHEDULE_PATTERN.match(value):
        return value
    raise BadRequest(
        f"{what} must be 1 to 40 of a-z, 0-9, '-', '_' and begin with a letter or digit, not {value!r:.80}", field=what
    )


def check_weight(value: object, what: str = "weight") -> float:
    """Return the weight if it can be one. Raises: BadRequest for 0, negative, not finite or huge ones."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        if value == 0:
            raise BadRequest(f"{what} must not be 0; to hold a tenant back, pause it", field=what)
        if MIN_WEIGHT <= value <= MAX_WEIGHT:
            return float(value)
    raise BadRequest(f"{what} must be a number from {MIN_WEIGHT} to {MAX_WEIGHT:g}, not {value!r:.80}", field=what)


def check_int(value: object, what: str, lowest: int, highest: int) -> int:
    """Return a whole number within its range. Raises: BadRequest."""
    if isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest:
        return value
    raise BadRequest(f"{what} must be a whole number from {lowest} to {highest}, not {value!r:.80}", field=what)


def check_flag(value: object, what: str) -> bool:
    """Return what is true or false. Raises: BadRequest."""
    if isinstance(value, bool):
        return value
    raise BadRequest(f"{what} must be true or false, not {value!r:.80}", field=what)


def check_dedupe_key(value: object) -> str:
    """Return the dedupe key if it can be one. Raises: BadRequest."""
    if isinstance(value, str) and value.isprintable() and len(value.encode()) <= MAX_KEY_BYTES:
        return value
    raise BadRequest(f"dedupe_key must be printable text of at most {MAX_KEY_BYTES} bytes", field="dedupe_key")


def check_fraction(value: object) -> float:
    """Return how far a task has come, if it can be that. Raises: BadRequest."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise BadRequest(f"fraction must be a number from 0 to 1, not {value!r:.80}", field="fraction")


def check_progress_text(value: object) -> str:
    """Return what a task says of its progress. Raises: BadRequest."""
    if isinstance(value, str) and len(value) <= MAX_PROGRESS_CHARS:
        return value
    raise BadRequest(f"text must be at most {MAX_PROGRESS_CHARS} characters", field="text")


class NewTask(NamedTuple):
    """A task to enqueue. Times in ms; 0 means none; `payload` is JSON text as bytes.

    Start: `delay_ms` after the store has it, or at `start_at_ms`. End: `expires_in_ms` or `expires_at_ms`, likewise.
    While another task of the tenant holds `dedupe_key` (until its end, or for `dedupe_period_ms`), it is a duplicate.
    Its result is kept for `result_ttl_ms` (0: not at all); `events`: what becomes of it is told in its tenant's feed;
    `batch` is the id of an open batch.
    """

    id: str
    payload: bytes
    delay_ms: int = 0
    start_at_ms: int = 0
    expires_in_ms: int = 0
    expires_at_ms: int = 0
    max_attempts: int = 0
    priority: int = DEFAULT_PRIORITY
    dedupe_key: str = ""
    dedupe_period_ms: int = 0
    result_ttl_ms: int = 0
    events: bool = False
    batch: str = ""

    @property
    def places(self) -> int:
        """How many of the places of a request it takes."""
        is_plain = self.priority == DEFAULT_PRIORITY and not (
            self.dedupe_key or self.result_ttl_ms or self.events or self.batch
        )
        return 1 if is_plain else SPECIAL_PLACES

    def check(self) -> None:
        """Refuse what no store would take. Raises: BadRequest, naming the field."""
        check_task_id(self.id)
        for what in ("delay_ms", "expires_in_ms", "dedupe_period_ms", "result_ttl_ms"):
            check_int(getattr(self, what), what, 0, MAX_SPAN_MS)
        for what in ("start_at_ms", "expires_at_ms"):
            check_int(getattr(self, what), what, 0, MAX_TIME_MS)
        check_int(self.max_attempts, "max_attempts", 0, MAX_ATTEMPTS)
        check_int(self.priority, "priority", 0, MAX_PRIORITY)
        check_dedupe_key(self.dedupe_key)
        check_flag(self.events, "events")
        if self.dedupe_period_ms and not self.dedupe_key:
            raise BadRequest("dedupe_period_ms is nothing without dedupe_key", field="dedupe_period_ms")
        if self.batch != "":
            check_batch_id(self.batch, "batch")
        if self.delay_ms and self.start_at_ms:
            raise BadRequest("give delay_ms or start_at_ms, not both", field="start_at_ms")
        if self.expires_in_ms and self.expires_at_ms:
            raise BadRequest("give expires_in_ms or expires_at_ms, not both", field="expires_at_ms")
        if self.expires_at_ms and self.start_at_ms >= self.expires_at_ms:
            raise BadRequest("the task would expire before it may start", field="expires_at_ms")
        if self.expires_in_ms and self.delay_ms >= self.expires_in_ms:
            raise BadRequest("the task would expire before it may start", field="expires_in_ms")


class Lease(NamedTuple):
    """A worker's right to a task; `payload` is JSON text as bytes.

    `(id, lease)` is the fence: the queue gives no other lease of the task this number, also if the id is used again.
    `attempt` counts how often the task was leased.
    """

    id: str
    lease: int
    attempt: int
    max_attempts: int
    tenant: str
    enqueued_at_ms: int
    start_at_ms: int
    expires_at_ms: int
    payload: bytes
    wants_result: bool = False


class Settlement(NamedTuple):
    """What becomes of one lease, which has this number; `delay_ms` (None: backoff) and `error`: of nack and reject.

    `result` belongs to ack: JSON text, kept if the task asked for it.
    """

    action: Action
    id: str
    lease: int
    delay_ms: int | None = None
    error: str = ""
    result: bytes = b""


@frozen
class Tick:
    """What one tick did, and when (in the store's ms) the next will find work; -1 when nothing waits.

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
    turns: int = 0
    ahead_ms: int = 0


@frozen
class QueueSettings:
    """What operators may change of a queue: name -> (lowest, highest) in RANGES; lua/KEYS.md tells the meanings."""

    share: str = "time"
    lease_ms: int = 30_000
    max_attempts: int = 5
    retry_base_ms: int = 1_000
    retry_cap_ms: int = 3_600_000
    dead_keep_ms: int = 14 * 86_400_000
    dead_keep: int = 100_000
    events_keep: int = 10_000
    reserve: int = 0  # per cent of the slots


SETTING_RANGES: dict[str, tuple[int, int]] = {
    "lease_ms": (100, 86_400_000),
    "max_attempts": (1, MAX_ATTEMPTS),
    "retry_base_ms": (1, 86_400_000),
    "retry_cap_ms": (1, 604_800_000),
    "dead_keep_ms": (1_000, 31_536_000_000),
    "dead_keep": (0, 10_000_000),
    "events_keep": (0, 1_000_000),
    "reserve": (0, 90),
}


def kept_slots(slots: int, reserve: int) -> int:
    """Tell how many slots are kept for tenants that have nothing running; never the last one (lua/11_reserve.lua)."""
    return max(0, min(-(-slots * reserve // 100), slots - 1))


def check_settings(changes: object) -> dict[str, str | int]:
    """Return changes of a queue's settings, each within its range. Raises: BadRequest, naming the setting."""
    if not isinstance(changes, dict) or not changes:
        raise BadRequest("settings must be an object with at least one setting", field="settings")
    for name, value in changes.items():
        if name == "share":
            if value not in SHARES:
                raise BadRequest(f"share must be one of {', '.join(SHARES)}", field="share")
        elif name in SETTING_RANGES:
            check_int(value, name, *SETTING_RANGES[name])
        else:
            raise BadRequest(f"there is no queue setting {name!r:.80}", field=str(name)[:80])
    return changes


@frozen
class Repair:
    """How far a repair is: `more`, `done` or `gone` (another call has ended it); what it looks at, what was mended."""

    outcome: str
    number: int
    doing: str
    mended: dict[str, int]


@frozen
class QueueState:
    """A queue's counts (tasks by state now, totals since the beginning), settings, and the tenant that made it."""

    queue: str
    ready: int
    held: int
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
    made_at_ms: int = 0  # 0: nobody has yet


@frozen
class TenantState:
    """A tenant's place in one queue.

    `delivered` and `entitled` are seconds of worker time, or tasks when the queue's share is `count`. It is closed
    while the clock is outside its opening hours, and spent while it has had what its rate allows.
    """

    tenant: str
    weight: float
    ready: int
    held: int
    delayed: int
    leased: int
    dead: int
    done: int
    delivered: float
    entitled: float
    is_paused: bool
    is_closed: bool
    is_spent: bool
    is_backlogged: bool
    is_limited: bool
    stored_bytes: int


@frozen
class WorkerState:
    """A worker that is attached to a server."""

    server: str
    worker: str
    queues: list[str]
    credit: int
    held: int
    attached_at_ms: int
    is_draining: bool


@frozen
class TaskState:
    """What the store knows of one task; `at_ms` is the start, the lease's deadline or the death, by state.

    `attempt` counts its leases so far; of a task that is done or cancelled it is not known any more.
    """

    id: str
    state: Literal["ready", "held", "delayed", "leased", "dead", "done", "cancelled", "unknown"]
    tenant: str = ""
    attempt: int = 0
    at_ms: int = 0
    worker: str = ""
    reason: str = ""
    error: str = ""
    progress: float = 0.0
    progress_text: str = ""


# What the tasks of a schedule may ask for; when they start is said by its fires, and a batch would end one day.
SCHEDULED = ("expires_in_ms", "max_attempts", "priority", "dedupe_key", "dedupe_period_ms", "result_ttl_ms", "events")


class Timing(NamedTuple):
    """When a schedule fires: by a cron expression in a time zone, or every so many ms."""

    cron: str = ""
    zone: str = ""
    every_ms: int = 0


@frozen
class ScheduleState:
    """A schedule of a tenant; `next_at_ms` counts unless it is paused.

    What its tasks are (from `expires_in_ms` on) is told of one that is asked for by name.
    """

    tenant: str
    name: str
    cron: str = ""
    zone: str = ""
    every_ms: int = 0
    misfire: str = "skip"
    is_paused: bool = False
    next_at_ms: int = 0
    last_fired_at_ms: int = 0
    expires_in_ms: int = 0
    max_attempts: int = 0
    priority: int = DEFAULT_PRIORITY
    dedupe_key: str = ""
    dedupe_period_ms: int = 0
    result_ttl_ms: int = 0
    events: bool = False
    payload: Any = None

    @property
    def timing(self) -> Timing:
        """When it fires."""
        return Timing(self.cron, self.zone, self.every_ms)


@frozen
class BatchState:
    """How far a batch is: the tasks that were added, those that run, and how the others ended."""

    id: str
    state: Literal["open", "closed", "complete"]
    tenant: str
    max_running: int
    total: int
    running: int
    done: int
    dead: int
    cancelled: int
    created_at_ms: int
    completed_at_ms: int

    @property
    def waiting(self) -> int:
        """How many tasks have yet to run, or to run again."""
        return self.total - self.running - self.done - self.dead - self.cancelled


@frozen
class Event:
    """Something that became of a task, or of a batch, which had asked that it be told.

    `detail`: of a failed attempt its error, or `lease_lost`; of a dead letter its reason.
    """

    id: int
    event: Literal["failed", "done", "dead", "expired", "cancelled", "batch_completed"]
    at_ms: int
    task: str = ""
    batch: str = ""
    attempt: int = 0
    detail: str = ""


@frozen
class EventPage:
    """Events of a feed, oldest first.

    `oldest` and `newest`: the ids that the feed keeps; when it keeps none, the next that will be given and the last
    that was (0: none yet).
    """

    oldest: int
    newest: int
    events: list[Event]

    def check(self, after: int) -> None:
        """Refuse to go on after an event if the next has gone, or if there was none. Raises: TooOld, BadRequest."""
        if after > self.newest:
            raise BadRequest(f"the newest event is {self.newest}; there is no event {after}", field="after")
        if 0 < after < self.oldest - 1:
            gone = f"what came after event {after} is not kept any more"
            raise TooOld(f"{gone}; the feed goes on from event {self.oldest}, which `after` 0 reads", field="after")


@frozen
class WaitingTask:
    """A ready task, as `peek` shows it."""

    id: str
    enqueued_at_ms: int
    start_at_ms: int
    expires_at_ms: int
    payload: Any


@frozen
class DeadLetter:
    """A task that will not run again unless it is replayed; brief listings end with `error`."""

    id: str
    tenant: str
    reason: str
    attempts: int
    died_at_ms: int
    error: str
    enqueued_at_ms: int = 0
    start_at_ms: int = 0
    expires_at_ms: int = 0
    payload: Any = None


@frozen
class DeadFilter:
    """Which dead letters: None and 0 mean any. Ages are by the store's clock, when a walk over the letters begins."""

    tenant: str | None = None
    reason: str | None = None
    error: str | None = None
    older_than_ms: int = 0
    younger_than_ms: int = 0

    def check(self) -> None:
        """Refuse what can match nothing, and what is empty by mistake. Raises: BadRequest, naming the field."""
        if self.tenant is not None:
            check_name(self.tenant, "tenant")
        if self.reason not in (None, *REASONS):
            raise BadRequest(f"reason must be one of {', '.join(REASONS)}, not {self.reason!r:.80}", field="reason")
        if self.error is not None and not (isinstance(self.error, str) and 1 <= len(self.error) <= MAX_SEARCH_CHARS):
            raise BadRequest(f"error must be text of 1 to {MAX_SEARCH_CHARS} characters", field="error")
        check_int(self.older_than_ms, "older_than_ms", 0, MAX_SPAN_MS)
        check_int(self.younger_than_ms, "younger_than_ms", 0, MAX_SPAN_MS)
        if 0 < self.younger_than_ms <= self.older_than_ms:
            raise BadRequest("no letter is older and younger than that", field="younger_than_ms")


@frozen
class DeadPage:
    """A page of dead letters, oldest first; `left` are still to be looked at, from `cursor` on (empty at the end)."""

    letters: list[DeadLetter]
    cursor: str
    left: int
