"""Workers by name, over all servers of a store.

A name belongs to the worker that started last. When it attaches, older connections of the same name and token are
superseded, here and at the other servers: they are closed, and what they hold is ready again at once. So a worker that
was killed and restarted need not wait until its dead connection is given up. An older worker that comes back learns
that it is superseded, and ends; the two do not take the name from each other in turn.

Servers tell each other by a channel. A message may come twice, or be lost: leases then run out, as without all this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import orjson
import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError, Superseded
from fairq.server.peer import Peer
from fairq.store.store import Store
from fairq.wire.messages import CLOSE_SUPERSEDED, State

log = structlog.get_logger("fairq.server")

Lease = tuple[tuple[str, str], int]  # (queue, id), attempt


@define(eq=False)
class Roster:
    """The workers attached to this server. `give_back(peer, action)` returns a worker's leases to their queues."""

    server: str
    store: Store
    nursery: trio.Nursery
    give_back: Callable[[Peer, str], Awaitable[None]]
    _peers: defaultdict[tuple[str, str], set[Peer]] = field(factory=lambda: defaultdict(set), init=False)

    def join(self, peer: Peer) -> None:
        """Put an attached worker on the roster."""
        token, worker = peer.identity.token_id, peer.name
        here = self._peers[token, worker]
        here.add(peer)
        if len(here) > 1:  # two of one name may have attached at the same time
            newest = max(each.started_at_ms for each in here)
            self.nursery.start_soon(self._supersede, token, worker, newest - 1, ())

    def leave(self, peer: Peer) -> None:
        """Take a worker off the roster, if it is on it."""
        key = (peer.identity.token_id, peer.name)
        if key in self._peers:
            self._peers[key].discard(peer)
            if not self._peers[key]:
                del self._peers[key]

    async def take_name(self, token: str, worker: str, started_at_ms: int, kept: Iterable[Lease]) -> None:
        """Supersede older connections of a name, but for the leases that the new one has brought along.

        Raises: Superseded if it is itself the older one.
        """
        if any(peer.started_at_ms > started_at_ms for peer in self._peers.get((token, worker), ())):
            raise Superseded(f"a worker that started later is attached as {worker}", field="worker")
        leases = [(*place, attempt) for place, attempt in kept]
        await self._supersede(token, worker, started_at_ms, leases)
        await self._announce(token, worker, started_at_ms, leases)

    async def _supersede(self, token: str, worker: str, started_at_ms: int, kept: Iterable[Any]) -> None:
        for peer in list(self._peers.get((token, worker), ())):
            if not 0 < peer.started_at_ms <= started_at_ms:
                continue
            log.info("worker superseded", worker=worker, peer=peer.transport.peer)
            for queue, id, attempt in kept:
                if peer.session.held.get((queue, id)) == attempt:
                    del peer.session.held[queue, id]
            peer.session.state = State.DRAINING  # which is given nothing more, and may still settle
            peer.close(CLOSE_SUPERSEDED, "a worker that started later has this name")
            await self.give_back(peer, "reap")

    async def _announce(self, token: str, worker: str, started_at_ms: int, kept: Iterable[Any]) -> None:
        said = {"server": self.server, "attached": [token, worker, started_at_ms, list(kept)]}
        try:
            await self.store.tell_workers(orjson.dumps(said))
        except FairqError as error:
            log.debug("workers cannot be announced", error=error.message)

    def told(self, message: bytes) -> None:
        """Take what another server says."""
        try:
            said = orjson.loads(message)
            if said["server"] != self.server and "attached" in said:
                self.nursery.start_soon(self._heard_attached, *said["attached"])
        except (ValueError, KeyError, TypeError):
            log.warning("another server says what this build does not understand", message=message[:200])

    async def _heard_attached(self, token: str, worker: str, started_at_ms: int, kept: Iterable[Any]) -> None:
        await self._supersede(token, worker, started_at_ms, kept)
        newest = max((p.started_at_ms for p in self._peers.get((token, worker), ())), default=0)
        if newest > started_at_ms:  # it is that one that is the older; its server may not know
            await self._announce(token, worker, newest, ())
