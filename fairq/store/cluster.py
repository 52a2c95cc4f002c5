"""A cluster as one store: every call goes to the primary that has its key's slot.

All keys of a queue are in one slot (lua/KEYS.md), so a queue is on one primary, and a call needs only that one. There
is one multiplexed connection per primary. The owners of slots are read at the start, after MOVED, after a lost
connection, while a primary is unavailable, and every _REFRESH_S.

A node that answers MOVED or ASK has done nothing, so the call is sent again to the node that it names:

- MOVED names the new owner.
- ASK means that the slot is moving, key by key, and that the old owner does not have this key. The new owner serves a
  command right behind ASKING. That is safe for a command on the key that it names.
- A function names a prefix, which is no key: while a queue's slot moves all its calls get ASK, and at the new owner a
  function would miss the keys that are still to move. So the call is Unavailable until the whole slot has moved.

Where slots move in one step, as with Valkey's CLUSTER MIGRATESLOTS, there is no ASK.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import structlog
import trio
from attrs import define, field
from redis.crc import key_slot

from fairq.errors import FairqError, StoreRefused, Unavailable
from fairq.io.taskless import in_task
from fairq.store.address import Address, node_address
from fairq.store.connection import Connection, Hold
from fairq.store.node import BROKEN, Redirected, Word, ask_once, cause_of
from fairq.store.topology import SLOTS, Range, read_slots

log = structlog.get_logger("fairq.store")

_MAX_HOPS = 5
_REST_S = 0.2  # the shortest time between two reads of the topology
_AWAY_S = 0.5  # between reads while a primary is unavailable: another may have replaced it
_REFRESH_S = 30.0  # between reads while all primaries are connected
_KEY_AT = {"EVAL": 3, "FCALL": 3, "FCALL_RO": 3}  # the position of a command's key, if not 1


def slot_of(command: Sequence[Word]) -> int:
    """Return the slot of a command's first key."""
    key = command[_KEY_AT.get(str(command[0]), 1)]
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


@define(eq=False)
class _Node:
    connection: Connection
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    left_at: float | None = None  # since when it has no slots, as far as we know


@define(eq=False)
class Cluster:
    """Calls a cluster as `Connection` calls a single store, while `run` runs; `seeds` are the nodes asked first.

    `refreshed()` is called after every read of the topology. `timeout` (s) is that of each connection.
    """

    seeds: Sequence[Address]
    refreshed: Callable[[], None]
    timeout: float = 5.0
    trouble: str = ""  # why the cluster cannot be used
    _owners: list[Connection | None] = field(factory=lambda: [None] * SLOTS, init=False)
    _primaries: list[Connection] = field(factory=list, init=False)
    _nodes: dict[tuple[str, int], _Node] = field(factory=dict, init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)
    _refused: StoreRefused | None = field(default=None, init=False)
    _outdated: trio.Event = field(factory=trio.Event, init=False)
    _changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    @property
    def is_connected(self) -> bool:
        """True if every slot has a primary, and all primaries can be called."""
        return None not in self._owners and all(primary.is_connected for primary in self._primaries)

    def nodes(self) -> list[Connection]:
        """Return the connections of all primaries that have slots."""
        return self._primaries

    def owner(self, key: str) -> Connection | None:
        """Return the connection of the primary that has a key's slot, as far as known."""
        return self._owners[key_slot(key.encode())]

    def refresh_soon(self) -> None:
        """Read the owners of slots again soon."""
        self._outdated.set()

    async def call(self, *command: Word, hold: Hold | None = None) -> Any:
        """Send a command to the primary that has its key and return its reply; the same errors as Connection.call."""
        slot = slot_of(command)
        node = self._owners[slot]
        if command[0] == "PUBLISH" and not (node and node.is_connected):  # any node tells it to all
            node = next((each for each in self._primaries if each.is_connected), node)
        if node is None:
            self.refresh_soon()
            raise Unavailable(f"no node of the cluster serves slot {slot}")
        is_asking = False
        for _ in range(_MAX_HOPS):
            try:
                return await (node.call_asking(*command) if is_asking else node.call(*command, hold=hold))
            except Redirected as redirect:
                hold = None
                node, is_asking = await self._follow(node, redirect, slot, command), redirect.is_ask
            except Unavailable:
                self.refresh_soon()
                raise
        raise Unavailable(f"the nodes of the cluster disagree on which one serves slot {slot}")

    async def _follow(self, node: Connection, redirect: Redirected, slot: int, command: Sequence[Word]) -> Connection:
        """Return the connection of the node that a redirection names, once connected or after `timeout`."""
        if redirect.is_ask and command[0] in _KEY_AT:
            raise Unavailable(f"slot {slot} is moving from {node.address.shown} to another node") from None
        target = self._node(redirect.host or node.address.host, redirect.port)
        if target.left_at is not None:
            target.left_at = trio.current_time()
        if not redirect.is_ask:
            self._owners[slot] = target.connection
            self.refresh_soon()
        if not target.connection.is_connected:
            await in_task()
            with trio.move_on_after(self.timeout):
                await target.connection.wait_connected()
        return target.connection

    async def wait_connected(self) -> None:
        """Wait until all primaries are connected. Raises: StoreRefused if one refuses us for good."""
        while not self.is_connected:
            for primary in self._primaries:
                if primary.fatal:
                    raise StoreRefused(f"{primary.address.shown}: {primary.fatal.message}")
            if self._refused:
                raise self._refused
            away = [primary for primary in self._primaries if not primary.is_connected]
            if away:
                self.trouble = f"{away[0].address.shown}: {away[0].trouble or 'no answer'}"
            await self._changed.park()

    async def run(self) -> None:
        """Stay connected to all primaries, as nodes join and leave, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            while True:
                self._outdated = trio.Event()
                await self._refresh()
                self._changed.unpark_all()
                self.refreshed()
                await trio.sleep(_REST_S)
                with trio.move_on_after(self._pause() * random.uniform(0.5, 1.5)):
                    await self._outdated.wait()

    def _pause(self) -> float:
        """Return the time (s) until the next read of the topology if nothing happens."""
        if not self.is_connected:
            return _AWAY_S
        is_one_leaving = any(node.left_at is not None for node in self._nodes.values())
        return min(_REFRESH_S, 2 * self.timeout) if is_one_leaving else _REFRESH_S

    async def _refresh(self) -> None:
        """Ask one node after the other for the owners of slots, until one answers."""
        for address, ask in self._sources():
            try:
                with trio.fail_after(self.timeout):
                    ranges = read_slots(await ask("CLUSTER", "SLOTS"), address.host)
            except StoreRefused as error:
                self._refused = StoreRefused(f"{address.shown}: {error.message}")
                continue
            except (*BROKEN, trio.TooSlowError, FairqError) as error:
                self.trouble = f"{address.shown}: {cause_of(error)}"
                continue
            if ranges:
                self._adopt(ranges)
                return
            self.trouble = f"{address.shown}: no node has slots"
        log.warning("cluster unavailable", error=self.trouble)

    def _sources(self) -> Iterator[tuple[Address, Callable[..., Awaitable[Any]]]]:
        known = [node.connection for node in self._nodes.values() if node.connection.is_connected]
        for connection in random.sample(known, len(known)):
            yield connection.address, connection.call
        for seed in random.sample(self.seeds, len(self.seeds)):
            yield seed, partial(ask_once, seed)

    def _adopt(self, ranges: Iterable[Range]) -> None:
        """Adopt a node's view: connect to new primaries, and note which nodes have no slots any more."""
        owners: list[Connection | None] = [None] * SLOTS
        primaries: dict[tuple[str, int], Connection] = {}
        for part in ranges:
            place = (part.host, part.port)
            primaries[place] = connection = self._node(*place).connection
            owners[part.first : part.last + 1] = [connection] * (part.last + 1 - part.first)
        for place, node in self._nodes.items():
            if place in primaries:
                node.left_at = None
            elif node.left_at is None:
                node.left_at = trio.current_time()
        if None in owners:
            self.trouble = f"no node serves slot {owners.index(None)}"
        self._owners, self._primaries, self._refused = owners, list(primaries.values()), None
        self._close_those_that_left()

    def _node(self, host: str, port: int) -> _Node:
        """Return a node; if it is new, start to connect to it."""
        node = self._nodes.get((host, port))
        if node is None:
            address = node_address(self.seeds[0], host, port)
            node = self._nodes[host, port] = _Node(Connection(address, self.timeout))
            node.left_at = trio.current_time()
            assert self._nursery is not None  # nodes are only known while `run` runs
            self._nursery.start_soon(self._keep, node)
        return node

    async def _keep(self, node: _Node) -> None:
        with node.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.connection.run)
                while True:
                    await node.connection.wait_changed()
                    self._changed.unpark_all()
                    self.refresh_soon()

    def _close_those_that_left(self) -> None:
        """Close connections to nodes without slots once no call can be under way there."""
        now = trio.current_time()
        for place, node in list(self._nodes.items()):
            if node.left_at is not None and now - node.left_at > 2 * self.timeout:
                log.info("node left the cluster", store=node.connection.address.shown)
                del self._nodes[place]
                node.scope.cancel()
