"""Why a task waits: what the store says of each cause, and what follows from it. Starts come as predicted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairq.model.waiting import Facts, Waiting, Why, explain

from .calls import START, Leased, Queue


def why(queue: Queue, id: str, slots: float = 4) -> Why:
    """Ask as a server does."""
    now, row, *pairs = queue.call("why", id)
    facts = {name.decode(): float(value) for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
    task = Waiting(now, row[0].decode(), row[2], int(float(row[3])), Facts(**facts) if facts else None)
    return explain(id, task, slots)


def close(queue: Queue, tenant: str, ms: int = 500) -> None:
    """Close a tenant, or the queue, by opening hours."""
    queue.call("set_opening_hours", tenant, "text", 0, queue.now + ms, "")


def backlog(queue: Queue) -> None:
    """Let the first of three tasks run, and the last be asked for."""
    queue.enqueue("ada", "t0", "t1", "t")
    queue.claim()


def own_slots(queue: Queue) -> None:
    """Let the tenant's own tasks have all slots."""
    queue.enqueue("ada", "t0", "t1", "t2", "t3", "t")
    queue.claim(4)


def others_slots(queue: Queue) -> None:
    """Let another tenant have all slots."""
    queue.enqueue("bob", *(f"b{n}" for n in range(9)))
    queue.claim(4)
    queue.enqueue("ada", "t")


def pending(queue: Queue) -> None:
    """Hold a task back by its batch's limit."""
    queue.open_batch("b", max_running=1)
    queue.enqueue("ada", "t0", "t", batch="b")


def capped(queue: Queue) -> None:
    """Let a tenant run as much as it may."""
    queue.set_limits("ada", max_running=1)
    queue.enqueue("ada", "t0", "t")
    queue.claim(4)


def rate_limited(queue: Queue) -> None:
    """Take a tenant's tokens."""
    queue.set_limits("ada", rate=2, burst=1)
    queue.enqueue("ada", "t0", "t")
    queue.claim(4)


def failed(queue: Queue) -> None:
    """Let a first attempt fail."""
    queue.enqueue("ada", "t")
    queue.end("nack", queue.claim()[0], 500)


def slots_kept(queue: Queue) -> None:
    """Let the tenant have all slots that are not kept."""
    queue.configure(reserve=20)
    queue.enqueue("ada", "t0", "t1", "t2", "t")
    queue.claim(4, slots=4)


def blocked(verb: Callable[[Queue], object]) -> Callable[[Queue], object]:
    """Have a ready task, and something done about it."""

    def do(queue: Queue) -> None:
        queue.enqueue("ada", "t")
        verb(queue)

    return do


# what is done -> causes, how long a clock holds it, how many come before it
CAUSES: dict[str, tuple[Callable[[Queue], object], list[str], int, int]] = {
    "nothing": (lambda queue: queue.enqueue("ada", "t"), [], 0, 0),
    "the queue is paused": (blocked(lambda queue: queue.call("set_paused", "", 1)), ["queue_paused"], 0, 0),
    "the tenant is paused": (blocked(lambda queue: queue.call("set_paused", "ada", 1)), ["tenant_paused"], 0, 0),
    "the queue is closed": (blocked(lambda queue: close(queue, "")), ["queue_closed"], 500, 0),
    "the tenant is closed": (blocked(lambda queue: close(queue, "ada")), ["tenant_closed"], 500, 0),
    "it starts later": (lambda queue: queue.enqueue("ada", "t", delay=500), ["start"], 500, 0),
    "its next attempt is later": (failed, ["retry"], 500, 0),
    "the rate": (rate_limited, ["rate"], 500, 0),
    "the limit": (capped, ["max_running"], 0, 0),
    "the batch's limit": (pending, ["batch_max_running"], 0, 0),
    "the backlog": (backlog, ["backlog"], 0, 1),
    "its tenant's running tasks": (own_slots, ["backlog"], 0, 0),
    "kept slots": (slots_kept, ["reserve"], 0, 0),
    "others": (others_slots, ["share"], 0, 0),
}


@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_is_reported(queue: Queue, name: str) -> None:
    do, causes, until, ahead = CAUSES[name]
    do(queue)
    found = why(queue, "t")
    assert (found.causes, found.until_ms and found.until_ms - START, found.ahead) == (causes, until, ahead)
    assert why(queue, "t", slots=0).starts_at_ms is None
    assert "no_worker" in why(queue, "t", slots=0).causes


def test_all_causes_are_reported_and_the_one_to_look_at_comes_first(queue: Queue) -> None:
    queue.set_limits("ada", max_running=1, rate=2, burst=1)
    queue.enqueue("ada", "t0", "t1", "t")
    queue.claim()
    queue.call("set_paused", "ada", 1)
    close(queue, "")
    found = why(queue, "t", slots=0)
    assert found.causes == ["tenant_paused", "queue_closed", "no_worker", "rate", "max_running", "backlog"]
    assert (found.running, found.max_running, found.rate, found.starts_at_ms) == (1, 1, 2, None)


def test_tenants_that_may_have_no_kept_slot_read_how_many_there_are(queue: Queue) -> None:
    slots_kept(queue)
    assert (why(queue, "t").kept, why(queue, "t").kept_of) == (1, 4)
    queue.enqueue("bob", "b")
    assert why(queue, "b").causes == []
    queue.set_limits("ada", guaranteed=4)
    assert why(queue, "t").causes == []
    queue.set_limits("ada", guaranteed=3, max_running=3)
    assert why(queue, "t").causes == ["max_running"]


def test_what_does_not_wait_has_no_causes(queue: Queue) -> None:
    queue.enqueue("ada", "done", "leased")
    done, _ = queue.claim(2)
    queue.end("ack", done)
    for id in ("done", "leased", "unknown"):
        assert why(queue, id) == Why(id, id, START)


class Mill:
    """Workers with so many slots, in the test's time: a task takes as long as its tenant's tasks do."""

    def __init__(self, queue: Queue, slots: int, task_ms: dict[str, int]) -> None:
        self.queue, self.slots, self.task_ms = queue, slots, task_ms
        self.running: list[tuple[int, Leased]] = []
        self.started: dict[str, int] = {}

    def run(self, until: Callable[[], bool]) -> None:
        """Work until something holds, ms by ms where nothing ends earlier."""
        while not until():
            ended = [lease for at, lease in self.running if at <= self.queue.now]
            self.running = [(at, lease) for at, lease in self.running if at > self.queue.now]
            if ended:
                self.queue.settle(*(("ack", lease.id, lease.lease) for lease in ended))
            self.queue.tick()
            if room := self.slots - len(self.running):
                for lease in self.queue.claim(room):
                    self.started[lease.id] = self.queue.now
                    self.running.append((self.queue.now + self.task_ms[lease.id[:3]], lease))
            self.queue.advance(10)


# limits of ada's, weight of ada's, tasks before hers; beside bob and cyd, whose backlog never ends
STARTS = [
    ({}, 3000, 60),
    ({}, 1000, 3),
    ({"max_running": 1}, 1000, 10),
    ({"rate": 5, "burst": 1}, 1000, 10),
    ({"guaranteed": 6}, 1000, 40),
]


@pytest.mark.parametrize(("limits", "weight", "ahead"), STARTS)
def test_a_start_comes_within_half_and_twice_the_predicted_time(
    queue: Queue, limits: dict[str, float], weight: int, ahead: int
) -> None:
    mill = Mill(queue, 8, {"ada": 200, "bob": 100, "cyd": 400})
    queue.call("set_weight", "ada", weight)
    if limits:
        queue.set_limits("ada", **limits)
    for name in ("ada", "bob", "cyd"):
        queue.enqueue(name, *(f"{name}{n}" for n in range(300)))
    mill.run(lambda: len(mill.started) >= 100)
    before = sum(id.startswith("ada") for id in mill.started)
    id = f"ada{before + ahead}"
    found = why(queue, id, slots=8)
    assert found.ahead == ahead
    assert found.starts_at_ms is not None
    shown = found.starts_at_ms - queue.now
    began = queue.now
    mill.run(lambda: id in mill.started)
    waited = mill.started[id] - began
    assert 0.5 * waited - 200 <= shown <= 2 * waited + 200, (shown, waited)


def test_a_quiet_tenant_reads_that_it_starts_with_the_next_slots(queue: Queue) -> None:
    mill = Mill(queue, 4, {f"t{n:02}": 100 for n in range(50)} | {"ada": 100})
    for n in range(50):
        queue.enqueue(f"t{n:02}", *(f"t{n:02}-{each}" for each in range(40)))
    mill.run(lambda: len(mill.started) >= 100)
    queue.enqueue("ada", "ada")
    found = why(queue, "ada")
    assert found.causes == ["share"]
    assert found.starts_at_ms is not None
    assert found.starts_at_ms - queue.now <= 100, "not fifty tasks' time"
    began = queue.now
    mill.run(lambda: "ada" in mill.started)
    assert queue.now - began <= 200


def test_tasks_without_a_group_count_as_one_of_the_groups_that_take_turns(queue: Queue) -> None:
    queue.enqueue("ada", "loose", "loose2")
    assert why(queue, "loose").groups == 0
    for name in ("x", "y"):
        queue.enqueue("ada", f"{name}1", f"{name}2", group=name)
    assert [why(queue, id).groups for id in ("loose", "x1", "y2")] == [3, 3, 3]
    queue.claim(3)  # a claim gives the loose ones their turn
    assert [why(queue, id).groups for id in ("loose2", "x2", "y2")] == [3, 3, 3]
