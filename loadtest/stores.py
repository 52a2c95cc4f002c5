"""Stores of a scenario's own: one Valkey by itself, or several as a cluster, on loopback ports."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import frozen

from fairq.errors import FairqError
from fairq.store.address import Address
from fairq.store.embedded import ALLOCATOR, program
from fairq.store.node import BROKEN, ask_once
from fairq.store.opening import open_store
from fairq.store.store import Store
from fairq.store.topology import SLOTS
from loadtest.processes import RunFailed, free_port, stop

HOST = "127.0.0.1"
_START_S = 30.0
PATIENCE_S = 60.0


@frozen
class Node:
    """One running Valkey."""

    address: Address
    bus: int  # the port on which nodes of a cluster talk; 0: it is alone
    pid: int

    async def ask(self, *command: str | int) -> Any:
        """Send a command and return the reply."""
        with trio.fail_after(10):
            return await ask_once(self.address, *command)

    async def info(self, section: str) -> dict[str, str]:
        """Read a section of INFO."""
        lines = (await self.ask("INFO", section)).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


@asynccontextmanager
async def _running_node(directory: Path, *, fsync: str, is_cluster: bool, binary: str = "") -> AsyncIterator[Node]:
    await trio.Path(directory).mkdir(parents=True)
    port, bus = free_port(), free_port() if is_cluster else 0
    options = {
        "bind": HOST, "port": port, "dir": directory, "save": "", "appendonly": "yes", "appendfsync": fsync,
        "maxmemory-policy": "noeviction", "logfile": directory / "node.log",
    }  # fmt: skip
    if is_cluster:
        options |= {"cluster-enabled": "yes", "cluster-port": bus, "cluster-node-timeout": 5_000}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    process = await trio.lowlevel.open_process(
        [binary or str(program()), *words],
        env={**ALLOCATOR, **os.environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield Node(Address.parse(f"redis://{HOST}:{port}/0"), bus, process.pid)
    finally:
        await stop(process)


async def _wait(node: Node, wanted: Mapping[str, str], *command: str) -> None:
    """Wait until a node's answer holds some lines. Raises: RunFailed."""
    with trio.move_on_after(_START_S):
        while True:
            try:
                text = (await node.ask(*command)).decode()
            except (*BROKEN, FairqError):
                text = ""
            if all(re.search(rf"^{name}:{value}\r?$", text, re.MULTILINE) for name, value in wanted.items()):
                return
            await trio.sleep(0.02)
    raise RunFailed(f"a store did not come up: {node.address.shown} does not say {dict(wanted)}")


@asynccontextmanager
async def running_nodes(
    directory: Path, count: int, *, fsync: str, is_cluster: bool, binary: str = ""
) -> AsyncIterator[list[Node]]:
    """Run one store, or a cluster of `count` primaries with equally many slots, while the context lasts.

    `binary`: another program than the embedded Valkey's.

    Raises: RunFailed if it does not come up.
    """
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(
                _running_node(directory / f"node-{number}", fsync=fsync, is_cluster=is_cluster, binary=binary)
            )
            for number in range(1, count + 1)
        ]
        for node in nodes:
            await _wait(node, {"loading": "0"}, "INFO", "persistence")
        if is_cluster:
            await _form(nodes)
        yield nodes


async def _form(nodes: list[Node]) -> None:
    for i, node in enumerate(nodes):
        await node.ask("CLUSTER", "ADDSLOTSRANGE", SLOTS * i // len(nodes), SLOTS * (i + 1) // len(nodes) - 1)
        await node.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
    for node in nodes[1:]:
        await node.ask("CLUSTER", "MEET", HOST, nodes[0].address.port, nodes[0].bus)
    for node in nodes:
        wanted = {"cluster_state": "ok", "cluster_known_nodes": str(len(nodes))}
        await _wait(node, wanted, "CLUSTER", "INFO")


async def count_errors(nodes: list[Node]) -> dict[str, int]:
    """Count the error replies that the nodes have given, by their first word."""
    counts: dict[str, int] = {}
    for node in nodes:
        for name, row in (await node.info("errorstats")).items():
            word = name.removeprefix("errorstat_")
            counts[word] = counts.get(word, 0) + int(row.removeprefix("count="))
    return counts


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    """Connect to a store, and wait for its answers however slow the machine's disk is: they are what is measured."""
    async with open_store(url) as store:
        store.connection.timeout = PATIENCE_S
        yield store
