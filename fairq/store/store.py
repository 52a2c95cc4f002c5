"""The typed API of the store: one method per verb of the Lua library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from attrs import define, evolve

from fairq.model.batches import BatchPage, BatchState
from fairq.model.schedules import MISFIRES, ScheduleState, Timing
from fairq.model.tasks import NewTask
from fairq.model.waiting import Waiting
from fairq.model.webhooks import Webhook, webhook_id
from fairq.store import keys
from fairq.store.calls import LOOKS
from fairq.store.merging import chained, first, of_whole_queue
from fairq.store.partitions import place_in
from fairq.store.queue_calls import QueueCalls
from fairq.store.records import pack_template, pack_timing, unpack_schedule, unpack_webhook
from fairq.store.routes import (
    Away,
    changes_all,
    changes_tenant_or_all,
    everywhere,
    of_all,
    of_first,
    of_task,
    of_tasks,
    of_tenant,
    walk,
)
from fairq.store.rows import batch_state
from fairq.store.task_calls import TaskCalls


class Schedule(NamedTuple):
    """A schedule, and its revision in the store: a change based on it is accepted only if that is still the same."""

    revision: bytes
    state: ScheduleState

    @property
    def field(self) -> str:
        """The schedule's name in the store."""
        return f"{self.state.tenant}/{self.state.name}"


class Fire(NamedTuple):
    """A schedule that is due, and when it fires next."""

    schedule: Schedule
    next_at_ms: int


@define(eq=False)
class Store(TaskCalls, QueueCalls):
    """All verbs, on any number of queues; those about batches, schedules and webhooks are here. Many tasks may call.

    Every method raises Unavailable (nothing was done), OutcomeUnknown (it may have been done; repeat it with the same
    ids) or StoreRefused. Methods that create tasks, batches, schedules, tokens, queues or notes also raise StoreFull.
    """

    async def why(self, queue: str, id: str) -> Waiting:
        """Read the facts that explain why a task waits. All partitions that answer share the slots, and their facts."""
        found, places = await self._why(queue, id), await self.registry.places(queue)
        if found.facts is None or len(places) == 1:
            return found
        states = await everywhere(Store.numbers, self, places, away={})
        return evolve(found, facts=of_whole_queue(found.facts, states))

    @of_tenant
    async def open_batch(
        self,
        queue: str,
        tenant: str,
        id: str,
        max_running: int,
        callbacks: Sequence[bytes],
        names: Sequence[str] = ("", "", ""),
        *,
        events: bool = False,
        maker: str | None = None,
    ) -> bool:
        """Open a batch; callbacks are payloads for complete, success and death, or empty, as names. False if it exists.

        `maker`: who makes the queue if it does not exist (None: the tenant).
        """
        args: tuple[str | bytes | int, ...] = (id, max_running, *callbacks, int(events), *names)
        maker = tenant if maker is None else maker
        return bool(await self._put("open_batch", queue, tenant, *args, maker=maker) == b"ok")

    @of_task
    async def close_batch(self, queue: str, id: str, *, cancel: bool = False) -> str:
        """Close a batch to new tasks; returns its old state. Raises: NotFound.

        `cancel`: its tasks are cancelled (the ticker continues what exceeds one call).
        """
        args = ("close_batch", queue, id, "cancel" if cancel else "")
        if self.replicas is None:
            previous: bytes = await self._call(*args)
        else:
            previous = await self.replicas.having(keys.queue_prefix(queue), lambda _: self._call(*args))
        return previous.decode()

    @of_tasks()
    async def batches(self, queue: str, ids: Sequence[str]) -> list[BatchState | None]:
        """Read the states of batches; None for unknown ones."""
        rows = await self._call_in_parts("batches", queue, ids, size=LOOKS)
        return [batch_state(id, row) for id, row in zip(ids, rows, strict=True)]

    @of_task
    async def first_of_batch(self, queue: str, id: str) -> str | None:
        """Read which of a batch's tasks that have not ended was added first."""
        found = await self.connection.call("ZRANGE", keys.members_key(queue, id), 0, 0)
        return found[0].decode() if found else None

    @of_task
    async def batch_results(
        self, queue: str, task: str, lease: int, cursor: str | None
    ) -> tuple[list[tuple[str, bytes | None]], str | None]:
        """Read a page of the results of a batch, as JSON text, for a callback task of it; and where the next begins.

        Raises: Forbidden if that lease is not open, NotFound if the task is not a callback. A result is None if it is
        not kept any more, and empty if the limit of its tenant had no room for it.
        """
        found, *flat = await self._call("batch_results", queue, task, lease, cursor or "0")
        results = [(id.decode(), text) for id, text in zip(flat[::2], flat[1::2], strict=True)]
        return results, None if found == b"0" else found.decode()

    async def list_batches(
        self,
        queue: str,
        tenant: str | None,
        state: str | None,
        cursor: str,
        count: int,
        *,
        away: Away | None = None,
    ) -> BatchPage:
        """Read about `count` batches (None: of any tenant, in any state) from a cursor on (empty: all), in no order."""

        async def read(place: str, cursor: str, count: int) -> tuple[list[BatchState], str]:
            reply = await self._call("list_batches", place, tenant or "", state or "", cursor, count)
            rows = ((id.decode(), row) for id, row in zip(reply[1::2], reply[2::2], strict=True))
            found = [each for id, row in rows if (each := batch_state(id, row))]
            return found, "" if reply[0] == b"0" else reply[0].decode()

        places = await self.registry.places(queue)
        return BatchPage(*await walk(read, (place_in(places, tenant),) if tenant else places, cursor, count, away))

    @of_tenant
    async def schedule(
        self,
        queue: str,
        tenant: str,
        name: str,
        timing: Timing,
        next_at_ms: int,
        misfire: str,
        task: NewTask,
        *,
        maker: str = "",
        app: str = "",
    ) -> tuple[str, int]:
        """Create or change a schedule; returns `created`, `changed` or `same`, and when it fires next.

        `maker`: the tenant that makes the queue if it is new; empty for an operator. `app`: the app that declares it.
        Then the outcome may also be `kept`: another worker of the app still declares it, or `other`: it is not the
        app's.
        """
        rest = (next_at_ms, MISFIRES.index(misfire), pack_timing(timing), pack_template(task), app)
        outcome, next_at = await self._put("schedule", queue, tenant, name, *rest, maker=maker)
        return outcome.decode(), next_at

    @of_tenant
    async def unschedule(self, queue: str, tenant: str, name: str, app: str = "") -> str:
        """Delete a schedule: `ok` or `gone`; for an `app`, `kept` while one of its workers still declares it."""
        outcome: bytes = await self._call("unschedule", queue, tenant, name, app)
        return outcome.decode()

    @of_all(chained)
    async def declared(self, queue: str, app: str) -> list[str]:
        """Name the schedules that an app has declared, by tenant and name."""
        return [field.decode() for field in await self._call("declared", queue, app)]

    @changes_tenant_or_all(first, attrgetter("state.tenant"))
    async def pause_schedule(self, queue: str, schedule: Schedule, next_at_ms: int | None) -> bool:
        """Stop a schedule from firing (None), or let it fire again; returns False if it has changed meanwhile."""
        args = (schedule.state.tenant, schedule.state.name, schedule.revision, "" if next_at_ms is None else next_at_ms)
        return bool(await self._call("pause_schedule", queue, *args) == b"ok")

    async def fire(self, queue: str, fires: Sequence[Fire]) -> list[str]:
        """Fire up to 100 due schedules, each once even if several servers try.

        Outcomes: `ok`, `misfire`, `gone`, `quota_exceeded`, or `duplicate` (with the id of the task that holds the
        dedupe key, if that is the cause).
        """
        args: list[str | bytes | int] = []
        for schedule, next_at_ms in fires:
            args += (schedule.field, schedule.revision, next_at_ms)
        return [outcome.decode() for outcome in await self._call("fire", queue, *args)]

    async def schedules(
        self,
        queue: str,
        tenant: str = "",
        name: str = "",
        *,
        offset: int = 0,
        count: int = 100,
        away: Away | None = None,
    ) -> tuple[int, list[Schedule]]:
        """Read the store's time, and a tenant's schedules, one of them, or a page of all, the next to fire first."""
        places = await self.registry.places(queue)
        if len(places) > 1 and not tenant:
            pages = await everywhere(Store._schedules, self, places, "", "", 0, offset + count, away=away)
            found = sorted(chained([page for _, page in pages]), key=attrgetter("state.next_at_ms"))
            return pages[0][0], found[offset : offset + count]
        return await self._schedules(place_in(places, tenant), tenant, name, offset, count)

    async def _schedules(
        self, place: str, tenant: str, name: str, offset: int, count: int
    ) -> tuple[int, list[Schedule]]:
        now_ms, *rows = await self._call("schedules", place, tenant, name, offset, count)
        return now_ms, [Schedule(row[1], unpack_schedule(row)) for row in rows]

    async def due_schedules(self, queue: str, skipped: Iterable[str] = ()) -> tuple[int, int, list[Schedule]]:
        """Read the store's time, when a schedule is due next (-1: never), and some that are due, of other tenants."""
        now_ms, next_ms, *rows = await self._call("due_schedules", queue, 100, *skipped)
        return now_ms, next_ms, [Schedule(row[1], unpack_schedule(row)) for row in rows]

    @changes_all(first)
    async def add_webhook(self, queue: str, url: str, name: str, *, has_fan_out: bool, secrets: Sequence[str]) -> str:
        """Register a webhook, or change the one with this URL and name; returns `created`, `changed` or `same`."""
        args = (webhook_id(url, name), url, name, int(has_fan_out), " ".join(secrets))
        outcome: bytes = await self._put("add_webhook", queue, *args)
        return outcome.decode()

    @changes_all(any)
    async def remove_webhook(self, queue: str, id: str) -> bool:
        """Forget a webhook; returns whether there was one."""
        return bool(await self._call("remove_webhook", queue, id) == b"ok")

    @changes_all(first)
    async def pause_webhook(self, queue: str, id: str, *, is_paused: bool) -> bool | None:
        """Pause or resume a webhook; returns whether it was paused, None if it does not exist."""
        previous = await self._call("pause_webhook", queue, id, int(is_paused))
        return None if previous < 0 else bool(previous)

    @of_first
    async def webhooks(self, queue: str) -> list[Webhook]:
        """Read all webhooks of a queue, the oldest first."""
        flat = await self._call("webhooks", queue)
        found = [unpack_webhook(id, packed) for id, packed in zip(flat[::2], flat[1::2], strict=True)]
        return sorted(found, key=lambda webhook: (webhook.created_at_ms, webhook.id))
