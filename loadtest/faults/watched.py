"""A primary and its replicas, watched by three sentinels: they promote a replica when two of them miss the primary."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.store.address import Address
from fairq.store.embedded import program
from fairq.store.node import BROKEN, ask_once
from loadtest.faults.deeds import Deed, of_processes
from loadtest.faults.forking import Fork
from loadtest.faults.kept import Kept
from loadtest.faults.link import HOST
from loadtest.faults.node import Node, wait_for
from loadtest.faults.stores import Stores
from loadtest.processes import free_port

SENTINELS, NAME, DOWN_MS = 3, "faults", 1000
FAR = "127.0.0.3"  # where replicas and sentinels are, as the links see them
# A promoted replica may lack the last claims and settlements: only enqueues wait for replicas.
AFTER_PROMOTION = frozenset({"doubled", "leased twice", "run after its end", "stale settlement taken"})


@define(eq=False)
class Watched(Stores):
    """One primary and `replicas`; each is known by the port of its link."""

    replicas: ClassVar[int] = 1
    wait_replicas = 1
    unpromised = AFTER_PROMOTION
    nodes: list[Node] = field(init=False)
    ports: list[int] = field(init=False)  # of sentinels
    sentinels: list[Kept] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.nodes = [Node(self.directory / f"node-{n}", self.fsync, self.forker) for n in range(1 + self.replicas)]
        for node in self.nodes:
            node.settings |= {
                "bind-source-addr": FAR, "replica-announce-ip": HOST, "replica-announce-port": str(node.link.port),
            }  # fmt: skip
        for node in self.nodes[1:]:
            node.settings["replicaof"] = f"{HOST} {self.nodes[0].link.port}"
        self.ports = [free_port() for _ in range(SENTINELS)]
        self.sentinels = [Kept(partial(self._start_sentinel, n), self._sentinel(n) / "log") for n in range(SENTINELS)]

    def arguments(self, n: int) -> list[str]:
        return ["--store", f"redis+sentinel://{','.join(f'{HOST}:{port}' for port in self.ports)}/{NAME}/0"]

    async def start(self, nursery: trio.Nursery) -> None:
        for node in self.nodes:
            await nursery.start(node.link.run)
            await nursery.start(node.kept.run)
        await wait_for("replicas follow", self._is_whole)
        for sentinel in self.sentinels:
            await nursery.start(sentinel.run)
        await wait_for("sentinels know each other", self._are_watching)

    def _sentinel(self, n: int) -> Path:
        return self.directory / f"sentinel-{n}"

    async def _start_sentinel(self, n: int) -> Fork:
        where = self._sentinel(n)
        config = where / "sentinel.conf"
        if not config.exists():  # it writes down itself what it has learned
            where.mkdir(parents=True)
            lines = [
                f"port {self.ports[n]}", f"bind {HOST}", f"bind-source-addr {FAR}", f"sentinel announce-ip {HOST}",
                f"dir {where}", f"sentinel monitor {NAME} {HOST} {self.nodes[0].link.port} 2",
                f"sentinel down-after-milliseconds {NAME} {DOWN_MS}", f"sentinel failover-timeout {NAME} 5000",
            ]  # fmt: skip
            config.write_text("\n".join(lines) + "\n")
        return await self.forker.start([str(program()), str(config), "--sentinel"], where / "log", {})

    async def _ask(self, n: int, *words: str) -> list[bytes]:
        with trio.fail_after(5):
            reply = await ask_once(Address.parse(f"redis://{HOST}:{self.ports[n]}/0"), "SENTINEL", *words)
        return reply if isinstance(reply, list) else [text for pair in reply.items() for text in pair]

    async def _named(self) -> list[int]:
        """Return the port that each sentinel that answers names as the primary."""
        found = []
        for n in range(SENTINELS):
            try:
                found.append(int((await self._ask(n, "GET-MASTER-ADDR-BY-NAME", NAME))[1]))
            except (*BROKEN, FairqError, trio.TooSlowError):
                continue
        return found

    async def primary(self) -> Node:
        """Return the node that most sentinels name."""
        named = await self._named()
        return max(self.nodes, key=lambda node: named.count(node.link.port))

    async def _are_watching(self) -> bool:
        for n in range(SENTINELS):
            words = await self._ask(n, "MASTER", NAME)
            row = dict(zip(words[::2], words[1::2], strict=True))
            if (int(row[b"num-slaves"]), int(row[b"num-other-sentinels"])) != (self.replicas, SENTINELS - 1):
                return False
        return True

    async def _is_whole(self) -> bool:
        """True if one node is a primary and all others follow it."""
        infos = [await node.info() for node in self.nodes]
        roles = sorted(info.get("role", "") for info in infos)
        followers = [info for info in infos if info.get("role") == "slave" and info["master_link_status"] == "up"]
        attached = [int(info["connected_slaves"]) for info in infos if info.get("role") == "master"]
        return roles == ["master", *["slave"] * self.replicas] and len(followers) == self.replicas == sum(attached)

    async def _is_promoted(self, former: Node) -> bool:
        named = await self._named()
        return sum(port != former.link.port for port in named) >= 2

    async def _replace(self, disturb: Callable[[Node], AbstractAsyncContextManager[None]]) -> float:
        """Disturb the primary until another one was promoted; then wait until it follows."""
        await wait_for("all replicas follow", self._is_whole)
        primary, began = await self.primary(), trio.current_time()
        async with disturb(primary):
            await wait_for("a replica is promoted", partial(self._is_promoted, primary))
        await wait_for("the former primary follows", self._is_whole)
        return began

    def kept(self) -> dict[str, Kept]:
        sentinels = {f"sentinel {n}": sentinel for n, sentinel in enumerate(self.sentinels)}
        return sentinels | {f"node {n}": node.kept for n, node in enumerate(self.nodes)}

    def deeds(self) -> dict[str, Deed]:
        def replace(disturb: Callable[[Node], AbstractAsyncContextManager[None]]) -> Deed:
            return partial(self._replace, disturb)

        async def any_replica() -> Kept:
            await wait_for("all replicas follow", self._is_whole)
            primary = await self.primary()
            return self.draws.choice([node for node in self.nodes if node is not primary]).kept

        async def any_sentinel() -> Kept:
            return self.draws.choice(self.sentinels)

        return {
            "kill the primary": replace(lambda node: node.kept.down()),
            "stop the primary": replace(lambda node: node.kept.still()),
            "cut off the primary from all but the servers": replace(_cut_off),
            "hold the link to the primary": replace(_hold),
            **of_processes("a replica", any_replica), **of_processes("a sentinel", any_sentinel),
        }  # fmt: skip


@define(eq=False)
class WatchedTwice(Watched):
    """One primary and two replicas."""

    replicas = 2


@asynccontextmanager
async def _cut_off(node: Node) -> AsyncIterator[None]:
    node.link.refused.add(FAR)
    node.link.cut(FAR)
    try:
        yield
    finally:
        node.link.heal()


@asynccontextmanager
async def _hold(node: Node) -> AsyncIterator[None]:
    node.link.hold()
    try:
        yield
    finally:
        node.link.heal()
