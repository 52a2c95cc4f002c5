"""A clock that was far ahead, and is set right: delays that were counted meanwhile count from now; given times stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairq.model.schedules import Timing
from fairq.store.records import pack_timing

from .calls import START, Queue, packed_template, words
from .keyspace import Keyspace

DAY, HOUR, MINUTE = 86_400_000, 3_600_000, 60_000
TIMING = pack_timing(Timing("0 3 * * *", "UTC"))


def tick(queue: Queue, witness: object = "") -> None:
    """Tick until nothing is due, but what servers do."""
    for _ in range(30):
        queue.tick(witness=witness)


def retried(queue: Queue, delay: object, action: str = "nack") -> None:
    """Have the task a fail once."""
    queue.enqueue("ada", "a", max_attempts=3)
    queue.end(action, queue.claim()[0], delay)


def moved(queue: Queue, **window: int) -> None:
    """Have the task a wait for another start than its own."""
    queue.enqueue("ada", "a", delay=HOUR)
    queue.call("reschedule", window.get("delay", 0), window.get("start_at", 0), "a")


COUNTED: dict[str, Callable[[Queue], object]] = {
    "delay": lambda queue: queue.enqueue("ada", "a", delay=5000),
    "delay and end": lambda queue: queue.enqueue("ada", "a", delay=5000, expires_in=HOUR),
    "retry": lambda queue: retried(queue, 5000),
    "release": lambda queue: retried(queue, 5000, "release"),
    "rescheduled": lambda queue: moved(queue, delay=5000),
}
GIVEN: dict[str, Callable[[Queue], object]] = {
    "start": lambda queue: queue.enqueue("ada", "a", start_at=queue.now + 5000),
    "start and end": lambda queue: queue.enqueue("ada", "a", start_at=queue.now + 5000, expires_after_start=HOUR),
    "rescheduled": lambda queue: moved(queue, start_at=queue.now + 5000),
}


def test_letters_that_died_ahead_died_now_so_a_walk_finds_them(queue: Queue) -> None:
    many = [f"ahead-{n:03}" for n in range(250)]  # more than two pages
    queue.bury("ada", "before")
    queue.now += HOUR
    for start in range(0, len(many), 50):
        queue.bury("ada", *many[start : start + 50])
    queue.now -= HOUR - 1
    tick(queue)
    assert [letter.id for letter in queue.dead()] == ["before", *many]
    assert {letter.died_at for letter in queue.dead() if letter.id in many} == {queue.now}
    assert queue.tasks("ahead-000")[0].at == queue.now
    Keyspace(queue).check()


@pytest.mark.parametrize("ahead", [2 * MINUTE, 2 * DAY, 400 * DAY])
@pytest.mark.parametrize("how", COUNTED)
def test_a_wait_that_was_counted_ahead_counts_from_now(queue: Queue, how: str, ahead: int) -> None:
    queue.enqueue("ada", "before", delay=7000)
    queue.enqueue("bob", "late", delay=3 * DAY)
    queue.now += ahead
    COUNTED[how](queue)
    assert queue.tasks("a")[0].at == queue.now + 5000
    queue.now -= ahead
    tick(queue)
    assert [each.at - queue.now for each in queue.tasks("a", "before", "late")] == pytest.approx([5000, 7000, 3 * DAY])
    tick(queue)
    assert queue.tasks("a")[0].at == queue.now + 5000, "to look twice changes nothing"
    queue.advance(5000)
    queue.tick()
    assert queue.state("a") == "ready"
    Keyspace(queue).check()


@pytest.mark.parametrize("how", GIVEN)
def test_a_time_that_the_caller_gave_stays(queue: Queue, how: str) -> None:
    queue.now += 2 * DAY
    GIVEN[how](queue)
    queue.now -= 2 * DAY
    tick(queue)
    assert queue.tasks("a")[0].at == START + 2 * DAY + 5000
    Keyspace(queue).check()


@pytest.mark.parametrize("is_leased", [False, True])
@pytest.mark.parametrize("window", ["expires_in", "expires_after_start", "expires_at"])
def test_an_end_that_was_counted_ahead_counts_from_now(queue: Queue, window: str, is_leased: bool) -> None:
    queue.now += DAY
    given: dict[str, Any] = {window: 5000 + (queue.now if window == "expires_at" else 0)}
    queue.enqueue("ada", "a", **given)
    leases = queue.claim() if is_leased else []
    queue.now -= DAY
    tick(queue)
    for lease in leases:
        queue.end("nack", lease, 0)
    queue.advance(5001)
    tick(queue, witness=queue.now)
    assert queue.state("a") == ("ready" if window == "expires_at" else "dead")
    Keyspace(queue).check()


def test_schedules_and_opening_hours_are_computed_anew(queue: Queue) -> None:
    queue.enqueue("ada", "other")
    queue.now += 2 * DAY
    later = queue.now + HOUR
    for name in ("moved", "paused", "same"):
        queue.call("schedule", "ada", name, later if name != "same" else queue.now - DAY, 0, TIMING, packed_template())
    queue.call("pause_schedule", "ada", "paused", queue.call("schedules", "ada", "paused", 0, 1)[1][1], "")
    queue.call("set_opening_hours", "ada", "hours", 0, later, "")
    queue.now -= 2 * DAY
    tick(queue)
    found = queue.tick()
    assert (found.fires, found.opening_changes, found.next_due) == (2, 1, queue.now)
    _, _, *due = queue.call("due_schedules", 100)
    assert sorted(field for field, _ in due) == [b"ada/moved", b"ada/same"]
    fires = [part for field, revision in due for part in (field, revision, queue.now + HOUR)]
    assert words(queue.call("fire", *fires)) == ["moved", "moved"]
    assert set(words(queue.call("fire", *fires))) == {"gone"}, "another server was first"
    assert len(queue.call("due_schedules", 100)) == 2
    assert queue.tick().fires == 0
    queue.advance(HOUR)
    _, _, *due = queue.call("due_schedules", 100)
    assert len(due) == 2, "at its new time it fires"
    fires = [part for field, revision in due for part in (field, revision, queue.now + HOUR)]
    assert words(queue.call("fire", *fires)) == ["ok", "ok"]
    Keyspace(queue).check()


def test_a_tenant_has_its_tokens_and_many_tasks_take_many_ticks(queue: Queue) -> None:
    queue.set_limits("ada", rate=1, burst=2)
    queue.now += DAY
    for first in range(0, 900, 300):
        queue.enqueue("bob", *(f"b{n}" for n in range(first, first + 300)), delay=5000)
    queue.enqueue("ada", *"abcd")
    assert len(queue.claim(10)) == 2
    queue.now -= DAY
    ticks = 1
    while queue.tick().next_due == queue.now:
        ticks += 1
        if ticks == 3:
            queue.set_limits("", max_running=500)  # which has ticks sweep anew
    assert ticks < 40
    assert {each.at for each in queue.tasks(*(f"b{n}" for n in range(500)))} == {queue.now + 5000}
    queue.advance(1000)
    queue.tick()
    assert len(queue.claim(10)) == 1
    Keyspace(queue).check()
