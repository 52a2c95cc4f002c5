"""Queues that are built anew, by a repair, or in another place from the lines of a backup; and what must stay true."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import trio

from fairq.store.dumping import write_lines
from fairq.store.loading import Loading

from .calls import Queue
from .keyspace import Keyspace

OTHER = "copy"  # the queue that is built from another one
READS: dict[str, tuple[object, ...]] = {  # their replies stay
    "schedules": ("", "", 0, 100), "due_schedules": (100,), "webhooks": (), "opening_hours": ("", "ada", "bob"),
    "history": (10, -1, 240), "limits": ("",),
}  # fmt: skip
COUNTS = ("weight", "waiting_tasks", "delayed", "leased", "dead", "done", "delivered", "entitled", "limited", "bytes")


def repair(queue: Queue, most: int = 100_000) -> int:
    """Repair a queue, in `most` calls or less; returns in how many, 0 if they were not enough."""
    number: object = ""
    for n in range(most):
        outcome, number, *_ = queue.call("repair", number)
        if outcome == b"done":
            return n + 1
        assert outcome == b"more"
    return 0


def facts(keys: Keyspace) -> dict[str, object]:
    """Read what repair must not change: tasks, where they are, their attempts and leases, and what tenants have had."""
    runs = {
        id: (run.lease, run.state, run.attempt, run.uncounted_attempts, run.takeovers) for id, run in keys.runs.items()
    }
    known = {tenant for tenant, seat in keys.seats.items() if seat.epoch == keys.queue.epoch}  # others start anew
    return {
        "tasks": set(keys.records), "marks": set(keys.marks), "runs": runs, "dead": set(keys.dead),
        "delayed": {tenant: delayed for tenant, delayed in keys.delayed.items() if delayed},
        "accounts": {tenant: (seat.weight, seat.base * (tenant in known)) for tenant, seat in keys.seats.items()},
        "delivered": {tenant: seat.delivered * (tenant in known) for tenant, seat in keys.seats.items()},
    }  # fmt: skip


def all_reads(queue: Queue) -> dict[str, Any]:
    """Tell all of a queue that a repair leaves as it is; that a task is ready or pending is no part of it."""
    keys, shares = Keyspace(queue), queue.tenants().items()
    return {
        **facts(keys),
        "records": keys.records, "options": keys.task_options, "payloads": keys.payloads, "unique": keys.unique,
        "last lease": keys.queue.last_lease, "cancelling": keys.cancelling, "ends": keys.ends,
        **{verb: queue.call(verb, *args) for verb, args in READS.items()},
        "tenants": {name: {count: getattr(share, count) for count in COUNTS} for name, share in shares},
        "feeds": {name: queue.events(name, 0, 500) for name, _ in shares},
        "limits of tenants": {name: queue.call("limits", name) for name, _ in shares},
        "letters": {letter.id: letter for letter in queue.dead()}, "batches": queue.list_batches(),
        "batch results": keys.batch_results,
        "results": queue.call("results", *sorted({"id0", *keys.marks, *keys.records})[:64]),
    }  # fmt: skip


def check_rebuilt(queue: Queue, before: dict[str, object], broken: str = "") -> None:
    """Assert that a queue is sound, nothing that was true is lost, leases can be settled and all tasks come out."""
    after = Keyspace(queue)
    after.check()
    now = facts(after)
    lost = {"delayed"} if broken.startswith("delayed") else {"accounts", "delivered"} if "accounts" in broken else set()
    for name in before.keys() - lost:
        assert now[name] == before[name], name
    for id in after.leases:
        assert queue.settle(("ack", id, after.runs[id].lease)) == ["ok"], id
    taken = drain(queue)
    assert len(set(taken)) == len(taken)
    Keyspace(queue).check()


def drain(queue: Queue) -> list[str]:
    """Let everybody in, and take and end whatever there is to claim."""
    queue.configure(reserve=0)
    queue.call("set_paused", "", 0)
    queue.call("set_opening_hours", "", "", 1, 0, "")
    for name in ["", *queue.tenants()]:
        queue.set_limits(name, **dict.fromkeys(("max_running", "rate"), 0 if not name else -1))
        if name:
            queue.call("set_paused", name, 0)
            queue.call("set_opening_hours", name, "", 1, 0, "")
    taken = []
    for _ in range(500):
        leases = queue.claim(20)
        taken += [lease.id for lease in leases]
        queue.settle(*(("ack", lease.id, lease.lease) for lease in leases)) if leases else queue.tick()
        if not leases and not queue.queue_state()["ready"]:
            return taken
    raise AssertionError(f"ready tasks are not handed out: {queue.queue_state()}")


def copied(queue: Queue, to: str) -> None:
    """Copy the keys of a queue under another prefix."""
    with queue.client.pipeline(transaction=False) as pipeline:
        for key in sorted(queue.client.scan_iter(queue.key("*"), count=1000)):
            pipeline.copy(key, to.encode() + key.removeprefix(queue.prefix.encode()))
        pipeline.execute()


def restored(queue: Queue, to: str) -> None:
    """Write the lines of a backup of a queue, and load them under another prefix."""
    connection = redis.Connection(**queue.client.connection_pool.connection_kwargs | {"protocol": 2})

    async def call(*words: Any) -> Any:
        kept = words[:3] if words[0] == "SET" else words  # not until a time by the store's clock
        connection.send_command(*kept)
        return connection.read_response()

    async def move() -> None:
        lines, loading = list[bytes](), Loading(call)
        await write_lines(call, lines.append)
        for line in lines:
            await loading.add(line.replace(b'"queue":"mail"', b'"queue":"%s"' % OTHER.encode(), 1))
        await loading.end()

    try:
        trio.run(move)
    finally:
        connection.disconnect()


def check_other(queue: Queue, version: str, *, is_restored: bool) -> None:
    """Build a queue in another place, where it must be the same; then delete that, and nothing may be left."""
    prefix = f"fq:{{{OTHER}/0}}"
    before = all_reads(queue)
    (restored if is_restored else copied)(queue, prefix)
    other = Queue(queue.client, prefix, version, queue.now)
    repair(other)
    after = all_reads(other)
    after["tenants"] = {name: pytest.approx(counts, abs=1e-3) for name, counts in after["tenants"].items()}
    for name, replies in before.items():
        assert after[name] == replies, f"{name}: {replies!r}\nrebuilt: {after[name]!r}"
    check_rebuilt(other, {})
    while other.call("delete_queue", "any")[0] != b"ok":
        pass
    assert not list(queue.client.scan_iter(f"{prefix}*", count=1000))
