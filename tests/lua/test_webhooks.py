"""Webhooks in the store: registrations, and ids of the copies of tasks for several of them."""

from __future__ import annotations

from collections.abc import Sequence

from .calls import START, Queue
from .keyspace import Keyspace

A, B = "0000000a", "0000000b"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def add(queue: Queue, id: str, name: str = "", fan_out: int = 0, url: str = "https://a.example/") -> str:
    """Register a webhook."""
    return str(queue.call("add_webhook", id, url, name, fan_out, "").decode())


def test_a_queue_with_all_its_webhooks_takes_changes(queue: Queue) -> None:
    for n in range(64):
        add(queue, f"{n:08x}", fan_out=int(n < 15))
    assert add(queue, f"{3:08x}", fan_out=1, url="https://b.example/") == "changed"
    assert add(queue, f"{3:08x}") == "changed"
    assert add(queue, f"{63:08x}", fan_out=1) == "changed"


def known_after(queue: Queue, ids: Sequence[str], ms: int) -> list[str]:
    """Of which ids the queue knows something after so long."""
    queue.advance(ms)
    for _ in range(9):  # each goes on by so many minutes at most
        queue.tick()
    Keyspace(queue).check()
    return [id for id in ids if queue.state(id) != "unknown"]


def test_the_id_of_a_copy_is_remembered_while_its_task_is_stored(queue: Queue) -> None:
    """Each attempt of the task makes its copies anew, for however long it is put off, and when it is replayed."""
    queue.enqueue("ada", "ada/t")
    (lease,) = queue.claim()
    ids = [f"ada/t+{A}-{START}", f"ada/t+{A}-{START - 1}", f"ada/u+{A}-{START}", f"ada/v+{A}"]
    queue.enqueue("ada", *ids)
    for copy in queue.claim(9):
        queue.end("ack", copy)
    queue.end("reject", lease)
    for ms in (2 * MINUTE_MS, HOUR_MS, HOUR_MS):
        assert known_after(queue, ids, ms) == ids[:1]
        assert queue.enqueue("ada", ids[0]) == ["duplicate\ndone"]
    assert queue.call("replay", "ada/t") == [b"ok"]
    assert known_after(queue, ids, HOUR_MS) == ids[:1]
    (lease,) = queue.claim()
    queue.end("ack", lease)
    assert known_after(queue, ids, 2 * HOUR_MS) == []
