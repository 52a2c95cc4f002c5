"""Kills at each edge of the protocol: a server sends a call to the store, or has its answer; a client has half a frame.

The links see the calls pass (link.py), so the processes need not know of it. The call stands still there and the victim
is killed; then the call is dropped with a server or the store, or goes on without a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

import trio

from loadtest.faults.deeds import Deed
from loadtest.faults.link import HALF, Edge, Link
from loadtest.faults.stores import Single
from loadtest.faults.world import World
from loadtest.processes import RunFailed

EDGES = [
    f"{verb} {when}"
    for verb, when in product(("enqueue", "enqueue_and_claim", "claim", "settle", "tick"), ("sent", "answered"))
]
_REACHED_S = 60.0  # until a call has come


def kills(world: World) -> dict[str, Deed]:
    """Return the kills of servers, workers and the store, at each edge."""
    found: dict[str, Deed] = {}
    for name, home in world.stores.versions().items():
        found |= {f"kill {name}: {edge}": partial(_kill_server, world, home, edge) for edge in (*EDGES, HALF)}
    for edge in EDGES:
        found[f"kill a worker: {edge}"] = partial(_kill_worker, world, edge)
        found[f"kill the store: {edge}"] = partial(_kill_store, world, edge)
    return found


def _links(world: World) -> Sequence[Link]:
    assert isinstance(world.stores, Single)
    return world.stores.links


async def _reach(edge: str, links: Sequence[Link]) -> Edge:
    """Wait until a connection through one of these links stands still at an edge. Raises: RunFailed."""
    verb, _, when = ("", "", HALF) if edge == HALF else edge.partition(" ")
    found = Edge(when, verb)
    for link in links:
        link.edge = found
    try:
        with trio.move_on_after(_REACHED_S):
            await found.reached.wait()
            return found
    finally:
        for link in links:
            link.edge = None
    raise RunFailed(f"no call came to {edge} in {_REACHED_S:g} s")


async def _kill_server(world: World, home: Path, edge: str) -> float:
    n = await world.server_of(home)
    reached = await _reach(edge, [world.links[n] if edge == HALF else _links(world)[n]])
    began = trio.current_time()
    await world.servers[n].end()
    reached.scope.cancel()
    return began


async def _kill_worker(world: World, edge: str) -> float:
    reached, began = await _reach(edge, _links(world)), trio.current_time()
    await world.draws.choice(world.workers).end()
    reached.goes_on.set()
    return began


async def _kill_store(world: World, edge: str) -> float:
    assert isinstance(world.stores, Single)
    reached, began = await _reach(edge, _links(world)), trio.current_time()
    await world.stores.node.kept.end()
    reached.scope.cancel()
    return began
