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


def test_a_task_of_a_batch_with_places_is_looked_at_and_its_wait_is_not_known(queue: Queue) -> None:
    queue.open_batch("b", max_running=1)
    queue.enqueue("ada", "a", batch="b")
    queue.advance(5)
    assert oldest(queue) == (-1, 1)
