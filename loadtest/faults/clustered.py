"""A cluster of three primaries with a replica each: a replica takes over, and slots move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import trio
from attrs import define, field
from redis.crc import key_slot

from fairq.store import keys
from fairq.store.partitions import place_in, places_of
from fairq.store.topology import SLOTS
from loadtest.faults.app import QUEUE
from loadtest.faults.deeds import Deed, of_links, of_processes
from loadtest.faults.kept import Kept
from loadtest.faults.link import HOST, Link
from loadtest.faults.node import Node, wait_for
from loadtest.faults.stores import Stores
from loadtest.faults.watched import AFTER_PROMOTION
from loadtest.processes import free_port

PRIMARIES = 3


@define(eq=False)
class Clustered(Stores):
    """Three primaries and three replicas; each is known by the port of its link."""

    wait_replicas = 1
    unpromised = AFTER_PROMOTION
    nodes: list[Node] = field(init=False)
    _ids: dict[str, Node] = field(factory=dict, init=False)

    @property
    def slot(self) -> int:
        """The slot that has the tasks of the tenant `probe`."""
        return key_slot(keys.queue_prefix(place_in(places_of(QUEUE, self.partitions), "probe")).encode())

    def __attrs_post_init__(self) -> None:
        self.nodes = [Node(self.directory / f"node-{n}", self.fsync, self.forker) for n in range(2 * PRIMARIES)]
        for node in self.nodes:
            bus = str(free_port())
            node.settings |= {
                "cluster-enabled": "yes", "cluster-port": bus, "cluster-announce-bus-port": bus,
                "cluster-announce-ip": HOST, "cluster-announce-port": str(node.link.port),
                "cluster-node-timeout": "2000", "cluster-require-full-coverage": "no",
                "cluster-allow-replica-migration": "no", "repl-timeout": "10", "repl-ping-replica-period": "2",
            }  # fmt: skip

    def arguments(self, n: int) -> list[str]:
        return ["--store", f"redis://{HOST}:{self.nodes[0].link.port},{HOST}:{self.nodes[1].link.port}/0"]

    async def start(self, nursery: trio.Nursery) -> None:
        for node in self.nodes:
            await nursery.start(node.link.run)
            await nursery.start(node.kept.run)
        for n, node in enumerate(self.nodes):
            await wait_for("a node answers", partial(node.has, "loading", "0"))
            self._ids[(await node.ask("CLUSTER", "MYID")).decode()] = node
            await node.ask("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for n, node in enumerate(self.nodes[:PRIMARIES]):
            await node.ask("CLUSTER", "ADDSLOTSRANGE", SLOTS * n // PRIMARIES, SLOTS * (n + 1) // PRIMARIES - 1)
        for node in self.nodes[1:]:
            bus = self.nodes[0].settings["cluster-port"]
            await node.ask("CLUSTER", "MEET", HOST, self.nodes[0].link.port, bus)
        await wait_for("all nodes know each other", self._is_formed)
        for primary, replica in zip(self.nodes, self.nodes[PRIMARIES:], strict=False):
            await replica.ask("CLUSTER", "REPLICATE", (await primary.ask("CLUSTER", "MYID")).decode())
        await wait_for("replicas follow", self._is_whole)

    async def _is_formed(self) -> bool:
        for node in self.nodes:
            text = (await node.ask("CLUSTER", "INFO")).decode()
            if "cluster_state:ok" not in text or f"cluster_known_nodes:{len(self.nodes)}" not in text:
                return False
        return True

    async def _is_whole(self) -> bool:
        """True if three nodes are primaries with a replica each, and all nodes agree on who has which slots."""
        infos = [await node.info() for node in self.nodes]
        attached = [info.get("connected_slaves") for info in infos if info.get("role") == "master"]
        followers = [info for info in infos if info.get("master_link_status") == "up"]
        maps = {str(sorted(await self._slots(node))) for node in self.nodes}
        is_paired = attached == ["1"] * PRIMARIES and len(followers) == PRIMARIES
        return is_paired and len(maps) == 1 and await self._is_formed()

    async def _slots(self, node: Node) -> list[tuple[int, int, str]]:
        rows: list[list[Any]] = await node.ask("CLUSTER", "SLOTS")
        return [(row[0], row[1], row[2][2].decode()) for row in rows]

    async def _owner(self, slot: int, *but: Node) -> Node:
        """Return the node that has a slot, as another one sees it."""
        for node in self.nodes:
            if node not in but:
                for first, last, id in await self._slots(node):
                    if first <= slot <= last:
                        return self._ids[id]
        raise AssertionError("no node has the slot")

    async def _replace(self, disturb: Callable[[Node], AbstractAsyncContextManager[None]]) -> float:
        """Disturb the primary that has the workers' queue until its replica took over."""
        await wait_for("each primary has its replica", self._is_whole)
        primary, began = await self._owner(self.slot), trio.current_time()

        async def is_replaced() -> bool:
            return await self._owner(self.slot, primary) is not primary

        async with disturb(primary):
            await wait_for("the replica takes over", is_replaced)
        await wait_for("the former primary follows", self._is_whole)
        return began

    async def _any_replica(self) -> Kept:
        await wait_for("each primary has its replica", self._is_whole)
        replicas = [node for node in self.nodes if await node.has("role", "slave")]
        return self.draws.choice(replicas).kept

    async def _ends(self) -> tuple[Node, Node]:
        """Return the primary that has the queue's slot, and another one."""
        await wait_for("each primary has its replica", self._is_whole)
        source = await self._owner(self.slot)
        primaries = [node for node in self.nodes if await node.has("role", "master") and node is not source]
        return source, self.draws.choice(primaries)

    def _id(self, node: Node) -> str:
        return next(id for id, each in self._ids.items() if each is node)

    async def _is_moved(self, target: Node) -> bool:
        return await self._owner(self.slot) is target and await self._is_whole()

    async def _move_at_once(self) -> float:
        (source, target), began = await self._ends(), trio.current_time()
        await source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", self.slot, self.slot, "NODE", self._id(target))
        await wait_for("the slot has moved", partial(self._is_moved, target))
        return began

    async def _move_by_key(self) -> float:
        (source, target), began = await self._ends(), trio.current_time()
        await target.ask("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self._id(source))
        await source.ask("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self._id(target))
        while found := await source.ask("CLUSTER", "GETKEYSINSLOT", self.slot, 10):
            await source.ask("MIGRATE", HOST, target.link.port, "", 0, 5000, "KEYS", *found)
        for node in (target, source):
            await node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", self._id(target))
        await wait_for("the slot has moved", partial(self._is_moved, target))
        return began

    def _links(self) -> list[Link]:
        return [node.link for node in self.nodes]

    def kept(self) -> dict[str, Kept]:
        return {f"node {n}": node.kept for n, node in enumerate(self.nodes)}

    def deeds(self) -> dict[str, Deed]:
        """Return the faults, by name."""
        links: Mapping[str, Deed] = of_links("the link to a node", self._links, self.draws)
        own: dict[str, Deed] = {
            "kill the queue's primary": partial(self._replace, lambda node: node.kept.down()),
            "stop the queue's primary": partial(self._replace, lambda node: node.kept.still()),
            **of_processes("a replica", self._any_replica), "move the queue's slot": self._move_at_once,
            "move the queue's slot key by key": self._move_by_key,
        }  # fmt: skip
        return own | {name: deed for name, deed in links.items() if "lose" not in name}


class Partitioned(Clustered):
    """The same, and the workers' queue has partitions on all three primaries."""

    partitions = 12
