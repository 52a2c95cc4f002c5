"""Schedules: tasks that are enqueued at set times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from attrs import define

from fairq.client import lazy
from fairq.client.option_signatures import lists_options
from fairq.client.requests import Body, Requests, away_in, check_whole, named
from fairq.model.checks import MAX_BATCH, MAX_INLINE_BYTES
from fairq.model.texts import moment_of

if TYPE_CHECKING:
    from datetime import datetime

    from fairq.model.option_tables import Seconds, TaskOptions
    from fairq.model.places import AwayPartition
    from fairq.model.schedules import ScheduleState


def terms_of(
    payload: Any, cron: str | None, zone: str | None, every: Seconds | None, misfire: str, options: TaskOptions
) -> Body:
    """Check the terms of a schedule that need no server; returns fields of its frame. Raises: BadRequest."""
    text = lazy.bodies.encode_payload(payload, max_bytes=MAX_INLINE_BYTES)
    asked = lazy.options.scheduled_options(options)
    if options.get("dedupe_payload"):
        asked["dedupe_key"] = lazy.options.hash_payload(text)
    when = {"cron": cron or "", "zone": zone or "", "every_ms": lazy.options.interval_ms(every)}
    return when | asked | {"payload": lazy.bodies.Fragment(text), "misfire": misfire}


def _body(queue: str, name: str, tenant: str | None) -> Body:
    return named(queue, tenant) | {"name": lazy.schedules.check_schedule_name(name)}


async def read_schedules(
    client: Requests, queue: str, tenant: str | None = None, timeout: float | None = None
) -> tuple[list[ScheduleState], list[AwayPartition]]:
    """Read the schedules of a queue, or of one tenant, and the partitions that do not answer."""
    found: dict[tuple[str, str], ScheduleState] = {}
    away: list[AwayPartition] = []
    body, offset = named(queue, tenant) | {"count": MAX_BATCH}, 0
    while True:
        page = await client.request("schedules", body | {"offset": offset}, timeout=timeout)
        away += away_in(page)
        rows = lazy.bodies.rows(lazy.schedules.ScheduleState, page["schedules"])
        found.update({(row.tenant, row.name): row for row in rows})
        if len(rows) < MAX_BATCH:
            return list(found.values()), away
        offset += MAX_BATCH


@define(eq=False)
class ScheduleRequests(Requests):
    """A client's calls about schedules."""

    @lists_options
    async def schedule(
        self,
        queue: str,
        schedule: str,
        payload: Any,
        *,
        cron: str | None = None,
        zone: str | None = None,
        every: Seconds | None = None,
        misfire: str = "skip",
        tenant: str | None = None,
        timeout: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> list[datetime]:
        """Create or change a schedule; returns the next three fires. The same call again changes nothing.

        `cron`: five fields, read in the time zone (`Europe/Copenhagen`; None: UTC), or `every`: seconds. `misfire`:
        how to handle fires while the service was down: `skip` them, or make up for all of them `once`. A task's
        `start_at` is the time of its fire; options that say another one are refused, and so is a batch. With a
        `dedupe_key` a fire makes no task while that of an earlier one is not done. Its tasks are named as it is, unless
        `name` says otherwise. `tenant`, for operators and producers: its tenant, as in the other calls.

        Raises: BadRequest, naming the argument; TooLarge for the payload, or when there are 1,000 of them.
        """
        terms = terms_of(payload, cron, zone, every, misfire, options)
        body = _body(queue, schedule, tenant) | terms
        fires_at_ms = (await self.request("schedule", body, timeout=timeout))["fires_at_ms"]
        return [moment_of(ms) for ms in fires_at_ms]

    async def unschedule(
        self, queue: str, name: str, *, tenant: str | None = None, timeout: float | None = None
    ) -> bool:
        """Delete a schedule; returns whether it existed. Tasks that it has enqueued stay."""
        return bool((await self.request("unschedule", _body(queue, name, tenant), timeout=timeout))["previous"])

    async def pause_schedule(
        self, queue: str, name: str, *, tenant: str | None = None, timeout: float | None = None
    ) -> bool:
        """Stop a schedule from firing until it is resumed; returns whether it was paused already. Raises: NotFound."""
        return await self._set_paused(_body(queue, name, tenant), True, timeout)

    async def resume_schedule(
        self, queue: str, name: str, *, tenant: str | None = None, timeout: float | None = None
    ) -> bool:
        """Let a schedule fire again, next at the first time still to come; returns whether it was paused."""
        return await self._set_paused(_body(queue, name, tenant), False, timeout)

    async def _set_paused(self, body: Body, paused: bool, timeout: float | None) -> bool:
        return bool((await self.request("set_schedule_paused", body | {"paused": paused}, timeout=timeout))["previous"])

    async def schedules(
        self, queue: str, *, tenant: str | None = None, timeout: float | None = None
    ) -> list[ScheduleState]:
        """List all schedules (an operator's client: all tenants' unless one is named), the next to fire first.

        Raises: Unavailable if some cannot be read, since their partition does not answer.
        """
        found, away = await read_schedules(self, queue, tenant, timeout)
        check_whole(queue, away)
        return found

    async def read_schedule(
        self, queue: str, name: str, *, tenant: str | None = None, timeout: float | None = None
    ) -> ScheduleState:
        """Read one schedule, with its payload. Raises: NotFound."""
        page = await self.request("schedules", _body(queue, name, tenant), timeout=timeout)
        check_whole(queue, away_in(page))
        (found,) = lazy.bodies.rows(lazy.schedules.ScheduleState, page["schedules"])
        return found
