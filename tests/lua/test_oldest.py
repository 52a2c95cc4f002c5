"""For how long the tasks that are next have been ready."""

from __future__ import annotations

import pytest

from .calls import Queue, random_values


def oldest(queue: Queue, count: int = 100, values: bytes = random_values(0)) -> tuple[int, int]:
    """The longest wait in ms, and how many tasks were looked at."""
    longest, looked = queue.call("oldest", count, random_values=values)
    return longest, looked


def test_a_queue_without_ready_tasks_has_no_oldest(queue: Queue) -> None:
    assert oldest(queue) == (-1, 0)
    queue.enqueue("ada", "a", delay=100)
    assert oldest(queue) == (-1, 0)


def test_the_oldest_is_the_one_that_has_been_ready_longest(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.advance(70)
    queue.enqueue("bob", "b")
    queue.advance(30)
    assert oldest(queue) == (100, 2)
    (lease,) = queue.claim(1)
    assert oldest(queue) == (30 if lease.id == "a" else 100, 1)


def test_a_delay_is_no_wait(queue: Queue) -> None:
    queue.enqueue("ada", "a", delay=1000)
    queue.advance(1040)
    queue.tick()
    assert oldest(queue) == (40, 1)


def test_tenants_that_no_worker_can_help_do_not_count(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.call("pause", "ada")
    queue.advance(50)
    assert oldest(queue) == (-1, 0)
    queue.call("resume", "ada")
    assert oldest(queue) == (0, 1), "no worker could have begun it"
    queue.advance(7)
    assert oldest(queue) == (7, 1)


def test_a_tenant_out_of_tokens_waits_from_when_it_has_one(queue: Queue) -> None:
    queue.set_limits("ada", rate=1, burst=1)
    queue.enqueue("ada", *(f"a{n}" for n in range(5)))
    for n in range(3):
        (lease,) = queue.claim(5, f"w{n}")
        queue.end("ack", lease)
        assert oldest(queue) == (-1, 0)
        queue.advance(1000)
        queue.tick()
        assert oldest(queue) == (0, 1)
    queue.advance(300)
    assert oldest(queue) == (300, 1), "now a worker is missing"


def test_a_tenant_at_its_limit_of_running_tasks_waits_from_when_it_is_below(queue: Queue) -> None:
    queue.set_limits("ada", max_running=1)
    queue.enqueue("ada", "a", "b")
    (lease,) = queue.claim(5)
    queue.advance(20_000)
    queue.end("ack", lease)
    queue.advance(30)
    assert oldest(queue) == (30, 1)


def test_tasks_of_batches_that_run_few_at_once_do_not_count(queue: Queue) -> None:
    queue.open_batch("b", max_running=1)
    queue.enqueue("ada", "a1", "a2", batch="b")
    (lease,) = queue.claim(5)
    queue.advance(20_000)
    queue.end("ack", lease)
    assert queue.state("a2") == "ready"
    assert oldest(queue) == (-1, 1)
    queue.open_batch("wide", tenant="bob")
    queue.enqueue("bob", "b", batch="wide")
    queue.advance(40)
    assert oldest(queue) == (40, 2)


def test_tasks_that_are_tried_again_do_not_count(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    (lease,) = queue.claim(1)
    queue.advance(500)
    queue.end("nack", lease, 0)
    assert queue.state("a") == "ready"
    assert oldest(queue) == (-1, 1)


def test_ended_tasks_at_the_head_are_passed_over(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.advance(10)
    queue.enqueue("ada", "b")
    queue.cancel("a")
    queue.advance(5)
    assert oldest(queue) == (5, 1)


@pytest.mark.parametrize("weights", [(1000,), (100, 1000, 50_000)])
def test_of_many_tenants_some_are_asked_and_each_has_its_chance(queue: Queue, weights: tuple[int, ...]) -> None:
    for n in range(40):
        queue.enqueue(f"t{n}", f"a{n}", f"b{n}")
        queue.call("set_weight", f"t{n}", weights[n % len(weights)])
        queue.advance(1)
    queue.claim(40)  # all have left the wake list, and stand in slots
    assert oldest(queue, 40) == (40, 40)
    found = {oldest(queue, 8, random_values(seed)) for seed in range(60)}
    assert {looked for _, looked in found} == {8}
    assert len(found) > 5
    assert max(found) == (40, 8)


def test_a_call_looks_at_no_more_than_it_was_asked_to(queue: Queue) -> None:
    for n in range(30):
        queue.enqueue(f"t{n}", f"a{n}")
    assert oldest(queue, 7)[1] == 7  # on the wake list
