"""Keeps the resources of a worker out of processes that are forked from it.

A handler is a program of its own: it may call os.fork, use multiprocessing with its pools, or run another program with
a `preexec_fn`. Its child begins as a copy of the whole process. So at the beginning of each child:

| the worker's | is in the child |
|---|---|
| handlers of signals, those of its event loop too | what the program had set before, else as in any new process |
| file by which signals wake its event loop | none |
| files: connections, that of its event loop, that to a supervisor | /dev/null; nothing is sent to the other side |
| event loop | ended: the child ends where it would take its next turn |

Signals that come meanwhile wait, so a child obeys one that its parent sends at once.

The handler's function runs on. Where it returns, or raises (`sys.exit` does), the child ends, with the code of that:
it is not the worker who has the task. It ends as children of multiprocessing do: threads that it has started are waited
for, what it has printed is written, and no function of `atexit` is called, for those are the parent's.

Connections of clients are the parent's too, also where no worker runs. A client of `fairq.sync` connects anew.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from attrs import define, field

from fairq.io.exception_groups import unwrap

if TYPE_CHECKING:
    from fairq.io.runtime import File, Runtime

_LOOPS = ("asyncio", "trio", "uvloop")  # their signal handlers do nothing without them
_SAID = "fairq: this forked process ends where it would go on in its parent's event loop"


@define(eq=False)
class _Loop:
    """An event loop in which workers run."""

    runtime: Runtime
    thread_id: int = field(factory=threading.get_ident, init=False)


is_child = False  # of a process that runs a worker; it runs none itself
_files: WeakSet[Any] = WeakSet()
_loops: set[_Loop] = set()
_masks: dict[int, set[Any]] = {}  # of signals that were blocked anyway, by the threads that fork
_replaced: list[tuple[int, Any, Any]] = []  # signals, what handles them now, and what did before: the newest last


def keep_from_children(file: File) -> None:
    """Keep a file from children, from now on until it is closed or dropped."""
    _files.add(file)


@contextmanager
def replacing_signal(number: int, handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """Handle a signal in this process, and in no child."""
    known = (number, handler, signal.getsignal(number))
    _replaced.append(known)
    signal.signal(number, handler)
    try:
        yield
    finally:
        if signal.getsignal(number) is handler:  # the program has set no other meanwhile
            signal.signal(number, known[2])
        _replaced.remove(known)


@contextmanager
def running_worker(runtime: Runtime) -> Iterator[None]:
    """Note that a worker runs in this event loop."""
    global is_child
    loop, was_child = _Loop(runtime), is_child
    _loops.add(loop)
    is_child = False
    try:
        yield
    finally:
        _loops.discard(loop)
        is_child = was_child


class OwnProcess:
    """A block of the worker's code; a forked child that reaches its end exits there."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        if is_child:
            end(error)


def end(error: BaseException | None) -> NoReturn:
    """End this child process, with the exit code of the exception that it raised."""
    code = 1
    try:
        code = _code_of(error)
        threading._shutdown()  # type: ignore[attr-defined]
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        os._exit(code)


def _code_of(error: BaseException | None) -> int:
    """Return the exit code for an exception, and print what Python would print for it."""
    if error is None:
        return 0
    error = unwrap(error)
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _end_at_turn(error: BaseException | None) -> NoReturn:
    """End this child process where its event loop would continue, or was left by this error."""
    end(error or SystemExit(_SAID))


def _begin_to_fork() -> None:
    if _loops:
        _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _end_forking() -> None:
    if (mask := _masks.pop(threading.get_ident(), None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin_child() -> None:
    global is_child
    loops, replaced = list(_loops), list(_replaced)
    _loops.clear()
    _replaced.clear()
    if loops:
        is_child = True
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            _give_back(number, replaced)
        for loop in loops:
            if loop.thread_id == threading.get_ident():
                loop.runtime.call_next(_end_at_turn)
    _bury([*_files, *(loop.runtime.poller for loop in loops if loop.runtime.poller)])
    _files.clear()


def _bury(files: list[File]) -> None:
    """Replace files by /dev/null under their numbers: their holders can neither use them nor close others'."""
    if not (numbers := {number for file in files if (number := file.fileno()) >= 0}):
        return
    os.close(min(numbers))  # there may be no number left for one more
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers - {null}:
        os.dup2(null, number, inheritable=False)
    if null not in numbers:
        os.close(null)


def _give_back(number: int, replaced: list[tuple[int, Any, Any]]) -> None:
    """Handle a signal as the program does without a worker and its event loop."""
    found = handler = signal.getsignal(number)
    for each, ours, before in reversed(replaced):
        if each == number and handler is ours:
            handler = before
    module = getattr(getattr(handler, "func", handler), "__module__", None) or ""
    if module.partition(".")[0] in _LOOPS:
        handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    if handler is not found and handler is not None:
        signal.signal(number, handler)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_begin_to_fork, after_in_parent=_end_forking, after_in_child=_begin_child)
    os.register_at_fork(after_in_child=_end_forking)  # also where something has failed before
