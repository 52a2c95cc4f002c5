"""For how long the tasks that are next have been ready, where there are more tenants than one call asks."""

from __future__ import annotations

import pytest

from .calls import Queue, random_values


def oldest(queue: Queue, count: int = 100, values: bytes = random_values(0)) -> tuple[int, int]:
    """The longest wait in ms, and how many tasks were looked at."""
    longest, looked = queue.call("oldest", count, random_values=values)
    return longest, looked


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


def test_a_wait_for_a_place_in_a_batch_does_not_count(queue: Queue) -> None:
    queue.open_batch("b", 1)
    queue.enqueue("ada", "a1", "a2", batch="b")
    queue.enqueue("bob", "b1")
    queue.advance(40)
    assert queue.end("ack", next(lease for lease in queue.claim(2) if lease.id == "a1")) == "ok"
    assert queue.state("a2") == "ready"
    assert oldest(queue) == (-1, 1), "nothing is known to wait"
