"""The history of a queue: what is added to its rings, once, and what is read from them."""

from __future__ import annotations

from typing import Any

from fairq.model.history import STEPS, Slot
from fairq.store.records import pack_waits, unpack_slot

from .calls import Queue

RINGS = tuple(STEPS.values())


def add(queue: Queue, number: int, *rows: tuple[Any, ...], server: str = "s1", lost: int = 0) -> str:
    """Add what a server has counted: (tenant, enqueued, started, failed, {bucket: starts}) each."""
    args: list[Any] = []
    for tenant, enqueued, started, failed, waits in rows:
        args += (tenant, enqueued, started, failed, pack_waits([waits.get(n, 0) for n in range(61)]))
    outcome: bytes = queue.call("add_history", server, number, lost, *args)[0]
    return outcome.decode()


def read(queue: Queue, step: int = 10, last: int = -1, count: int = 240) -> list[Slot]:
    """Read the intervals of a ring."""
    return [unpack_slot(packed) for packed in queue.call("history", step, last, count)[2:]]


def test_what_a_server_counts_is_added_to_all_rings(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    queue.enqueue("bob", "c")
    leases = queue.claim(3)
    queue.advance(500)
    queue.end("ack", leases[0])
    assert add(queue, 1, ("ada", 2, 2, 1, {3: 1, 5: 1}), ("bob", 1, 1, 0, {0: 1})) == "ok"
    for step, _ in RINGS:
        (slot,) = read(queue, step)
        assert slot.number == queue.now // 1000 // step
        assert (slot.enqueued, slot.done, slot.dead, slot.lost) == (3, 1, 0, 0)
        rows = {row.tenant: row for row in slot.rows}
        assert rows["ada"][1:5] == (2, 2, rows["ada"].done, 1)
        assert rows["ada"].waits == {3: 1, 5: 1}
        assert rows["bob"].waits == {0: 1}
        assert sum(row.done for row in slot.rows) == 1
        assert sum(row.delivered for row in slot.rows) == 1500  # three tasks for half a second
