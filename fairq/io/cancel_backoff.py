"""Cancelling a runner with a handler that may swallow the cancellation.

anyio cancels a task at each turn of asyncio's loop until the task ends, and trio cancels it at each `await`. A handler
that swallows this and continues keeps a processor busy. So after FIRST_S the cancellations are slowed down:

- asyncio: anyio cancels the tasks in a cancelled scope only every AGAIN_S. The same holds for scopes inside it that the
  handler has cancelled, such as those of its task groups. In between the handler is shielded, because anyio's locks and
  limiters wait busily in a cancelled scope.
- trio: a handler that was cancelled MANY times since the last check is shielded, except for OPEN_S every AGAIN_S. A
  handler that cleans up slowly is cancelled seldom, and is not shielded.

The task that already waits for the runner does this, so it costs the other tasks nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from typing import Any

import anyio
from attrs import define, field

from fairq.io.event_loop import current_task
from fairq.io.runtime import Event, Runtime

FIRST_S = 0.05
AGAIN_S = 1.0
OPEN_S = 0.01
MANY = 20


@define(eq=False)
class CancelBackoff:
    """Slows down the cancellation of one runner."""

    runtime: Runtime
    ended: Event = field(init=False)  # set when the runner has ended
    scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)  # cancels the runner and its watch
    has_begun: bool = field(default=False, init=False)
    is_cancelled: bool = field(default=False, init=False)  # its watch has seen the cancellation
    _task: Any = field(default=None, init=False)
    _status: Any = field(default=None, init=False)  # trio's: what is open around the runner's own code
    shield: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)  # inside `scope`
    _limits: dict[anyio.CancelScope, anyio.CancelScope] = field(factory=dict, init=False)  # scopes -> shields
    _alarm: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _due_at: float = field(default=inf, init=False)  # when the watch checks next
    _met: dict[Any, int] = field(factory=dict, init=False)  # trio task -> how often it was cancelled, by then

    def __attrs_post_init__(self) -> None:
        self.ended = self.runtime.make_event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the runner's own code inside this, in its task."""
        self._task = current_task()
        self._status = getattr(self._task, "_cancel_status", None)
        _of_tasks[self._task], self.has_begun = self, True
        try:
            yield
        finally:
            del _of_tasks[self._task]
            self.ended.set()

    @contextmanager
    def limit(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Hold what a scope with a deadline cancels."""
        with anyio.CancelScope() as self._limits[scope]:
            self._call_at(scope.deadline + FIRST_S)
            try:
                yield
            finally:
                del self._limits[scope]
                self._call_at(inf)

    def _call_at(self, moment: float) -> None:
        if not self.is_cancelled:
            self._due_at = self._alarm.deadline = moment

    async def watch(self) -> None:
        """Wait for the runner's end, in another task. Cancelled: the runner is cancelled too."""
        cancelled: BaseException | None = None
        try:
            while True:
                try:
                    with anyio.CancelScope(shield=cancelled is not None):
                        await self._wait()
                    break
                except anyio.get_cancelled_exc_class() as error:
                    if not self.has_begun:  # asyncio may never begin it
                        raise
                    cancelled = cancelled or error
                    self.is_cancelled = True
                    self.scope.cancel()  # asyncio may have cancelled this task alone
                    self._due_at = anyio.current_time() + FIRST_S
            if cancelled is not None:
                raise cancelled
        finally:
            del cancelled  # its traceback has this frame

    async def _wait(self) -> None:
        while True:
            with anyio.CancelScope(deadline=self._due_at) as self._alarm:
                await self.ended.wait()
                return
            if anyio.current_time() >= self._due_at:
                slow = self._slow_trio if self.runtime.name == "trio" else self._slow_asyncio
                try:
                    pause_s = slow()
                except AttributeError:  # of a later anyio or trio: there it stays as fast as it is
                    pause_s = inf
                self._due_at = anyio.current_time() + pause_s

    def _slow_asyncio(self) -> float:
        for scope, shield in ((self.scope, self.shield), *self._limits.items()):
            shield.shield = False
            _cancel_once(scope, self.runtime.loop)
            shield.shield = scope.cancel_called
        return AGAIN_S

    def _slow_trio(self) -> float:
        """Open what is shielded, or shield what meets its cancellation often; returns when to look again."""
        before, self._met = self._met, {task: task._cancel_points for task in _below(self._task)}
        shields = [*([self.shield] if self.is_cancelled else ()), *self._limits.values()]
        if any(shield.shield for shield in shields):
            for shield in shields:
                shield.shield = False
            return OPEN_S
        if not before:
            return FIRST_S
        for task, met in self._met.items():
            if met - before.get(task, met) >= MANY and _is_reached(task, self._status):
                for shield in shields:
                    shield.shield = True
                break
        return AGAIN_S


def _cancel_once(scope: Any, loop: Any) -> None:
    """Have anyio cancel what is below a cancelled scope now, and go on with that later, unless it is called again."""
    if scope.cancel_called:
        if scope._cancel_handle is not None:
            scope._cancel_handle.cancel()
        scope._deliver_cancellation(scope)
        if scope._cancel_handle is not None:
            scope._cancel_handle.cancel()
            # While it has one, it begins no other.
            scope._cancel_handle = loop.call_later(2 * AGAIN_S, scope._deliver_cancellation, scope)
    for below in list(scope._child_scopes):
        _cancel_once(below, loop)


def _is_reached(task: Any, outside: Any) -> bool:
    """Return whether a cancellation from outside of a handler reaches one of its tasks of trio.

    A scope of the handler's own may be cancelled too, such as that of a sleep that is over.
    """
    status = task._cancel_status
    while status not in (outside, None):
        if status._scope.shield:
            return False
        status = status._parent
    return True


def _below(task: Any) -> Iterator[Any]:
    """Yield a task of trio, and those in its nurseries."""
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _below(child)


_of_tasks: dict[Any, CancelBackoff] = {}  # of runners


def limit(scope: anyio.CancelScope) -> AbstractContextManager[None]:
    """Hold what a scope with a deadline cancels, in a runner or elsewhere."""
    found = _of_tasks.get(current_task())
    return nullcontext() if found is None else found.limit(scope)
