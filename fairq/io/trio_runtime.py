"""The runtime of trio."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import trio
from attrs import define

from fairq.io.runtime import CLOSED, RECEIVE_BYTES, Runtime, Send, Take
from fairq.io.turns import at_end_of_turn, call_from_end

_runtimes: trio.lowlevel.RunVar[Runtime] = trio.lowlevel.RunVar("fairq's runtime")  # of each trio.run


def trio_runtime() -> Runtime:
    """Return the functions of trio, in a task of it."""
    try:
        return _runtimes.get()
    except LookupError:
        _runtimes.set(runtime := _make())
        return runtime


def _make() -> Runtime:
    token = trio.lowlevel.current_trio_token()
    context: Any = trio._core._run.GLOBAL_RUN_CONTEXT

    def call_from_thread(wake: Send) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(wake)

    def call_next(end: Callable[[BaseException | None], None]) -> None:
        class Step(trio.abc.Instrument):
            def after_task_step(self, task: Any) -> None:
                raised = () if task.coro.cr_frame else getattr(task.parent_nursery, "_pending_excs", ())
                end(raised[-1] if raised else None)

        trio.lowlevel.add_instrument(Step())

    return Runtime(
        name="trio",
        loop=token,
        current_loop=trio.lowlevel.current_trio_token,
        current_time=trio.lowlevel.current_clock().current_time,
        checkpoint=trio.lowlevel.checkpoint,
        make_event=trio.Event,
        make_wakeup=trio.Event,
        make_lot=trio.lowlevel.ParkingLot,
        make_reader=partial(_TrioReader, trio.lowlevel.wait_readable, trio.ClosedResourceError),
        at_end_of_turn=at_end_of_turn,
        before_waiting=at_end_of_turn,  # a turn's end costs nothing
        call_from_end=call_from_end,
        call_from_thread=call_from_thread,
        call_next=call_next,
        has_daemon_threads=True,
        poller=getattr(context.runner.io_manager, "_epoll", None),
    )


@define(eq=False)
class _TrioReader:
    """Waits for bytes and reads them; the task that has waited runs at once, and takes them itself."""

    wait_readable: Callable[[socket.socket], Awaitable[None]]
    closed: type[Exception]
    socket: socket.socket
    take: Take

    async def receive(self) -> bytes | None:
        """Wait for bytes; empty at the end."""
        while True:
            try:
                await self.wait_readable(self.socket)
                data = self.socket.recv(RECEIVE_BYTES)
            except self.closed:
                raise OSError(CLOSED) from None
            except (BlockingIOError, InterruptedError):
                continue  # the kernel dropped it
            if not data:
                return data
            if not self.take(data):
                return None

    def close(self) -> None:
        """Do nothing: trio wakes the reader when the socket is closed."""
