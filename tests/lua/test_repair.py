"""Repair: all that is derived is built anew, and tasks, attempts and leases stay as they are."""

from __future__ import annotations

import pytest
import redis

from .breakage import Breaker
from .calls import Queue, load_variant, options, refused, words
from .keyspace import Keyspace
from .machine import QueueMachine, Walk
from .rebuilt import check_rebuilt, facts, repair

DERIVED = {
    "ready", "wake", "class", "priorities", "due", "leases", "extended", "expiring", "deaths",
    "dead_counts", "turns", "group", "done", "members", "pending", "completed", "parked", "idle", "bundles", "claims",
}  # fmt: skip
SLICES = (
    ("PAGE, LONG_PAGE, KEYS = 64, 4, 500", "PAGE, LONG_PAGE, KEYS = 2, 1, 5"),
    ("PLACES_PER_CALL = 64", "PLACES_PER_CALL = 2"),
)


def walked(client: redis.Redis, seed: int, kind: type[Walk] = Walk, steps: int = 60) -> Queue:
    """Make a queue by a walk of the state machine."""
    machine: QueueMachine = type("StoreMachine", (QueueMachine,), {"client": client})()
    path = kind(machine, seed)
    for _ in range(steps):
        path.step()
    machine.queue.now = machine.latest
    machine.queue.call("configure", "retry_base_ms", 1)  # the queue's clock is that of what follows
    return machine.queue


def small_pages(client: redis.Redis) -> Queue:
    """Make a queue for a library that repairs in pages of two."""
    load_variant(client, "slices", *SLICES)
    return Queue(client, version="slices")


def break_and_repair(client: redis.Redis, seed: int) -> None:
    """Break something in a queue of a walk, and repair it."""
    queue = walked(client, seed)
    before, breaker = facts(Keyspace(queue)), Breaker(queue, seed)
    while not breaker.break_one():
        pass
    try:
        repair(queue)
        check_rebuilt(queue, before, breaker.done)
    except Exception as error:
        raise AssertionError(f"seed {seed}, broken: {breaker.done}") from error


def test_a_queue_with_something_broken_is_sound_again(redis_client: redis.Redis) -> None:
    for seed in range(12):
        break_and_repair(redis_client, seed)


@pytest.mark.deep("longest")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("walk", range(10))
def test_many_queues_with_something_broken_are_sound_again(redis_client: redis.Redis, walk: int) -> None:
    for seed in range(1000 + walk * 100, 1100 + walk * 100):
        break_and_repair(redis_client, seed)


def test_all_that_is_derived_may_be_lost_at_once(redis_client: redis.Redis) -> None:
    queue = walked(redis_client, 3)
    keys = Keyspace(queue)
    for name in keys.names:
        if name.split(":")[0] in DERIVED:
            queue.client.delete(queue.key(name))
    repair(queue)
    check_rebuilt(queue, facts(keys))


@pytest.mark.parametrize("how", ["left", "failed half way", "another store"])
@pytest.mark.parametrize("calls", [1, 4, 7, 10])
def test_a_repair_that_is_left_is_gone_on_with(redis_client: redis.Redis, how: str, calls: int) -> None:
    queue = walked(redis_client, 5000 + calls)
    slices, before = small_pages(redis_client), facts(Keyspace(queue))
    slices.now = queue.now
    assert not repair(slices, most=calls)
    assert int(queue.queue_state()["blocked"]) & 16
    state = str(queue.client.get(queue.key("repair")), "ascii").split()  # type: ignore[arg-type]
    if how == "failed half way":
        redis_client.set(queue.key("repair"), state[0])
    elif how == "another store":
        redis_client.set(queue.key("repair"), " ".join([state[0], "another", *state[2:]]))
    assert repair(slices) > (calls if how != "left" else 0)
    check_rebuilt(queue, before)


def test_ready_tasks_stand_in_the_order_in_which_they_were_enqueued(queue: Queue) -> None:
    ids = [f"t{n}" for n in range(6)]
    for id in ids:
        queue.enqueue("ada", id)
        queue.enqueue("ada", f"p{id}", priority=9)
        queue.advance(1)
    for id in ("t0", "t2", "t3", "t5"):
        queue.client.zrem(queue.key("ready:ada"), id, f"p{id}")
    repair(queue)
    assert [lease.id for lease in queue.claim(20)] == [*(f"p{id}" for id in ids), *ids]


def test_it_says_how_many_tasks_and_tenants_have_their_places(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    queue.enqueue("bob", "later", delay=1000)
    queue.end("reject", queue.claim()[0])
    outcome, number = b"more", ""
    while outcome == b"more":
        outcome, number, step, tasks, tenants = queue.call("repair", number)
    assert (step, tasks, tenants) == (b"", 3, 2)


def test_meanwhile_the_queue_gives_nothing_and_takes_no_change(redis_client: redis.Redis) -> None:
    queue = small_pages(redis_client)
    queue.enqueue("ada", *(f"t{n}" for n in range(9)))
    (lease,) = queue.claim()
    assert not repair(queue, most=3)
    refused(queue, "repairing queue", "enqueue", "ada", "new", options(), b"{}")
    refused(queue, "repairing queue", "enqueue_and_claim", "w", 1, "", "", "", "", "ada", "new", options(), b"{}")
    refused(queue, "repairing queue", "settle", "ack", lease.id, lease.lease, "")
    for verb, args in {
        "tick": (1,),
        "cancel": ("", "t5"),
        "set_paused": ("", 1),
        "configure": (),
        "replay": ("t5",),
    }.items():
        refused(queue, "repairing queue", verb, *args)
    refused(queue, "repairing queue", "claim", "w1", 1, "again")
    assert queue.claim(5) == []
    assert queue.state("t5") == "ready"
    assert dict(zip(*[iter(words(queue.call("why", "t5")[2:]))] * 2, strict=True))["queue_blocked"] == "16"
    repair(queue)
    assert len(queue.claim(20)) == 8
    assert queue.end("ack", lease) == "ok"


def test_a_call_for_a_repair_that_is_over_begins_no_other(queue: Queue) -> None:
    queue.enqueue("ada", "t")
    number: object = ""
    while (answer := queue.call("repair", number))[0] == b"more":
        number = answer[1]
    assert queue.call("repair", number)[0] == b"gone"
    assert queue.queue_state()["blocked"] == 0


def test_leases_that_could_not_be_extended_meanwhile_get_a_whole_lease_from_the_end(redis_client: redis.Redis) -> None:
    queue = small_pages(redis_client)
    queue.configure(lease_ms=1000)
    queue.enqueue("ada", "a", "b", "c")
    one, two = queue.claim(1)[0], queue.claim(1)[0]
    queue.end("extend", two)
    assert not repair(queue, most=9)
    queue.advance(5000)
    repair(queue)
    assert queue.tick().reaped == 0
    assert (queue.end("ack", one), queue.end("ack", two)) == ("ok", "ok")
    queue.claim(1)
    queue.advance(1000)
    assert queue.tick().reaped == 1


def test_the_time_of_a_repair_is_nobodys_service(redis_client: redis.Redis) -> None:
    queue = small_pages(redis_client)
    queue.enqueue("ada", "a")
    queue.enqueue("bob", "b", "c")
    (lease,) = queue.claim()
    queue.advance(10)
    assert not repair(queue, most=5)
    queue.advance(5000)
    repair(queue)
    assert queue.end("ack", lease) == "ok"
    keys = Keyspace(queue)
    assert (keys.queue.delivered, sum(seat.delivered for seat in keys.seats.values())) == (10, 10)


def test_a_tenant_keeps_what_it_is_owed(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(9)))
    queue.enqueue("bob", *(f"b{n}" for n in range(9)))
    held = queue.claim(1)
    queue.advance(900)
    queue.end("ack", held[0])
    level = Keyspace(queue).queue.level
    before = {name: seat.base for name, seat in Keyspace(queue).seats.items()}
    assert len(set(before.values())) == 2
    repair(queue)
    after = Keyspace(queue)
    assert ({name: seat.base for name, seat in after.seats.items()}, after.queue.level) == (before, level)


def test_no_call_does_more_than_a_page(queue: Queue) -> None:
    for start in range(0, 2000, 500):
        queue.enqueue("ada", *(f"t{n:04}" for n in range(start, start + 500)), expires_in=10**6)
    for n in range(300):
        queue.enqueue(f"tenant-{n}", f"one-{n}", delay=5, group=f"g{n}")
    queue.claim(500)
    queue.client.delete(queue.key("ready:ada"), queue.key("expiring"))
    number: object = ""
    outcome, calls, most = b"more", 0, 0
    while outcome == b"more":
        work = commands_run(queue)
        outcome, number, *_ = queue.call("repair", number)
        most, calls = max(most, commands_run(queue) - work), calls + 1
    assert calls > 2000 / 100
    assert most < 2500, "commands in one call"
    Keyspace(queue).check()
    assert queue.peek("ada", 3) == ["t0500", "t0501", "t0502"]


def commands_run(queue: Queue) -> int:
    """Count the commands that the store has carried out, also those of functions."""
    return sum(int(stats["calls"]) for stats in queue.client.info("commandstats").values())
