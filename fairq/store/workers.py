"""The servers' lists of their workers, and the numbers by which one of two workers of a name is the newer."""

from __future__ import annotations

from typing import Any

from attrs import define

from fairq.errors import OutcomeUnknown, StoreFull, Unavailable
from fairq.store import keys
from fairq.store.cluster import Cluster
from fairq.store.connection import Connection

_RUNS, _RUNS_MS = 64, 7 * 86_400_000  # runs of a worker: how many are remembered, and for how long


@define(eq=False)
class Workers:
    """The workers of a store; methods raise as Store's do."""

    connection: Connection | Cluster

    async def tell(self, message: bytes) -> int:
        """Send a message about workers to all servers; it may be lost.

        Returns how many listeners it reached; in a cluster, those of one node only.
        """
        return int(await self.connection.call("PUBLISH", keys.WORKERS, message))

    async def order_of_run(self, token: str, worker: str, run: int) -> int:
        """Return a number for when this run of a worker first attached under its name: later runs have greater ones.

        A full store does not record a new run; it gets the number after the last recorded run.
        """
        key = keys.runs_key(token, worker)
        runs = [(_order_of(id), int(fields[1])) for id, fields in await self.connection.call("XRANGE", key, "-", "+")]
        order = next((order for order, known in runs if known == run), 0)
        if not order:
            try:
                order = _order_of(await self.connection.call("XADD", key, "MAXLEN", _RUNS, "*", "run", run))
            except StoreFull:
                return 1 + max((order for order, _ in runs), default=0)
        await self.connection.call("PEXPIRE", key, _RUNS_MS)
        return order

    async def number_of_attach(self, token: str, worker: str) -> int:
        """Return a number for one attach of a worker: later ones of the same run have greater ones.

        0: it was not counted, since the store is full or away; the worker is attached all the same.
        """
        key = keys.attaches_key(token, worker)
        try:
            number = int(await self.connection.call("INCR", key))
            await self.connection.call("PEXPIRE", key, _RUNS_MS)
        except (StoreFull, Unavailable, OutcomeUnknown):
            return 0
        return number

    async def write(self, server: str, workers: bytes, ttl_ms: int) -> None:
        """Write the list of a server's workers; an empty one removes the server."""
        if not workers:
            await self.connection.call("DEL", keys.workers_key(server))
            await self.connection.call("SREM", keys.SERVERS, server)
            return
        await self.connection.call("SET", keys.workers_key(server), workers, "PX", ttl_ms)
        await self.connection.call("SADD", keys.SERVERS, server)

    async def renew(self, server: str, ttl_ms: int) -> bool:
        """Put off the expiry of the list of a server's workers; returns whether it is there."""
        is_there = bool(await self.connection.call("PEXPIRE", keys.workers_key(server), ttl_ms))
        # A reader that found no list may have removed the name just after the list was written.
        if is_there and not await self.connection.call("SISMEMBER", keys.SERVERS, server):
            await self.connection.call("SADD", keys.SERVERS, server)
        return is_there

    async def servers(self) -> set[str]:
        """Read the names of the servers with a list of workers that has not expired, or cannot be read."""
        found, unread = await self._of_each("EXISTS")
        return {server for server, is_there in found.items() if is_there} | unread

    async def read(self) -> tuple[dict[str, bytes], set[str]]:
        """Read the lists of workers by server, and which servers' lists cannot be read, since their primary is away.

        Removes servers with an expired list.
        """
        found, unread = await self._of_each("GET")
        for server in [server for server, workers in found.items() if not workers]:
            del found[server]
            await self.connection.call("SREM", keys.SERVERS, server)
        return found, unread

    async def _of_each(self, command: str) -> tuple[dict[str, Any], set[str]]:
        """Send a command about each server's list; returns the replies, and which servers' primary gave none."""
        found, unread = dict[str, Any](), set[str]()
        for server in [name.decode() for name in await self.connection.call("SMEMBERS", keys.SERVERS)]:
            try:
                found[server] = await self.connection.call(command, keys.workers_key(server))
            except (Unavailable, OutcomeUnknown):
                unread.add(server)
        return found, unread


def _order_of(id: bytes) -> int:
    """Return the id of a stream entry as one number."""
    ms, _, nth = id.decode().partition("-")
    return int(ms) << 10 | min(int(nth), 1023)
