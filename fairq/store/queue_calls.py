"""The verbs of the store about a queue and its tenants: settings, counts, limits, opening hours, feeds, history."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import NamedTuple

import trio
from attrs import asdict, define, evolve

from fairq.errors import NotEmpty, StoreRefused, Unavailable
from fairq.model.events import EventPage
from fairq.model.history import Slot
from fairq.model.limits import Limits, OpeningHours
from fairq.model.operator_views import PartitionRow
from fairq.model.places import AwayPartition, partition_of, queue_of
from fairq.model.queues import QueueSettings, QueueState, Repair, Tick, stored_setting
from fairq.model.refusals import partitions_without_reserve
from fairq.model.tenants import TenantPage, TenantState
from fairq.model.texts import say_moment
from fairq.store import keys
from fairq.store.calls import LOOKS, Calls, wall_ms
from fairq.store.counts import QueueCounts
from fairq.store.merging import by_name, chained, first, longest, one_history, one_queue, sums
from fairq.store.migrations import PARTITIONS, migrate
from fairq.store.node import cpu_of, read_info
from fairq.store.partitions import Places, place_in
from fairq.store.records import pack_waits, unpack_opening_hours, unpack_slot
from fairq.store.routes import (
    NO_ANSWER,
    Away,
    changes_all,
    changes_tenant_or_all,
    everywhere,
    of_all,
    of_first,
    of_tenant,
    of_tenant_or_first,
    of_tenants,
    pass_over,
    walk,
)
from fairq.store.rows import event, limits_of, queue_state, settings_of, tenant_states

_ACCOUNTS = 100  # accounts that one call looks at
_HELD = ("ready", "pending", "delayed", "leased", "dead")  # tasks by state


class HistoryPage(NamedTuple):
    """Some intervals of a queue's history, the store's time, and the unit of service."""

    now_ms: int
    unit: float
    slots: list[Slot]


def _one_history(pages: Sequence[HistoryPage]) -> HistoryPage:
    return pages[0]._replace(slots=one_history(slot for page in pages for slot in page.slots))


def _one_reading(pages: Sequence[tuple[int, list[OpeningHours]]]) -> tuple[int, list[OpeningHours]]:
    return max(now_ms for now_ms, _ in pages), [hours for _, found in pages for hours in found]


@define(eq=False)
class QueueCalls(Calls):
    """All verbs about queues and tenants."""

    async def queues(self, *, or_last: bool = False) -> list[str]:
        """Name all queues; `or_last`: while the registry's primary is away, those that this server read last."""
        return sorted(await (self.registry.read_or_last() if or_last else self.registry.read()))

    @of_all(one_queue)
    async def queue(self, queue: str, *, away: Away | None = None) -> QueueState:
        """Read a queue's counts and settings, in O(1)."""
        return queue_state(queue, await self._call("queue_state", queue))

    @of_all(sums)
    async def numbers(self, queue: str, *, away: Away | None = None) -> dict[str, float]:
        """Read all numbers of a queue's record (QUEUE in lua/KEYS.md), in O(1)."""
        reply = await self._call("queue_state", queue)
        return {reply[i].decode(): float(reply[i + 1]) for i in range(0, len(reply), 2)}

    async def partitions(self, queue: str) -> list[PartitionRow]:
        """Read the state of each partition of a queue that answers, if it has several."""
        places = await self.registry.places(queue)
        if len(places) == 1:
            return []
        return await everywhere(QueueCalls._partition_row, self, places, away={})

    async def _partition_row(self, place: str) -> PartitionRow:
        numbers = await self.numbers(place)
        counts = {name: int(numbers[name]) for name in _HELD}
        owner, cpu_s = self.connection.owner(keys.queue_prefix(place)), None
        with suppress(StoreRefused):  # a managed store may hide it
            cpu_s = cpu_of(read_info(await owner.call("INFO", "cpu"))) if owner else None
        return PartitionRow(
            partition_of(place), self.primary_of(place), numbers["weight_sum"] / 1000, **counts, store_cpu_s=cpu_s
        )

    def primary_of(self, place: str) -> str:
        """Return the address of the primary that has a place, as far as known; else an empty text."""
        owner = self.connection.owner(keys.queue_prefix(place))
        return owner.address.shown if owner else ""

    async def place_of(self, queue: str, tenant: str) -> str:
        """Return the place of a tenant."""
        return place_in(await self.registry.places(queue), tenant)

    def away_rows(self, away: Iterable[str]) -> list[dict[str, str]]:
        """Describe places that do not answer, as replies name them."""
        return [asdict(AwayPartition(partition_of(place), self.primary_of(place))) for place in away]

    async def configure(self, queue: str, changes: Mapping[str, str | float], if_version: str = "") -> QueueSettings:
        """Change settings of the queue, in each place atomically; returns the old ones.

        Raises: StaleVersion; BadRequest for a reserve of several partitions; NotEmpty if it exists with another number.
        """
        partitions = int(changes.get("partitions", 1))
        if changes.get("reserve") and max(partitions, len(await self.registry.places(queue))) > 1:
            raise partitions_without_reserve("settings.reserve")
        if "partitions" in changes:
            await self._partition(queue, partitions)
        return await self._configure(queue, changes, if_version=if_version)

    async def _partition(self, queue: str, partitions: int) -> None:
        """Make a queue with this number of partitions, unless it has them."""
        if partitions > 1 and not await self.registry.exists(queue):
            outcome = await migrate(self, to=PARTITIONS.number)
            if outcome != "done":
                why = "servers of an older version run" if outcome == "waits" else "another server prepares the store"
                raise Unavailable(f"queue {queue} was not made: {why}")
        if (found := len(await self.registry.make(queue, "", partitions=partitions))) != partitions:
            message = (
                f"queue {queue} exists with {found} partition{'s' * (found > 1)}; to change their number, back up, then"
                f" `fairq restore FILE --partitions {queue}={partitions}`"
            )
            raise NotEmpty(message, field="settings.partitions")

    @changes_all(first)
    async def _configure(
        self, queue: str, changes: Mapping[str, str | float], *, if_version: str = ""
    ) -> QueueSettings:
        pairs: list[str | int] = ["if_version", if_version] if if_version else []
        for name, value in changes.items():
            pairs += (name, stored_setting(name, value))
        return settings_of(await self._put("configure", queue, *pairs))

    @changes_tenant_or_all(any)
    async def set_paused(self, queue: str, tenant: str, paused: bool) -> bool:
        """Stop starting tasks of a tenant (empty: of all), or start them again; returns whether it was paused."""
        return bool(await self._put("set_paused", queue, tenant, int(paused)))

    async def tick(self, queue: str, server: str = "", limit: int = 125) -> Tick:
        """Promote due tasks, bury expired ones, reap overdue leases, trim dead letters; `limit` bounds their sum.

        `server`: other servers leave it the due tasks that this call did not promote.
        """
        reply = await self._call("tick", queue, limit, wall_ms(), server)
        tick, lost, woken = Tick(*reply[:9]), reply[9], reply[10:]
        if woken:
            self.on_woken(queue, *woken)
        if lost:
            rows = zip(lost[::3], lost[1::3], lost[2::3], strict=True)
            self.attempts.lost(queue_of(queue), [(id.decode(), lease, attempt) for id, lease, attempt in rows])
        if tick.reaped + tick.expired > 0:
            self.counts.of(queue).lost += tick.reaped
        return evolve(tick, ahead_ms=tick.now_ms - wall_ms())

    async def wake(self, queue: str) -> None:
        """Notify all servers that there may be work in a queue; the message may be lost."""
        await self.connection.call("SPUBLISH", keys.ready_channel(queue), keys.READY)

    async def repair(
        self, queue: str, number: int | None = None, *, seconds: float = float("inf"), away: Away | None = None
    ) -> Repair:
        """Repair a queue, for about `seconds`; repeat it, with the returned number, while the outcome is `more`.

        Until the outcome is `done`, the queue gives no tasks, and changes are refused with Repairing. Any caller
        continues where the last one stopped. `away`: places that do not answer are noted there and passed over, unless
        none does.
        """
        deadline, places = trio.current_time() + seconds, await self.registry.places(queue)
        number, at = divmod(number or 0, len(places))  # of the repair there (0: none has begun), and the place
        while True:
            try:
                outcome, number, doing, tasks, tenants = await self._call("repair", places[at], number or "")
            except NO_ANSWER as error:
                pass_over(places[at], error, places, away)
                outcome, number, doing, tasks, tenants = b"done", 0, b"", 0, 0
            if outcome != b"more" and at + 1 < len(places):
                outcome, number, at = b"more", 0, at + 1
            if outcome != b"more" or trio.current_time() >= deadline:
                held = [await self._held(place, places, away) for place in places[:at]]
                tasks, tenants = tasks + sum(each[0] for each in held), tenants + sum(each[1] for each in held)
                return Repair(outcome.decode(), number * len(places) + at, doing.decode(), tasks, tenants)

    async def _held(self, place: str, places: Places, away: Away | None) -> tuple[int, int]:
        """Count the tasks and tenants of one of these places."""
        try:
            numbers = await QueueCalls.numbers(self, place)
            tenants = await self.connection.call("HLEN", f"{keys.queue_prefix(place)}:tenants")
        except NO_ANSWER as error:
            pass_over(place, error, places, away)
            return 0, 0
        return int(sum(numbers[name] for name in _HELD)), tenants

    async def begin_turn(self, place: str, change: str, for_ms: int) -> bool:
        """Let a change of all places of a queue begin, in the first of them; False while another is under way."""
        return bool(await self._call("begin_turn", place, change, for_ms))

    async def end_turn(self, place: str, change: str) -> None:
        """End the turn of a change, unless it is over already."""
        await self._call("end_turn", place, change)

    async def permissions(self, queue: str) -> list[str]:
        """Return the commands of the library that the store's user may not run on a queue's keys."""
        return [name.decode() for name in await self._call("permissions", queue)]

    @of_all(longest)
    async def oldest_wait_ms(self, queue: str, tenants: int, *, away: Away | None = None) -> int | None:
        """Return the longest time that a tenant's next task has been ready; None if there is no such task.

        If more than `tenants` (at most 500) may be served, a random sample of that size is examined.
        """
        wait_ms, _ = await self._call("oldest", queue, tenants)
        return None if wait_ms < 0 else int(wait_ms)

    async def tenants(self, queue: str, names: Sequence[str] = (), *, away: Away | None = None) -> list[TenantState]:
        """Read those of the named tenants that exist, or all tenants page by page, sorted by name."""
        if not names:
            return (await self.list_tenants(queue, "", sys.maxsize)).tenants
        return by_name(await self._tenants(queue, names, await self._unit_of_shares(queue), away=away))

    @of_tenants(chained)
    async def _tenants(
        self, queue: str, names: Sequence[str], unit: float, *, away: Away | None = None
    ) -> list[TenantState]:
        found: dict[str, TenantState] = {}
        for start in range(0, len(names), LOOKS):
            found |= tenant_states(await self._call("tenants", queue, "0", LOOKS, *names[start : start + LOOKS]), unit)
        return list(found.values())

    async def list_tenants(self, queue: str, cursor: str, count: int, *, away: Away | None = None) -> TenantPage:
        """Read `count` tenants or some more from a cursor on (empty: all), fewer only at the end, sorted by name."""
        unit = await self._unit_of_shares(queue)

        async def read(place: str, cursor: str, count: int) -> tuple[list[TenantState], str]:
            found: dict[str, TenantState] = {}
            while True:
                reply = await self._call("tenants", place, cursor, LOOKS)
                found |= tenant_states(reply, unit)
                cursor = "" if reply[0] == b"0" else reply[0].decode()
                if not cursor or len(found) >= count:
                    return list(found.values()), cursor

        rows, following = await walk(read, await self.registry.places(queue), cursor, count, away)
        return TenantPage(by_name(rows), following)

    @of_first
    async def _unit_of_shares(self, queue: str) -> float:
        return 1000.0 if (await self.queue(queue)).settings.share == "time" else 1.0

    @of_tenant
    async def set_weight(self, queue: str, tenant: str, weight: float, if_version: str = "") -> float:
        """Set a tenant's weight, which applies to its backlog at once; returns the old weight. Raises: StaleVersion."""
        previous: int = await self._put("set_weight", queue, tenant, max(1, round(weight * 1000)), if_version)
        return previous / 1000

    @of_tenant
    async def drop_tenant(self, queue: str, tenant: str) -> bool:
        """Delete a tenant that has nothing, with its settings and feed; False: there is none. Raises: NotEmpty."""
        outcome, *rest = await self._call("drop_tenant", queue, tenant)
        if outcome == b"not_empty":
            until, *pairs = rest
            held = {name.decode(): count for name, count in zip(pairs[::2], pairs[1::2], strict=True)}
            kept = f"{held.pop('kept_bytes'):,} bytes of batches (kept until a day after they are complete)"
            if until:
                kept += f", results and dedupe keys (until {say_moment(until)} at the latest)"
            names = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in held.items() if count)
            where = f"tenant {tenant} in queue {queue_of(queue)}"
            raise NotEmpty(f"{where} is not empty: {names or kept}", field="tenant")
        return bool(outcome == b"ok")

    async def forget_tenants(self, queue: str, cursor: str, idle_ms: int) -> tuple[str, int]:
        """Look at some accounts, and drop tenants that have had nothing for `idle_ms`; returns where to go on ("0": at
        the end), and how many were dropped.
        """
        next_cursor, dropped = await self._call("forget_tenants", queue, cursor, _ACCOUNTS, idle_ms, wall_ms())
        return next_cursor.decode(), dropped

    @changes_tenant_or_all(first)
    async def set_limits(
        self, queue: str, tenant: str, changes: Mapping[str, float | None], *, if_version: str = ""
    ) -> Limits:
        """Change limits of a tenant, or (empty name) those for all, atomically; returns the old limits.

        Raises: StaleVersion.
        """
        pairs: list[str | float] = ["if_version", if_version] if if_version else []
        for name, value in changes.items():
            pairs += (name, -1 if value is None else value)
        return limits_of(await self._put("set_limits", queue, tenant, *pairs))

    @of_tenant_or_first
    async def limits(self, queue: str, tenant: str) -> Limits:
        """Read the limits set for a tenant, or (empty name) for all."""
        return limits_of(await self._call("limits", queue, tenant))

    @changes_tenant_or_all(first, attrgetter("tenant"))
    async def set_opening_hours(self, queue: str, hours: OpeningHours, *, if_version: str = "") -> str | None:
        """Set the opening hours of a tenant, or of the queue (empty text: always open); returns the old text.

        Hours with a revision are set only if it is still the one in the store; None if another server was first.
        Raises: StaleVersion.
        """
        rest = (hours.text, int(hours.is_open), hours.changes_at_ms, hours.revision, if_version)
        previous: bytes | None = await self._put("set_opening_hours", queue, hours.tenant, *rest)
        return None if previous is None else previous.decode()

    @of_tenants(_one_reading)
    async def opening_hours(self, queue: str, tenants: Sequence[str] = ()) -> tuple[int, list[OpeningHours]]:
        """Read the store's time, and opening hours: those of `tenants` (empty name: the queue's), or those due."""
        now_ms, *rows = await self._call("opening_hours", queue, *tenants)
        return now_ms, [unpack_opening_hours(*row) for row in rows]

    @of_tenant
    async def events(self, queue: str, tenant: str, after: int, count: int) -> EventPage:
        """Read a tenant's events after an id, in order; after 0, from the oldest one kept.

        Raises: TooOld if some of them are no longer kept; BadRequest if the id is newer than the newest event.
        """
        oldest, newest, *rows = await self._call("events", queue, tenant, after, count)
        page = EventPage(oldest, newest, [event(row) for row in rows])
        page.check(after)
        return page

    async def add_history(self, queue: str, counts: QueueCounts) -> bool:
        """Add a server's counts since its last call; returns whether tasks are running."""
        args: list[str | bytes | int] = [counts.lost]
        for tenant, count in counts.tenants.items():
            args += (tenant, count.enqueued, count.started, count.failed, pack_waits(count.waits))
        return bool(await self._call("add_history", queue, *args))

    @of_all(_one_history)
    async def history(self, queue: str, step_s: int, last: int, count: int, *, away: Away | None = None) -> HistoryPage:
        """Read up to `count` intervals that are kept, the last one by number (-1: the newest)."""
        now_ms, share, *slots = await self._call("history", queue, step_s, last, count)
        return HistoryPage(now_ms, 1.0 if share else 1000.0, [unpack_slot(packed) for packed in slots])
