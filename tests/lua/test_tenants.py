"""The end of a tenant that has had nothing for long enough; walks drop tenants at once."""

from __future__ import annotations

from .calls import START, Queue, packed_template
from .keyspace import Keyspace

DAY = 86_400_000


def forget(queue: Queue, for_ms: int = DAY, witness: object = "") -> int:
    """Look through all accounts once; returns how many tenants were dropped."""
    cursor: object = "0"
    dropped = 0
    while True:
        cursor, some = queue.call("forget_tenants", cursor, 10, for_ms, witness)
        dropped += int(some)
        if cursor == b"0":
            return dropped


def run_one(queue: Queue, tenant: str, id: str) -> None:
    """Have a tenant's task done."""
    queue.enqueue(tenant, id)
    (lease,) = queue.claim()
    queue.advance(5)
    queue.end("ack", lease)


def test_a_tenant_is_forgotten_after_a_day_with_nothing(queue: Queue) -> None:
    run_one(queue, "ada", "a")
    run_one(queue, "bob", "b")
    assert forget(queue) == 0
    queue.advance(DAY // 2)
    run_one(queue, "bob", "b2")
    assert forget(queue) == 0
    queue.advance(DAY // 2)
    assert forget(queue) == 1
    assert list(queue.tenants()) == ["bob"], "who had a task meanwhile"
    queue.advance(DAY // 2)
    assert forget(queue) == 1
    run_one(queue, "ada", "a2")
    assert queue.tenant("ada").done == 1
    Keyspace(queue).check()


def test_a_tenant_that_has_anything_is_not_forgotten(queue: Queue) -> None:
    for name in ("weight", "limits", "paused", "hours", "events", "dead", "delayed", "batch", "schedule", "nothing"):
        run_one(queue, name, name)
    queue.call("set_weight", "weight", 1001)
    queue.set_limits("limits", max_running=1)
    queue.call("set_paused", "paused", 1)
    queue.call("set_opening_hours", "hours", "12:00-13:00", 1, START + 400 * DAY, "")
    queue.enqueue("events", "e", events=1)
    queue.cancel("e")
    queue.bury("dead", "d")
    queue.enqueue("delayed", "later", delay=300 * DAY)
    queue.open_batch("open", tenant="batch")
    queue.call("schedule", "schedule", "s", START + 400 * DAY, 0, "timing", packed_template())
    assert forget(queue) == 0
    queue.advance(2 * DAY)
    assert forget(queue) == 1
    assert "nothing" not in queue.tenants()
    assert len(queue.tenants()) == 9


def test_a_clock_that_is_ahead_makes_nobody_forgotten(queue: Queue) -> None:
    run_one(queue, "ada", "a")
    queue.advance(2 * DAY)
    assert forget(queue, witness=START) == 0
    assert forget(queue, witness=queue.now) == 1


def test_a_look_is_at_a_page_of_the_accounts(queue: Queue) -> None:
    for n in range(600):
        queue.enqueue(f"t{n}", f"a{n}")
        queue.cancel(f"a{n}")
    cursor, dropped = queue.call("forget_tenants", "0", 10, 0, "")
    assert cursor != b"0"
    assert 0 < dropped < 100
    assert forget(queue, 0) == 600 - dropped
