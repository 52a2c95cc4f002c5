"""Daemon threads, in which functions run under asyncio.

A process that ends waits for anyio's own threads under asyncio, even for an abandoned one. Under trio they are daemons.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue

import anyio.lowlevel
from anyio._core._eventloop import threadlocals  # where `anyio.from_thread` looks for its event loop
from attrs import define, field

from fairq.io.runtime import Event, Runtime

_NAME = "fairq handler"


@define(eq=False)
class _Job:
    """One call."""

    call: Callable[[], None]
    context: Context
    scope: anyio.CancelScope
    done: Event


@define(eq=False)
class DaemonThreads:
    """Runs functions in daemon threads, as many as run at once; those that are idle are used again."""

    runtime: Runtime
    _token: object = field(factory=anyio.lowlevel.current_token, init=False)
    _idle: deque[SimpleQueue[_Job | None]] = field(factory=deque, init=False)
    _is_closed: bool = field(default=False, init=False)

    async def run(self, call: Callable[[], None]) -> None:
        """Call a function that raises nothing in a thread. Cancelled: the thread goes on without its caller."""
        with anyio.CancelScope() as scope:
            job = _Job(call, copy_context(), scope, self.runtime.make_event())
            inbox = self._idle.pop() if self._idle else self._start()
            inbox.put(job)
            await job.done.wait()

    def close(self) -> None:
        """End the idle threads now, and the others when their functions return."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _start(self) -> SimpleQueue[_Job | None]:
        inbox: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(target=self._work, args=(inbox,), name=_NAME, daemon=True).start()
        return inbox

    def _work(self, inbox: SimpleQueue[_Job | None]) -> None:
        threadlocals.current_token, thread = self._token, threading.current_thread()
        while not self._is_closed and (job := inbox.get()) is not None:
            threadlocals.current_cancel_scope = job.scope
            job.context.run(job.call)
            if thread.name != _NAME:
                thread.name = _NAME
            self.runtime.call_from_thread(lambda done=job.done: self._ended(done, inbox))  # type: ignore[misc]
            del job, threadlocals.current_cancel_scope

    def _ended(self, done: Event, inbox: SimpleQueue[_Job | None]) -> None:
        done.set()
        if self._is_closed:
            inbox.put(None)
        else:
            self._idle.append(inbox)
