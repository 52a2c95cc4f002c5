"""The leases of one server's workers: the account of each, and the end of leases when their worker has gone.

| how the connection ended | action on its leases (lua/tasks/settlements.lua) |
|---|---|
| nothing came for TIMEOUT_S | none: each ends when it has run out |
| it ends while the server drains | `release` |
| a close by either side; also a revoked token, or a newer worker of its name that closes it | `reap` |
| it broke, and this run of its worker attached again | `reap`, of those that it did not bring |
| it broke, and a newer run attached, or none in `reconnect_grace_s` | `lose`; `lose_alone` if only one may have begun |

Tasks that have not begun are released: prefetched ones, except after a silence, and those that wait to run alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import structlog
import trio
from attrs import define, field

from fairq.model.rates import Rate
from fairq.model.tasks import Action
from fairq.server.engine.dispatch.giving_back import give_back
from fairq.server.engine.dispatch.worker_account import TaskKey, Terms
from fairq.server.engine.net.connection import AttachOrder, Connection
from fairq.server.engine.queues import Queues
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

RECONNECTS_PER_S = 250.0  # workers that can reconnect to a server when thousands lose their connections at once
MAX_RECONNECT_GRACE_S = 20.0  # the longest time that leases are kept then
GIVE_BACK_S = 5.0


class Brought(NamedTuple):
    """A lease that a worker brings: how often it was taken over before, and how long it lasts (s; 0: unknown)."""

    key: TaskKey
    lease: int
    taken: int
    lease_s: float


@define(eq=False)
class Leases:
    """The leases on the accounts of one server's workers; those of broken connections stay for `reconnect_grace_s`."""

    reconnect_grace_s: float
    store: Store
    nursery: trio.Nursery
    queues: Queues
    owners: dict[TaskKey, Connection] = field(factory=dict, init=False)
    kept: set[Connection] = field(factory=set, init=False)  # broken connections with leases to be brought
    reconnects: Rate = field(factory=lambda: Rate(RECONNECTS_PER_S, 1), init=False)  # of broken connections
    is_draining: bool = field(default=False, init=False)
    ended: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)  # woken as connections end

    def drop(self, connection: Connection, key: TaskKey, lease: int) -> None:
        """Take a lease off a worker's account, if it is there; this makes room for another."""
        if connection.account.has(key, lease):
            connection.account.drop(key)
            self.queues.credit_changed(connection)

    def holder(self, key: TaskKey, lease: int) -> Connection | None:
        """Return the connection of this server that has a lease on its account."""
        connection = self.owners.get(key)
        return connection if connection is not None and connection.account.has(key, lease) else None

    def known(self, key: TaskKey) -> tuple[int, int]:
        """Return a task's lease number on an account here, and how often it was taken over; 0, 0 if it is on none."""
        connection = self.owners.get(key)
        if connection is None or key not in connection.account.held:
            return 0, 0
        return connection.account.held[key], connection.account.terms[key].taken

    def drop_here(self, key: TaskKey, lease: int) -> None:
        """Take a lease off whichever account of this server it is on."""
        if holder := self.holder(key, lease):
            self.drop(holder, key, lease)

    def is_of_another(self, connection: Connection, key: TaskKey, lease: int) -> bool:
        """True if another worker's connection to this server has a lease on its account."""
        holder = self.holder(key, lease)
        if holder is None or holder is connection or holder.closing:
            return False
        return (holder.identity.token_id, holder.name) != (connection.identity.token_id, connection.name)

    def move(self, leases: Sequence[Brought], connection: Connection) -> None:
        """Move leases to the account of the connection that brought them, from any other one of this server.

        A task that runs alone still does. One that comes from another server may get others beside it.
        """
        now = trio.current_time()
        for each in leases:
            holder = self.holder(each.key, each.lease)
            if holder is not None and holder.account.line.alone == each.key:
                connection.account.line.alone = each.key
            self.drop_here(each.key, each.lease)
            terms = Terms(each.lease_s, taken=each.taken, place=self.queues.place_of(*each.key))
            connection.account.add(each.key, each.lease, terms, now)

    def end_kept_leases(self, token: str, worker: str, order: AttachOrder) -> None:
        """End the leases of a worker's broken connections that it has not brought to its new one, here or not."""
        for broken in self.kept:
            is_same = (broken.identity.token_id, broken.name) == (token, worker)
            if is_same and broken.attach_order.run and broken.attach_order <= order:
                broken.is_alive_elsewhere = broken.attach_order.run == order.run  # else its process has died
                broken.end_leases_now.set()  # leases that it has not brought were never received

    async def end(self, connection: Connection) -> None:
        """End the leases of a connection that has ended, at once or in a while.

        If it broke, the worker may soon reconnect, here or at another server, and bring its leases: they are kept for a
        while, and then those that it did not bring end. If it timed out, the worker may still be running, and its
        leases expire by themselves, on its account (net/silent_workers.py).
        """
        await self._give_line_back(connection)
        if connection.session.is_timed_out:
            if connection.ended_silent:
                self.ended.unpark_all()
                return
            connection.account.drop_all()  # it was being closed for another reason: they run out as well
        is_broken_worker = connection.is_broken and bool(connection.queues)
        if is_broken_worker:  # tenants may break off as often as they like: workers' leases do not wait for them
            self.reconnects.take(1, trio.current_time())
        if is_broken_worker and connection.account.held and self.reconnect_grace_s and not self.is_draining:
            self.kept.add(connection)
            self.nursery.start_soon(self._keep, connection)
        else:
            await self._end(connection)
        self.ended.unpark_all()

    async def _keep(self, connection: Connection) -> None:
        """Keep the leases of a broken connection for a while, then end the ones not brought elsewhere."""
        now = trio.current_time()
        until, most = now + self.reconnect_grace_s, now + max(self.reconnect_grace_s, MAX_RECONNECT_GRACE_S)
        try:
            while trio.current_time() < until and not connection.end_leases_now.is_set():
                with trio.move_on_at(until):
                    await connection.end_leases_now.wait()
                until = max(until, min(self.reconnects.paid_at, most))  # many broke at once: not all can be back yet
        finally:
            await self._end(connection)
            self.kept.discard(connection)
            self.ended.unpark_all()

    async def _end(self, connection: Connection) -> None:
        with trio.move_on_after(GIVE_BACK_S, shield=True):
            await self.end_leases(connection, self._action_of(connection))
        connection.unlink()

    def _action_of(self, connection: Connection) -> Action:
        """Return how the leases of a connection end: its worker died if the connection broke and it is not back."""
        if self.is_draining:
            return "release"
        if not connection.is_broken or connection.is_alive_elsewhere:
            return "reap"
        return "lose_alone" if connection.account.died_alone() else "lose"

    def drain(self) -> None:
        """Keep leases no longer; from now on tasks lose no attempt."""
        self.is_draining = True
        for connection in self.kept:
            connection.end_leases_now.set()

    async def end_leases(self, connection: Connection, action: Action) -> None:
        """End a worker's leases: by this action if the task may have begun, else by `release`."""
        await self._give_line_back(connection)
        not_begun = connection.account.not_begun()
        for queue, leases in connection.account.drop_all().items():
            parts: dict[Action, list[tuple[str, int, int]]] = {}
            for lease in leases:
                parts.setdefault("release" if (queue, lease[0]) in not_begun else action, []).append(lease)
            for how, some in parts.items():
                log.info("ending a worker's leases", worker=connection.name, queue=queue, count=len(some), action=how)
                await give_back(self.store, queue, some, how)

    async def _give_line_back(self, connection: Connection) -> None:
        """Give back the leases of tasks that wait to run alone at a worker."""
        for queue, leases in connection.account.line.drop_all().items():
            with trio.move_on_after(GIVE_BACK_S, shield=True):
                await give_back(self.store, queue, leases, "release")
