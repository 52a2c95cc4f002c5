"""Workers by name, over all servers of a store.

A name belongs to the newest worker: the store notes when each worker first attached under it, by the store's clock,
since the clocks of workers may be wrong.

- When a worker attaches, older connections with its name and token are superseded, here and at the other servers: they
  are closed, and their tasks are ready again at once. So a worker that was killed and restarted need not wait until its
  dead connection times out.
- An older worker that reconnects gets `superseded`, and ends: the two do not take the name from each other in turn.
- The store also counts how often a worker attaches: of the connections of one run the last one stays.

Servers tell each other by a channel. A message may come twice, or so late that the worker has attached again: the
attach's number shows it. It may be lost: then leases expire, as without superseding.
The order to drain a worker is a question to all servers (questions.py), and is repeated until all have answered.

Each server also writes the list of its workers under a key that expires, so that any server can list all workers.

- The list may be long, so it is written when it changes, and a cheap command every few seconds keeps it from expiring:
  the list of a server that was killed or stopped is soon gone.
- With each list a server tells the others how many slots its workers have for each queue: whole, since claims name the
  slots of all servers; and divided among each worker's queues, for estimates.
- A server that receives the slots of an unknown server sends its own; one that has sent nothing for a minute is
  forgotten.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from heapq import nsmallest
from operator import itemgetter
from typing import Any, NamedTuple

import orjson
import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError, Superseded
from fairq.model.tasks import Action
from fairq.model.workers import HeldLease, WorkerState
from fairq.server.net.connection import Connection
from fairq.server.net.questions import Questions
from fairq.store.store import Store
from fairq.wire.terms import CLOSE_SUPERSEDED, State

log = structlog.get_logger("fairq.server")

_WRITE_S = 20.0  # how often the list of workers is written, even if it has not changed
_RENEW_S, _KEEP_MS = 3.0, 9_000  # how often its expiry is put off, and until when
_INSISTS = 60  # repetitions of the order to drain a worker, at most
_FORGET_S = 60.0  # after which the slots of a server that has sent nothing are forgotten
_INSIST_S = 1.0  # between repetitions of the order to drain a worker
_GATHER_S = 0.5  # between a change and the next write, to gather more changes
# The kind of question: [name, count, queues or null] -> [[the fields of WorkerState after `server`], ...],
# [[queue, id, lease number, attached_at_ms of its worker], ...]
WORKER = "worker"
DRAIN = "drain"  # the kind of question: [name, attached by when] -> how many workers were dismissed
Lease = tuple[tuple[str, str], int]  # (queue, id), number


class Held(NamedTuple):
    """A lease, and where its worker attached, and when."""

    lease: HeldLease
    server: str
    attached_at_ms: int


class Named(NamedTuple):
    """Workers of a name, leases that they hold, oldest first, and servers whose workers' leases are unknown."""

    workers: list[WorkerState]
    leases: list[Held]
    unanswered: set[str]


def _now_ms() -> int:
    return round(time.time() * 1000)


def _row(worker: Connection) -> tuple[Any, ...]:
    account = worker.account
    return worker.name, worker.queues, account.credit, account.busy, worker.attached_at_ms, worker.is_draining


@define(eq=False)
class WorkerRegistry:
    """The workers attached to this server. `give_back(connection, action)` returns its leases to their queues."""

    server: str
    store: Store
    nursery: trio.Nursery
    questions: Questions
    give_back: Callable[[Connection, Action], Awaitable[None]] = field(init=False)
    on_drain: Callable[[str], None] = field(default=lambda _: None, init=False)  # is told the name of workers to drain
    _changed: trio.Event = field(factory=trio.Event, init=False)
    _elsewhere: dict[str, tuple[float, dict[str, list[float]]]] = field(
        factory=dict, init=False
    )  # by server: when received, and slots
    _connections: defaultdict[tuple[str, str], set[Connection]] = field(factory=lambda: defaultdict(set), init=False)

    def __attrs_post_init__(self) -> None:
        self.questions.answers[WORKER] = lambda asked: self.named(*asked)
        self.questions.answers[DRAIN] = lambda asked: self.dismiss(*asked)

    async def run(self) -> None:
        """Write the list of attached workers soon after it has changed and every _WRITE_S, until cancelled."""
        while True:
            with trio.move_on_after(_WRITE_S if self._connections else float("inf")):
                await self._changed.wait()
                await trio.sleep(_GATHER_S)
            self._changed = trio.Event()
            await self._write()

    async def _write(self) -> None:
        rows = self._rows()
        try:
            await self.store.workers.write(self.server, orjson.dumps(rows) if rows else b"", _KEEP_MS)
        except FairqError as error:
            log.debug("cannot write the list of workers", error=error.message)
        await self.tell_slots()

    async def _tell(self, said: dict[str, Any]) -> None:
        try:
            await self.store.workers.tell(orjson.dumps(said))
        except FairqError as error:
            log.debug("cannot tell other servers", error=error.message)

    async def renew(self) -> None:
        """Keep the list in the store from expiring, and write it again if it has expired; until cancelled."""
        while True:
            await trio.sleep(_RENEW_S)
            try:
                is_there = await self.store.workers.renew(self.server, _KEEP_MS)
            except FairqError as error:
                log.debug("cannot renew the list of workers", error=error.message)
                continue
            if self._connections and not is_there:
                self._changed.set()

    async def tell_slots(self) -> None:
        """Tell other servers how many slots the workers attached here have for each queue."""
        slots: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        for connections in self._connections.values():
            for connection in connections:
                for queue in connection.queues:
                    slots[queue][0] += connection.account.credit
                    if connection.is_attached:
                        slots[queue][1] += connection.account.credit / len(connection.queues)
        await self._tell({"server": self.server, "slots": slots})

    def slots_elsewhere(self, queue: str) -> int:
        """Count the slots that workers of other servers have for a queue, as of some seconds ago."""
        return int(sum(whole for whole, _ in known.values())) if (known := self._slots_of(queue)) else 0

    def one_elsewhere(self, queue: str, slots: int) -> str:
        """Choose a server whose workers have this many slots for a queue, busy or free; empty if none is known."""
        known = self._slots_of(queue)
        able = {name: whole for name, (whole, _) in known.items() if whole >= max(1, slots)} if known else {}
        return random.choices(list(able), list(able.values()))[0] if able else ""

    def queues_elsewhere(self) -> set[str]:
        """Name the queues that workers of other servers take tasks of, as of some seconds ago."""
        since = trio.current_time() - _FORGET_S
        return {queue for at, said in self._elsewhere.values() if at > since for queue, (_, has) in said.items() if has}

    def divided_slots_elsewhere(self, queue: str) -> float:
        """Count other servers' slots with each worker's divided among its queues, without draining workers."""
        return sum(divided for _, divided in self._slots_of(queue).values())

    def _slots_of(self, queue: str) -> dict[str, list[float]]:
        """Return the slots that other servers have for a queue, whole and divided, by server."""
        if not self._elsewhere:
            return {}
        since = trio.current_time() - _FORGET_S
        return {name: said[queue] for name, (at, said) in self._elsewhere.items() if at > since and queue in said}

    def _heard_slots(self, server: str, slots: dict[str, list[float]]) -> None:
        now = trio.current_time()
        self._elsewhere = {name: each for name, each in self._elsewhere.items() if each[0] > now - _FORGET_S}
        if server not in self._elsewhere:
            self._changed.set()
        self._elsewhere[server] = now, slots

    def _rows(self) -> list[tuple[Any, ...]]:
        """Describe the workers attached here: the fields of WorkerState after `server`."""
        return [_row(each) for connections in self._connections.values() for each in connections]

    def named(self, worker: str, count: int, queues: Sequence[str] | None) -> list[Any]:
        """Describe up to `count` workers of a name that are attached here, and as many of their leases, oldest first.

        With `queues`, only workers all of whose queues are among these.
        """
        found = [
            each
            for (_, name), connections in self._connections.items()
            if name == worker
            for each in connections
            if queues is None or set(queues).issuperset(each.queues)
        ]
        held = ((lease, place, each) for each in found for place, lease in each.account.held.items())
        oldest = nsmallest(count, held, key=itemgetter(0))
        first = nsmallest(count, found, key=lambda each: each.attached_at_ms)
        return [[_row(each) for each in first], [(*place, lease, each.attached_at_ms) for lease, place, each in oldest]]

    async def all_workers(self) -> list[WorkerState]:
        """Describe the workers attached to any server; rows of other servers are some seconds old."""
        lists: dict[str, Iterable[Any]] = {
            server: orjson.loads(workers) for server, workers in (await self.store.workers.read()).items()
        }
        lists[self.server] = self._rows()
        found = [WorkerState(server, *row) for server, rows in lists.items() for row in rows]
        return sorted(found, key=lambda each: (each.worker, each.attached_at_ms))

    async def all_named(self, worker: str, count: int, queues: Collection[str] | None) -> Named:
        """Describe the workers of a name at all servers, and their leases; of silent servers, as they were listed."""
        mine = None if queues is None else sorted(queues)
        answers, unanswered = await self.questions.ask(WORKER, [worker, count, mine])
        workers, leases = [], []
        for server, (rows, held) in answers.items():
            workers += [WorkerState(server, *row) for row in rows]
            leases += [Held(HeldLease(*lease), server, attached_at_ms) for *lease, attached_at_ms in held]
        for each in await self.all_workers() if unanswered else ():
            is_mine = mine is None or set(mine).issuperset(each.queues)
            if each.worker == worker and each.server in unanswered and is_mine:
                workers.append(each)
        return Named(
            nsmallest(count, workers, key=lambda each: (each.attached_at_ms, each.server)),
            nsmallest(count, leases, key=lambda each: each.lease.lease),
            unanswered,
        )

    async def drain(self, worker: str) -> int:
        """Dismiss the workers of a name, here and at the other servers; returns how many were listed."""
        known = [each for each in await self.all_workers() if each.worker == worker]
        order = [worker, _now_ms()]
        if (await self.questions.ask(DRAIN, order)).unanswered:
            self.nursery.start_soon(self._insist, order)
        return len(known)

    async def _insist(self, order: Sequence[Any]) -> None:
        """Repeat an order to drain each second until all servers with workers have answered, at most _INSISTS times."""
        for _ in range(_INSISTS):
            await trio.sleep(_INSIST_S)
            try:
                if not (await self.questions.ask(DRAIN, order)).unanswered:
                    return
            except FairqError as error:
                log.debug("cannot repeat the order to drain a worker", error=error.message)
        log.warning("a server did not confirm the drain of a worker", worker=order[0])

    def dismiss(self, worker: str, attached_by: float) -> int:
        """Dismiss the workers of a name here that attached by a time; returns how many it dismissed."""
        leaving = [
            each
            for (_, name), connections in self._connections.items()
            for each in connections
            if name == worker and each.attached_at_ms <= attached_by and not each.is_draining
        ]
        for connection in leaving:
            log.info("draining worker", worker=worker, remote=connection.remote)
            connection.session.dismiss()
            connection.leave()
            connection.wake_writer()
        self.on_drain(worker)
        self._changed.set()
        return len(leaving)

    def join(self, connection: Connection) -> None:
        """Add an attached worker to the list."""
        token, worker = connection.identity.token_id, connection.name
        here = self._connections[token, worker]
        here.add(connection)
        connection.attached_at_ms = _now_ms()
        self._changed.set()
        if len(here) > 1:  # two of one name may have attached at the same time
            newest = max(each.order for each in here)
            self.nursery.start_soon(self._supersede, token, worker, newest - 1, ())

    def leave(self, connection: Connection) -> None:
        """Remove a worker from the list, if it is on it."""
        key = (connection.identity.token_id, connection.name)
        if key in self._connections:
            self._connections[key].discard(connection)
            self._changed.set()
            if not self._connections[key]:
                del self._connections[key]

    async def take_name(self, token: str, worker: str, order: int, number: int, kept: Iterable[Lease]) -> None:
        """Supersede older connections of a name; they keep none of the leases that the new one brings.

        `order` is when the worker first attached, `number` that of this attach. Raises: Superseded if it is older.
        """
        if any(connection.order > order for connection in self._connections.get((token, worker), ())):
            raise Superseded(f"a newer worker is attached as {worker}", field="worker")
        leases = [(*place, lease) for place, lease in kept]
        await self._supersede(token, worker, order, leases)
        await self._announce(token, worker, order, number, leases)

    async def _supersede(
        self, token: str, worker: str, order: int, kept: Iterable[Any], number: float = float("inf")
    ) -> None:
        """Close the connections of older runs, and those of this run whose attach has at most this number."""
        for connection in list(self._connections.get((token, worker), ())):
            is_later = (connection.order, connection.number) > (order, number)
            if connection.closing or is_later or not connection.order:
                continue
            log.info("worker superseded", worker=worker, remote=connection.remote)
            for queue, id, lease in kept:
                if connection.account.has((queue, id), lease):
                    connection.account.drop((queue, id))
            connection.session.state = State.DRAINING  # it gets no more tasks, and may still settle
            connection.close(CLOSE_SUPERSEDED, "a newer worker has this name")
            await self.give_back(connection, "reap")  # now, since closing a connection that reads nothing takes a while

    async def _announce(self, token: str, worker: str, order: int, number: int, kept: Iterable[Any]) -> None:
        said: dict[str, Any] = {"server": self.server, "attached": [token, worker, order, list(kept)]}
        if number:  # 0: a full store has numbered no attach
            said["number"] = number
        await self._tell(said)

    def on_announcement(self, message: str) -> None:
        """Handle a message of another server."""
        try:
            said = orjson.loads(message)
            if said["server"] == self.server:
                return
            if "slots" in said:
                self._heard_slots(said["server"], said["slots"])
            elif "question" in said:
                self.questions.on_question(said["server"], *said["question"])
            elif "answer" in said:
                self.questions.on_answer(said["server"], *said["answer"])
            elif "attached" in said:
                number = float(said.get("number", "inf"))  # without one it is the last word
                self.nursery.start_soon(partial(self._on_attached, number=number), *said["attached"])
        except (ValueError, KeyError, TypeError):
            log.warning("unknown message from another server", message=message[:200])

    async def _on_attached(self, token: str, worker: str, order: int, kept: Iterable[Any], number: float) -> None:
        await self._supersede(token, worker, order, kept, number)
        newest = max(((p.order, p.number) for p in self._connections.get((token, worker), ())), default=(0, 0))
        if newest[0] > order:  # the announced worker is the older one; its server may not know
            await self._announce(token, worker, *newest, ())
