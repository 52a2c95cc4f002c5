"""How a runner is cancelled whose handler may swallow that.

What is cancelled is cancelled again and again until it ends: by anyio at each turn of asyncio's loop, by trio at each
`await`. A handler that goes on all the same keeps a processor busy. So after FIRST_S it is shielded from that, and is
cancelled once each AGAIN_S, until it ends. The task that waits for the runner sees to this, so it costs others nothing.

| cancelled by | what is shielded then |
|---|---|
| the end of the worker, a lost lease, a tenant | all that the runner does |
| the time limit of a task | what is done within the limit |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from typing import Any

import anyio
from attrs import define, field

from fairq.client.runtime import Event, current_task

FIRST_S = 0.05
AGAIN_S = 1.0


@define(eq=False)
class Patience:
    """Of one runner."""

    ended: Event  # the runner has
    scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)  # cancels the runner
    has_begun: bool = field(default=False, init=False)
    is_cancelled: bool = field(default=False, init=False)  # as its watch has seen
    _shield: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _limits: list[anyio.CancelScope] = field(factory=list, init=False)  # the shields within time limits
    _alarm: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _due_at: float = field(default=inf, init=False)  # when it is cancelled for the next time

    @contextmanager
    def around(self) -> Iterator[None]:
        """Hold the task that watches the runner, and the runner."""
        with self.scope, self._shield:
            yield

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hold what the runner does, in its own task."""
        task = current_task()
        _of_tasks[task], self.has_begun = self, True
        try:
            yield
        finally:
            del _of_tasks[task]
            self.ended.set()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Hold what a time limit of so many seconds cancels."""
        with anyio.CancelScope() as shield:
            self._limits.append(shield)
            self._call_at(anyio.current_time() + seconds + FIRST_S)
            try:
                yield
            finally:
                self._limits.remove(shield)
                self._call_at(inf)

    def _call_at(self, moment: float) -> None:
        if not self.is_cancelled:
            self._due_at = self._alarm.deadline = moment

    async def watch(self) -> None:
        """Wait for the runner's end, in a task beside it. Cancelled: the runner is."""
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
                self._cancel_again()
                self._due_at = anyio.current_time() + AGAIN_S

    def _cancel_again(self) -> None:
        shields = [self._shield, *self._limits] if self.is_cancelled else self._limits
        for open_now in (True, False):
            for shield in shields:
                shield.shield = not open_now


_of_tasks: dict[Any, Patience] = {}  # of runners


def limit(seconds: float) -> AbstractContextManager[None]:
    """Hold what a time limit of so many seconds cancels, in a runner; it began now."""
    found = _of_tasks.get(current_task())
    return nullcontext() if found is None else found.limit(seconds)
