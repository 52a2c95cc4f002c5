"""Figures of the store's nodes: memory, and whether they could lose or refuse tasks."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from fairq.errors import FairqError
from fairq.store.connection import Connection
from fairq.store.node import read_info

MAX_NODES = 64  # that are asked


@frozen
class Node:
    """One node of the store; `limit_bytes` 0: no limit."""

    name: str
    memory_bytes: int
    limit_bytes: int
    evicts: bool
    is_durable: bool  # its append-only file is on, and its last write succeeded


async def read_nodes(nodes: Sequence[Connection]) -> list[Node]:
    """Ask the nodes one after the other; nodes that do not answer, or may not be asked, are left out."""
    found = []
    for node in nodes[:MAX_NODES]:
        try:
            values = read_info(await node.call("INFO", "memory", "persistence"))
        except FairqError:
            continue
        found.append(
            Node(
                name=node.address.place,
                memory_bytes=int(values.get("used_memory", 0)),
                limit_bytes=int(values.get("maxmemory", 0)),
                evicts=values.get("maxmemory_policy", "noeviction") != "noeviction",
                is_durable=values.get("aof_enabled") == "1" and values.get("aof_last_write_status") == "ok",
            )
        )
    return found
