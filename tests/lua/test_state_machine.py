"""Random calls against the exact model (machine.py), and every invariant of the keyspace after each of them."""

from __future__ import annotations

import pytest
import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from .calls import Queue, load_variant
from .machine import SMALL, SMALL_VARIANT, USUAL_VARIANT, QueueMachine
from .walks import VERSIONS, load


def run(client: redis.Redis, examples: int, steps: int) -> None:
    """Run the machine against this store, half of the time with the library that draws."""
    for version, variant, bounds in (("usual", USUAL_VARIANT, {}), ("draws", SMALL_VARIANT, SMALL)):
        load_variant(client, version, *variant)
        machine = type("StoreMachine", (QueueMachine,), {"client": client, "version": version, "bounds": bounds})
        run_state_machine_as_test(machine, settings=settings(max_examples=examples // 2, stateful_step_count=steps))


def test_the_store_does_what_the_model_does(redis_client: redis.Redis) -> None:
    run(redis_client, 16, 40)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_stores_clock_ends_no_key_of_a_walk(redis_client: redis.Redis, seed: int) -> None:
    load(redis_client, seed)
    queue = Queue(redis_client, version=VERSIONS[seed])
    queue.enqueue("ada", "a", dedupe_key="k", dedupe_period=1, result_ttl=1)
    (leased,) = queue.claim()
    queue.end("ack", leased)
    ttls = [redis_client.pttl(queue.key(name)) for name in ("result:a", "unique:ada:k")]
    assert min(ttls) > 86_400_000


@pytest.mark.deep("longest")
@pytest.mark.timeout(900)
def test_the_store_does_what_the_model_does_in_long_histories(redis_client: redis.Redis) -> None:
    run(redis_client, 150, 100)
