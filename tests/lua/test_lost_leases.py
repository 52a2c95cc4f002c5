"""Lost leases and their limit (lua/tasks/lost_leases.lua). What servers do: tests/server/test_running_alone.py."""

from __future__ import annotations

import pytest

from .calls import HEAD, Leased, Queue, leased_in


def claim(queue: Queue, name: str = "w", again: str = "") -> tuple[Leased, bool]:
    """Lease the task, whenever it is ready; returns whether it runs alone, as `why` has said before."""
    queue.advance(0 if again else 3_600_000)
    queue.tick()
    _, _, *facts = queue.call("why", "a")
    reply = queue.call("claim", name, 1, again, "", 10)
    (leased,), is_alone = leased_in(reply), reply[HEAD - 4] == [b"a"]
    assert again or float(facts[facts.index(b"runs_alone") + 1]) == is_alone
    return leased, is_alone


def lose(queue: Queue, *actions: str) -> list[bool]:
    """Have the task lose leases in these ways, and return for each whether it ran alone."""
    ran_alone = []
    for n, action in enumerate(actions):
        leased, is_alone = claim(queue, f"w{n}")
        queue.settle((action, "a", leased.lease))
        ran_alone.append(is_alone)
    return ran_alone


def state_and_losses(queue: Queue) -> tuple[str, int]:
    (known,) = queue.tasks("a")
    return known.state, known.lost_leases


@pytest.mark.parametrize(
    ("settings", "actions", "alone", "end"),
    [
        ({}, ["lose", "lose", "lose_alone"], [0, 0, 1], ("dead", 3)),
        ({}, ["lose_alone"] * 3, [0, 0, 1], ("dead", 3)),
        ({}, ["lose"] * 5, [0, 0, 1, 1, 1], ("delayed", 2)),
        ({}, ["reap"] * 5, [0] * 5, ("delayed", 0)),
        ({}, ["lose", "reap", "reap"], [0, 0, 0], ("delayed", 1)),
        ({"max_lost_leases": 1}, ["lose"], [0], ("dead", 1)),
        ({"max_lost_leases": 2}, ["lose", "lose_alone"], [0, 1], ("dead", 2)),
        ({"max_lost_leases": 0}, ["lose_alone"] * 9, [0] * 9, ("delayed", 9)),
        ({"max_attempts": 1}, ["lose"], [0], ("dead", 1)),
        ({"max_attempts": 2}, ["lose", "reap"], [0, 1], ("dead", 1)),
        ({"max_attempts": 3}, ["reap", "lose", "lose"], [0, 0, 1], ("dead", 2)),
        ({"max_attempts": 0}, ["lose", "lose", "lose_alone"], [0, 0, 1], ("dead", 3)),
    ],
)
def test_a_task_runs_alone_before_it_is_dead_of_lost_leases(
    queue: Queue, settings: dict[str, int], actions: list[str], alone: list[int], end: tuple[str, int]
) -> None:
    queue.configure(**settings)
    queue.enqueue("ada", "a")
    assert lose(queue, *actions) == [bool(each) for each in alone]
    assert state_and_losses(queue) == end
    assert [letter.lost_leases for letter in queue.dead()] == [end[1]] * (end[0] == "dead")


def test_lost_leases_are_kept_through_other_ends_and_begin_anew_after_a_replay(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    assert lose(queue, "lose", "lose") == [False, False]
    for action, more in (("release", ("", "")), ("nack", (0, "bad", ""))):
        leased, is_alone = claim(queue, action)
        assert is_alone
        queue.settle((action, "a", leased.lease, *more))
    assert state_and_losses(queue) == ("ready", 2)
    assert lose(queue, "lose_alone") == [True]
    assert queue.call("replay", "a") == [b"ok"]
    assert state_and_losses(queue) == ("ready", 0)
    assert lose(queue, "lose") == [False]


def test_a_repeated_claim_tells_what_runs_alone(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    lose(queue, "lose", "lose")
    first = claim(queue, "again")
    assert first == claim(queue, "again", "again")
    assert first[1]


def test_a_task_that_was_cancelled_is_over_when_its_process_dies(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    leased, _ = claim(queue)
    assert queue.cancel("a") == ["running"]
    queue.settle(("lose", "a", leased.lease))
    assert queue.state("a") == "cancelled"
    assert queue.settle(("ack", "a", leased.lease, "1")) == ["stale"]


def test_a_run_without_lost_leases_is_as_older_versions_have_it(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    leased, _ = claim(queue)
    run = queue.client.hget(queue.key("runs"), "a")
    queue.settle(("lose", "a", leased.lease))
    grown = queue.client.hget(queue.key("runs"), "a")
    assert isinstance(run, bytes)
    assert isinstance(grown, bytes)
    assert len(grown) == len(run) + 1
