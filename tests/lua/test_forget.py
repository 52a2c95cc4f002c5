"""The end of a queue that nobody uses: its record goes when it has had nothing for long enough, and not sooner."""

from __future__ import annotations

from .calls import START, Queue, packed_template, refused, snapshot
from .test_settings import DEFAULTS

DAY = 86_400_000
TIMING = b"any bytes"


def forget(queue: Queue, *, witness: object = "", is_meant: bool = True) -> str:
    """Forget a queue that has had nothing for a day; returns the outcome."""
    outcome: bytes = queue.call("forget_queue", DAY, START, witness, int(is_meant))
    return outcome.decode()


def empty_out(queue: Queue, *tenants: str) -> None:
    """Let all that is remembered end, and drop tenants."""
    queue.advance(2 * DAY)
    for _ in range(5):
        queue.tick(500)
    for tenant in tenants:
        assert queue.call("drop_tenant", tenant) == [b"ok"]


def used(queue: Queue) -> None:
    """Use a queue for much, and leave nothing in it."""
    queue.configure(lease_ms=1000)
    queue.enqueue("ada", "a", "b", result_ttl=1000, dedupe_key="k", dedupe_period=5000, events=1, priority=3, group="g")
    queue.open_batch("batch")
    queue.enqueue("ada", "in", batch="batch")
    queue.call("close_batch", "batch")
    queue.settle(*(("ack", lease.id, lease.lease, "", "1") for lease in queue.claim(3)))
    queue.bury("bob", "dead")
    queue.call("purge", "dead")
    queue.call("schedule", "ada", "s", queue.now + 1000, 0, TIMING, packed_template())
    queue.call("unschedule", "ada", "s")
    queue.set_limits("", max_running=1)
    queue.set_limits("", max_running=-1)
    queue.call("set_opening_hours", "", "daily", 1, queue.now + 1000, "")
    queue.call("set_opening_hours", "", "", 1, 0, "")
    queue.call("set_paused", "", 1)
    queue.call("set_paused", "", 0)
    queue.configure(reserve=20, share=1)
    queue.configure(lease_ms=30_000, reserve=0, share=0)
    empty_out(queue, "ada", "bob")


def test_a_queue_that_has_had_nothing_for_a_day_leaves_no_key(queue: Queue) -> None:
    used(queue)
    assert forget(queue) == "stays", "its last change was just now"
    queue.advance(DAY - 1)
    assert forget(queue) == "stays"
    queue.advance(1)
    before = snapshot(queue)
    assert forget(queue, is_meant=False) == "ok"
    assert snapshot(queue) == before, "it was only asked"
    assert forget(queue) == "ok"
    left = [key for key in queue.client.scan_iter(queue.key("*")) if queue.client.pttl(key) < 0]
    assert left == [queue.key("test").encode()], "results and held keys have a TTL by the store's own clock"
    assert forget(queue) == "ok", "again"


def test_a_queue_that_has_a_webhook_stays(queue: Queue) -> None:
    """What else a queue may have, walks leave in it one by one (idle_walk.py)."""
    queue.call("add_webhook", "0000000a", "https://a.example/", "", 0, "")
    queue.advance(3 * DAY)
    before = snapshot(queue)
    assert forget(queue) == "stays"
    assert snapshot(queue) == before


def test_a_queue_with_any_setting_of_its_own_stays(queue: Queue) -> None:
    for name, kept in DEFAULTS.items():
        queue.configure(**{name: kept + 1})
        queue.advance(DAY)
        assert forget(queue) == "stays", name
        queue.configure(**{name: kept})
        queue.advance(DAY)
        assert forget(queue, is_meant=False) == "ok", name


def test_a_repair_that_is_under_way_is_waited_for(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(500)))
    assert queue.call("repair", "")[0] == b"more"
    queue.advance(3 * DAY)
    refused(queue, "repairing queue", "forget_queue", 0, 0, "", 1)


def test_a_queue_without_a_record_stays_as_long_after_it_was_made(queue: Queue) -> None:
    queue.client.delete(queue.key("queue"))
    queue.advance(DAY - 1)
    assert forget(queue) == "stays", "a server may be about to make it"
    queue.advance(1)
    assert forget(queue) == "ok"


def test_a_clock_that_is_ahead_makes_no_queue_forgotten(queue: Queue) -> None:
    queue.advance(2 * DAY)
    assert forget(queue, witness=START) == "stays"
    assert forget(queue, witness=queue.now) == "ok"
