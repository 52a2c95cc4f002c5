"""Tasks: the options of one, its lease, how that ends, and its state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints

from attrs import evolve, frozen

from fairq.errors import BadRequest, TooLarge
from fairq.model.checks import BATCH_ID_PATTERN, MAX_ERROR_CHARS, MAX_TRACEBACK_BYTES, check_batch_id
from fairq.model.rules import (
    BAD_BATCHES,
    FLAG,
    FULL_ID,
    LEASE,
    MOMENT,
    SPAN,
    TASK_ID,
    Rule,
    check_fields,
    matching,
    number,
    one_of,
    or_empty,
    pattern,
    text,
    whole,
)

MAX_ATTEMPTS = 1_000
DEFAULT_PRIORITY, MAX_PRIORITY = 50, 99  # 0 is the most urgent
MAX_KEY_BYTES = 255  # of a dedupe key
MAX_NAME_BYTES = 128  # of a task, or a group
TRACE_PATTERN = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
_FIRST_LEASE_MS, _LEASES_PER_MS = 1_735_689_600_000, 32
RARE_COUNTS = 3  # tasks that one with rare options counts as, in a request: the store takes that much longer
MAX_LEASES = 150  # of one claim (LEASES_PER_CALL in lua/verbs/claim.lua)
MAX_RESULT_BYTES = 1 << 18
MAX_PROGRESS_CHARS = 200
NO_ROOM = "stored_bytes"  # the limit for which a result was dropped
MAX_LINKS, MAX_LINKS_BYTES = 16, 1 << 20  # of one acknowledgement; the bytes of their payloads
Action = Literal["ack", "nack", "reject", "release", "reap", "lose", "lose_alone", "extend", "take"]
Outcome = Literal["ok", "expired", "gone", "stale", "running", "cancelled", "quota_exceeded", "batch_gone"]
ACTIONS: tuple[Action, ...] = ("ack", "nack", "reject", "release", "extend")  # all others are the server's


def leased_at_ms(lease: int) -> int:
    """Return when a lease began, by the store's clock; its number says that (lua/tasks/leases.lua)."""
    return _FIRST_LEASE_MS + lease // _LEASES_PER_MS


def first_lease_at(now_ms: int) -> int:
    """Return the lowest number of a lease that begins at a time."""
    return (now_ms - _FIRST_LEASE_MS) * _LEASES_PER_MS


def _check_traceback(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"{field} must be text", field=field)
    if len(value) > MAX_TRACEBACK_BYTES or len(value.encode()) > MAX_TRACEBACK_BYTES:
        raise TooLarge(f"{field} has more than {MAX_TRACEBACK_BYTES} bytes", field=field)
    return value


def printable(most: int) -> Rule:
    """Return the rule of printable text of at most this number of bytes; it may be empty."""

    def check(value: Any, field: str) -> str:
        if isinstance(value, str) and value.isprintable() and len(value.encode()) <= most:
            return value
        raise BadRequest(f"{field} must be printable text of at most {most} bytes", field=field)

    schema = {"type": "string", "maxLength": most}
    return Rule(check, schema, ("x" * (most + 1), "é" * (most // 2 + 1), "a\nb", "\x00"))


FRACTION = number(0, 1)
PROGRESS_TEXT = text(0, MAX_PROGRESS_CHARS)
ATTEMPTS = whole(0, MAX_ATTEMPTS)  # 0: no limit
PRIORITY = whole(0, MAX_PRIORITY)
DEDUPE_KEY = printable(MAX_KEY_BYTES)
SHORT_NAME = printable(MAX_NAME_BYTES)  # of a task, or a group
ACTION = one_of(*ACTIONS)
ERROR = text(0, MAX_ERROR_CHARS)
TRACEBACK = evolve(text(0, MAX_TRACEBACK_BYTES), check=_check_traceback)
TASKS_BATCH = or_empty(Rule(check_batch_id, pattern(BATCH_ID_PATTERN), BAD_BATCHES))
TRACE = or_empty(
    matching(
        TRACE_PATTERN,
        "a traceparent, 00-<32 hex>-<16 hex>-<2 hex>",
        *("x", "00-1-2-01", f"00-{'0' * 32}-{'2' * 16}-01", f"ff-{'1' * 32}-{'2' * 16}-01"),
    )
)


def two_starts() -> BadRequest:
    """Make the refusal of a task with two starts."""
    return BadRequest("give delay_ms or start_at_ms, not both", field="start_at_ms")


def is_last_attempt(attempt: int, max_attempts: int) -> bool:
    """True if a failure of this attempt is final; a limit of 0 means none."""
    return 0 < max_attempts <= attempt


_Class = TypeVar("_Class")
_ENDS = ("expires_in_ms", "expires_at_ms", "expires_after_start_ms")  # of a window
_TOO_SOON = "the task would expire before it may start; expires_after_start_ms counts from the start"
_RARE = "rare"  # a task that asks for it counts as RARE_COUNTS tasks
_OWN = "own"  # of each task: not one of a schedule's options


class NewTask(NamedTuple):
    """A task to enqueue, and the table of all options. Times in ms; None, 0 and empty texts mean none, but
    0 is the most urgent `priority`, and no limit of attempts.

    The wire has these fields by these names; the SDK's options are named without `_ms`, and in seconds; the store packs
    them as OPTIONS (lua/base/formats.lua). Each is annotated with what checks it.

    - `payload` is JSON text; the worker gets `name`, the kind of task, and `trace`, the span that enqueued it.
    - Start: `delay_ms` after the store has it, or at `start_at_ms`. End: `expires_in_ms` or `expires_at_ms`, likewise,
      or `expires_after_start_ms` after the start.
    - While another task of the tenant holds `dedupe_key` (until its end, or for `dedupe_period_ms`), it is a duplicate.
      With `replace` that task is cancelled, if it waits in no batch, and this one has the key.
    - The result is kept for `result_ttl_ms`; with `events` the tenant's feed has events about the task.
    - `batch` is the id of an open batch, and its group unless `group` names another; a tenant's groups take turns.
    """

    id: Annotated[str, TASK_ID]
    payload: bytes
    delay_ms: Annotated[int, SPAN, _OWN] = 0
    start_at_ms: Annotated[int, MOMENT, _OWN] = 0
    expires_in_ms: Annotated[int | None, SPAN] = None
    expires_at_ms: Annotated[int | None, MOMENT, _OWN] = None
    expires_after_start_ms: Annotated[int | None, SPAN] = None
    max_attempts: Annotated[int | None, ATTEMPTS] = None  # the queue's; 0: no limit
    priority: Annotated[int, PRIORITY, _RARE] = DEFAULT_PRIORITY
    dedupe_key: Annotated[str, DEDUPE_KEY, _RARE] = ""
    dedupe_period_ms: Annotated[int, SPAN] = 0
    replace: Annotated[bool, FLAG, _OWN] = False
    result_ttl_ms: Annotated[int, SPAN, _RARE] = 0
    retry_base_ms: Annotated[int | None, SPAN, _RARE] = None  # the queue's
    retry_cap_ms: Annotated[int | None, SPAN, _RARE] = None  # the queue's
    events: Annotated[bool, FLAG, _RARE] = False
    batch: Annotated[str, TASKS_BATCH, _RARE, _OWN] = ""
    group: Annotated[str, SHORT_NAME, _RARE] = ""
    name: Annotated[str, SHORT_NAME, _OWN] = ""
    trace: Annotated[str, TRACE, _OWN] = ""

    @property
    def counts(self) -> int:
        """How many tasks of a request it counts as."""
        return RARE_COUNTS if self.has_rare_options else 1

    @property
    def has_rare_options(self) -> bool:
        """True if it has any of RARE_OPTIONS."""
        return self[2:] != NO_OPTIONS and any(getattr(self, name) != OPTIONS[name] for name in RARE_OPTIONS)

    def check(self) -> None:
        """Refuse a task that no store would take. Raises: BadRequest, naming the field."""
        check_fields(self)
        if self.dedupe_period_ms and not self.dedupe_key:
            raise BadRequest("dedupe_period_ms needs dedupe_key", field="dedupe_period_ms")
        if self.replace and not self.dedupe_key:
            raise BadRequest("replace needs dedupe_key", field="replace")
        if self.replace and self.batch:
            raise BadRequest("a task of a batch cannot replace another", field="replace")
        if self.delay_ms and self.start_at_ms:
            raise two_starts()
        if len(ends := [name for name in _ENDS if getattr(self, name)]) > 1:
            raise BadRequest(f"give {ends[0]} or {ends[1]}, not both", field=ends[1])
        if self.expires_at_ms and self.start_at_ms >= self.expires_at_ms:
            raise BadRequest(_TOO_SOON, field="expires_at_ms")
        if self.expires_in_ms and self.delay_ms >= self.expires_in_ms:
            raise BadRequest(_TOO_SOON, field="expires_in_ms")


OPTIONS: dict[str, Any] = NewTask._field_defaults  # the options of a task, and their defaults
NO_OPTIONS = tuple(OPTIONS.values())  # `task[2:]` of a task without options
_HINTS = {name: hint for name, hint in get_type_hints(NewTask, include_extras=True).items() if name in OPTIONS}
RARE_OPTIONS = tuple(name for name, hint in _HINTS.items() if _RARE in hint.__metadata__)
SCHEDULED = tuple(name for name, hint in _HINTS.items() if _OWN not in hint.__metadata__)


def _with_options(kind: type[_Class]) -> type[_Class]:
    """Give a class the fields SCHEDULED, as NewTask declares them."""
    for name in SCHEDULED:
        kind.__annotations__[name] = _HINTS[name]
        setattr(kind, name, OPTIONS[name])
    return kind


@frozen(kw_only=True, slots=False)  # a base class among several
@_with_options
class ScheduledOptions:
    """The options of a schedule's tasks, as in NewTask; each fire sets the rest."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Lease(NamedTuple):
    """A worker's right to a task; `payload` is JSON text as bytes.

    `(id, lease)` is the fence: the queue gives no other lease of the task this number, also if the id is used again.
    `attempt` counts how often the task was leased; a failure of attempt `max_attempts` is final (0: no limit). Of the
    earlier attempts, `uncounted_attempts` did not count.
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
    name: str = ""
    webhook: str = ""
    trace: str = ""
    uncounted_attempts: int = 0
    is_guaranteed: bool = False  # it was within its tenant's guarantee when it began


class Link(NamedTuple):
    """A task that an acknowledgement enqueues in a queue, for the tenant of the task that it ends."""

    queue: str
    task: NewTask


def check_links(links: Sequence[Link]) -> None:
    """Refuse links that no acknowledgement may carry. Raises: BadRequest, TooLarge."""
    if len(links) > MAX_LINKS:
        raise TooLarge(f"an acknowledgement has at most {MAX_LINKS} links", field="links")
    if sum(len(link.task.payload) for link in links) > MAX_LINKS_BYTES:
        raise TooLarge(
            f"the links of an acknowledgement have at most {MAX_LINKS_BYTES} bytes of payloads", field="links"
        )
    if len({(link.queue, link.task.id) for link in links}) < len(links):
        raise BadRequest("links must not repeat a task", field="id")
    if any(link.task.batch for link in links):
        raise BadRequest("a link cannot join a batch: use enqueue", field="batch")


class Taken(NamedTuple):
    """The outcome for a lease that another connection takes over: how often it was taken, how long it still lasts."""

    outcome: str
    times: int
    lasts_ms: int


class Settlement(NamedTuple):
    """The end or extension of the lease with this number.

    `delay_ms`: of nack (None: backoff) and release (None: at once); `error`: of these and of reject.

    `result` and `links` belong to ack: JSON text, kept if the task asked for it; and tasks that are enqueued with it.

    `traceback` belongs to nack and reject, and is kept with the dead letter if the task dies.
    """

    action: Annotated[Action, ACTION]
    id: Annotated[str, FULL_ID]
    lease: Annotated[int, LEASE]
    delay_ms: Annotated[int | None, SPAN] = None
    error: Annotated[str, ERROR] = ""
    result: bytes = b""
    links: tuple[Link, ...] = ()
    traceback: Annotated[str, TRACEBACK] = ""


@frozen
class TaskState:
    """The state of one task; depending on it, `at_ms` is since when it is ready, its start, deadline or death.

    `attempt` counts its leases so far, `lost_leases` those that were lost with their worker's process. Both are unknown
    after the task is done or cancelled.
    """

    id: str
    state: Literal["ready", "pending", "delayed", "leased", "dead", "done", "cancelled", "unknown"]
    tenant: str = ""
    attempt: int = 0
    at_ms: int = 0
    worker: str = ""
    reason: str = ""
    error: str = ""
    progress: float = 0.0
    progress_text: str = ""
    lost_leases: int = 0


@frozen
class WaitingTask:
    """A ready task, as `peek` shows it."""

    id: str
    enqueued_at_ms: int
    start_at_ms: int
    expires_at_ms: int
    payload: Any
    name: str = ""
    webhook: str = ""
