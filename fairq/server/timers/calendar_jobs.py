"""Timed work that a tick leaves to servers, since only they know time zones: schedules and opening hours.

Every server does it. A server sends the state that it has read of a schedule or of opening hours with its change, and
the store accepts the change of one server only (lua/65_schedules.lua, lua/66_opening_hours.lua). A job returns False if
something due cannot be done now.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog
import trio

from fairq.errors import FairqError
from fairq.model.cron import next_fire
from fairq.model.limits import OpeningHours
from fairq.model.opening_hours import next_change
from fairq.scopes import run_all
from fairq.store.store import Fire, Store

log = structlog.get_logger("fairq.server")

_NO_TASK = ("misfire", "expired", "quota_exceeded")  # outcomes of fires


async def fire_schedules(store: Store, queue: str) -> bool:
    """Fire the schedules of a queue that are due."""
    fires = []
    try:
        now_ms, schedules = await store.schedules(queue)
        due = [one for one in schedules if one.state.next_at_ms <= now_ms and not one.state.is_paused]
        for schedule in due:
            try:
                fires.append(Fire(schedule, next_fire(schedule.state.timing, now_ms, schedule.state.next_at_ms)))
            except (FairqError, LookupError) as error:  # zone files differ from server to server
                log.warning(
                    "cannot compute the next fire of a schedule", queue=queue, schedule=schedule.field, error=str(error)
                )
        outcomes = await store.fire(queue, fires) if fires else []
    except FairqError as error:
        log.warning("cannot fire schedules", queue=queue, error=error.message)
        return False
    fired, *others = (outcomes.count(word) for word in ("ok", *_NO_TASK))
    duplicates = sum(outcome.startswith("duplicate") for outcome in outcomes)
    if fired or duplicates or any(others):
        counts = {"duplicates": duplicates, **dict(zip(_NO_TASK, others, strict=True))}
        log.info("fired", queue=queue, schedules=fired, **counts)
    return bool(fires) or not due


async def change_opening_hours(store: Store, queue: str) -> bool:
    """Update the opening hours of a queue that are due to open or close."""
    try:
        now_ms, due = await store.opening_hours(queue)
        states = await trio.to_thread.run_sync(_next_states, queue, due, now_ms)  # long texts take 1 ms each
        changed = await _set_all(store, queue, states)
    except FairqError as error:
        log.warning("cannot change opening hours on time", queue=queue, error=error.message)
        return False
    if changed:
        opened = sum(hours.is_open for hours in changed)
        log.info("opening hours changed", queue=queue, opened=opened, closed=len(changed) - opened)
    return bool(states) or not due


async def _set_all(store: Store, queue: str, hours: Sequence[OpeningHours]) -> list[OpeningHours]:
    """Set opening hours concurrently, so that they share the store's next sync; returns those this server set."""
    changed: list[OpeningHours] = []

    async def set_one(hours: OpeningHours) -> None:
        if await store.set_opening_hours(queue, hours) is not None:
            changed.append(hours)

    await run_all(*(partial(set_one, hours) for hours in hours))
    return changed


def _next_states(queue: str, hours: Sequence[OpeningHours], now_ms: int) -> list[OpeningHours]:
    """Return the opening hours with their new state, without those whose text this server cannot read."""
    found: dict[str, tuple[bool, int]] = {}
    for text in {hours.text for hours in hours}:
        try:
            found[text] = next_change(text, now_ms)
        except (FairqError, LookupError) as error:  # zone files differ from server to server
            log.warning(
                "cannot compute the next change of opening hours", queue=queue, opening_hours=text, error=str(error)
            )
    return [OpeningHours(one.tenant, one.text, *found[one.text], one.revision) for one in hours if one.text in found]
