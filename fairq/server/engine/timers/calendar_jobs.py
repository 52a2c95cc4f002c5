"""Timed work that a tick leaves to servers, since only they know time zones: schedules and opening hours.

Every server does it. A server sends the state that it has read of a schedule or of opening hours with its change, and
the store accepts the change of one server only (lua/features/schedules.lua, opening_hours.lua). A job returns the
seconds until it is worth doing again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.io.scopes import run_all
from fairq.model.cron import next_fire
from fairq.model.limits import OpeningHours
from fairq.model.opening_hours import next_change
from fairq.model.rates import Rates
from fairq.server.rated_log import RatedLog
from fairq.store.store import Fire, Schedule, Store

log = structlog.get_logger("fairq.server")

AGAIN_S = 1.0  # after a failure
FIRES_PER_S, FIRES_BURST = 200.0, 400.0  # of one tenant: rate and burst
_NO_TASK = ("misfire", "expired", "quota_exceeded")  # outcomes of fires


@define(eq=False)
class Firing:
    """Fires the schedules that are due; each tenant's at a rate, over all queues of this server."""

    _rates: Rates = field(factory=lambda: Rates(FIRES_PER_S, FIRES_BURST), init=False)  # of tenants
    _fired: RatedLog = field(factory=RatedLog, init=False)

    async def fire(self, store: Store, queue: str) -> float:
        """Fire some schedules of a queue; returns the seconds until it can fire more."""
        now = trio.current_time()
        skipped = self._rates.spent(now)
        try:
            now_ms, next_ms, due = await store.due_schedules(queue, skipped)
            due_now = [one for one in due if self._rates.of(one.state.tenant, now).take_one(now)]
            outcomes = await self._fire(store, queue, due_now, now_ms)
        except FairqError as error:
            log.warning("cannot fire schedules", queue=queue, error=error.message)
            return AGAIN_S
        fired, *others = (outcomes.count(word) for word in ("ok", *_NO_TASK))
        duplicates = sum(outcome.startswith("duplicate") for outcome in outcomes)
        if fired or duplicates or any(others):
            counts = {"duplicates": duplicates, **dict(zip(_NO_TASK, others, strict=True))}
            self._fired.info("fired", queue=queue, schedules=fired, **counts)
        if outcomes or not (due or skipped):
            return 0.0
        wait = AGAIN_S * random.uniform(0.5, 1.0)  # a tenant's queues take turns
        return wait if next_ms < 0 else min(wait, (next_ms - now_ms) / 1000)

    async def _fire(self, store: Store, queue: str, due: Sequence[Schedule], now_ms: int) -> list[str]:
        fires = []
        for schedule in due:
            try:
                fires.append(Fire(schedule, next_fire(schedule.state.timing, now_ms, schedule.state.next_at_ms)))
            except (FairqError, LookupError) as error:  # zone files differ from server to server
                log.warning(
                    "cannot compute the next fire of a schedule", queue=queue, schedule=schedule.field, error=str(error)
                )
        return await store.fire(queue, fires) if fires else []


async def change_opening_hours(store: Store, queue: str) -> float:
    """Update the opening hours of a queue that are due to open or close; returns the seconds until the next try."""
    try:
        now_ms, due = await store.opening_hours(queue)
        states = await trio.to_thread.run_sync(_next_states, queue, due, now_ms)  # long texts take 1 ms each
        changed = await _set_all(store, queue, states)
    except FairqError as error:
        log.warning("cannot change opening hours on time", queue=queue, error=error.message)
        return AGAIN_S
    if changed:
        opened = sum(hours.is_open for hours in changed)
        log.info("opening hours changed", queue=queue, opened=opened, closed=len(changed) - opened)
    return 0.0 if states or not due else AGAIN_S


async def _set_all(store: Store, queue: str, hours: Sequence[OpeningHours]) -> list[OpeningHours]:
    """Set opening hours concurrently, so that they share the store's next sync; returns the ones this server set."""
    changed: list[OpeningHours] = []

    async def set_one(hours: OpeningHours) -> None:
        if await store.set_opening_hours(queue, hours) is not None:
            changed.append(hours)

    await run_all(*(partial(set_one, hours) for hours in hours))
    return changed


def _next_states(queue: str, hours: Sequence[OpeningHours], now_ms: int) -> list[OpeningHours]:
    """Return the opening hours with their new state; a text that this server cannot read is left out."""
    found: dict[str, tuple[bool, int]] = {}
    for text in {hours.text for hours in hours}:
        try:
            found[text] = next_change(text, now_ms)
        except (FairqError, LookupError) as error:  # zone files differ from server to server
            log.warning(
                "cannot compute the next change of opening hours", queue=queue, opening_hours=text, error=str(error)
            )
    return [OpeningHours(one.tenant, one.text, *found[one.text], one.revision) for one in hours if one.text in found]
