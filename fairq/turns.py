"""The end of a scheduler's turn: where what its tasks have to send leaves, in one piece for each connection.

trio runs all tasks that are ready, waits for I/O, and begins anew: that is a turn. A send by a task of its own costs a
turn more, and one by whoever has something to say costs a system call for each piece, and wakes the other process each
time. So whoever has something to send has itself called `at_end_of_turn`, before the scheduler waits. While there are
tasks to run that is put off by a turn, since these may be about to say something to the same connection.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio
from attrs import define, field

log = structlog.get_logger("fairq")

MOST_TURNS = 2  # that anything is put off while the scheduler has tasks to run

Send = Callable[[], None]


class _Ends(trio.abc.Instrument):
    """Calls what is due before the scheduler waits for I/O."""

    def __init__(self) -> None:
        self.due: dict[Send, None] = {}
        self._turns = 0

    def before_io_wait(self, timeout: float) -> None:
        """Send what is to be sent."""
        if not self.due:
            return
        self._turns += 1
        if timeout <= 0 and self._turns < MOST_TURNS:
            return
        due, self.due, self._turns = self.due, {}, 0
        for send in due:
            try:
                send()
            except Exception:  # else trio would take the instrument off, and nobody could send any more
                log.exception("sending failed")


_ends = trio.lowlevel.RunVar[_Ends]("fairq.turns")


def at_end_of_turn(send: Send) -> None:
    """Have `send` called at the end of this turn, or of the next, however often it is asked for until then.

    It must not wait, and cannot wake a task but by `call_from_end`: the scheduler has made up its mind to sleep.
    """
    try:
        ends = _ends.get()
    except LookupError:
        ends = _Ends()
        trio.lowlevel.add_instrument(ends)
        _ends.set(ends)
    ends.due[send] = None


@define(eq=False)
class Gate:
    """Lets so many tasks through in a turn, the first first: where thousands begin at once others get turns between."""

    per_turn: int
    _passed: int = field(default=0, init=False)  # in this turn
    _line: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    async def enter(self) -> None:
        """Wait for one's turn. Cancelled: one's place is left."""
        if self._passed < self.per_turn and not self._line:
            self._passed += 1
            at_end_of_turn(self._turn_over)
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await self._line.park()

    def _turn_over(self) -> None:
        if self._passed:
            call_from_end(self._let_in)

    def _let_in(self) -> None:
        self._passed = len(self._line.unpark(count=self.per_turn))
        if self._passed:
            at_end_of_turn(self._turn_over)


def call_from_end(wake: Callable[[], None]) -> None:
    """From within `send`, have a function called that wakes a task, in the next turn, which then comes at once."""
    trio.lowlevel.current_trio_token().run_sync_soon(wake)
