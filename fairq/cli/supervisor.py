"""`fairq worker --processes N`: child processes that are whole workers, and this one, which keeps them running.

Each child has a line to this process (`fairq.io.parentage`). When the child reads its end, this process has ended,
however it did: then the child stops as at SIGTERM. The child writes a letter when its worker has started, and another
one when the worker has ended by itself:

| the child | then |
|---|---|
| wrote that an operator has drained it, or that its burst is over, and ended with 0 | it stays away |
| ended with 2 or REFUSED, or is the first one and never started | all would end so: they are stopped |
| ended in any other way, also with 0 | it is started again, with growing pauses |

This process ends when no child is left: with 0, or with the code of what stopped all.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import trio
from attrs import define, field, frozen

from fairq.errors import SettingsError
from fairq.io.forks import keep_from_children
from fairq.io.parentage import start_child, take_line
from fairq.io.scopes import background, open_plain_nursery
from fairq.log import Log
from fairq.model.checks import MAX_WORKER_CHARS

log = Log("fairq.worker")

CHILD = "FAIRQ_WORKER_CHILD"  # the variable that holds a child's number, from 1
LINE = "FAIRQ_WORKER_LINE"  # the one that names its line
MAX_PROCESSES = 256
RESTART_S, MAX_RESTART_S = 0.1, 5.0  # before a child that died is started again
STEADY_S = 10.0  # a child that lived longer did not fail at its start
KILL_S = 10.0  # beyond the grace, before a child is killed; and after a second signal
REFUSED = 77  # a child's code: the server will not have this worker
_STARTED = b"s"
_DONE = {"burst": b"b", "drained": b"d"}  # by why the worker has ended
_OK, _USAGE, _FAILED = 0, 2, 1
_SIGNALLED = (-signal.SIGTERM, -signal.SIGINT, 130)  # a signal came while it did not yet listen, or no more


@frozen(eq=False)
class Child:
    """This process as a child of a supervisor: its number, and its line to that."""

    number: int
    line: socket.socket

    @classmethod
    def take(cls) -> Child | None:
        """Return this process as a supervisor's child; None after the first call, or if it is not one."""
        number, line = os.environ.pop(CHILD, ""), take_line(LINE)
        if line is None or not number.isdecimal():
            return None
        keep_from_children(line)
        return cls(int(number), line)

    def tell_started(self) -> None:
        """Report to the supervisor that this worker has started."""
        self._tell(_STARTED)

    def tell_ended(self, why: str) -> None:
        """Report to the supervisor why this worker has ended, if it ended by itself."""
        self._tell(_DONE.get(why, b""))

    def _tell(self, letter: bytes) -> None:
        with suppress(OSError):
            self.line.send(letter)

    def follow_parent(self, grace: float) -> None:
        """Stop, from a thread of its own, when the parent has ended; kill this process if it does not stop in time."""

        def follow() -> None:
            with suppress(OSError):
                while self.line.recv(1):
                    pass
            log.warning("parent process ended; stopping")
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(grace + KILL_S)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=follow, name="fairq parent", daemon=True).start()


@define(eq=False)
class Supervisor:
    """Keeps `count` children running until a signal."""

    command: Sequence[str]
    count: int
    grace: float
    _children: set[trio.Process] = field(factory=set, init=False)
    _has_started: bool = field(default=False, init=False)  # some child has
    _first: trio.Event = field(factory=trio.Event, init=False)  # the first child has started, or ended
    _stopping: trio.Event = field(factory=trio.Event, init=False)
    _code: int = field(default=_OK, init=False)

    async def run(self) -> int:
        """Run until all children have ended, by themselves or after a signal; returns the exit code."""
        log.info("supervising workers", processes=self.count)
        async with background(self._watch_signals), open_plain_nursery() as nursery:
            nursery.start_soon(self._keep, 1)
            await self._first.wait()  # what is wrong with all is said once
            for number in range(2, self.count + 1):
                nursery.start_soon(self._keep, number)
        return self._code

    async def _watch_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:
                async for _ in signals:
                    is_first = not self._stopping.is_set()
                    self._stop()
                    nursery.start_soon(self._kill_after, KILL_S + (self.grace if is_first else 0))

    def _stop(self) -> None:
        """Ask all children to stop; a second time: at once."""
        number = signal.SIGINT if self._stopping.is_set() else signal.SIGTERM
        self._stopping.set()
        for child in self._children:
            child.send_signal(number)

    async def _kill_after(self, seconds: float) -> None:
        await trio.sleep(seconds)
        for child in self._children:
            log.error("worker process did not end; it is killed", pid=child.pid)
            self._code = self._code or _FAILED
            child.kill()

    async def _keep(self, number: int) -> None:
        """Run a child, and start another one when it dies."""
        again_s = RESTART_S
        while not self._stopping.is_set():
            began = trio.current_time()
            code, pid, why = await self._run_child(number)
            is_done = code == _OK and why in _DONE
            if not self._has_started and not is_done and not self._stopping.is_set():
                self._end_all(number, code)
            self._first.set()
            if is_done:
                log.info("worker process is done", process=number, pid=pid, why=why)
                return
            if self._stopping.is_set():
                if code not in (_OK, *_SIGNALLED):
                    self._code = self._code or _FAILED
                return
            if code in (_USAGE, REFUSED):
                self._end_all(number, code)
                return
            again_s = RESTART_S if trio.current_time() - began > STEADY_S else min(2 * again_s, MAX_RESTART_S)
            log.error("worker process ended; starting another", process=number, pid=pid, code=code, in_s=again_s)
            with trio.move_on_after(again_s):
                await self._stopping.wait()

    def _end_all(self, number: int, code: int) -> None:
        log.error("worker process cannot work; ending all", process=number, code=code)
        self._code = code if code in (_USAGE, _FAILED) else _FAILED
        self._stop()

    async def _run_child(self, number: int) -> tuple[int, int, str]:
        """Run a child to its end; returns its exit code, its pid, and why it says that its worker has ended."""
        child, ours = await start_child(self.command, {**os.environ, CHILD: str(number)}, LINE)
        with ours:
            self._children.add(child)
            try:
                if self._stopping.is_set():
                    child.terminate()
                async with background(lambda: self._await_start(ours)):
                    code = await child.wait()
                return code, child.pid, self._read_end(ours)
            finally:
                if child.poll() is None:
                    child.kill()
                with trio.CancelScope(shield=True):
                    await child.wait()
                self._children.discard(child)

    async def _await_start(self, ours: socket.socket) -> None:
        stream = trio.socket.from_stdlib_socket(ours.dup())
        with stream, suppress(OSError):
            if await stream.recv(1):
                self._has_started = True
                self._first.set()
        await trio.sleep_forever()

    def _read_end(self, ours: socket.socket) -> str:
        """Return the reason that a child has reported for ending by itself; empty if there is none."""
        with suppress(OSError):
            received = ours.recv(len(_STARTED) + 1)
            self._has_started |= received.startswith(_STARTED)
            return next((why for why, letter in _DONE.items() if received.endswith(letter)), "")
        return ""


def check_processes(count: int) -> int:
    """Return the number of processes. Raises: SettingsError."""
    if 1 <= count <= MAX_PROCESSES:
        return count
    raise SettingsError(f"processes must be a whole number from 1 to {MAX_PROCESSES}", field="processes")


def name_of_child(name: str, number: int) -> str:
    """Return a child's own name. Raises: SettingsError."""
    if not number:
        return name
    if len(own := f"{name}-{number}") > MAX_WORKER_CHARS:
        raise SettingsError(f"name {own!r:.80} has over {MAX_WORKER_CHARS} characters, with its number", field="name")
    return own
