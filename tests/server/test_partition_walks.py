"""Random calls at two servers of a queue with four partitions: each task is where its own history says, and runs once.

The servers, their workers and the callers have real connections. Servers and workers come and go.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any, Generic, TypeVar

import pytest
import trio
from attrs import define, field

from fairq.model.checks import bare_id, owner_of
from fairq.server.run import Served
from fairq.store.partitions import place_in, places_of

from .harness import OPERATOR, PRODUCER, WORKER, Raw, raw, running

T = TypeVar("T")

Q, PARTITIONS, STEPS = "imports", 4, 120
TENANTS = [f"t{n}" for n in range(12)]
SETTINGS = {
    "partitions": PARTITIONS, "retry_base_ms": 1, "retry_cap_ms": 1,
    "max_attempts": 0, "max_lost_leases": 0,  # only a reject makes a dead letter
}  # fmt: skip
SHOWN = {  # what the servers may show of a task; a push may be under way
    "waiting": {"ready", "delayed", "leased"},
    "later": {"delayed"},
    "held": {"leased"},
    "stopping": {"leased", "cancelled"},
    "dead": {"dead"},
    "done": {"done"},
    "cancelled": {"cancelled"},
}
CANCELLED = {  # the outcomes of cancelling it; a push may be under way, and so may the end of a worker that is gone
    "waiting": {"ok", "running"}, "later": {"ok"}, "held": {"running"}, "stopping": {"running", "gone"},
}  # fmt: skip
SETTLED = {"ack": "done", "nack": "waiting", "reject": "dead", "release": "waiting"}
OVER = ("dead", "done", "cancelled")


@define
class Kept(Generic[T]):
    """What a context gives, in a task of its own, until it is ended."""

    value: T
    stop: trio.Event = field(factory=trio.Event)
    ended: trio.Event = field(factory=trio.Event)

    async def end(self) -> None:
        self.stop.set()
        await self.ended.wait()


async def keep(nursery: trio.Nursery, context: AbstractAsyncContextManager[T]) -> Kept[T]:
    """Enter a context; contexts that are kept end in any order."""

    async def hold(task_status: trio.TaskStatus[Kept[T]]) -> None:
        async with context as value:
            kept = Kept(value)
            task_status.started(kept)
            await kept.stop.wait()
        kept.ended.set()

    return await nursery.start(hold)  # type: ignore[no-any-return]


@define(eq=False)
class Worker:
    """A worker, and the tasks that were pushed to it and are not settled."""

    name: str
    credit: int
    connection: Kept[Raw]
    held: dict[str, dict[str, Any]] = field(factory=dict)


@define(eq=False)
class Server:
    """A server with its callers and its workers."""

    of: Kept[Served]
    producer: Kept[Raw]
    operator: Kept[Raw]
    workers: list[Worker] = field(factory=list)


class Walk:
    """What has been done, and what each task must have become."""

    def __init__(self, nursery: trio.Nursery, store: str, seed: int) -> None:
        self.nursery, self.store, self.random = nursery, store, Random(seed)
        self.servers: list[Server] = []
        self.states: dict[str, str] = {}  # by id: a key of SHOWN
        self.paused: set[str] = set()
        self.names = 0

    async def begin(self) -> None:
        for _ in range(2):
            self.servers.append(await self.start_server())
        await self.servers[0].operator.value.ask("configure", queue=Q, settings=SETTINGS)
        for server in self.servers:
            await self.start_worker(server)

    async def start_server(self) -> Server:
        of = await keep(self.nursery, running(self.store, reconnect_grace=0))
        producer, operator = [await keep(self.nursery, raw(of.value, token)) for token in (PRODUCER, OPERATOR)]
        return Server(of, producer, operator)

    async def stop_server(self, server: Server) -> None:
        for worker in list(server.workers):
            await self.stop_worker(server, worker)
        await server.producer.end()
        await server.operator.end()
        await server.of.value.app.drain(5.0)
        await server.of.end()

    async def start_worker(self, server: Server) -> None:
        self.names += 1
        credit = self.random.choice([1, 3, 8])
        worker = Worker(f"w{self.names}", credit, await keep(self.nursery, raw(server.of.value, WORKER)))
        await worker.connection.value.attach(Q, credit=credit, name=worker.name)
        server.workers.append(worker)

    async def stop_worker(self, server: Server, worker: Worker) -> None:
        """Break a worker's connection: its tasks wait again, and those that were stopped are cancelled soon."""
        server.workers.remove(worker)
        await self.collect(worker)
        await worker.connection.end()
        self.states |= {id: "waiting" for id in worker.held if self.states[id] == "held"}

    async def step(self) -> None:
        often = [self.enqueue, self.settle] * 12
        seldom = [self.cancel, self.pause, self.weigh, self.replay, self.change_workers] * 3
        await self.random.choice([*often, *seldom, self.change_server])()
        for server in self.servers:
            for worker in server.workers:
                await self.collect(worker)

    async def collect(self, worker: Worker) -> None:
        """Take in the tasks pushed to a worker: each waits, and nobody holds it."""
        await worker.connection.value.ask("credit", credit=worker.credit)  # behind all pushes so far
        pushes = worker.connection.value.pushes
        for task in [task for push in pushes for task in push["tasks"]]:
            assert self.states[task["id"]] in ("waiting", "stopping"), f"{task['id']}: {self.states[task['id']]}"
            assert not any(task["id"] in each.held for server in self.servers for each in server.workers)
            worker.held[task["id"]] = {**task, "full_id": task["id"]}
            if self.states[task["id"]] == "waiting":
                self.states[task["id"]] = "held"
        pushes.clear()

    async def enqueue(self) -> None:
        """Enqueue new tasks, and known ones again, in one call for several tenants."""
        options: list[dict[str, Any]] = [{}, {}, {"priority": 3}, {"delay_ms": 10**9}]
        new = [f"{self.random.choice(TENANTS)}/x{len(self.states) + n}" for n in range(self.random.randrange(1, 7))]
        chosen = {id: self.random.choice(options) for id in new}
        again = self.random.sample(list(self.states), min(len(self.states), self.random.randrange(3)))
        ids = [*new, *again]
        self.random.shuffle(ids)
        tasks = [{"tenant": owner_of(id), "id": bare_id(id), "payload": id, **chosen.get(id, {})} for id in ids]
        body = await self.some_server().producer.value.ask("enqueue", queue=Q, tasks=tasks)
        assert body["outcomes"] == ["ok" if id in chosen else "duplicate" for id in ids]
        self.states |= {id: "later" if "delay_ms" in each else "waiting" for id, each in chosen.items()}

    async def settle(self) -> None:
        """End some leases of a worker in one call, whatever partitions they are in."""
        holders = [each for server in self.servers for each in server.workers if each.held]
        if not holders:
            return
        worker = self.random.choice(holders)
        ids = self.random.sample(list(worker.held), self.random.randrange(1, len(worker.held) + 1))
        action = self.random.choice([*SETTLED, "ack", "ack", "extend"])
        more = {"delay_ms": 1} if action == "nack" else {}
        outcomes = await worker.connection.value.settle(Q, action, *(worker.held[id] for id in ids), **more)
        for id, outcome in zip(ids, outcomes, strict=True):
            stopped = self.states[id] == "stopping"
            assert outcome == ("cancelled" if stopped and action == "extend" else "ok"), f"{action} of {id}: {outcome}"
            if action != "extend":
                del worker.held[id]
                self.states[id] = "cancelled" if stopped and action != "ack" else SETTLED[action]

    async def cancel(self) -> None:
        ids = self.random.sample(list(self.states), min(len(self.states), 4))
        if not ids:
            return
        body = await self.some_server().producer.value.ask("cancel", queue=Q, ids=ids)
        for id, outcome in zip(ids, body["outcomes"], strict=True):
            was = self.states[id]
            assert outcome in CANCELLED.get(was, {"gone"}), f"{id}, {was}: {outcome}"
            self.states[id] = {"ok": "cancelled", "running": "stopping", "gone": was}[outcome]

    async def pause(self) -> None:
        name = self.random.choice(TENANTS)
        self.paused ^= {name}
        await self.some_server().operator.value.ask("set_paused", queue=Q, tenant=name, paused=name in self.paused)

    async def weigh(self) -> None:
        name, weight = self.random.choice(TENANTS), self.random.choice([0.5, 1.0, 4.0])
        await self.some_server().operator.value.ask("set_weight", queue=Q, tenant=name, weight=weight)

    async def replay(self) -> None:
        ids = self.random.sample(list(self.states), min(len(self.states), 20))
        if not ids:
            return
        body = await self.some_server().operator.value.ask("replay", queue=Q, ids=ids)
        for id, outcome in zip(ids, body["outcomes"], strict=True):
            assert (outcome == "ok") == (self.states[id] == "dead"), f"{id}, {self.states[id]}: {outcome}"
            if outcome == "ok":
                self.states[id] = "waiting"

    async def change_workers(self) -> None:
        """Let a worker come, or break the connection of one."""
        server = self.some_server()
        if len(server.workers) < 2 and self.random.random() < 0.6:
            await self.start_worker(server)
        elif server.workers:
            await self.stop_worker(server, self.random.choice(server.workers))

    async def change_server(self) -> None:
        """Stop a server after its workers, and start another one in its place."""
        n = self.random.randrange(len(self.servers))
        await self.stop_server(self.servers[n])
        self.servers[n] = await self.start_server()
        await self.start_worker(self.servers[n])

    def some_server(self) -> Server:
        return self.random.choice(self.servers)

    async def compare(self) -> None:
        """Compare all tasks with what each server shows, and the queue's counts with theirs."""
        ids = self.random.sample(list(self.states), len(self.states))
        for server in self.servers:
            shown: dict[str, str] = {}
            for n in range(0, len(ids), 100):
                body = await server.producer.value.ask("tasks", queue=Q, ids=ids[n : n + 100])
                assert [row["id"] for row in body["tasks"]] == ids[n : n + 100]
                shown |= {row["id"]: row["state"] for row in body["tasks"]}
            wrong = {id: (self.states[id], state) for id, state in shown.items() if state not in SHOWN[self.states[id]]}
            assert not wrong
            (row,) = (await server.operator.value.ask("queues", queue=Q))["queues"]
            counts, dead = Counter(self.states.values()), sum(each["dead"] for each in row["places"])
            assert (row["enqueued"], row["done"], row["dead"], dead) == (
                len(self.states), counts["done"], counts["dead"], counts["dead"],
            )  # fmt: skip

    async def end(self) -> None:
        """Resume all, cancel what is delayed, and let the workers do the rest."""
        server = self.servers[0]
        for name in self.paused:
            await server.operator.value.ask("set_paused", queue=Q, tenant=name, paused=False)
        if not server.workers:
            await self.start_worker(server)
        later = [id for id, state in self.states.items() if state == "later"]
        if later:
            await server.producer.value.ask("cancel", queue=Q, ids=later)
            self.states |= dict.fromkeys(later, "cancelled")
        while any(state not in OVER for state in self.states.values()):
            for worker in [each for server in self.servers for each in server.workers]:
                await self.collect(worker)
                if worker.held:
                    await worker.connection.value.settle(Q, "ack", *worker.held.values())
                    self.states |= dict.fromkeys(worker.held, "done")
                    worker.held.clear()
            if stopping := [id for id, state in self.states.items() if state == "stopping"][:100]:
                body = await server.producer.value.ask("tasks", queue=Q, ids=stopping)
                cancelled = [row["id"] for row in body["tasks"] if row["state"] == "cancelled"]
                self.states |= dict.fromkeys(cancelled, "cancelled")
        await self.compare()


@pytest.mark.parametrize("seed", range(4))
async def test_each_task_is_where_its_history_says_whatever_server_is_asked(server_store: str, seed: int) -> None:
    assert {place_in(places_of(Q, PARTITIONS), each) for each in TENANTS} == set(places_of(Q, PARTITIONS))
    async with trio.open_nursery() as nursery:
        walk = Walk(nursery, server_store, seed)
        await walk.begin()
        for n in range(STEPS):
            await walk.step()
            if n % 10 == 0:
                await walk.compare()
        await walk.end()
        for server in walk.servers:
            await walk.stop_server(server)
