"""Handlers: how they are run, and what becomes of their task.

The worker runs them for the service, `fairq.testing` runs them in memory; both by `perform`.
"""

from __future__ import annotations

import sys
from asyncio import Future
from collections.abc import Callable
from functools import partial
from math import inf
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from anyio import get_cancelled_exc_class

from fairq.client import forks
from fairq.client.bodies import encode_payload
from fairq.client.interrupts import is_of_signal
from fairq.client.kinds import Handler, NoHandler
from fairq.client.links import Links
from fairq.client.runtime import is_cancelled
from fairq.client.task import Postpone, Reject, Retry, Task
from fairq.client.threads import Threads
from fairq.client.timeouts import TimedOut
from fairq.client.tracebacks import own_frames, traceback_of
from fairq.client.typed import Misfit
from fairq.errors import BadRequest, TooLarge
from fairq.groups import unwrap
from fairq.log import Log
from fairq.model.checks import MAX_ERROR_CHARS, bare_id
from fairq.model.tasks import MAX_RESULT_BYTES, Settlement, is_last_attempt
from fairq.wire.beside import Unreadable
from fairq.wire.frames import PushedTask

if TYPE_CHECKING:
    from fairq.client.links import Enqueue

log = Log("fairq.worker")

ReportProgress = Callable[[str, PushedTask, float, str], None]

_HAS_NOT_RUN = (CoroutineType, GeneratorType, AsyncGeneratorType, Future)


def settlement_of(task: PushedTask, error: BaseException) -> Settlement:
    """Decide what becomes of a lease whose handler raised. Only a final failure keeps its traceback, which costs.

    A verdict that the handler raised has one only if it was raised from something.
    """
    settlement = _verdict_on(task, error)
    if outcome_of(task, settlement) != "dead" or (isinstance(error, Retry | Reject) and error.__cause__ is None):
        return settlement
    return settlement._replace(traceback=traceback_of(error))


def _verdict_on(task: PushedTask, error: BaseException) -> Settlement:
    """Decide what becomes of a lease: the one table of failures."""
    match error:
        case Retry(delay_ms=delay_ms):
            return Settlement("nack", task.id, task.lease, delay_ms, _reason_of(error))
        case Postpone(delay_ms=delay_ms):
            return Settlement("release", task.id, task.lease, delay_ms, _reason_of(error))
        case Reject() | Misfit():
            return Settlement("reject", task.id, task.lease, None, _reason_of(error))
        case TimedOut():
            return Settlement("nack", task.id, task.lease, None, f"timeout: {error}")
        case _:
            cause = unwrap(error)
            text = f"{type(cause).__name__}: {_text_of(cause)}"[:MAX_ERROR_CHARS]
            return Settlement("nack", task.id, task.lease, None, text)


def _reason_of(verdict: BaseException) -> str:
    return _text_of(verdict) or f"{type(verdict).__name__} without a reason"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_ERROR_CHARS]
    except Exception as failure:  # in the error's own code
        return f"(its text raised {type(failure).__name__})"


def outcome_of(task: PushedTask, settlement: Settlement) -> str:
    """Say what a settlement makes of its task: `done`, `retry`, `postponed` or `dead`."""
    if settlement.action == "ack":
        return "done"
    if settlement.action == "release":
        return "postponed"
    is_over = settlement.action == "reject" or is_last_attempt(task.attempt, task.max_attempts)
    return "dead" if is_over else "retry"


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


def _split(raised: BaseException, is_cancelled: bool) -> tuple[BaseException | None, BaseException | None]:
    """Split what a handler raised into its failure and the worker's end: its cancellation, or what a signal raised.

    All else is the handler's own, whatever its class: a KeyboardInterrupt or a CancelledError too.
    """

    def is_own(error: BaseException) -> bool:
        if isinstance(error, Exception):
            return True
        if isinstance(error, BaseExceptionGroup):
            return False  # each of it is looked at
        if isinstance(error, GeneratorExit):
            return not is_cancelled
        return not is_of_signal(error) and not (is_cancelled and isinstance(error, get_cancelled_exc_class()))

    if isinstance(raised, BaseExceptionGroup):
        return raised.split(is_own)
    return (raised, None) if is_own(raised) else (None, raised)


def _log_failure(task: Task, **how: Any) -> None:
    log.warning("task failed", task=task.id, queue=task.queue, tenant=task.tenant, attempt=task.attempt, **how)


def _log_error(task: Task, error: BaseException) -> None:
    frames = own_frames(error.__traceback__) or error.__traceback__  # of a fault of ours, all
    _log_failure(task, exc_info=BaseException.with_traceback(error, frames))  # its own may raise


async def perform(
    handler: Handler,
    queue: str,
    pushed: PushedTask,
    threads: Threads,
    report: ReportProgress,
    enqueue: Enqueue,
    run_timeout_s: float = inf,
    is_cancelled: Callable[[], bool] = is_cancelled,
) -> tuple[Settlement, BaseException | None]:
    """Run a handler; returns what becomes of its task, and what it raised.

    Whatever it raised has failed its task, unless the worker's own end came through it: see `_split`. Then that is
    raised, whatever else came with it.

    `report(queue, pushed, fraction, text)` is told of its progress; `enqueue(queue, pushed, target, task)` stores one;
    `run_timeout_s` is the queue's; `is_cancelled()` tells whether the worker is, or has lost this lease.
    """
    seen = handler.retries.limit(pushed)
    links = Links(queue, pushed.id, pushed.enqueued_at_ms, partial(enqueue, queue, pushed))
    task = Task(
        bare_id(pushed.id), queue, pushed.tenant, pushed.attempt, seen.max_attempts, pushed.payload,
        pushed.enqueued_at_ms, pushed.start_at_ms, pushed.expires_at_ms, pushed.wants_result, pushed.name,
        pushed.webhook, partial(report, queue, pushed), links,
    )  # fmt: skip
    error: BaseException | None = None
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
            raise TypeError(f"{handler.title} has called task.enqueue without `await`")
        return Settlement(
            "ack", pushed.id, pushed.lease, None, "",
            encode_result(task, value) if pushed.wants_result else b"", links.close(),
        ), None  # fmt: skip
    except (Retry, Postpone, Reject) as verdict:
        error = verdict
    except (Misfit, NoHandler, TimedOut) as failure:
        error = failure
        _log_failure(task, error=settlement_of(seen, failure).error)
    except BaseException as failure:
        error, rest = _split(failure, is_cancelled())
        if error is None:
            raise
        _log_error(task, error)
        if rest is not None:
            raise rest from None
    links.close()
    return handler.retries.settle(pushed, settlement_of(seen, error)), error
