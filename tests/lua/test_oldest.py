"""For how long the tasks that are next have been ready: since when each is, and which of many tenants are asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .calls import Leased, Queue, random_values

MINUTE, HOUR = 60_000, 3_600_000


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


def leased(queue: Queue) -> Leased:
    """A task that has waited for a while, and is leased since another while."""
    queue.enqueue("ada", "a")
    queue.advance(MINUTE)
    (lease,) = queue.claim()
    queue.advance(MINUTE // 4)
    return lease


def retried(queue: Queue) -> None:
    queue.end("nack", leased(queue), 4000)
    queue.advance(5000)
    queue.tick()


def lost(queue: Queue) -> None:
    leased(queue)
    queue.advance(MINUTE)
    assert queue.tick().reaped == 1


def replayed(queue: Queue) -> None:
    queue.end("reject", leased(queue))
    queue.advance(MINUTE)
    queue.call("replay", "a")


def replayed_before_its_first_attempt(queue: Queue) -> None:
    queue.enqueue("ada", "a", expires_in=MINUTE)
    queue.advance(2 * MINUTE)
    assert queue.tick().expired == 1
    queue.call("replay", "a")


def delayed(queue: Queue) -> None:
    queue.enqueue("ada", "a", delay=MINUTE)
    queue.advance(MINUTE)
    queue.tick()


def rescheduled(queue: Queue, way: Callable[[Queue], object]) -> None:
    way(queue)
    queue.advance(MINUTE)
    queue.call("reschedule", 0, 0, "a")


def admitted(queue: Queue) -> None:
    queue.open_batch("b", 1)
    queue.enqueue("ada", "a1", "a2", "a3", batch="b")
    queue.advance(MINUTE)
    queue.end("ack", queue.claim()[0])


def let_in(queue: Queue) -> None:
    queue.call("set_paused", "ada", 1)
    queue.enqueue("ada", "a")
    queue.advance(MINUTE)
    assert oldest(queue) == (-1, 0)
    queue.call("set_paused", "ada", 0)


def set_back(way: Callable[[Queue], object], queue: Queue) -> None:
    """The clock was ahead while the task became ready, and is set right."""
    queue.now += HOUR
    way(queue)
    queue.now -= HOUR
    for _ in range(5):
        queue.tick()
    queue.now = queue.tick().now


WAYS: dict[str, Callable[[Queue], object]] = {
    "new": lambda queue: queue.enqueue("ada", "a"),
    "delayed": delayed,
    "retry": retried,
    "retry at once": lambda queue: queue.end("nack", leased(queue), 0),
    "given back": lambda queue: queue.end("release", leased(queue), ""),
    "lost process": lambda queue: queue.end("lose", leased(queue)),
    "lost lease": lost,
    "replayed": replayed,
    "replayed before its first attempt": replayed_before_its_first_attempt,
    "batch": admitted,
    "tenant let in": let_in,
    "rescheduled": lambda queue: rescheduled(queue, lambda queue: queue.enqueue("ada", "a", delay=HOUR)),
    "retry rescheduled": lambda queue: rescheduled(queue, lambda queue: queue.end("nack", leased(queue), HOUR)),
}


@pytest.mark.parametrize("is_set_back", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_task_is_ready_since_it_became_so(queue: Queue, way: str, is_set_back: bool) -> None:
    set_back(WAYS[way], queue) if is_set_back else WAYS[way](queue)
    since = 1000 if way == "retry" and not is_set_back else 0
    assert oldest(queue) == (since, 1)
    for passed in (HOUR, 2 * HOUR):  # past the time to which the clock was ahead
        queue.advance(HOUR)
        assert oldest(queue) == (since + passed, 1)


def test_each_task_of_a_batch_waits_since_it_got_its_slot(queue: Queue) -> None:
    queue.open_batch("b", 2)
    queue.enqueue("ada", "a1", "a2", "a3", "a4", batch="b")
    queue.advance(MINUTE)
    first, second = queue.claim(2)
    queue.end("ack", first)
    queue.advance(4000)
    queue.end("ack", second)
    queue.advance(1000)
    assert oldest(queue) == (5000, 1), "the next got its slot when the first was done"
    queue.claim(1)
    assert oldest(queue) == (1000, 1)
