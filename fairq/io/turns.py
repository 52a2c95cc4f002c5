"""The turns of trio, and what is sent at their end, in one piece for each connection (see README.md).

A separate sending task would cost one more turn. Sending at once would cost a system call for each piece, and wake the
other process each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import trio
from attrs import define, field

from fairq.log import Log

log = Log("fairq")

Send = Callable[[], None]


class _Ends(trio.abc.Instrument):
    """Calls the registered functions before the scheduler waits for I/O."""

    def __init__(self) -> None:
        self.first: dict[Send, None] = {}
        self.due: dict[Send, None] = {}
        self.turn = 0
        self.is_ending = False  # the scheduler has decided to sleep
        self.time: float | None = None  # of this turn, if it was asked for

    def before_io_wait(self, timeout: float) -> None:
        """Call the functions that are due."""
        self.turn += 1
        self.is_ending = True
        if self.first:
            first, self.first = self.first, {}
            _call(first)
        if self.due:
            due, self.due = self.due, {}
            _call(due)
        self.time, self.is_ending = None, False

    def after_run(self) -> None:
        """Make way for the next run in this thread."""
        _here.ends = None


def _call(functions: Iterable[Send]) -> None:
    for function in functions:
        try:
            function()
        except Exception as error:  # otherwise trio would remove the instrument, and nothing could be sent any more
            log.error("sending failed", exc_info=error)


class _Here(threading.local):
    ends: _Ends | None = None  # of the run in this thread


_here = _Here()


def at_end_of_turn(send: Send) -> None:
    """Call `send` once at the end of this turn, however often it is registered until then.

    `send` must not wait, and can wake tasks only by `call_from_end`: the scheduler has already decided to sleep.
    """
    (_here.ends or _begin()).due[send] = None


def before_sending(decide: Send) -> None:
    """Call `decide` like `at_end_of_turn`, but before all that sends; asked by another `decide`: a turn later."""
    (_here.ends or _begin()).first[decide] = None


def turn_time() -> float:
    """Return trio's time when it was first asked for in this turn, in seconds: the clock is read once for many."""
    ends = _here.ends or _begin()
    if ends.time is None:
        ends.time = trio.current_time()
    return ends.time


def _begin() -> _Ends:
    ends = _here.ends = _Ends()
    trio.lowlevel.add_instrument(ends)
    return ends


@define(eq=False)
class Gate:
    """Lets `per_turn` tasks through in each turn, in order, so that thousands of starts leave turns to other tasks."""

    per_turn: int
    _turn: int = field(default=-1, init=False)
    _passed: int = field(default=0, init=False)  # in that turn
    _line: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    async def enter(self) -> None:
        """Wait to be let through; no checkpoint if that is at once. Cancelled: the place in the line is given up."""
        turn = (_here.ends or _begin()).turn
        if self._turn != turn:
            self._turn, self._passed = turn, 0
        if self._passed < self.per_turn and not self._line:
            self._passed += 1
        else:
            at_end_of_turn(self._turn_over)
            await self._line.park()

    def _turn_over(self) -> None:
        call_from_end(self._let_in)

    def _let_in(self) -> None:
        self._turn, self._passed = (_here.ends or _begin()).turn, len(self._line.unpark(count=self.per_turn))
        if self._line:
            at_end_of_turn(self._turn_over)


def call_from_end(wake: Callable[[], None]) -> None:
    """Call a function that wakes a task; from within `send` in the next turn, which then starts at once."""
    if _here.ends and _here.ends.is_ending:
        trio.lowlevel.current_trio_token().run_sync_soon(wake)
    else:
        wake()
