"""Workers by name, over all servers of a store.

A name belongs to the worker that came last: the store notes when each first attached under it, by its own clock, for
those of workers run as they like. When it attaches, older connections of the same name and token are
superseded, here and at the other servers: they are closed, and what they hold is ready again at once. So a worker that
was killed and restarted need not wait until its dead connection is given up. An older worker that comes back learns
that it is superseded, and ends; the two do not take the name from each other in turn.

Servers tell each other by a channel. A message may come twice, or be lost: leases then run out, as without all this.
The order to drain a worker is repeated until its server's list says that it was heard.
Each server also writes down who is attached to it, under a key that ends with it, so that any can list all workers.
Whenever it does, it tells the others how many slots its workers have for each queue: whole, since claims name the slots
of all servers; and divided among each worker's queues, for estimates. Whoever hears of a server for the first time
tells its own; one that is not heard of for a minute is forgotten.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import orjson
import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError, Superseded
from fairq.model.tasks import Action
from fairq.model.workers import WorkerState
from fairq.server.net.connection import Connection
from fairq.store.store import Store
from fairq.wire.messages import CLOSE_SUPERSEDED, State

log = structlog.get_logger("fairq.server")

_WRITE_S, _KEEP_MS = 20.0, 60_000  # how often the roster is written, and for how long it holds
_FORGET_S = 60.0  # after which a server that is not heard of has no slots
_INSIST_S = 1.0  # between repetitions of what may not have been heard
_GATHER_S = 0.5  # between a change and its writing, for there may be more
Lease = tuple[tuple[str, str], int]  # (queue, id), number


@define(eq=False)
class WorkerRegistry:
    """The workers attached to this server. `give_back(connection, action)` returns its leases to their queues."""

    server: str
    store: Store
    nursery: trio.Nursery
    give_back: Callable[[Connection, Action], Awaitable[None]]
    _changed: trio.Event = field(factory=trio.Event, init=False)
    _elsewhere: dict[str, tuple[float, dict[str, list[float]]]] = field(factory=dict, init=False)  # server -> heard at
    _connections: defaultdict[tuple[str, str], set[Connection]] = field(factory=lambda: defaultdict(set), init=False)

    async def run(self) -> None:
        """Write down who is attached, soon after it changed and every now and then, until cancelled."""
        while True:
            with trio.move_on_after(_WRITE_S if self._connections else float("inf")):
                await self._changed.wait()
                await trio.sleep(_GATHER_S)
            self._changed = trio.Event()
            await self._write()

    async def _write(self) -> None:
        rows = self._rows()
        try:
            await self.store.write_workers(self.server, orjson.dumps(rows) if rows else b"", _KEEP_MS)
        except FairqError as error:
            log.debug("the roster cannot be written", error=error.message)
        await self.tell_slots()

    async def tell_slots(self) -> None:
        """Tell other servers how many slots the workers attached here have for each queue."""
        slots: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        for connections in self._connections.values():
            for connection in connections:
                for queue in connection.queues:
                    slots[queue][0] += connection.account.credit
                    if connection.is_attached:
                        slots[queue][1] += connection.account.credit / len(connection.queues)
        try:
            await self.store.tell_workers(orjson.dumps({"server": self.server, "slots": slots}))
        except FairqError as error:
            log.debug("slots cannot be told", error=error.message)

    def slots_elsewhere(self, queue: str) -> int:
        """Count the slots that workers of other servers have for a queue, up to some seconds ago."""
        return int(self._told(queue, 0))

    def one_elsewhere(self, queue: str, slots: int) -> str:
        """Choose a server whose workers have so many slots for a queue, busy or not; empty if none is known."""
        since = trio.current_time() - _FORGET_S
        told = {name: said.get(queue, (0, 0.0))[0] for name, (at, said) in self._elsewhere.items() if at > since}
        able = {name: has for name, has in told.items() if has >= max(1, slots)}
        return random.choices(list(able), list(able.values()))[0] if able else ""

    def places_elsewhere(self, queue: str) -> float:
        """Count the same with each worker's slots divided among its queues, and without those that are to end."""
        return self._told(queue, 1)

    def _told(self, queue: str, which: int) -> float:
        since = trio.current_time() - _FORGET_S
        told = [slots.get(queue) for last_received_at, slots in self._elsewhere.values() if last_received_at > since]
        return sum(each[which] for each in told if each)

    def _heard_slots(self, server: str, slots: dict[str, list[float]]) -> None:
        now = trio.current_time()
        self._elsewhere = {name: each for name, each in self._elsewhere.items() if each[0] > now - _FORGET_S}
        if server not in self._elsewhere:
            self._changed.set()
        self._elsewhere[server] = now, slots

    def _rows(self) -> list[tuple[Any, ...]]:
        """Describe the workers attached here: the fields of WorkerState after `server`."""
        return [
            (each.name, each.queues, each.account.credit, len(each.account.held), each.attached_at_ms, each.is_draining)
            for connections in self._connections.values()
            for each in connections
        ]

    async def all_workers(self) -> list[WorkerState]:
        """Describe the workers attached to any server; what others say is up to some seconds old."""
        lists: dict[str, Iterable[Any]] = {
            server: orjson.loads(roster) for server, roster in (await self.store.read_workers()).items()
        }
        lists[self.server] = self._rows()
        found = [WorkerState(server, *row) for server, rows in lists.items() for row in rows]
        return sorted(found, key=lambda each: (each.worker, each.attached_at_ms))

    async def drain(self, worker: str) -> int:
        """Dismiss the workers of a name, here and at the other servers; returns how many are known."""
        known = [each for each in await self.all_workers() if each.worker == worker]
        self._dismiss(worker)
        await self.store.tell_workers(orjson.dumps({"server": self.server, "drain": worker}))
        if any(each.server != self.server for each in known):
            self.nursery.start_soon(self._insist, worker, {(each.server, each.attached_at_ms) for each in known})
        return len(known)

    async def _insist(self, worker: str, known: set[tuple[str, int]]) -> None:
        """Say it again each second until it was heard of all that are known, for as long as a roster holds."""
        for _ in range(round(_KEEP_MS / 1000 / _INSIST_S)):
            await trio.sleep(_INSIST_S)
            try:
                left = [
                    each.attached_at_ms
                    for each in await self.all_workers()
                    if (each.server, each.attached_at_ms) in known and not each.is_draining
                ]
                if not left:
                    return
                said = {"server": self.server, "drain": worker, "attached_at": left}
                await self.store.tell_workers(orjson.dumps(said))
            except FairqError as error:
                log.debug("a worker's drain cannot be repeated", error=error.message)
        log.warning("a server does not drain its worker", worker=worker)

    def _dismiss(self, worker: str, attached_at: Sequence[int] | None = None) -> None:
        """Dismiss the workers of a name: all, or those that attached at these times, and none that came since."""
        for (_, name), connections in self._connections.items():
            if name == worker:
                for connection in connections:
                    is_meant = attached_at is None or connection.attached_at_ms in attached_at
                    if is_meant and not connection.is_draining:
                        log.info("worker is drained", worker=worker, remote=connection.transport.remote)
                        connection.session.dismiss()
                        connection.leave()
                        connection.wake_writer()
        self._changed.set()

    def join(self, connection: Connection) -> None:
        """Put an attached worker on the roster."""
        token, worker = connection.identity.token_id, connection.name
        here = self._connections[token, worker]
        here.add(connection)
        connection.attached_at_ms = round(time.time() * 1000)
        self._changed.set()
        if len(here) > 1:  # two of one name may have attached at the same time
            newest = max(each.order for each in here)
            self.nursery.start_soon(self._supersede, token, worker, newest - 1, ())

    def leave(self, connection: Connection) -> None:
        """Take a worker off the roster, if it is on it."""
        key = (connection.identity.token_id, connection.name)
        if key in self._connections:
            self._connections[key].discard(connection)
            self._changed.set()
            if not self._connections[key]:
                del self._connections[key]

    async def take_name(self, token: str, worker: str, order: int, kept: Iterable[Lease]) -> None:
        """Supersede connections of a name by those that came before, but for the leases that the new one brings along.

        `order` says when it came, 0: it takes no part. Raises: Superseded if it is itself the older one.
        """
        if not order:
            return
        if any(connection.order > order for connection in self._connections.get((token, worker), ())):
            raise Superseded(f"a worker that came later is attached as {worker}", field="worker")
        leases = [(*place, lease) for place, lease in kept]
        await self._supersede(token, worker, order, leases)
        await self._announce(token, worker, order, leases)

    async def _supersede(self, token: str, worker: str, order: int, kept: Iterable[Any]) -> None:
        for connection in list(self._connections.get((token, worker), ())):
            if connection.closing or not 0 < connection.order <= order:
                continue
            log.info("worker superseded", worker=worker, remote=connection.transport.remote)
            for queue, id, lease in kept:
                if connection.account.has((queue, id), lease):
                    connection.account.drop((queue, id))
            connection.session.state = State.DRAINING  # which is given nothing more, and may still settle
            connection.close(CLOSE_SUPERSEDED, "a worker that came later has this name")
            await self.give_back(
                connection, "reap"
            )  # now: a connection that takes nothing any more is not closed at once

    async def _announce(self, token: str, worker: str, order: int, kept: Iterable[Any]) -> None:
        said = {"server": self.server, "attached": [token, worker, order, list(kept)]}
        try:
            await self.store.tell_workers(orjson.dumps(said))
        except FairqError as error:
            log.debug("workers cannot be announced", error=error.message)

    def on_announcement(self, message: str) -> None:
        """Take what another server says."""
        try:
            said = orjson.loads(message)
            if said["server"] == self.server:
                return
            if "slots" in said:
                self._heard_slots(said["server"], said["slots"])
            elif "drain" in said:
                self._dismiss(said["drain"], said.get("attached_at"))
            elif "attached" in said:
                self.nursery.start_soon(self._heard_attached, *said["attached"])
        except (ValueError, KeyError, TypeError):
            log.warning("another server says what this build does not understand", message=message[:200])

    async def _heard_attached(self, token: str, worker: str, order: int, kept: Iterable[Any]) -> None:
        await self._supersede(token, worker, order, kept)
        newest = max((p.order for p in self._connections.get((token, worker), ())), default=0)
        if newest > order:  # it is that one that is the older; its server may not know
            await self._announce(token, worker, newest, ())
