"""Tasks: what is asked of one, its lease, how that ends, and what is known of it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from attrs import frozen

from fairq.errors import BadRequest
from fairq.model.checks import MAX_SPAN_MS, MAX_TIME_MS, check_batch_id, check_flag, check_int, check_task_id

MAX_ATTEMPTS = 1_000
DEFAULT_PRIORITY, MAX_PRIORITY = 50, 99  # 0 is the most urgent
MAX_KEY_BYTES = 255  # of a dedupe key
MAX_LEASE = (1 << 53) - 1  # the number of a lease
SPECIAL_PLACES = 3  # of these, for a task that asks for what few tasks ask for: the store takes that much longer
MAX_RESULT_BYTES = 1 << 18
MAX_PROGRESS_CHARS = 200
Action = Literal["ack", "nack", "reject", "release", "reap", "extend", "take"]
Outcome = Literal["ok", "expired", "gone", "stale", "running", "cancelled"]
ACTIONS: tuple[Action, ...] = (
    "ack",
    "nack",
    "reject",
    "release",
    "extend",
)  # those of a worker; the server also reaps and takes


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


@frozen
class WaitingTask:
    """A ready task, as `peek` shows it."""

    id: str
    enqueued_at_ms: int
    start_at_ms: int
    expires_at_ms: int
    payload: Any
