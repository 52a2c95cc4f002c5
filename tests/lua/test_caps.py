"""Caps on a tenant's running tasks: kept whatever happens, and nobody else waits for them."""

from __future__ import annotations

import pytest

from .calls import LEASE_MS, Queue, refused


def leased(queue: Queue, tenant: str) -> int:
    """How many tasks of a tenant are leased."""
    return int(queue.tenant(tenant).leased)


@pytest.mark.parametrize("whose", ["own", "queue"])
def test_no_more_tasks_run_than_the_cap_allows(queue: Queue, whose: str) -> None:
    if whose == "own":
        assert queue.call("set_cap", "ada", 3) == -1
    else:
        queue.configure(tenant_cap=3)
    queue.enqueue("ada", *(f"a{n}" for n in range(20)))
    running = queue.claim(10)
    assert len(running) == 3
    assert queue.claim(10) == []
    for n in range(10):
        queue.end("ack", running.pop(0))
        running += queue.claim(10)
        assert len(running) == leased(queue, "ada") == 3, n


def test_slots_that_the_capped_leave_go_to_the_others(queue: Queue) -> None:
    queue.call("set_cap", "ada", 2)
    queue.enqueue("ada", *(f"a{n}" for n in range(50)))
    queue.enqueue("bob", *(f"b{n}" for n in range(50)))
    assert len(queue.claim(30)) == 30
    assert (leased(queue, "ada"), leased(queue, "bob")) == (2, 28)


def test_a_tenant_may_have_more_or_less_than_the_queue_gives(queue: Queue) -> None:
    queue.configure(tenant_cap=2)
    queue.call("set_cap", "ada", 0)
    queue.call("set_cap", "bob", 1)
    for name in ("ada", "bob", "cyd"):
        queue.enqueue(name, *(f"{name}{n}" for n in range(10)))
    queue.claim(30)
    assert [leased(queue, name) for name in ("ada", "bob", "cyd")] == [10, 1, 2]
    assert queue.call("set_cap", "bob", -1) == 1
    queue.claim(30)
    assert leased(queue, "bob") == 2


@pytest.mark.parametrize("how", ["raised", "default", "ack", "nack", "release", "reap"])
def test_every_end_of_a_cap_brings_the_tenant_back_and_tells_the_hungry(queue: Queue, how: str) -> None:
    queue.call("set_cap", "ada", 1)
    queue.enqueue("ada", "a", "b")
    lease = queue.claim(5)[0]
    with queue.client.pubsub() as listener:
        listener.ssubscribe(queue.key("ready"))
        assert listener.get_sharded_message(timeout=5)
        if how in ("raised", "default"):
            queue.call("set_cap", "ada", 2 if how == "raised" else -1)
        elif how == "reap":
            queue.advance(LEASE_MS)
            queue.tick()
        else:
            queue.end(how, lease, 0 if how == "nack" else "")
        message = listener.get_sharded_message(timeout=5)
        assert message
        assert message["data"] == b"1"
    assert len(queue.claim(5)) == 1


def test_a_lowered_cap_takes_nothing_back(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(10)))
    running = queue.claim(5)
    queue.call("set_cap", "ada", 2)
    for lease in running[:3]:
        queue.end("ack", lease)
        assert queue.claim(5) == []
    queue.end("ack", running[3])
    assert len(queue.claim(5)) == 1


def test_a_lowered_cap_of_the_queue_acts_on_those_who_wait(queue: Queue) -> None:
    for name in ("ada", "bob"):
        queue.enqueue(name, *(f"{name}{n}" for n in range(20)))
    queue.claim(10)
    queue.configure(tenant_cap=2)
    assert queue.claim(10) == []
    assert queue.depth()["leased"] == 10


@pytest.mark.parametrize("cap", [-2, 1.5, 1_000_001, "many"])
def test_a_cap_that_is_none_is_refused(queue: Queue, cap: object) -> None:
    refused(queue, "bad_request cap", "set_cap", "ada", cap)
    refused(queue, "bad_request tenant", "set_cap", "a:b", 1)
