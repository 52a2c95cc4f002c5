"""Repair: a broken queue is sound again, a sound one stays as it is, and no call does more than a slice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import redis

from .breakage import Breaker
from .calls import Queue, load_variant, options, refused, snapshot, words
from .keyspace import Keyspace, unpack_queue
from .machine import QueueMachine, Walk


def repair(queue: Queue, most: int = 10_000) -> dict[str, int] | None:
    """Repair a queue, in `most` calls or less; returns the mended faults, or None if they were not enough."""
    number: object = ""
    for _ in range(most):
        outcome, number, _, *pairs = queue.call("repair", number)
        if outcome == b"done":
            return {kind.decode(): count for kind, count in zip(pairs[::2], pairs[1::2], strict=True)}
        assert outcome == b"more"
    return None


def kept(queue: Queue) -> dict[bytes, Any]:
    """Dump every key; the queue's own decoded, since its classes are in no order."""
    dumped: dict[bytes, Any] = snapshot(queue)
    key = queue.key("queue").encode()
    if key in dumped:
        record: Any = queue.client.get(queue.key("queue"))
        dumped[key] = vars(unpack_queue(record))
        dumped[key].pop("hungry")  # servers that wait for work are told when the repair is over
    return dumped


def walked(client: redis.Redis, seed: int, steps: int = 60) -> Queue:
    """Make a queue by a walk of the state machine."""
    machine: QueueMachine = type("StoreMachine", (QueueMachine,), {"client": client})()
    path = Walk(machine, seed)
    for _ in range(steps):
        path.step()
    machine.queue.now = machine.latest
    machine.queue.call("configure", "retry_base_ms", 1)  # the queue's clock is that of what follows
    return machine.queue


def test_a_sound_queue_stays_as_it_is(redis_client: redis.Redis) -> None:
    for seed in range(2):
        queue = walked(redis_client, seed)
        before = kept(queue)
        assert repair(queue) == {}, seed
        assert kept(queue) == before, seed


def places(keys: Keyspace) -> dict[str, str]:
    """Say where each task is."""
    found = {id: "ready" for id in keys.records}
    found |= {id: "delayed" for delayed in keys.delayed.values() for id in delayed}
    found |= {id: "pending" for ids in keys.pending.values() for id in ids}
    found |= {id: "leased" for id in keys.leases} | {id: "dead" for id in keys.dead}
    return found


def live(keys: Keyspace) -> dict[tuple[str, str], list[str]]:
    """Read the ready tasks of each list, without tombstones, and of each group, in their order."""
    found = {(place, group): ids for place, groups in keys.groups.items() for group, ids in groups.items()}
    for tenant, priorities in keys.priorities.items():
        for priority, ids in priorities.items():
            tombstones = keys.priority_tombstones[tenant].get(priority, Counter()).copy()
            order = []
            for id in ids:
                if tombstones[id]:
                    tombstones[id] -= 1
                else:
                    order.append(id)
            found[tenant, priority] = order
    return found


def drain(queue: Queue) -> list[str]:
    """Let everybody in, and take and end whatever there is to claim."""
    queue.configure(reserve=0)
    queue.call("resume", "")
    queue.call("set_opening_hours", "", "", 1, 0, "")
    for name in ["", *queue.tenants()]:
        queue.set_limits(name, **dict.fromkeys(("max_running", "rate"), 0 if not name else -1))
        if name:
            queue.call("resume", name)
            queue.call("set_opening_hours", name, "", 1, 0, "")
    taken = []
    for _ in range(100):
        leases = queue.claim(20)
        taken += [lease.id for lease in leases]
        queue.settle(*(("ack", lease.id, lease.lease) for lease in leases)) if leases else queue.tick()
        if not leases and not queue.queue_state()["ready"]:
            return taken
    raise AssertionError(f"ready tasks are not handed out: {queue.queue_state()}")


MADE_ANEW = {
    "ready", "wake", "class", "tombstone", "priorities", "due", "leases", "bundles", "expiring", "deaths",
    "dead_counts", "turns", "accounts", "tenants", "extended", "done", "members",
}  # fmt: skip


def check_mended(queue: Queue, before: Keyspace, broken: str) -> None:
    """Assert that a queue is sound again: no task is lost, doubled or elsewhere, and all come out."""
    after = Keyspace(queue)
    after.check()
    assert after.records.keys() == before.records.keys()
    was, now = places(before), places(after)
    if not broken.startswith(("pending", "delayed")):  # these say where a task is
        assert {id: place for id, place in was.items() if now[id] != place} == {}
    if not broken.startswith(("pending", "delayed", "ready", "group", "tombstone", "task_options")):
        assert live(after) == live(before)
    assert repair(queue) == {}
    ready = {id for id, place in now.items() if place == "ready"}
    taken = drain(queue)
    assert len(set(taken)) == len(taken)
    assert not [id for id in ready.difference(taken) if queue.state(id) in ("ready", "leased")]


def break_and_mend(client: redis.Redis, seed: int) -> None:
    """Break something in a queue of a walk, and repair it."""
    queue = walked(client, seed)
    before, breaker = Keyspace(queue), Breaker(queue, seed)
    while not breaker.break_one():
        pass
    try:
        repair(queue)
        check_mended(queue, before, breaker.done)
    except Exception as error:
        raise AssertionError(f"seed {seed}, broken: {breaker.done}") from error


def test_a_queue_with_something_broken_is_sound_again(redis_client: redis.Redis) -> None:
    for seed in range(12):
        break_and_mend(redis_client, seed)


@pytest.mark.deep("longest")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("walk", range(10))
def test_many_queues_with_something_broken_are_sound_again(redis_client: redis.Redis, walk: int) -> None:
    for seed in range(1000 + walk * 100, 1100 + walk * 100):
        break_and_mend(redis_client, seed)


def small_slices(client: redis.Redis) -> Queue:
    """Make a queue for a library that repairs in slices of two."""
    load_variant(client, "slices", ("repairs.PAGE, repairs.WORK = 64, 100", "repairs.PAGE, repairs.WORK = 2, 2"))
    return Queue(client, version="slices")


@pytest.mark.parametrize("seed", range(4))
def test_a_repair_that_is_left_is_gone_on_with(redis_client: redis.Redis, seed: int) -> None:
    queue = walked(redis_client, 5000 + seed)
    slices, before, breaker = small_slices(redis_client), Keyspace(queue), Breaker(queue, seed)
    slices.now = queue.now
    while not breaker.break_one():
        pass
    assert repair(slices, most=1 + seed) is None
    assert int(queue.queue_state()["blocked"]) & 16
    if seed % 2:  # a call failed half way
        redis_client.hset(queue.key("repair"), "is_open", 1)
    elif seed % 3:  # the store is another one now
        redis_client.hset(queue.key("repair"), "life", "another")
    assert repair(slices) is not None
    check_mended(queue, before, breaker.done)


def test_all_that_is_wrong_at_once_is_mended(redis_client: redis.Redis) -> None:
    queue = walked(redis_client, 3)
    before = Keyspace(queue)
    for name in before.names:
        if name.split(":")[0] in MADE_ANEW:
            queue.client.delete(queue.key(name))
    repair(queue)
    after = Keyspace(queue)
    after.check()
    assert places(after) == places(before)


def test_a_lost_task_comes_before_those_that_were_enqueued_after_it(queue: Queue) -> None:
    ids = [f"t{n}" for n in range(6)]
    for id in ids:
        queue.enqueue("ada", id)
        queue.enqueue("ada", f"p{id}", priority=9)
        queue.advance(1)
    for id in ("t0", "t2", "t3", "t5"):
        queue.client.lrem(queue.key("ready:ada"), 0, id)
    queue.client.delete(queue.key("ready:ada:9"))
    assert (repair(queue) or {})["ready"] == 10
    assert [lease.id for lease in queue.claim(20)] == [*(f"p{id}" for id in ids), *ids]


def test_what_is_in_its_list_stays_where_it_is(queue: Queue) -> None:
    queue.enqueue("ada", "first")
    (lease,) = queue.claim()
    queue.advance(5)
    queue.enqueue("ada", "second", "third")
    queue.end("nack", lease, 0)  # at the end of the list, though enqueued first
    queue.client.lrem(queue.key("ready:ada"), 0, "third")
    assert repair(queue) == {"ready": 1}
    assert queue.peek("ada") == ["second", "first", "third"]


def test_meanwhile_the_queue_gives_nothing_and_takes_no_change(redis_client: redis.Redis) -> None:
    queue = small_slices(redis_client)
    queue.enqueue("ada", *(f"t{n}" for n in range(9)))
    (lease,) = queue.claim()
    assert repair(queue, most=3) is None
    refused(queue, "repairing queue", "enqueue", "ada", "new", options(), b"{}")
    refused(queue, "repairing queue", "settle", "ack", lease.id, lease.lease)
    for verb, args in {"tick": (1,), "cancel": ("t5",), "pause": ("",), "configure": (), "replay": ("t5",)}.items():
        refused(queue, "repairing queue", verb, *args)
    refused(queue, "repairing queue", "claim", "w1", 1, "again")
    assert queue.claim(5) == []
    assert queue.state("t5") == "ready"
    assert dict(zip(*[iter(words(queue.call("why", "t5")[2:]))] * 2, strict=True))["queue_blocked"] == "16"
    assert repair(queue) == {}
    assert len(queue.claim(20)) == 8
    assert queue.end("ack", lease) == "ok"


def test_a_call_for_a_repair_that_is_over_begins_no_other(queue: Queue) -> None:
    queue.enqueue("ada", "t")
    outcome, number, *_ = queue.call("repair", "")
    assert outcome == b"done"
    assert queue.call("repair", number)[0] == b"gone"
    assert queue.queue_state()["blocked"] == 0


def test_leases_that_could_not_be_extended_meanwhile_get_a_whole_lease_from_the_end(redis_client: redis.Redis) -> None:
    queue = small_slices(redis_client)
    queue.configure(lease_ms=1000)
    queue.enqueue("ada", "a", "b", "c")
    one, two = queue.claim(1)[0], queue.claim(1)[0]
    queue.end("extend", two)
    assert repair(queue, most=3) is None
    queue.advance(5000)
    assert repair(queue) == {}
    assert queue.tick().reaped == 0
    assert (queue.end("ack", one), queue.end("ack", two)) == ("ok", "ok")
    queue.claim(1)
    queue.advance(1000)
    assert queue.tick().reaped == 1


def test_no_call_looks_at_more_than_a_slice(queue: Queue) -> None:
    for start in range(0, 2000, 500):
        queue.enqueue("ada", *(f"t{n:04}" for n in range(start, start + 500)), expires_in=10**6)
    for n in range(100):
        queue.enqueue(f"tenant-{n}", f"one-{n}", delay=5)
    queue.claim(500)
    queue.client.delete(queue.key("ready:ada"), queue.key("expiring"))
    number: object = ""
    outcome, calls, most = b"more", 0, 0
    while outcome == b"more":
        before = int(queue.client.info("commandstats")["cmdstat_fcall"]["calls"])
        work = commands_run(queue)
        outcome, number, *_ = queue.call("repair", number)
        most, calls = max(most, commands_run(queue) - work), calls + 1
        assert int(queue.client.info("commandstats")["cmdstat_fcall"]["calls"]) == before + 1
    assert calls > 2000 / 400
    assert most < 2500, "commands in one call"
    Keyspace(queue).check()
    assert queue.peek("ada", 3) == ["t0500", "t0501", "t0502"]


def test_dead_letters_of_nobody_are_forgotten(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.client.zadd(queue.key("dead_counts"), {"nobody": 5})
    assert repair(queue) == {"dead": 1}
    Keyspace(queue).check()


def commands_run(queue: Queue) -> int:
    """Count the commands that the store has carried out, also those of functions."""
    return sum(int(stats["calls"]) for stats in queue.client.info("commandstats").values())
