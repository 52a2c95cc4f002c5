"""The ticker: calls `tick` for every queue when something is due, and at a floor interval in any case.

Any server may tick any queue; each partition is a queue here. So a server only has to know the due times of its own
actions (`tick_within`), and those that the store returned at the last tick. The floor interval finds due times that
only a dead server knew. It is one second, and doubles after each tick in a row that found nothing, up to IDLE_FLOORS
seconds: otherwise 5,000 idle queues would cost half a core of every server, and of the store.

A queue in which more is due is ticked again at once. A tick is short (lua/verbs/tick.lua), and waits behind the calls
of others. A caller waits behind one tick at most: one server at a time promotes what its ticks leave due.

Queues in which something is known to be due are ticked first. The floor gets the rest of a batch, at least one tick of
TICKS_AT_ONCE: so 10,000 idle queues delay a queue with a due task by one batch, and are looked at all the same.

Each primary of the store has batches of its own: one that stands still delays only the ticks of its own queues. That a
queue's slot has moved is noticed after its next tick.
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
from fairq.io.scopes import background, run_all
from fairq.io.turns import turn_time
from fairq.model.queues import AHEAD_MS
from fairq.server.engine.timers.calendar_jobs import Firing, change_opening_hours
from fairq.server.rated_log import RatedLog
from fairq.store import keys
from fairq.store.connection import Connection
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

CalendarJob = Callable[[Store, str], Awaitable[float]]
FLOOR_S, IDLE_FLOORS = 1.0, 20
TICKS_AT_ONCE = 16
_DISCOVER_S = 5.0
_STEP_S = 0.25
_NEW_PER_S = 1_000  # queues that are ticked for the first time


@define
class _Line:
    """Queues by the time of their next tick."""

    at: dict[str, float] = field(factory=dict)
    _heap: list[tuple[float, str]] = field(factory=list)  # of values of `at`, old ones too

    def put(self, queue: str, at: float) -> bool:
        """Put a queue in line for a time unless it has an earlier one. Returns True if it had not."""
        if is_sooner := at < self.at.get(queue, math.inf):
            self.at[queue] = at
            heapq.heappush(self._heap, (at, queue))
        return is_sooner

    def first(self) -> tuple[float, str]:
        """Return the earliest time and its queue."""
        while self._heap and self.at.get(self._heap[0][1]) != self._heap[0][0]:  # dropped, or sooner since
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else (math.inf, "")


@define(eq=False)
class _Lane:
    """The queues of one primary of the store."""

    due: _Line = field(factory=_Line)  # when something is due
    idle: _Line = field(factory=_Line)  # the floor, of all queues; without a time while they are ticked
    sooner: trio.Event = field(factory=trio.Event)

    def next_at(self) -> float:
        """Return the earliest time."""
        return min(self.due.first()[0], self.idle.first()[0])

    def take_due(self) -> list[str]:
        """Return the queues that are due by now, at most TICKS_AT_ONCE."""
        now, queues = trio.current_time(), list[str]()
        for line, most in ((self.due, TICKS_AT_ONCE - 1), (self.idle, TICKS_AT_ONCE)):
            while len(queues) < most and (first := line.first())[0] <= now:
                queues.append(queue := first[1])
                self.due.at.pop(queue, None)
                self.idle.at[queue] = math.inf
        return queues

    def drop(self, queue: str) -> float:
        """Take a queue out; returns when something is due there."""
        self.idle.at.pop(queue, None)
        return self.due.at.pop(queue, math.inf)


@define(eq=False)
class Ticker:
    """Ticks all queues. `has_ready(queue)` is called for every queue with ready tasks. `server`: its name."""

    store: Store
    has_ready: Callable[[str], None]
    server: str = ""
    _firing: Firing = field(factory=Firing, init=False)
    _ticked: RatedLog = field(factory=RatedLog, init=False)  # expired tasks
    _ahead: set[str] = field(factory=set, init=False)  # queues by whose node's clock the store is far ahead of ours
    _lanes: dict[Connection | None, _Lane] = field(factory=dict, init=False)  # by primary; None: no primary is known
    _lane_of: dict[str, _Lane] = field(factory=dict, init=False)
    _again_at: dict[tuple[CalendarJob, str], float] = field(factory=dict, init=False)  # when to do a job again
    _floors: dict[str, float] = field(factory=dict, init=False)  # of queues where the last tick found nothing
    _nursery: trio.Nursery | None = field(default=None, init=False)  # while it runs

    @property
    def queues(self) -> set[str]:
        """The queues that are ticked."""
        return set(self._lane_of)

    @property
    def is_ahead(self) -> bool:
        """True if the clock of some node of the store is far ahead of ours."""
        return bool(self._ahead)

    @property
    def lag_s(self) -> float:
        """How late the oldest due tick is."""
        return max(0.0, trio.current_time() - min((lane.next_at() for lane in self._lanes.values()), default=math.inf))

    def tick_within(self, queue: str, in_ms: float) -> None:
        """Schedule a tick of a queue (all its places) or place after `in_ms`, or earlier at the floor interval."""
        for place in self.store.registry.places_known(queue):
            self._floors.pop(place, None)
            self._expect(place, in_ms / 1000, FLOOR_S)

    def _expect(self, queue: str, due: float, floor: float) -> None:
        """Add a time when a queue is due, unless the tick at the floor comes first: so the heap stays short."""
        lane = self._lane_of[queue] if queue in self._lane_of else self._find_lane(queue)
        now = turn_time()
        if due <= floor and lane.due.put(queue, now + due):
            lane.sooner.set()
        if lane.idle.put(queue, now + floor):
            lane.sooner.set()

    def _find_lane(self, queue: str) -> _Lane:
        """Put a queue into the lane of its primary."""
        primary = self.store.connection.owner(keys.queue_prefix(queue))
        lane = self._lanes.get(primary)
        if lane is None:
            lane = self._lanes[primary] = _Lane()
            if self._nursery:
                self._nursery.start_soon(self._run_lane, primary, lane)
        if (former := self._lane_of.get(queue)) not in (None, lane):
            assert former
            if lane.due.put(queue, former.drop(queue)):
                lane.sooner.set()
        self._lane_of[queue] = lane
        return lane

    def _idle_floor(self, queue: str) -> float:
        """Return the longest time (s) until the next tick of a queue in which a tick found nothing."""
        floor = self._floors.get(queue, FLOOR_S)
        self._floors[queue] = min(2 * floor, IDLE_FLOORS * FLOOR_S)
        at = trio.current_time() + floor * random.uniform(0.75, 1.0)  # spread queues that were found together
        return (at // _STEP_S + 1) * _STEP_S - turn_time()  # ticks at one step are sent to the store together

    def forget(self, queue: str) -> None:
        """Stop ticking a queue that was deleted."""
        if lane := self._lane_of.pop(queue, None):
            lane.drop(queue)
        self._floors.pop(queue, None)
        self._ahead.discard(queue)
        for job, of in list(self._again_at):
            if of == queue:
                del self._again_at[job, of]

    async def run(self) -> None:
        """Tick until cancelled."""
        async with background(self._discover) as self._nursery:
            for primary, lane in self._lanes.items():
                self._nursery.start_soon(self._run_lane, primary, lane)
            await trio.sleep_forever()

    async def _run_lane(self, primary: Connection | None, lane: _Lane) -> None:
        """Tick the queues of one primary, while it has any."""
        while lane.idle.at:
            if queues := lane.take_due():
                await run_all(*(partial(self._tick_and_go_on, queue) for queue in queues))
                continue
            lane.sooner = trio.Event()
            with trio.move_on_at(lane.next_at()):
                await lane.sooner.wait()
        del self._lanes[primary]

    async def _tick_and_go_on(self, queue: str) -> None:
        due, floor = await self._tick(queue)
        if queue in self._lane_of:  # not forgotten meanwhile
            self._find_lane(queue)
            self._expect(queue, due, floor)

    async def _discover(self) -> None:
        """Start ticking queues that other servers have made, and stop ticking queues that do not exist."""
        while True:
            known = self.queues
            try:
                queues = await self.store.registry.all_places()
            except FairqError as error:
                log.debug("cannot list queues", error=error.message)
            else:
                new = [queue for queue in queues if queue not in known]
                for n, queue in enumerate(new):  # thousands at once would delay the ticks that are due
                    lane = self._find_lane(queue)
                    if lane.idle.put(queue, turn_time() + n / _NEW_PER_S):
                        lane.sooner.set()
                for queue in known.difference(queues):
                    self.forget(queue)
            await trio.sleep(_DISCOVER_S)

    async def _tick(self, queue: str) -> tuple[float, float]:
        """Tick one queue; returns the seconds until something is due, and until it is ticked again in any case."""
        try:
            done = await self.store.tick(queue, self.server)
        except FairqError as error:
            log.debug("tick failed", queue=queue, error=error.message)
            return math.inf, FLOOR_S
        is_ahead = done.ahead_ms > AHEAD_MS
        self._watch_clock(queue, is_ahead, done.ahead_ms)
        if done.reaped or done.expired:
            self._ticked.info("tick", queue=queue, reaped=done.reaped, expired=done.expired)
        if done.ready:
            self.has_ready(queue)
        left = ((done.opening_changes, change_opening_hours), (done.fires, self._firing.fire))
        if waits := [FLOOR_S if is_ahead else await self._do(job, queue) for count, job in left if count]:
            # What cannot be done now (a schedule, on a full store) stays due, and nothing else waits for it. By a clock
            # that is far ahead, schedules would come to be silent, and tenants closed, until that time.
            due = 0.0 if done.promoted or done.expired or done.reaped else min(waits)
            return due, FLOOR_S
        has_done = done.ready or done.promoted or done.expired or done.reaped or done.trimmed
        floor = FLOOR_S if has_done else self._idle_floor(queue)
        due = max(0.0, (done.next_due_ms - done.now_ms) / 1000) if done.next_due_ms >= 0 else math.inf
        return due, floor

    def _watch_clock(self, queue: str, is_ahead: bool, by_ms: int) -> None:
        """Warn, once each time, when a clock of the store comes to be far ahead of ours: each node has its own."""
        was_ahead = self.is_ahead
        (self._ahead.add if is_ahead else self._ahead.discard)(queue)
        if self.is_ahead != was_ahead:
            tell = log.warning if is_ahead else log.info
            tell("the store's clock is ahead" if is_ahead else "the store's clock is right again", by_ms=by_ms)

    async def _do(self, job: CalendarJob, queue: str) -> float:
        """Do a job that a tick left to servers, unless it is too early; returns the seconds until it is to be done."""
        again_at = self._again_at.get((job, queue), 0.0)
        if (wait := again_at - trio.current_time()) <= 0:
            wait = await job(self.store, queue)
            self._again_at[job, queue] = trio.current_time() + wait
        return wait
