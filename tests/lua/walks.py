"""Walks by kind and seed, and how far they go: what replays of planted bugs, and the search for them, have in common.

A walk draws the same at any time, on any machine. Odd seeds walk by the library with small bounds (SMALL_VARIANT), in
which few bytes are many, and which draws among few tenants.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

import redis

from .calls import load_variant
from .costly_walk import CostlyWalk
from .crowd_walk import CrowdWalk
from .full_walk import FullWalk
from .idle_walk import IdleWalk
from .joined_walk import JoinedWalk
from .linked_walk import LinkedWalk
from .machine import SMALL, SMALL_VARIANT, USUAL_VARIANT, QueueMachine, Walk

OF_MACHINE: dict[str, type[Walk]] = {
    "usual": Walk,
    "full": FullWalk,
    "idle": IdleWalk,
    "crowd": CrowdWalk,
    "joined": JoinedWalk,
    "linked": LinkedWalk,
    "costly": CostlyWalk,
}
KINDS = tuple(OF_MACHINE)
VERSIONS = ("planted", "small_planted")
DIFFERENCES = (AssertionError, AttributeError, LookupError, TypeError, ValueError, redis.ResponseError, struct.error)


class Place(NamedTuple):
    """Where a planted bug is found: the kind of a walk, its seed, and after how many steps."""

    kind: str
    seed: int
    step: int


def load(client: redis.Redis, seed: int, *changes: tuple[str, str]) -> None:
    """Load the library by which this seed walks, with some of its text changed."""
    load_variant(client, VERSIONS[seed % 2], *(SMALL_VARIANT if seed % 2 else USUAL_VARIANT), *changes)


def begin(client: redis.Redis, kind: str, seed: int) -> Walk:
    """Begin a walk on an empty store."""
    chosen = {"client": client, "version": VERSIONS[seed % 2], "bounds": SMALL if seed % 2 else {}}
    return OF_MACHINE[kind](type("WalkMachine", (QueueMachine,), chosen)(), seed)


def steps(client: redis.Redis, kind: str, seed: int, compared: Collection[int]) -> Iterator[int]:
    """Walk to the last of these steps and compare all after each of them; yields the number of a step, then takes it.

    The beginning is step 0.
    """
    yield 0
    walk = begin(client, kind, seed)
    for step in range(1, max(compared) + 1):
        yield step
        walk.compares = False
        walk.step()
        walk.compares = step in compared
        walk.compare()


def first_difference(client: redis.Redis, kind: str, seed: int, compared: Collection[int]) -> Place | None:
    step = 0
    try:
        for step in steps(client, kind, seed, compared):  # noqa: B007
            pass
    except DIFFERENCES:
        return Place(kind, seed, step)
    return None


def is_found(client: redis.Redis, change: tuple[str, str], place: Place) -> bool:
    """Tell whether a walk by a changed library comes upon a difference before or at this place."""
    load(client, place.seed, change)
    return first_difference(client, place.kind, place.seed, [place.step]) is not None
