"""Random calls against the exact model (machine.py), and every invariant of the keyspace after each of them."""

from __future__ import annotations

import pytest
import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from .calls import load_variant
from .machine import SMALL, SMALL_VARIANT, QueueMachine


def run(client: redis.Redis, examples: int, steps: int) -> None:
    """Run the machine against this store, half of the time with the library that draws."""
    load_variant(client, "draws", *SMALL_VARIANT)
    for chosen in ({}, {"version": "draws", **SMALL}):
        machine = type("StoreMachine", (QueueMachine,), {"client": client, **chosen})
        run_state_machine_as_test(machine, settings=settings(max_examples=examples // 2, stateful_step_count=steps))


def test_the_store_does_what_the_model_does(redis_client: redis.Redis) -> None:
    run(redis_client, 16, 40)


@pytest.mark.deep("longest")
@pytest.mark.timeout(900)
def test_the_store_does_what_the_model_does_in_long_histories(redis_client: redis.Redis) -> None:
    run(redis_client, 150, 100)
