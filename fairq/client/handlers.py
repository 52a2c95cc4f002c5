"""Handlers: what they get, what they may return and raise, and what becomes of their task.

The worker runs them for the service, `fairq.testing` runs them in memory; both by `perform`.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Any, Generic, Unpack

import anyio
from attrs import field, frozen
from typing_extensions import TypeVar

from fairq.client import signatures
from fairq.client.kinds import Handler, NoHandler
from fairq.client.links import Enqueue, Links, links_of
from fairq.client.runtime import is_cancelled
from fairq.client.shown_as import shown_as
from fairq.client.threads import Threads
from fairq.client.timeouts import TimedOut
from fairq.client.tracebacks import traceback_of
from fairq.client.typed import Misfit
from fairq.client.verbs import encode_payload
from fairq.errors import BadRequest, TooLarge
from fairq.log import Log
from fairq.model.checks import MAX_ERROR_CHARS, bare_id
from fairq.model.options import Seconds, TaskOptions, to_ms
from fairq.model.tasks import MAX_RESULT_BYTES, Settlement, check_fraction, check_progress_text, is_last_attempt
from fairq.wire.beside import Unreadable
from fairq.wire.frames import PushedTask

log = Log("fairq.worker")

P = TypeVar("P", default=Any)


class Retry(Exception):
    """Raised by a handler: try this task again, after `delay` seconds (none: the queue's backoff)."""

    def __init__(self, reason: str = "", *, delay: Seconds | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = None if delay is None else to_ms(delay, "delay")


class Postpone(Exception):
    """Raised by a handler: try this task again after `delay` seconds, and do not count this attempt."""

    def __init__(self, reason: str = "", *, delay: Seconds) -> None:
        super().__init__(reason)
        self.delay_ms = to_ms(delay, "delay")


class Reject(Exception):
    """Raised by a handler: this task can never succeed; it becomes a dead letter at once."""


def _moment(ms: int | None) -> datetime | None:
    return None if not ms else datetime.fromtimestamp(ms / 1000, UTC)


@frozen
class Task(Generic[P]):
    """What a handler gets. `payload` is the decoded JSON value; `attempt` counts up from 1 with every lease.

    A failure of attempt `max_attempts` is final; 0: of none. Where a handler is annotated `Task[Welcome]`, the payload
    is made a `Welcome`: an attrs class, dataclass or TypedDict. The task of a payload that does not fit is rejected;
    keys that the class does not have are ignored.
    """

    id: str
    queue: str
    tenant: str
    attempt: int
    max_attempts: int
    payload: P
    enqueued_at_ms: int
    start_at_ms: int | None = None
    expires_at_ms: int | None = None
    wants_result: bool = False  # what the handler returns is kept; a dead letter if it is no JSON, or over 256 KiB
    name: str = ""  # what kind of task it is, as its caller named it
    webhook: str = ""  # the id of the webhook that it is for
    _report: Callable[[float, str], None] = field(default=lambda *_: None, repr=False, eq=False)
    _links: Links = field(factory=Links, repr=False, eq=False)

    async def progress(self, fraction: float, text: str = "") -> None:
        """Say how far the handler has come, 0 to 1; `EnqueuedTask.state` tells it while the handler runs.

        As often as you like: at most once a second the newest is sent. From a thread: `anyio.from_thread.run`.
        """
        self._report(check_fraction(fraction), check_progress_text(text))
        await anyio.lowlevel.checkpoint()

    @shown_as(signatures.Task.enqueue)
    async def enqueue(self, queue: str, payload: Any, *, id: str | None = None, **options: Unpack[TaskOptions]) -> str:
        """Enqueue a task for the same tenant, now; returns its id, or that of the task which is there already.

        A later attempt that calls it again makes no second task: without an `id` of yours, the new task's is made from
        this task and the number of the call among those with this queue, `then` included. So a handler that may call it
        in another order the next time, or with other payloads, must give ids. What it enqueued is remembered until
        this task is done or dead (the first 1,000 of it; the rest a minute after it ended).
        From a thread: `anyio.from_thread.run(task.enqueue, queue, payload)`.
        Raises: as `Client.enqueue`; Forbidden when the lease is lost, or the worker's token may not use the queue.
        """
        return await self._links.send(queue, payload, id, options)

    @shown_as(signatures.Task.then)
    def then(self, queue: str, payload: Any, *, id: str | None = None, **options: Unpack[TaskOptions]) -> str:
        """Have a task enqueued for the same tenant if this attempt succeeds, and only then; returns its id.

        It leaves with the acknowledgement: in this queue with it, in another one a moment later; neither without the
        other. At most 16, of 1 MiB together; without a batch. What the other queue refuses is tried again for a day if
        it may be taken later; else it becomes a dead letter of this queue, `undelivered`. Also from threads.
        Raises: BadRequest (also for an `id` that is this task's own, or of an earlier call with this queue), TooLarge.
        """
        return self._links.add(queue, payload, id, options)

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure of this attempt is final."""
        return is_last_attempt(self.attempt, self.max_attempts)

    @property
    def enqueued_at(self) -> datetime:
        """When the service took the task over."""
        return datetime.fromtimestamp(self.enqueued_at_ms / 1000, UTC)

    @property
    def start_at(self) -> datetime | None:
        """Its earliest start, if one was asked for."""
        return _moment(self.start_at_ms)

    @property
    def expires_at(self) -> datetime | None:
        """Its expiry, if one was asked for: it does not start from then on."""
        return _moment(self.expires_at_ms)


Function = Callable[[Task[Any]], Any]
Report = Callable[[str, PushedTask, float, str], None]


def settlement_of(task: PushedTask, error: BaseException | None, result: bytes = b"") -> Settlement:
    """Decide what becomes of a lease. Of a final failure it has the traceback, so that retries cost no more.

    A verdict that the handler raised has one only if it was raised from something.
    """
    settlement = _verdict_on(task, error, result)
    if error is None or outcome_of(task, settlement) != "dead":
        return settlement
    if isinstance(error, Retry | Reject) and error.__cause__ is None:
        return settlement
    return settlement._replace(traceback=traceback_of(error))


def _verdict_on(task: PushedTask, error: BaseException | None, result: bytes) -> Settlement:
    """Decide what becomes of a lease: the one table of outcomes."""
    match error:
        case None:
            return Settlement("ack", task.id, task.lease, None, "", result)
        case Retry(delay_ms=delay_ms):
            return Settlement("nack", task.id, task.lease, delay_ms, _text_of(error))
        case Postpone(delay_ms=delay_ms):
            return Settlement("postpone", task.id, task.lease, delay_ms, _text_of(error))
        case Reject() | Misfit():
            return Settlement("reject", task.id, task.lease, None, _text_of(error))
        case TimedOut():
            return Settlement("nack", task.id, task.lease, None, f"timeout: {error}")
        case _:
            text = f"{type(error).__name__}: {_text_of(error)}"[:MAX_ERROR_CHARS]
            return Settlement("nack", task.id, task.lease, None, text)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_ERROR_CHARS]
    except Exception as failure:  # in the error's own code
        return f"(its text raised {type(failure).__name__})"


def outcome_of(task: PushedTask, settlement: Settlement) -> str:
    """Say what a settlement makes of its task: `done`, `retry`, `postponed` or `dead`."""
    if settlement.action == "postpone":
        return "postponed"
    if settlement.action == "nack" and not is_last_attempt(task.attempt, task.max_attempts):
        return "retry"
    return "done" if settlement.action == "ack" else "dead"


def encode_result(task: Task, value: Any) -> bytes:
    """Write what a handler returned as JSON. Raises: Reject if it cannot be kept."""
    try:
        return encode_payload(value, "result", MAX_RESULT_BYTES)
    except (BadRequest, TooLarge) as error:
        log.warning(
            "result refused", task=task.id, queue=task.queue, tenant=task.tenant, attempt=task.attempt,
            error=error.message,
        )  # fmt: skip
        raise Reject(error.message) from None


def _failed(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Part what a handler raised into its failure, and what is not its own: that it was cancelled, or ctrl-C."""
    if isinstance(error, BaseExceptionGroup):
        return error.split((Exception, SystemExit))
    return error, None


async def perform(
    handler: Handler,
    queue: str,
    pushed: PushedTask,
    threads: Threads,
    report: Report,
    enqueue: Enqueue,
    run_timeout_s: float = inf,
) -> tuple[Settlement, BaseException | None]:
    """Run a handler; returns what becomes of its task, and what it raised: also `sys.exit` is a failure.

    Cancelled: it did not end, whatever else it may have raised meanwhile.

    `report(queue, pushed, fraction, text)` is told of its progress; `enqueue(queue, pushed, target, task)` stores one;
    `run_timeout_s` is the queue's.
    """
    links = links_of(enqueue, queue, pushed)
    task = Task(
        bare_id(pushed.id), queue, pushed.tenant, pushed.attempt, pushed.max_attempts, pushed.payload,
        pushed.enqueued_at_ms, pushed.start_at_ms, pushed.expires_at_ms, pushed.wants_result, pushed.name,
        pushed.webhook, partial(report, queue, pushed), links,
    )  # fmt: skip
    failed = partial(log.warning, "task failed", task=task.id, queue=queue, tenant=task.tenant, attempt=task.attempt)
    result = b""
    error: BaseException | None = None
    try:
        if isinstance(pushed.payload, Unreadable):
            raise Reject(f"the payload is not JSON: {pushed.payload.error}")
        value = await handler.run(task, threads, run_timeout_s)
        if task.wants_result:
            result = encode_result(task, value)
    except (Retry, Postpone, Reject) as verdict:
        error = verdict
    except (Misfit, NoHandler, TimedOut) as failure:
        error = failure
        failed(error=settlement_of(pushed, failure).error)
    except CancelledError as failure:
        if is_cancelled():
            raise
        error = failure  # of another task, for which the handler waited
        failed(exc_info=failure)
    except (Exception, SystemExit, BaseExceptionGroup) as failure:
        error, rest = _failed(failure)
        if error is not None:
            failed(exc_info=error)
        if rest is not None:
            raise rest from None
    settlement, found = settlement_of(pushed, error, result), links.close()
    return settlement._replace(links=found) if error is None and found else settlement, error
