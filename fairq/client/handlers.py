"""Handlers: running them, and settling their tasks.

The worker runs them for the service, `fairq.testing` runs them in memory; both by `perform`.
"""

from __future__ import annotations

import sys
from asyncio import Future
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from anyio import get_cancelled_exc_class

from fairq.client.bodies import encode_payload
from fairq.client.kinds import Handler, NoHandler
from fairq.client.links import Links
from fairq.client.task import Postpone, Reject, Retry, Task
from fairq.client.threads import Threads
from fairq.client.timeouts import TimedOut
from fairq.client.tracebacks import own_frames, traceback_of
from fairq.client.typed import Misfit
from fairq.errors import BadRequest, TooLarge
from fairq.io import forks
from fairq.io.event_loop import is_cancellation, is_cancelled
from fairq.io.exception_groups import leaves, unwrap
from fairq.io.interrupts import bearing_its_own_code, is_of_signal
from fairq.log import Log
from fairq.model.checks import MAX_ERROR_CHARS, bare_id
from fairq.model.tasks import MAX_RESULT_BYTES, Settlement, is_last_attempt
from fairq.wire.frames import PushedTask
from fairq.wire.raw_payloads import Unreadable

if TYPE_CHECKING:
    from fairq.client.links import Enqueue

log = Log("fairq.worker")

ReportProgress = Callable[[str, PushedTask, float, str], None]
ReadBatchResults = Callable[[str, PushedTask, str | None], Awaitable[Any]]

_HAS_NOT_RUN = (CoroutineType, GeneratorType, AsyncGeneratorType, Future)
_VERDICTS = (Retry, Postpone, Reject)
_FOUND = (Misfit, NoHandler, TimedOut)  # raised by the SDK: the place does not matter


def settlement_of(task: PushedTask, error: BaseException) -> Settlement:
    """Decide how a lease ends after its handler raised. Only a final failure keeps its traceback, which is costly.

    A verdict that the handler raised has one only if it was raised from another exception, or together with one.
    """
    causes = leaves(error)
    settlement = _verdict_on(task, error, min(map(_as_raised, causes), key=_rank))
    if outcome_of(task, settlement) != "dead" or all(map(_is_bare_verdict, causes)):
        return settlement
    return settlement._replace(traceback=traceback_of(error))


def _as_raised(error: BaseException) -> BaseException:
    """Return the StopIteration that the handler raised: Python ends no coroutine by it, but by a RuntimeError."""
    if type(error) is not RuntimeError or not isinstance(error.__cause__, StopIteration):
        return error
    return error.__cause__ if _text_of(error).endswith("raised StopIteration") else error


def _rank(cause: BaseException) -> int:
    """Rank the exceptions of one group: the lowest decides. Another error fails a task that would be postponed."""
    match cause:
        case Reject() | Misfit():
            return 0
        case Retry():
            return 1
        case Postpone():
            return 3
    return 4 if is_cancellation(cause) else 2  # others' failures cancel


def _is_bare_verdict(cause: BaseException) -> bool:
    return isinstance(cause, _VERDICTS) and cause.__cause__ is None


def _verdict_on(task: PushedTask, error: BaseException, cause: BaseException) -> Settlement:
    """Decide how a lease ends by the cause that ranks first: the one table of failures."""
    match cause:
        case Retry(delay_ms=delay_ms):
            return Settlement("nack", task.id, task.lease, delay_ms, _reason_of(cause))
        case Postpone(delay_ms=delay_ms):
            return Settlement("release", task.id, task.lease, delay_ms, _reason_of(cause))
        case Reject() | Misfit():
            return Settlement("reject", task.id, task.lease, None, _reason_of(cause))
        case TimedOut():
            return Settlement("nack", task.id, task.lease, None, f"timeout: {cause}")
        case _:
            text = f"{type(cause).__name__}: {_text_of(cause)}"
            if isinstance(group := unwrap(error), BaseExceptionGroup):
                text = f"{type(group).__name__}: {group.message:.200}; of {len(leaves(group))} the first is {text}"
            return Settlement("nack", task.id, task.lease, None, text[:MAX_ERROR_CHARS])


def _reason_of(verdict: BaseException) -> str:
    return _text_of(verdict) or f"{type(verdict).__name__} without a reason"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_ERROR_CHARS]
    except BaseException as failure:  # in the error's own code
        if is_of_signal(failure):
            raise
        return f"(its text raised {type(failure).__name__})"


def outcome_of(task: PushedTask, settlement: Settlement) -> str:
    """Return the state of a task after a settlement: `done`, `retry`, `postponed` or `dead`."""
    if settlement.action == "ack":
        return "done"
    if settlement.action == "release":
        return "postponed"
    is_over = settlement.action == "reject" or is_last_attempt(task.attempt, task.max_attempts)
    return "dead" if is_over else "retry"


def encode_result(task: Task, value: Any) -> bytes:
    """Write a handler's result as JSON. Raises: Reject if it cannot be kept."""
    try:
        return encode_payload(value, "result", MAX_RESULT_BYTES)
    except (BadRequest, TooLarge) as error:
        log.warning(
            "result refused", task=task.id, queue=task.queue, tenant=task.tenant, attempt=task.attempt,
            error=error.message,
        )  # fmt: skip
        raise Reject(error.message) from None


def _split(raised: BaseException, is_cancelled: bool) -> tuple[BaseException | None, BaseException | None]:
    """Separate a handler's exception from the worker's end, its cancellation or a signal's exception; one may be None.

    All other exceptions are the handler's own, even a KeyboardInterrupt or a CancelledError.
    """

    def is_end(error: BaseException) -> bool:
        if isinstance(error, Exception):
            return False
        return is_of_signal(error) or (is_cancelled and isinstance(error, GeneratorExit | get_cancelled_exc_class()))

    causes = leaves(raised)
    ends = [each for each in causes if is_end(each)]
    if not ends:
        return raised, None
    return (None, raised) if len(ends) == len(causes) else (raised, unwrap(BaseExceptionGroup("the end", ends)))


def _log_failure(task: Task, error: BaseException, settlement: Settlement) -> None:
    """Log the failure of a task, with its traceback if it is the handler's; a verdict is not a failure."""
    causes, how = leaves(error), dict[str, Any]()
    if all(isinstance(each, _VERDICTS) for each in causes):
        return
    if all(isinstance(each, _VERDICTS + _FOUND) for each in causes):
        how["error"] = settlement.error
    else:
        frames = own_frames(error.__traceback__) or error.__traceback__  # of a fault of ours, all
        how["exc_info"] = BaseException.with_traceback(error, frames)  # its own may raise
    log.warning("task failed", task=task.id, queue=task.queue, tenant=task.tenant, attempt=task.attempt, **how)


async def perform(
    handler: Handler,
    queue: str,
    pushed: PushedTask,
    threads: Threads,
    report: ReportProgress,
    enqueue: Enqueue,
    read_results: ReadBatchResults,
    run_timeout_s: float = inf,
    is_cancelled: Callable[[], bool] = is_cancelled,
) -> tuple[Settlement, BaseException | None]:
    """Run a handler; returns the settlement of its task, and the exception that it raised.

    Whatever it raised has failed its task, unless the worker's own end came through it: see `_split`. Then that is
    raised, whatever else came with it.

    `report(queue, pushed, fraction, text)` gets its progress; `enqueue(queue, pushed, target, task)` stores a task;
    `read_results(queue, pushed, cursor)` reads a page of the results of the batch for which it calls back;
    `run_timeout_s` is the queue's; `is_cancelled()` returns whether the worker is, or has lost this lease.
    """
    seen = handler.retries.limit(pushed)
    links = Links(queue, pushed.id, pushed.enqueued_at_ms, partial(enqueue, queue, pushed))
    task = Task(
        bare_id(pushed.id), queue, pushed.tenant, pushed.attempt, seen.max_attempts, pushed.payload,
        pushed.enqueued_at_ms, pushed.start_at_ms, pushed.expires_at_ms, pushed.wants_result, pushed.name,
        pushed.webhook, partial(report, queue, pushed), links, partial(read_results, queue, pushed),
    )  # fmt: skip
    try:
        if isinstance(pushed.payload, Unreadable):
            raise Reject(f"the payload is not JSON: {pushed.payload.error}")
        try:
            value = await handler.run(task, threads, run_timeout_s)
        finally:  # as `forks.OwnProcess`, without its calls
            if forks.is_child:
                forks.end(sys.exception())
        if isinstance(value, _HAS_NOT_RUN):  # a plain decorator around `async def`, for instance
            if isinstance(value, CoroutineType):
                value.close()
            raise TypeError(f"{handler.title} returned a {type(value).__name__}, which nothing runs")
        if links.unawaited:
            raise TypeError(f"{handler.title} called task.enqueue without `await`")
        result = encode_result(task, value) if pushed.wants_result else b""
        return Settlement("ack", pushed.id, pushed.lease, None, "", result, links.close()), None
    except BaseException as raised:
        error: BaseException | None = raised
        end: BaseException | None = None
        settlement = Settlement("nack", pushed.id, pushed.lease, None, "an error that cannot be encoded")
        try:
            with bearing_its_own_code():
                error, end = _split(raised, is_cancelled())
            if error is None:
                raise
            with bearing_its_own_code():
                settlement = settlement_of(seen, error)
            with bearing_its_own_code():
                _log_failure(task, error, settlement)
            if end is not None:
                raise end from None
            links.close()
            return handler.retries.settle(pushed, settlement), error
        finally:
            del error, end  # a traceback has this frame
