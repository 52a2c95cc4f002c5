"""Coroutines that run without a task of the scheduler, as long as they wait only for replies of the store.

Why they do, and what they may not use: see README.md. When its owner ends, such a coroutine is closed: GeneratorExit is
raised where it waits.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

import outcome
import trio
from attrs import define, field

from fairq.io.turns import call_from_end
from fairq.log import Log

log = Log("fairq")

_IN_TASK = object()  # asked for by a coroutine that needs a task


class TaskNeeded(RuntimeError):
    """A coroutine without a task waits for more than a reply: a fault of the program."""


class _Now(threading.local):
    run: Run | None = None  # the one that this thread carries on


_now = _Now()


def _ignore() -> None:
    """Raise nothing."""


@types.coroutine
def _ask_task() -> Generator[object, Any, Any]:
    yield _IN_TASK


async def in_task() -> None:
    """Go on in a task of the scheduler, so that what follows may use all of trio."""
    if _now.run is not None:
        await _ask_task()


async def acquire(limiter: trio.CapacityLimiter, borrower: object) -> None:
    """Take one of a limiter's places on behalf of `borrower`; to wait for one takes a task."""
    try:
        limiter.acquire_on_behalf_of_nowait(borrower)
    except trio.WouldBlock:
        await in_task()
        await limiter.acquire_on_behalf_of(borrower)


@define(eq=False)
class Wait:
    """A wait for one value, in a task or without one: await it. Cancelled: the value is dropped. `since`: its start."""

    since: float
    _task: trio.lowlevel.Task | None = field(default=None, init=False)
    _run: Run | None = field(default=None, init=False)

    def __await__(self) -> Generator[Any, Any, Any]:
        run = self._run = _now.run
        if run is None:
            self._task = trio.lowlevel.current_task()
            waiting = trio.lowlevel.wait_task_rescheduled(self._abandon)  # noqa: ASYNC105 - a generator cannot await
            return (yield from waiting.__await__())
        try:
            return (yield None)
        finally:
            self._run = None

    def _abandon(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def end(self, value: Any) -> None:
        """Resume the waiting coroutine with a value. Its exceptions are not raised here."""
        if self._run is not None:
            self._run.go_on(value)
        elif self._task is not None:
            trio.lowlevel.reschedule(self._task, outcome.Value(value))
            self._task = None


@define(eq=False)
class Run:
    """One coroutine without a task."""

    coroutine: Coroutine[Any, Any, None]
    owner: Taskless
    needs_task: bool = field(default=False, init=False)

    def step(self, resume: Callable[[Any], Any], value: Any) -> bool:
        """Run to the next wait for a reply; returns False if there is none: it is over, or needs a task."""
        before, _now.run = _now.run, self
        try:
            asked = resume(value)
        except StopIteration:
            return False
        except Exception as error:
            log.error("a coroutine without a task failed", exc_info=error)
            return False
        finally:
            _now.run = before
        self.needs_task = asked is _IN_TASK
        if self.needs_task or asked is None:
            return not self.needs_task
        if abort := getattr(asked, "abort_func", None):
            abort(_ignore)  # nothing may wake the task that runs this
        if not isinstance(value, TaskNeeded):
            return self.step(self.coroutine.throw, TaskNeeded("in_task() must be awaited before this wait"))
        self.close()  # it caught TaskNeeded, and waits again
        return False

    def go_on(self, value: Any) -> None:
        """Go on with a value."""
        if not self.step(self.coroutine.send, value):
            self.owner.waiting.discard(self)
            if self.needs_task:
                self.owner.nursery.start_soon(self.finish)

    async def finish(self) -> None:
        """Run the rest in the calling task."""
        await _rest(self.coroutine)

    def close(self) -> None:
        """End it where it waits."""
        try:
            self.coroutine.close()
        except Exception as error:
            log.error("a coroutine without a task failed", exc_info=error)


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
    resume: Callable[[Any], Any] = coroutine.send
    value: Any = None
    while True:
        try:
            asked = resume(value)
        except StopIteration:
            return
        try:
            value = yield asked
            resume = coroutine.send
        except BaseException as error:
            value, resume = error, coroutine.throw


@define(eq=False)
class Taskless:
    """The coroutines without tasks of one owner. Those that need a task later get one in its nursery."""

    nursery: trio.Nursery
    waiting: set[Run] = field(factory=set, init=False)
    _is_closed: bool = field(default=False, init=False)

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> Run | None:
        """Run a coroutine up to its first wait; returns it if it needs a task at once: the caller is to `finish` it."""
        if self._is_closed:
            coroutine.close()
            return None
        run = Run(coroutine, self)
        if run.step(coroutine.send, None):
            self.waiting.add(run)
        return run if run.needs_task else None

    def begin_from_end(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine up to its first wait at the end of a turn; if it needs a task at once, it gets one soon."""
        if run := self.begin(coroutine):
            self.waiting.add(run)
            call_from_end(partial(self._give_task, run))

    def _give_task(self, run: Run) -> None:
        if run in self.waiting:  # else it was closed
            self.waiting.discard(run)
            self.nursery.start_soon(run.finish)

    def close(self) -> None:
        """End all, now and later ones."""
        self._is_closed = True
        for run in self.waiting:
            run.close()
        self.waiting.clear()
