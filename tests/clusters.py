"""Real clusters for the suite: primaries with a third of the slots each, on loopback, and what is done to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis.crc import key_slot

from tests.store.waiting import wait_for

from . import stores

SLOTS = 16_384
SETTINGS = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "2000",
    "cluster-require-full-coverage": "no",  # what is left goes on when a node is killed
    "cluster-allow-replica-migration": "no",  # a node without slots stays what it is
}


class Node:
    """One process of a cluster, and a client of it."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.bus = stores.free_port()
        settings = {**SETTINGS, "cluster-port": str(self.bus)}
        self.server = stores.LocalServer(kind, directory, settings, has_users=False)
        self.server.start()
        self.port = self.server.port
        self.client = stores.connect(self.server.url, protocol=2)
        self.id: str = self.cluster("MYID").decode()

    def cluster(self, *words: object) -> Any:
        """Call CLUSTER; the reply is as it came."""
        return self.client.execute_command("CLUSTER", *words, NEVER_DECODE=True)

    def info(self) -> dict[str, str]:
        """Read what CLUSTER INFO says."""
        reply = self.client.execute_command("CLUSTER INFO")
        return reply if isinstance(reply, dict) else dict(line.split(":") for line in reply.decode().split())

    def knows(self, count: int) -> bool:
        """Tell whether this node sees so many nodes, and all slots served."""
        info = self.info()
        return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(count)

    def sees_owner(self, slot: int, node: Node) -> bool:
        """Tell whether another node has a slot, as far as this one knows."""
        return any(
            first <= slot <= last and place[2].decode() == node.id for first, last, place, *_ in self.cluster("SLOTS")
        )

    def row(self, node: Node) -> list[str]:
        """Read this node's line about another one in CLUSTER NODES."""
        rows = (line.split() for line in self.cluster("NODES").decode().splitlines())
        return next(words for words in rows if words[0] == node.id)

    def epoch_of(self, node: Node) -> int:
        """Tell another node's configuration epoch, as far as this one knows."""
        return int(self.row(node)[6])

    def wait_replica(self) -> None:
        """Wait until this node is a replica that is up to date."""
        wait_for(lambda: self.client.info("replication").get("master_link_status") == "up")

    def subscriptions(self, channel: str) -> int:
        """Count who listens to a sharded channel here."""
        return int(self.client.execute_command("PUBSUB", "SHARDNUMSUB", channel, NEVER_DECODE=True)[1])

    def stop(self) -> None:
        """End the process, by its id."""
        self.client.close()
        self.server.stop()


class Cluster:
    """Primaries, and what is added to them."""

    def __init__(self, kind: str, directory: Path, count: int = 3) -> None:
        self.kind = kind
        self.nodes: list[Node] = []
        self._directory = directory
        try:
            for number in range(count):
                node = self._start()
                node.cluster("ADDSLOTSRANGE", SLOTS * number // count, SLOTS * (number + 1) // count - 1)
                node.cluster("SET-CONFIG-EPOCH", number + 1)
            for node in self.nodes[1:]:
                node.cluster("MEET", stores.HOST, self.nodes[0].port, self.nodes[0].bus)
            self.wait_formed()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """A store URL that names one node."""
        return self.nodes[0].server.url

    def _start(self) -> Node:
        node = Node(self.kind, self._directory / f"node-{len(self.nodes)}")
        self.nodes.append(node)
        return node

    def wait_formed(self) -> None:
        """Wait until all nodes know each other, and that all slots are served."""
        wait_for(lambda: all(node.knows(len(self.nodes)) for node in self.nodes))

    def add(self) -> Node:
        """Have another node join, without slots."""
        node = self._start()
        node.cluster("MEET", stores.HOST, self.nodes[0].port, self.nodes[0].bus)
        self.wait_formed()
        return node

    def add_replica(self, primary: Node) -> Node:
        """Have another node join, as a replica that is up to date."""
        node = self.add()
        node.cluster("REPLICATE", primary.id)
        node.wait_replica()
        # Those that have not heard of it would not vote for it, and a failover is tried for five seconds only.
        wait_for(lambda: all(each.row(node)[3] == primary.id for each in self.nodes))
        return node

    def owner(self, key: str) -> Node:
        """Find the node that has a key's slot and knows it."""
        slot = key_slot(key.encode())
        return next(node for node in self.nodes if node.sees_owner(slot, node))

    def is_heard(self, channel: str) -> bool:
        """Tell whether somebody, and one only, listens to a sharded channel."""
        return self.owner(channel).subscriptions(channel) == 1

    def other(self, node: Node) -> Node:
        return next(each for each in self.nodes if each is not node)

    @contextmanager
    def moving(self, key: str, target: Node) -> Iterator[Callable[[], None]]:
        """Move a key's slot key by key; gives what moves the keys, and the slot goes over at the end."""
        slot, source = key_slot(key.encode()), self.owner(key)
        target.cluster("SETSLOT", slot, "IMPORTING", source.id)
        source.cluster("SETSLOT", slot, "MIGRATING", target.id)

        def move_keys() -> None:
            while keys := source.cluster("GETKEYSINSLOT", slot, 100):
                words = ["MIGRATE", stores.HOST, target.port, "", 0, 5000, "KEYS", *keys]
                source.client.execute_command(*words)

        try:
            yield move_keys
        finally:  # the other tests have this cluster too
            move_keys()
            for node in [target, source, *(each for each in self.nodes if each not in (source, target))]:
                node.cluster("SETSLOT", slot, "NODE", target.id)
            # A node that takes a slot raises its epoch above those it has heard of. Who moves the slot on before the
            # others have heard of that gets no higher one, and late gossip of the former owner then wins over the new.
            wait_for(lambda: self._agree(slot, target))

    def _agree(self, slot: int, owner: Node) -> bool:
        epoch = owner.epoch_of(owner)
        return all(node.sees_owner(slot, owner) and node.epoch_of(owner) == epoch for node in self.nodes)

    def move(self, key: str, target: Node) -> None:
        """Move a key's slot, and wait until all nodes agree."""
        with self.moving(key, target):
            pass

    def clear(self) -> None:
        """Delete all data; functions stay."""
        for node in self.nodes:
            node.client.flushall()

    def error_counts(self) -> dict[str, int]:
        """Count the error replies of all nodes, by their first word."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            for name, row in node.client.info("errorstats").items():
                word = name.removeprefix("errorstat_")
                counts[word] = counts.get(word, 0) + int(row["count"])
        return counts

    def stop(self) -> None:
        """End all processes, by their ids."""
        for node in self.nodes:
            node.stop()
