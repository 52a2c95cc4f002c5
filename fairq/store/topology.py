"""Reads a store's topology: the hosts of its URL, whether they are a cluster, and which primary has which slots.

HELLO says whether a node belongs to a cluster; every user may call it. CLUSTER SLOTS lists the slots of each primary;
redis-py reads its answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import structlog
import trio
from attrs import frozen
from redis.backoff import FullJitterBackoff
from redis.cluster import parse_cluster_slots

from fairq.errors import FairqError, StoreRefused, Unavailable
from fairq.store.address import Address, node_address, parse_seeds
from fairq.store.node import BROKEN, ask, cause_of, connect
from fairq.store.sentinel import address_of, locate

log = structlog.get_logger("fairq.store")

SLOTS = 16_384
_ANSWER_S = 5.0  # seconds to wait for a reply


@frozen
class Range:
    """Slots `first` to `last`, and the primary that has them."""

    first: int
    last: int
    host: str
    port: int


def read_slots(reply: object, host: str) -> list[Range]:
    """Read the answer to CLUSTER SLOTS; `host` is the answering node's, for nodes that do not know their own."""
    slots = parse_cluster_slots(reply, current_host=host)
    return [Range(first, last, *node["primary"]) for (first, last), node in slots.items()]


async def _is_cluster_node(address: Address) -> bool:
    stream, reader = await connect(attrs.evolve(address, database=0))
    try:
        hello = await ask(stream, reader, "HELLO")
    except StoreRefused:  # a proxy without HELLO, or a user without permission
        return False
    finally:
        await trio.aclose_forcefully(stream)
    return dict(zip(hello[::2], hello[1::2], strict=True)).get(b"mode") == b"cluster"


async def is_cluster(seeds: Sequence[Address], within: float) -> bool:
    """Return whether the first seed that answers belongs to a cluster; retry for `within` seconds until one answers.

    Raises: Unavailable with the cause if none answers, StoreRefused if one refuses us.
    """
    backoff, failures, trouble = FullJitterBackoff(cap=1.0, base=0.05), 0, "no answer"
    with trio.move_on_after(within):
        while True:
            for seed in seeds:
                try:
                    with trio.fail_after(_ANSWER_S):
                        return await _is_cluster_node(seed)
                except (*BROKEN, trio.TooSlowError, Unavailable) as error:
                    trouble = cause_of(error)
                    log.warning("store unavailable", store=seed.shown, error=trouble)
            failures += 1
            await trio.sleep(backoff.compute(failures))
    raise Unavailable(trouble)


def is_moving_slots(nodes: bytes) -> bool:
    """True if keys of a slot move to this node or from it, one by one, by its answer to CLUSTER NODES."""
    own = next((line for line in nodes.splitlines() if b"myself" in line), b"")
    return b" [" in own


@frozen
class Topology:
    """A store's primaries, one or those of its cluster, and the slots of each (none: it is not a cluster)."""

    primaries: Sequence[Address]
    slots: Sequence[Range] = ()


async def read_topology(url: str) -> Topology:
    """Ask the store at a URL for its primaries.

    Raises: SettingsError for an invalid URL; Unavailable or StoreRefused if no seed answers, as the last one did.
    """
    trouble: FairqError = Unavailable("no answer")
    seeds = parse_seeds(url)
    if seeds[0].sentinels:
        return Topology([address_of(await locate(seeds[0]), seeds[0])])
    for seed in seeds:
        try:
            with trio.fail_after(_ANSWER_S):
                stream, reader = await connect(attrs.evolve(seed, database=0))
                async with stream:
                    try:
                        reply = await ask(stream, reader, "CLUSTER", "SLOTS")
                    except StoreRefused:  # it is no cluster
                        return Topology([seed])
        except FairqError as error:
            trouble = error
        except (*BROKEN, trio.TooSlowError) as error:
            trouble = Unavailable(f"the store at {seed.shown} does not answer: {cause_of(error)}")
        else:
            slots = sorted(read_slots(reply, seed.host), key=lambda each: each.first)
            owners = dict.fromkeys((each.host, each.port) for each in slots)
            return Topology([node_address(seed, host, port) for host, port in owners], slots)
    raise trouble
