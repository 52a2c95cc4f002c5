"""The service in memory against the real one: the same app and the same tasks come to the same ends."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import attrs
import trio

import fairq
import fairq.testing
from fairq.model.tasks import TaskState
from fairq.server.run import Served
from tests.client.conftest import certificate, plain_logs, served, server_store
from tests.client.harness import working
from tests.server.harness import OPERATOR, WORKER, raw, tenant, url_of
from tests.store.waiting import wait_until

from .apps import make_app

__all__ = ["certificate", "plain_logs", "served", "server_store"]

SETTINGS: dict[str, str | int] = {"retry_base_ms": 1, "retry_cap_ms": 20, "max_attempts": 3}
WAYS = ("ok", "fail", "reject", "retry", 0, 0.01)
FIXED: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("emails", {"delay": 0.2, "expires_in": 30}, ["ok"]),
    ("emails", {"expires_in": 2}, [5, "ok"]),  # expires between two attempts
    ("images", {"expires_in": 2, "max_attempts": 1}, [5]),
    ("emails", {"max_attempts": 1}, ["retry"]),
    ("emails", {"delay": 1.5, "dedupe_key": "once"}, ["retry", "ok"]),
    ("emails", {"priority": 0, "dedupe_key": "once"}, ["reject"]),  # which is the one above
    ("images", {"priority": 99, "result_ttl": 60}, ["fail", "ok"]),
    ("emails", {"max_attempts": 1}, ["postpone", "postpone", "fail"]),
    ("images", {"max_attempts": 2}, ["postpone", "fail", "postpone", "ok"]),
    ("images", {"delay": 0.1, "max_attempts": 6}, ["fail", "retry", 0, 0.05, "fail", "reject"]),
]


def cases() -> list[tuple[str, dict[str, Any], list[Any]]]:
    """Queue, options and ways to end: those that are known to be hard, and some by lot."""
    random_values = random.Random(7)
    return FIXED + [
        (
            random_values.choice(["emails", "images"]),
            {"max_attempts": random_values.choice([None, 1, 2, 5])},
            random_values.choices(WAYS, k=random_values.randint(1, 5)),
        )
        for _ in range(60)
    ]


def comparable(states: list[TaskState], begun: Counter[str]) -> list[TaskState]:
    """What two runs have in common: all but the moment, and attempts that a busy machine gave back unbegun."""
    assert all(begun[state.id] <= state.attempt for state in states if state.state == "dead")
    return [attrs.evolve(state, at_ms=0, attempt=begun[state.id]) for state in states]


async def enqueue_all(client: fairq.Client) -> list[fairq.EnqueuedTask]:
    return [
        await client.enqueue(queue, {"ways": ways}, id=f"case-{number}", **options)
        for number, (queue, options, ways) in enumerate(cases())
    ]


async def test_the_same_app_comes_to_the_same_ends_in_memory_and_on_a_server(served: Served) -> None:
    of_memory, of_server = Counter[str](), Counter[str]()
    with trio.fail_after(120):
        async with fairq.testing.run(
            make_app(begun=of_memory), tenant="ada", settings=dict.fromkeys(("emails", "images"), SETTINGS)
        ) as service:
            tasks = await enqueue_all(service)
            await service.drain()
            states = [await task.state() for task in tasks]
            assert all(of_memory[state.id] == state.attempt for state in states if state.state == "dead")
            in_memory = comparable(states, of_memory)
        async with (
            raw(served, OPERATOR) as operator,
            fairq.open_client(url_of(served), token=tenant("ada")) as client,
            working(make_app(url_of(served), WORKER, of_server)),
        ):
            for queue in ("emails", "images"):
                await operator.ask("configure", queue=queue, settings=SETTINGS)
            tasks = await enqueue_all(client)
            for task in tasks:

                async def is_over(task: fairq.EnqueuedTask = task) -> bool:
                    return (await task.state()).state in ("done", "dead")

                await wait_until(is_over)
            on_server = comparable([await task.state() for task in tasks], of_server)
    assert on_server == in_memory
    assert {state.state for state in on_server} == {"done", "dead"}
    assert {state.reason for state in on_server} == {"", "exhausted", "rejected", "expired"}
