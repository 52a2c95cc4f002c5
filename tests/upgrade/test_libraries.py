"""Two versions of the library on one store: today's, and tomorrow's, whose records have grown.

Walks of the state machine take each step by one of the two, by chance. The exact model must agree with both, and what
tomorrow's library has put into a record must outlast all that today's does with it.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import redis

from fairq.store import library
from tests.lua.calls import COMMENT, FORMATS
from tests.lua.machine import QueueMachine
from tests.lua.walks import OF_MACHINE

from .tomorrow import build, library_of

STEPS = 60
PLACES = {  # key -> the format of its fields
    "accounts": "ACCOUNT", "tenants": "DETAILS", "runs": "RUN", "bundles": "BUNDLE", "dead": "DEATH",
    "batches": "BATCH", "opening_hours": "HOURS", "webhooks": "WEBHOOK",
}  # fmt: skip


@pytest.fixture(scope="module")
def tomorrows_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return library_of(build(tmp_path_factory.mktemp("tomorrow")))


def load(client: redis.Redis, version: str, source: str) -> None:
    """Load a library under a version of its own."""
    name = source.split("\n", 1)[0].rpartition("_")[2]
    client.function_load(COMMENT.sub("", source).replace(name, version, 2), replace=True)


def more_of(client: Any, prefix: str) -> dict[tuple[str, bytes], bytes]:
    """Return what later versions have put into the records of a queue, by key and field."""
    found: dict[tuple[str, bytes], bytes] = {}
    for key, name in PLACES.items():
        for field, packed in client.hgetall(f"{prefix}:{key}").items():
            found[key, field] = FORMATS[name].unpack(packed)[0]["more"]
    if packed := client.get(f"{prefix}:queue"):
        values, _ = FORMATS["QUEUE"].unpack(packed)
        found["queue", str(values["origin"]).encode()] = values["more"]  # one that is made anew begins anew
    return found


@pytest.mark.one_store
@pytest.mark.parametrize("kind", OF_MACHINE)
@pytest.mark.parametrize("seed", range(4))
def test_two_versions_of_the_library_share_a_queue(
    redis_client: redis.Redis, tomorrows_library: str, kind: str, seed: int
) -> None:
    load(redis_client, "today", library.source())
    load(redis_client, "tomorrow", tomorrows_library)
    choice, machine = (
        random.Random(seed),
        type("Rolling", (QueueMachine,), {"client": redis_client, "version": "today", "later": frozenset({"later"})}),
    )
    walk = OF_MACHINE[kind](machine(), seed)
    queue, kept = walk.machine.queue, 0
    for step in range(STEPS):
        before, version = more_of(redis_client, queue.prefix), choice.choice(["today", "tomorrow"])
        queue._functions = f"fq_{version}_"
        walk.step()
        if step % 3 == 2:  # what differs stays
            walk.compare()
        if version == "today":
            for place, more in more_of(redis_client, queue.prefix).items():
                assert more == before.get(place, more), (step, place)
                kept += more != b""
    assert kept, "the walk came upon none"
