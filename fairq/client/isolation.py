"""Keeps handlers apart: a handler leaves nothing behind that the next one sees, or that acts on it.

A scheduler task for each handler would ensure that, but cost half as much again for a short handler. So a runner runs
many handlers in one scheduler task and its context, a copy of the one that on_startup left, while both are untouched.

| a handler has left behind | how that is noticed | in the |
|---|---|---|
| a context variable, even one that was set back | another map of variables: they never change in place | context |
| a callback that uses the context itself later, not a copy | one more reference | context |
| asyncio: another name or attribute of the task, a count of cancellations | by a comparison | task |
| asyncio: a timer or an open timeout that cancels the task later; objects kept for it | one more reference | task |
| trio: an open cancel scope or nursery, another name of the task | by a comparison | task |

- In the context: the runner runs each further handler in a fresh context of its own.
- In the task: the runner ends, and another one takes its place, in a new scheduler task.

Decimal's context does change in place. If on_startup has left one, each copy of the context gets its own, and so
another map, as if a handler had changed it.

A plain handler's thread runs it in a copy of the fresh context. Thread-locals stay.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from decimal import getcontext, setcontext
from functools import partial
from gc import get_referents
from sys import getrefcount
from typing import Any, NamedTuple, TypeVar
from weakref import getweakrefcount

import anyio

from fairq.client.traceback_frames import let_frames_go
from fairq.io.cancel_backoff import CancelBackoff
from fairq.io.event_loop import current_runtime, current_task, forget_native_cancels, in_trio, native_cancels
from fairq.io.exception_groups import ungrouped
from fairq.log import Log

log = Log("fairq.worker")

T = TypeVar("T")

_DECIMAL = "decimal_context"  # decimal's variable

NOTHING, IN_CONTEXT, IN_TASK = range(3)  # what handlers have left


@types.coroutine
def in_context(context: Context, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await a coroutine in a context, in the scheduler task that runs."""
    run, send = context.run, coroutine.send
    try:
        passed = run(send, None)  # what it waits for, then the answer: either may have a handler's exception
        while True:
            try:
                passed = yield passed
            except BaseException as error:
                if error.__traceback__:  # without this frame, so that it ends where it was raised
                    error.__traceback__ = error.__traceback__.tb_next
                passed = run(coroutine.throw, error)
            else:
                passed = run(send, passed)
    except StopIteration as end:
        returned: T = end.value
        return returned


def fresh_contexts(context: Context) -> Callable[[], Context]:
    """Return a function that copies a context; decimal's too, which changes in place."""
    if not any(variable.name == _DECIMAL for variable in context):
        return context.copy
    arithmetic = context.run(getcontext).copy()

    def copy() -> Context:
        fresh = context.copy()
        fresh.run(setcontext, arithmetic.copy())
        return fresh

    return copy


class OwnTask(NamedTuple):
    """The scheduler task of a runner."""

    scope: anyio.CancelScope  # cancels it
    is_cancelled: Callable[[], bool]  # not by a handler
    left: Callable[[], int]  # what handlers have left there; to be called in it


async def keep_running(
    fresh: Callable[[], Context],
    run: Callable[[OwnTask], Coroutine[Any, Any, None]],
    is_cancelled: Callable[[], bool],
) -> None:
    """Await `run(own)` again and again, each time in a new scheduler task, which has a fresh context.

    `is_cancelled` says whether a cancellation is the worker's own; any other one is a handler's doing.
    """
    cancels = native_cancels()
    while True:
        try:
            await _run_in_own_task(fresh, run, is_cancelled)
        except anyio.get_cancelled_exc_class():
            if is_cancelled():
                raise
        if cancels():
            await forget_native_cancels()


async def _run_in_own_task(
    fresh: Callable[[], Context],
    run: Callable[[OwnTask], Coroutine[Any, Any, None]],
    is_cancelled: Callable[[], bool],
) -> None:
    is_unchanged, interrupt = True, None
    backoff = CancelBackoff(current_runtime())

    async def begin() -> None:
        nonlocal is_unchanged, interrupt
        with backoff.running():
            left = _watch(current_task(), fresh)
            own = OwnTask(backoff.scope, lambda: backoff.is_cancelled or is_cancelled(), left)
            try:
                await run(own)
            except anyio.get_cancelled_exc_class() as cancelled:
                let_frames_go(cancelled)  # anyio's frame has it
                raise
            except (KeyboardInterrupt, SystemExit) as error:  # asyncio leaves its loop at each task that raises one
                interrupt = error
            finally:
                is_unchanged = left() != IN_TASK

    try:
        with ungrouped(), backoff.scope, backoff.shield:  # in a generator they would leave a cycle
            async with anyio.create_task_group() as group:
                fresh().run(partial(group.start_soon, begin, name="fairq runner"))
                await backoff.watch()
    except RuntimeError as error:  # trio's, when that task ended
        if is_unchanged:
            raise
        log.warning("a handler has left a cancel scope or a nursery open; it was closed", error=str(error))
    try:
        if interrupt is not None:
            raise interrupt
    finally:
        interrupt = None  # its traceback has this frame


def _watch(task: Any, fresh: Callable[[], Context]) -> Callable[[], int]:
    """Return a function that finds what handlers have left in the running scheduler task since now."""
    (variables,) = get_referents(fresh())  # the map: the last of a context's referents, a copy's only one
    if in_trio():  # its task can be cancelled only by these
        name, status, context = task.name, task._cancel_status, task.context  # the innermost open scope's, or nursery's
        uses = getrefcount(context)

        def left() -> int:
            if task._cancel_status is not status or task.name != name:
                return IN_TASK
            is_fresh = getrefcount(context) == uses and get_referents(context)[-1] is variables
            return NOTHING if is_fresh else IN_CONTEXT

        return left

    context = next(each for each in get_referents(task) if isinstance(each, Context))  # the first is its own
    cancelling = task.cancelling
    *referents, _ = get_referents(task, context)
    references, weak_references, cancelled = getrefcount(task), getweakrefcount(task), cancelling()
    uses = getrefcount(context)

    def left_in_asyncio() -> int:
        is_used = getrefcount(context) != uses
        found = get_referents(task, context)  # of the task, its name and attributes: there is no other way to see these
        is_fresh = found.pop() is variables and not is_used
        if (
            found != referents
            or getrefcount(task) != references
            or getweakrefcount(task) != weak_references
            or cancelling() != cancelled
        ):
            return IN_TASK
        return NOTHING if is_fresh else IN_CONTEXT

    return left_in_asyncio
