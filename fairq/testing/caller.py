"""Stands where a client has its connection: the verbs that the service in memory knows, by the rules of the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import orjson
from anyio.lowlevel import checkpoint
from attrs import asdict, define

from fairq.errors import BadRequest, FairqError, Forbidden, NotFound, NotYet, TooLarge
from fairq.model.batches import CALLBACKS, MAX_CALLBACK_BYTES, BatchState, check_callback_names
from fairq.model.checks import (
    DEFAULT_PAYLOAD_BYTES,
    MAX_BATCH,
    bare_id,
    check_batch_id,
    check_chosen,
    check_full_id,
    check_known_id,
    check_name,
    full_id,
    owner_of,
)
from fairq.model.refusals import missing_ids, missing_tenant, needless_tenant, other_tenant
from fairq.model.tasks import NO_ROOM, NewTask
from fairq.testing.memory import MemoryQueue
from fairq.testing.running import Memory, owned
from fairq.wire.calls import Call

Body = Mapping[str, Any]


@define(eq=False)
class MemoryCaller:
    """The caller of a tenant's client; without a tenant, of a producer's, for all tenants."""

    memory: Memory
    tenant: str | None
    max_payload_bytes: int = DEFAULT_PAYLOAD_BYTES

    def now(self) -> float:
        """Return the time of the event loop's clock."""
        return anyio.current_time()

    async def sleep_until(self, time: float) -> None:
        """Wait until a time of `now`."""
        await anyio.sleep_until(time)

    async def pass_turn(self) -> None:
        """Let others have a turn."""
        await checkpoint()

    async def wait(self, call: Call | Awaitable[Any]) -> Any:
        """Wait for an answer."""
        if not isinstance(call, Call):
            answer = await call
            await checkpoint()
            return answer
        await checkpoint()
        if call.error:
            raise call.error
        return call.result

    def enqueue(self, queue: str, tasks: Sequence[NewTask], deadline: float) -> Call:
        """Store tasks, all of one tenant."""
        call = Call(deadline, result=[None] * len(tasks))
        try:
            call.finish(self._enqueue(queue, tasks))
        except FairqError as error:
            call.finish(call.result, error)
        return call

    def _enqueue(self, queue: str, tasks: Sequence[NewTask]) -> list[str]:
        for task in tasks:
            check_chosen(bare_id(task.id))
        if self.tenant is None:
            tenant = owner_of(tasks[0].id)
            if not tenant:
                raise missing_tenant()
            stored: Sequence[NewTask] = tasks
        else:
            tenant = self.tenant
            if any(owner_of(task.id) for task in tasks):
                raise needless_tenant()
            stored = [owned(tenant, task) for task in tasks]
        outcomes = self.memory.queue(queue).enqueue(self.memory.now(), tenant, stored)
        self.memory.on_change()
        if self.tenant is None:
            return outcomes
        return [outcome.replace(f" {tenant}/", " ") for outcome in outcomes]

    async def request(self, verb: str, body: Body, deadline: float) -> Any:
        """Carry out a request of a tenant or a producer."""
        if verb not in (verbs := self._verbs()):
            raise Forbidden(f"fairq.testing does not know `{verb}`: test it with a real server", field="type")
        return await verbs[verb](self.memory.queue(check_name(body["queue"], "queue")), body)

    def _verbs(self) -> dict[str, Callable[[MemoryQueue, Body], Awaitable[Body]]]:
        return {
            "tasks": self._tasks, "cancel": self._cancel, "events": self._events, "open_batch": self._open_batch,
            "close_batch": self._close_batch, "cancel_batch": self._cancel_batch, "batch": self._batch,
            "batches": self._batches, "reschedule": self._reschedule,
        }  # fmt: skip

    async def wait_task(self, queue: str, id: str, deadline: float) -> Body:
        """Return a task's row of `wait_tasks` once it has ended. Raises: NotYet at the deadline."""
        found, full = self.memory.queue(queue), self._full(id, check_known_id)
        with anyio.CancelScope(deadline=deadline):
            while (row := self._end(found, id, full)) is None:
                await self.memory.wait_for_ends()
            return row
        raise NotYet(f"task {id} has not ended", field="id")

    def _end(self, queue: MemoryQueue, id: str, full: str) -> Body | None:
        state, result = queue.state(full), queue.result(self.memory.now(), full)
        if state.state not in ("done", "dead", "cancelled", "unknown"):
            return None
        row = {"id": id, "state": state.state, "reason": state.reason, "error": state.error}
        if result is None:
            return row
        return {**row, "result": orjson.loads(result)} if result else {**row, "reason": NO_ROOM}

    def _full(self, id: str, check: Callable[[str, str], str], field: str = "id") -> str:
        """Return the full id of an id in a request."""
        return check_full_id(id, field) if self.tenant is None else full_id(self.tenant, check(id, field))

    async def _tasks(self, queue: MemoryQueue, body: Body) -> Body:
        states = [(id, queue.state(self._full(id, check_known_id, "ids"))) for id in body["ids"]]
        return {"tasks": [{**asdict(state), "id": id} for id, state in states]}

    async def _cancel(self, queue: MemoryQueue, body: Body) -> Body:
        ids = self._full_ids(body)
        outcomes = queue.model.cancel(self.memory.now(), ids)
        self.memory.stop(queue.records[id] for id, outcome in zip(ids, outcomes, strict=True) if outcome == "running")
        self.memory.on_change()
        return {"outcomes": outcomes}

    async def _reschedule(self, queue: MemoryQueue, body: Body) -> Body:
        times = body.get("delay_ms", 0), body.get("start_at_ms", 0)
        outcomes = queue.model.reschedule(self.memory.now(), self._full_ids(body), *times)
        self.memory.on_change()
        return {"outcomes": outcomes}

    def _full_ids(self, body: Body) -> list[str]:
        ids = [self._full(id, check_known_id, "ids") for id in body["ids"]]
        if len(set(ids)) < len(ids):
            raise BadRequest("ids must not repeat a task", field="ids")
        return ids

    async def _events(self, queue: MemoryQueue, body: Body) -> Body:
        if self.tenant is None:
            raise Forbidden("a producer may not send events", field="type")
        if body.get("tenant", self.tenant) != self.tenant:
            raise other_tenant()
        after, count, timeout_ms = body["after"], body.get("count", MAX_BATCH), body.get("timeout_ms", 0)
        with anyio.move_on_after(timeout_ms / 1000):
            while timeout_ms and not queue.events(self.tenant, after, count).events:
                await self.memory.wait_for_ends()
        return asdict(queue.events(self.tenant, after, count))

    async def _open_batch(self, queue: MemoryQueue, body: Body) -> Body:
        id, callbacks = self._full(body["id"], check_batch_id), dict[str, NewTask]()
        for field, name in zip(CALLBACKS, check_callback_names(body), strict=True):
            if field in body:
                event, payload = field.removeprefix("on_"), orjson.dumps(body[field])
                callbacks[event] = NewTask(id, payload, name=name)  # the queue gives it its own id
                if len(payload) > MAX_CALLBACK_BYTES:
                    message = f"{field} has {len(payload)} bytes; the limit is {MAX_CALLBACK_BYTES}"
                    raise TooLarge(message, field=field)
        events, max_running = body.get("events", False), body["max_running"]
        return {
            "outcome": queue.open_batch(self.memory.now(), id, owner_of(id), max_running, callbacks, has_events=events)
        }

    def _named(self, queue: MemoryQueue, body: Body) -> tuple[str, BatchState]:
        """Return the full id of a batch, and how far it is."""
        id = self._full(body["id"], check_batch_id)
        state = queue.batch(id, body["id"])
        if state is None:
            raise NotFound(f"there is no batch {body['id']}", field="id")
        return id, state

    async def _close_batch(self, queue: MemoryQueue, body: Body) -> Body:
        previous = queue.model.close_batch(self.memory.now(), self._named(queue, body)[0])
        self.memory.on_change()
        return {"previous": previous}

    async def _cancel_batch(self, queue: MemoryQueue, body: Body) -> Body:
        previous, running = queue.cancel_batch(self.memory.now(), self._named(queue, body)[0])
        self.memory.stop(running)
        self.memory.on_change()
        return {"previous": previous}

    async def _batch(self, queue: MemoryQueue, body: Body) -> Body:
        with anyio.move_on_after(body.get("timeout_ms", 0) / 1000):
            while body.get("timeout_ms") and self._named(queue, body)[1].state != "complete":
                await self.memory.wait_for_ends()
        return {"batch": asdict(self._named(queue, body)[1]), "waits_for": None}

    async def _batches(self, queue: MemoryQueue, body: Body) -> Body:
        if "ids" not in body and self.tenant is None:
            raise missing_ids()
        if "ids" not in body and body.get("tenant", self.tenant) != self.tenant:
            raise other_tenant()
        own = (id for id, batch in queue.model.batches.items() if batch.tenant == self.tenant)
        named = body.get("ids") or map(bare_id, own)
        wanted = body.get("state")
        found = [queue.batch(self._full(id, check_batch_id, "ids"), id) for id in named]
        rows = [asdict(state) for state in found if state]
        return {"batches": [row for row in rows if wanted in (None, row["state"])], "cursor": None}
