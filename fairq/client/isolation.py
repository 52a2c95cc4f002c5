"""Keeps handlers apart: one leaves nothing that the next one sees, or that acts on it.

A scheduler task of its own for each handler would see to that. It would add half to what the worker does for a short
one. So a runner runs many handlers in one scheduler task,

- each in a fresh context: a copy of what on_startup left, with decimal's own context, which changes in place;
- for as long as that scheduler task is unchanged. Once a handler has left something there, the runner ends, and another
  one takes its place, in a new scheduler task.

| a handler has left | which is seen as |
|---|---|
| asyncio: the task's name, an attribute of it, a count of cancellations | just that |
| asyncio: what cancels the task later, as a timer or an open timeout does; what is kept for it | one more reference |
| trio: an open cancel scope or nursery, the task's name | just that |

A plain handler's thread runs it in a copy of the fresh context. Thread-locals stay.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from decimal import getcontext, setcontext
from sys import getrefcount
from typing import Any, NamedTuple, TypeVar
from weakref import getweakrefcount

import anyio

from fairq.client.patience import Patience
from fairq.client.runtime import current_runtime, current_task, forget_native_cancels, native_cancels
from fairq.groups import ungrouped
from fairq.log import Log

log = Log("fairq.worker")

T = TypeVar("T")

_DECIMAL = "decimal_context"  # decimal's variable
_FRESH = object()  # what a coroutine yields to go on in a fresh context


@types.coroutine
def in_fresh_context() -> Generator[Any, Any, None]:
    """Go on in a fresh context; for what `in_contexts` awaits."""
    yield _FRESH


@types.coroutine
def in_contexts(fresh: Callable[[], Context], coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await a coroutine in fresh contexts, in the scheduler task that runs."""
    run, send = fresh().run, coroutine.send
    try:
        waits_for = run(send, None)
        while True:
            if waits_for is _FRESH:
                run = fresh().run
                waits_for = run(send, None)
                continue
            try:
                answer = yield waits_for
            except BaseException as error:
                if error.__traceback__:  # without this frame, so that it ends where it was raised
                    error.__traceback__ = error.__traceback__.tb_next
                waits_for = run(coroutine.throw, error)
            else:
                waits_for = run(send, answer)
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
    is_unchanged: Callable[[], bool]  # to be called in it: whether handlers have left nothing there


async def keep_running(
    fresh: Callable[[], Context],
    run: Callable[[OwnTask], Coroutine[Any, Any, None]],
    is_cancelled: Callable[[], bool],
) -> None:
    """Await `run(own)` again and again, each time in a new scheduler task, in fresh contexts.

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
    patience = Patience(current_runtime())

    async def begin() -> None:
        nonlocal is_unchanged, interrupt
        with patience.running():
            own = OwnTask(patience.scope, lambda: patience.is_cancelled or is_cancelled(), _watch(current_task()))
            try:
                await in_contexts(fresh, run(own))
            except (KeyboardInterrupt, SystemExit) as error:  # asyncio leaves its loop at each task that raises one
                interrupt = error
            finally:
                is_unchanged = own.is_unchanged()

    try:
        with ungrouped(), patience.around():
            async with anyio.create_task_group() as group:
                group.start_soon(begin, name="fairq runner")
                await patience.watch()
    except RuntimeError as error:  # trio's, when that task ended
        if is_unchanged:
            raise
        log.warning("a handler has left a cancel scope or a nursery open; it was closed", error=str(error))
    if interrupt is not None:
        raise interrupt


def _watch(task: Any) -> Callable[[], bool]:
    """Return what tells whether the running scheduler task is still as it is now."""
    if hasattr(task, "child_nurseries"):  # trio's; nobody can cancel it but by these
        before = (task.name, task._cancel_status)  # the innermost open scope; a nursery has one
        return lambda: (task.name, task._cancel_status) == before
    name, cancelling = task.get_name, task.cancelling

    def look() -> tuple[object, ...]:
        # Attributes are among the referents: the task tells them in no other way.
        return name(), cancelling(), getrefcount(task), getweakrefcount(task), len(gc.get_referents(task))

    found = look()
    return lambda: look() == found
