"""The ticker: calls `tick` for every queue when the next task is due, and once a second to be sure.

Any server may tick any queue, so each server only has to know what it did itself (`expect`); the floor finds what a
server that died had known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.model import AHEAD_MS, Tick
from fairq.server.duties import fire_schedules, turn_windows
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

Duty = Callable[[Store, str], Awaitable[bool]]
FLOOR_S = 1.0
_DISCOVER_S = 5.0


@define(eq=False)
class Ticker:
    """One task that ticks all queues; `has_ready(queue)` is told of every queue that has ready tasks."""

    store: Store
    has_ready: Callable[[str], None]
    is_ahead: bool = field(default=False, init=False)  # the store's clock, of ours
    due: dict[str, float] = field(factory=dict)  # queue -> when to tick it next
    _again_at: dict[tuple[Duty, str], float] = field(factory=dict, init=False)  # not before, for it could not be done
    _sooner: trio.Event = field(factory=trio.Event, init=False)

    def expect(self, queue: str, in_ms: float) -> None:
        """Say that something will be due in a queue after `in_ms`, or sooner what other servers know of."""
        at = trio.current_time() + min(in_ms / 1000, FLOOR_S)
        if at < self.due.get(queue, float("inf")):
            self.due[queue] = at
            self._sooner.set()

    def forget(self, queue: str) -> None:
        """Tick a queue no more: it was deleted."""
        self.due.pop(queue, None)
        for duty, of in list(self._again_at):
            if of == queue:
                del self._again_at[duty, of]

    async def run(self) -> None:
        """Tick until cancelled."""
        discover_at = 0.0
        while True:
            now = trio.current_time()
            if now >= discover_at:
                discover_at = now + _DISCOVER_S
                await self._discover()
            for queue in [queue for queue, at in self.due.items() if at <= now]:
                self.due[queue] = float("inf")
                wait = await self._tick(queue)
                if queue in self.due:  # not forgotten meanwhile
                    self.expect(queue, wait * 1000)  # not over what came to be expected meanwhile
            self._sooner = trio.Event()
            with trio.move_on_at(min(discover_at, *self.due.values()) if self.due else discover_at):
                await self._sooner.wait()

    async def _discover(self) -> None:
        """Tick queues that others have made, and no longer those that are none: whoever asked for them made none."""
        known = set(self.due)
        try:
            queues = await self.store.queues()
            for queue in queues:
                self.due.setdefault(queue, 0.0)
            for queue in known.difference(queues):
                self.forget(queue)
        except FairqError as error:
            log.debug("queues cannot be listed", error=error.message)

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
        left = ((done.turns, turn_windows), (done.fires, fire_schedules))
        if does := [await self._do(duty, queue) for count, duty in left if count]:
            # What cannot be done now (a schedule, on a full store) stays due, and nothing else waits for it.
            return 0.0 if any(does) or done.promoted or done.expired or done.reaped else FLOOR_S
        if done.next_due_ms < 0:
            return FLOOR_S
        return min(FLOOR_S, max(0.0, (done.next_due_ms - done.now_ms) / 1000))

    def _watch_clock(self, done: Tick) -> None:
        """Warn when the store's clock is so far ahead of ours that nothing expires by it; once for each time."""
        is_ahead = done.ahead_ms > AHEAD_MS
        if is_ahead != self.is_ahead:
            self.is_ahead = is_ahead
            tell = log.warning if is_ahead else log.info
            tell("the store's clock is ahead" if is_ahead else "the store's clock is right again", by_ms=done.ahead_ms)

    async def _do(self, duty: Duty, queue: str) -> bool:
        """Do what a tick left to us, unless it could not be done a moment ago; returns whether it was done."""
        if trio.current_time() < self._again_at.get((duty, queue), 0.0):
            return False
        if await duty(self.store, queue):
            return True
        self._again_at[duty, queue] = trio.current_time() + FLOOR_S
        return False
