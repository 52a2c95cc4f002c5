"""Workers by name, over all servers of a store.

A name belongs to the newest worker: the store notes when each worker first attached under it, by the store's clock,
since the clocks of workers may be wrong.

- When a worker attaches, older connections with its name and token are superseded, here and at the other servers: they
  are closed, and their tasks are ready again at once. So a worker that was killed and restarted need not wait until its
  dead connection times out.
- An older worker that reconnects gets `superseded`, and ends: the two do not take the name from each other in turn.
- The store also counts how often a worker attaches: of the connections of one run the last one stays.

Servers tell each other by a channel. A message may come twice, or so late that the worker has attached again: the
attach's number shows it. It may be lost: then leases expire, as without superseding. The order to drain a worker is a
question to all servers (questions.py), and is repeated until all have answered.

Each server also writes the list of its workers under a key that expires, so that any server can list all workers.

- The list may be long, so it is written when it changes, and a cheap command every few seconds keeps it from expiring:
  the list of a server that was killed or stopped is soon gone.
- With each list a server reports to the others how many slots its workers have for each queue: whole, since claims name
  the slots of all servers; and divided among each worker's queues, for estimates (server_slots.py). It also reports how
  many workers have the same queues, and their slots, for operators; and which workers are silent (silent_workers.py).
- A server that receives the slots of an unknown server sends its own. So a new server sends its own first.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from operator import itemgetter
from typing import Any, NamedTuple

import orjson
import structlog
import trio
from attrs import define, evolve, field

from fairq.errors import FairqError, Retryable, Superseded
from fairq.model.tasks import Action
from fairq.model.workers import LeaseKey, WorkerState
from fairq.server.engine.net.connection import AttachOrder, Connection
from fairq.server.engine.net.drained_names import DrainedNames
from fairq.server.engine.net.questions import DRAIN, WORKER, Questions
from fairq.server.engine.net.server_slots import ServerSlots
from fairq.server.engine.net.silent_workers import MAX_REPORTED, Silence, SilentWorkers
from fairq.store.store import Store
from fairq.wire.terms import CLOSE_SUPERSEDED, State

log = structlog.get_logger("fairq.server")

_WRITE_S = 20.0  # how often the list of workers is written, even if it has not changed
_RENEW_S, _KEEP_MS = 3.0, 9_000  # how often its expiry is put off, and until when
_REPEATS, _REPEAT_S = 60, 1.0  # of an order to drain: the most repeats, and the time between them
_LAST = float("inf")  # greater than the number of any attach
_GATHER_S = 0.5  # between a change and the next write, to gather more changes


class HeldAt(NamedTuple):
    """A lease, and where its worker attached, and when."""

    lease: LeaseKey
    server: str
    attached_at_ms: int


class NamedWorkers(NamedTuple):
    """Workers of a name, leases that they hold, oldest first, and servers that did not report theirs."""

    workers: list[WorkerState]
    leases: list[HeldAt]
    unanswered: set[str]


def _now_ms() -> int:
    return round(time.time() * 1000)


def _row(worker: Connection) -> tuple[Any, ...]:
    account = worker.account
    return worker.name, worker.queues, account.credit, account.busy, worker.attached_at_ms, worker.is_draining


@define(eq=False)
class WorkerRegistry:
    """The workers attached to this server. `elsewhere`: the slots at other servers.

    `end_leases(connection, action)` ends a connection's leases; `end_kept_leases(token, worker, order)` those of broken
    connections of a worker that has attached elsewhere.
    """

    server: str
    store: Store
    nursery: trio.Nursery
    questions: Questions
    elsewhere: ServerSlots
    end_leases: Callable[[Connection, Action], Awaitable[None]]
    end_kept_leases: Callable[[str, str, AttachOrder], None]
    drained: DrainedNames = field(factory=DrainedNames, init=False)
    silent: SilentWorkers = field(init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)
    _connections: defaultdict[tuple[str, str], set[Connection]] = field(factory=lambda: defaultdict(set), init=False)

    def __attrs_post_init__(self) -> None:
        self.silent = SilentWorkers(self._attached, lambda: self._changed.set())
        self.questions.answers[WORKER] = lambda asked: self.named_here(*asked)
        self.questions.answers[DRAIN] = lambda asked: self.dismiss(*asked)

    async def run(self) -> None:
        """Write the list of attached workers soon after it has changed and every _WRITE_S, until cancelled."""
        await self.tell_slots()
        while True:
            with trio.move_on_after(_WRITE_S if self._rows() else float("inf")):
                await self._changed.wait()
                await trio.sleep(_GATHER_S)
            self._changed = trio.Event()
            await self.write()

    async def write(self) -> None:
        """Write the list of attached workers now; without any, this server is no longer asked."""
        rows = self._rows()
        try:
            await self.store.workers.write(self.server, orjson.dumps(rows) if rows else b"", _KEEP_MS)
        except FairqError as error:
            log.debug("cannot write the list of workers", error=error.message)
        await self.tell_slots()

    async def renew(self) -> None:
        """Keep the list in the store from expiring, and write it again if it has expired; until cancelled.

        This also finds workers that are silent.
        """
        while True:
            due_at = trio.current_time() + _RENEW_S
            await trio.sleep_until(due_at)
            if trio.current_time() < due_at + _RENEW_S:  # else this server has stood still, and has more to read
                self.silent.look()
            try:
                if not await self.store.workers.renew(self.server, _KEEP_MS) and self._rows():
                    self._changed.set()
            except FairqError as error:
                log.debug("cannot renew the list of workers", error=error.message)

    async def tell_slots(self) -> None:
        """Report to other servers how many slots the workers attached here have for each queue."""
        slots: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        pools: defaultdict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
        for connections in self._connections.values():
            for connection in connections:
                pool = pools[tuple(sorted(connection.queues))]
                pool[0] += 1
                pool[1] += connection.account.credit
                for queue in connection.queues:
                    slots[queue][0] += connection.account.credit
                    if connection.takes_tasks:
                        slots[queue][1] += connection.account.credit / len(connection.queues)
        shared: dict[str, Any] = {"groups": [[queues, *many] for queues, many in pools.items()]}
        await self.questions.tell(
            {"slots": slots, **shared, "silent": [*map(tuple, self.silent.silences()[:MAX_REPORTED])]}
        )

    def _rows(self) -> list[tuple[Any, ...]]:
        """Describe the workers attached here: the fields of WorkerState after `server`."""
        return [_row(each) for each in (*self._attached(), *self.silent.kept)]

    def _attached(self) -> Iterator[Connection]:
        """Yield the connections of the workers attached here."""
        for connections in self._connections.values():
            yield from connections

    def silences(self) -> list[tuple[str, Silence]]:
        """Describe the silent workers of all servers, each with its server."""
        return [*((self.server, each) for each in self.silent.silences()), *self.elsewhere.silent()]

    def _states(self, rows: Mapping[str, Iterable[Sequence[Any]]]) -> list[WorkerState]:
        """Read the rows of servers, and add which workers are silent."""
        silent = {(server, each.worker, each.attached_at_ms): each for server, each in self.silences()}
        found, now_ms = [WorkerState(server, *row) for server, some in rows.items() for row in some], _now_ms()
        for n, each in enumerate(found):
            if silence := silent.get((each.server, each.worker, each.attached_at_ms)):
                found[n] = evolve(each, silent_ms=max(1, now_ms - silence.since_ms), lost=silence.lost)
        return found

    def named_here(self, worker: str, count: int, queues: Sequence[str] | None) -> list[Any]:
        """Describe up to `count` workers of a name that are attached here, and as many of their leases, oldest first.

        With `queues`, only workers that take tasks of no other queues.
        """
        found = [
            each
            for each in (*self._attached(), *self.silent.kept)
            if each.name == worker and (queues is None or set(queues).issuperset(each.queues))
        ]
        held = ((lease, key, each) for each in found for key, lease in each.account.held.items())
        oldest = nsmallest(count, held, key=itemgetter(0))
        first = nsmallest(count, found, key=lambda each: each.attached_at_ms)
        return [[_row(each) for each in first], [(*key, lease, each.attached_at_ms) for lease, key, each in oldest]]

    async def all_workers(self) -> tuple[list[WorkerState], set[str]]:
        """Describe the workers attached to any server, some seconds ago; name servers whose list cannot be read."""
        try:
            found, unread = await self.store.workers.read()
        except Retryable:
            found, unread = {}, self.elsewhere.servers()
        lists: dict[str, Iterable[Any]] = {server: orjson.loads(workers) for server, workers in found.items()}
        lists[self.server] = self._rows()
        workers = sorted(self._states(lists), key=lambda each: (each.worker, each.attached_at_ms))
        return workers, unread - {self.server}

    async def named(self, worker: str, count: int, queues: Collection[str] | None) -> NamedWorkers:
        """Describe the workers of a name at all servers, and their leases; of silent servers, as they were listed."""
        mine = None if queues is None else sorted(queues)
        answers, unanswered = await self.questions.ask(WORKER, [worker, count, mine])
        workers, leases = [], []
        for server, (rows, held) in answers.items():
            workers += self._states({server: rows})
            leases += [HeldAt(LeaseKey(*lease), server, attached_at_ms) for *lease, attached_at_ms in held]
        for each in (await self.all_workers())[0] if unanswered else ():
            is_mine = mine is None or set(mine).issuperset(each.queues)
            if each.worker == worker and each.server in unanswered and is_mine:
                workers.append(each)
        return NamedWorkers(
            nsmallest(count, workers, key=lambda each: (each.attached_at_ms, each.server)),
            nsmallest(count, leases, key=lambda each: each.lease.lease),
            unanswered,
        )

    async def drain(self, worker: str) -> int:
        """Dismiss the workers of a name, here and at the other servers; returns how many are known."""
        listed, unread = await self.all_workers()
        began = trio.current_time()
        dismissed, unanswered = await self.questions.ask(DRAIN, [worker, 0])
        if unanswered:
            self.nursery.start_soon(self._repeat, worker, began)
        known = sum(each.worker == worker for each in listed)
        return known + sum(int(dismissed.get(server, 0)) for server in unread)

    async def _repeat(self, worker: str, began: float) -> None:
        """Repeat an order to drain until all servers with workers have answered, at most _REPEATS times."""
        for _ in range(_REPEATS):
            await trio.sleep(_REPEAT_S)
            try:
                if not (await self.questions.ask(DRAIN, [worker, trio.current_time() - began])).unanswered:
                    return
            except FairqError as error:
                log.debug("cannot repeat the order to drain a worker", error=error.message)
        log.warning("a server did not confirm the drain of a worker", worker=worker)

    def dismiss(self, worker: str, ago_s: float) -> int:
        """Dismiss the workers of a name here that attached at least `ago_s` ago; returns how many it dismissed."""
        by = trio.current_time() - ago_s
        leaving = [
            each
            for (_, name), connections in self._connections.items()
            for each in connections
            if name == worker and each.attached_at <= by and not each.is_draining
        ]
        for connection in leaving:
            log.info("draining worker", worker=worker, remote=connection.remote)
            connection.session.dismiss()
            connection.close_when_idle()
            connection.wake_writer()
        self.drained.add(None, worker)
        self._changed.set()
        return len(leaving) + self.silent.drain(worker, by)

    def join(self, connection: Connection) -> None:
        """Add an attached worker to the list."""
        token, worker = connection.identity.token_id, connection.name
        here = self._connections[token, worker]
        self.silent.forget_older(token, worker, connection.attach_order)
        here.add(connection)
        connection.attached_at, connection.attached_at_ms = trio.current_time(), _now_ms()
        self._changed.set()
        if len(here) > 1:  # two of one name may have attached at the same time
            newest = max(each.attach_order.run for each in here)
            self.nursery.start_soon(self._supersede, token, worker, AttachOrder(newest - 1, _LAST), ())

    def leave(self, connection: Connection) -> None:
        """Remove a worker from the list, if it is on it."""
        key = (connection.identity.token_id, connection.name)
        if key in self._connections:
            self._connections[key].discard(connection)
            if connection.ended_silent:
                self.silent.keep(connection)
            self._changed.set()
            if not self._connections[key]:
                del self._connections[key]

    def credit_changed(self) -> None:
        """Report the slots to other servers soon: a worker has changed its credit."""
        self._changed.set()

    async def take_name(self, token: str, worker: str, order: AttachOrder, brought: Sequence[Any]) -> None:
        """Supersede older connections of a name; they lose the leases that the new one has `brought`.

        Raises: Superseded if this run of the worker is the older one.
        """
        if any(each.attach_order.run > order.run for each in self._connections.get((token, worker), ())):
            raise Superseded(f"a newer worker is attached as {worker}", field="worker")
        await self._supersede(token, worker, order._replace(number=_LAST), brought)
        await self._announce(token, worker, order, brought)

    async def _supersede(self, token: str, worker: str, newest: AttachOrder, brought: Iterable[Any]) -> None:
        """Close the connections of a name that attached up to `newest`."""
        self.silent.forget_older(token, worker, newest)
        for connection in list(self._connections.get((token, worker), ())):
            if connection.closing or connection.attach_order > newest or not connection.attach_order.run:
                continue
            log.info("worker superseded", worker=worker, remote=connection.remote)
            for queue, id, lease in brought:
                if connection.account.has((queue, id), lease):
                    connection.account.drop((queue, id))
            connection.session.state = State.DRAINING  # it gets no more tasks; what it has asked is still done
            connection.close(CLOSE_SUPERSEDED, "a newer worker has this name")
            await self.end_leases(connection, "reap")  # now: closing one that reads nothing takes a while

    async def _announce(self, token: str, worker: str, order: AttachOrder, brought: Iterable[Any]) -> None:
        said: dict[str, Any] = {"attached": [token, worker, order.run, list(brought)]}
        if order.number:  # 0: a full store has numbered no attach
            said["number"] = order.number
        await self.questions.tell(said)

    def on_announcement(self, message: str) -> None:
        """Handle a message of another server."""
        try:
            said = orjson.loads(message)
            if said["server"] == self.server:
                return
            if "slots" in said:
                if self.elsewhere.hear(said["server"], said["slots"], said):
                    self._changed.set()
            elif "question" in said:
                self.questions.on_question(said["server"], *said["question"])
            elif "answer" in said:
                self.questions.on_answer(said["server"], *said["answer"])
            elif "attached" in said:
                token, worker, run, brought = said["attached"]
                order = AttachOrder(run, float(said.get("number", _LAST)))  # without a number it is the last word
                self.nursery.start_soon(self._on_attached, token, worker, order, brought)
        except (ValueError, KeyError, TypeError):
            log.warning("unknown message from another server", message=message[:200])

    async def _on_attached(self, token: str, worker: str, order: AttachOrder, brought: Iterable[Any]) -> None:
        self.end_kept_leases(token, worker, order)
        await self._supersede(token, worker, order, brought)
        orders = (each.attach_order for each in self._connections.get((token, worker), ()))
        if (newest := max(orders, default=order)).run > order.run:  # the server of the announced one may not know
            await self._announce(token, worker, newest, ())
