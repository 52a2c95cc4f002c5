"""The ticker: calls `tick` for every queue when something is due, and at a floor interval in any case.

Any server may tick any queue. So a server only has to know the due times of its own actions (`tick_within`), and those
that the store returned at the last tick. The floor interval finds due times that only a dead server knew. It is one
second, and doubles after each tick in a row that found nothing, up to IDLE_FLOORS seconds: otherwise 5,000 idle queues
would cost half a core of every server, and of the store.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.model.queues import AHEAD_MS, Tick
from fairq.scopes import run_all
from fairq.server.timers.calendar_jobs import Firing, change_opening_hours
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

CalendarJob = Callable[[Store, str], Awaitable[float]]
FLOOR_S, IDLE_FLOORS = 1.0, 20
TICKS_AT_ONCE = 16
_DISCOVER_S = 5.0
_STEP_S = 0.25
_NEW_PER_S = 1_000  # queues that are ticked for the first time


@define(eq=False)
class Ticker:
    """Ticks all queues. `has_ready(queue)` is called for every queue with ready tasks."""

    store: Store
    has_ready: Callable[[str], None]
    _firing: Firing = field(factory=Firing, init=False)
    is_ahead: bool = field(default=False, init=False)  # the store's clock is ahead of ours
    due: dict[str, float] = field(factory=dict)  # queue -> when to tick it next
    _again_at: dict[tuple[CalendarJob, str], float] = field(factory=dict, init=False)  # when to do a job again
    _floors: dict[str, float] = field(factory=dict, init=False)  # of queues whose last tick found nothing
    _line: list[tuple[float, str]] = field(factory=list, init=False)  # a heap of values of `due`, old ones too
    _sooner: trio.Event = field(factory=trio.Event, init=False)

    @property
    def lag_s(self) -> float:
        """How late the oldest tick is that is due."""
        return max(0.0, trio.current_time() - self._next()[0])

    def tick_within(self, queue: str, in_ms: float) -> None:
        """Note that something is due in a queue after `in_ms`: it is ticked then, or earlier at the floor interval."""
        self._floors.pop(queue, None)
        self._tick_in(queue, min(in_ms / 1000, FLOOR_S))

    def _tick_in(self, queue: str, seconds: float) -> None:
        at = trio.current_time() + seconds
        if at < self.due.get(queue, math.inf):
            self.due[queue] = at
            heapq.heappush(self._line, (at, queue))
            self._sooner.set()

    def _next(self) -> tuple[float, str]:
        """Return the time of the next tick and its queue."""
        while self._line and self.due.get(self._line[0][1]) != self._line[0][0]:  # forgotten, or sooner since
            heapq.heappop(self._line)
        return self._line[0] if self._line else (math.inf, "")

    def _idle_floor(self, queue: str) -> float:
        """Return the longest time (s) until the next tick of a queue in which a tick found nothing."""
        floor = self._floors.get(queue, FLOOR_S)
        self._floors[queue] = min(2 * floor, IDLE_FLOORS * FLOOR_S)
        at = trio.current_time() + floor * random.uniform(0.75, 1.0)  # spread queues that were found together
        return (at // _STEP_S + 1) * _STEP_S - trio.current_time()  # ticks at one step are sent to the store together

    def forget(self, queue: str) -> None:
        """Stop ticking a queue that was deleted."""
        self.due.pop(queue, None)
        self._floors.pop(queue, None)
        for job, of in list(self._again_at):
            if of == queue:
                del self._again_at[job, of]

    async def run(self) -> None:
        """Tick until cancelled."""
        discover_at = 0.0
        while True:
            now = trio.current_time()
            if now >= discover_at:
                discover_at = now + _DISCOVER_S
                await self._discover()
            while queues := self._take_due(now):
                await run_all(*(partial(self._tick_and_go_on, queue) for queue in queues))
            self._sooner = trio.Event()
            with trio.move_on_at(min(discover_at, self._next()[0])):
                await self._sooner.wait()

    def _take_due(self, now: float) -> list[str]:
        """Return the queues that are due by now, at most TICKS_AT_ONCE."""
        queues: list[str] = []
        while len(queues) < TICKS_AT_ONCE and (next_ := self._next())[0] <= now:
            self.due[next_[1]] = math.inf
            queues.append(next_[1])
        return queues

    async def _tick_and_go_on(self, queue: str) -> None:
        wait = await self._tick(queue)
        if queue in self.due:  # not forgotten meanwhile
            self._tick_in(queue, wait)  # keeps an earlier time that was set meanwhile

    async def _discover(self) -> None:
        """Start ticking queues that other servers have made, and stop ticking queues that do not exist."""
        known = set(self.due)
        try:
            queues = await self.store.queues()
            new = [queue for queue in queues if queue not in known]
            for n, queue in enumerate(new):  # thousands at once would delay the ticks that are due
                self._tick_in(queue, n / _NEW_PER_S)
            for queue in known.difference(queues):
                self.forget(queue)
        except FairqError as error:
            log.debug("cannot list queues", error=error.message)

    async def _tick(self, queue: str) -> float:
        """Tick one queue; returns the seconds until it must be ticked again."""
        try:
            done = await self.store.tick(queue)
        except FairqError as error:
            log.debug("tick failed", queue=queue, error=error.message)
            return FLOOR_S
        self._watch_clock(done)
        if done.reaped or done.expired:
            log.info("tick", queue=queue, reaped=done.reaped, expired=done.expired)
        if done.ready:
            self.has_ready(queue)
        left = ((done.opening_changes, change_opening_hours), (done.fires, self._firing.fire))
        if waits := [await self._do(job, queue) for count, job in left if count]:
            # What cannot be done now (a schedule, on a full store) stays due, and nothing else waits for it.
            return 0.0 if done.promoted or done.expired or done.reaped else min(waits)
        has_done = done.ready or done.promoted or done.expired or done.reaped or done.trimmed
        floor = FLOOR_S if has_done else self._idle_floor(queue)
        if done.next_due_ms < 0:
            return floor
        return min(floor, max(0.0, (done.next_due_ms - done.now_ms) / 1000))

    def _watch_clock(self, done: Tick) -> None:
        """Warn, once each time, when the store's clock is so far ahead of ours that nothing expires by it."""
        is_ahead = done.ahead_ms > AHEAD_MS
        if is_ahead != self.is_ahead:
            self.is_ahead = is_ahead
            tell = log.warning if is_ahead else log.info
            tell("the store's clock is ahead" if is_ahead else "the store's clock is right again", by_ms=done.ahead_ms)

    async def _do(self, job: CalendarJob, queue: str) -> float:
        """Do a job that a tick left to servers, unless it is too early; returns the seconds until it is to be done."""
        again_at = self._again_at.get((job, queue), 0.0)
        if (wait := again_at - trio.current_time()) <= 0:
            wait = await job(self.store, queue)
            self._again_at[job, queue] = trio.current_time() + wait
        return wait
