"""After an error nothing is half done, and what an earlier one left behind breaks no queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests import stores

from .calls import FeedEvent, Queue, leased_in, packed_link, snapshot


def fill(queue: Queue) -> None:
    """Make a queue in which a claim meets everything: a backlog, a newcomer, priorities, windows, batch."""
    queue.enqueue("ada", *(f"a{n}" for n in range(6)))
    queue.claim(2)
    queue.enqueue("ada", "urgent", priority=0)
    queue.enqueue("ada", "late", expires_in=10)
    queue.open_batch("batch", max_running=1)
    queue.enqueue("ada", "b0", "b1", batch="batch", result_ttl=1000)
    queue.advance(6)
    queue.tick()
    queue.advance(5)
    queue.enqueue("bob", "new")


READ = (
    "tasks", "runs", "task_options", "ready:ada", "wake", "tenants", "limits",
)  # fmt: skip


def test_a_claim_that_fails_has_changed_nothing_and_can_be_repeated(queue: Queue) -> None:
    fill(queue)
    queue.set_limits("bob", max_running=1)
    for name in READ:
        key, spare = queue.key(name), queue.key("spare")
        queue.client.rename(key, spare)
        queue.client.set(key, "of another type")
        before = snapshot(queue)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            queue.claim(20)
        assert snapshot(queue) == before, name
        queue.client.rename(spare, key)
    assert {lease.id for lease in queue.claim(20)} == {"a2", "a3", "a4", "a5", "urgent", "b0", "new"}


def test_an_entry_without_a_task_is_passed_over(queue: Queue) -> None:
    queue.enqueue("ada", "a0", "a1", "a2")
    queue.client.hdel(queue.key("tasks"), "a1")
    assert [lease.id for lease in queue.claim(10)] == ["a0", "a2"]
    assert (queue.queue_state()["ready"], queue.queue_state()["leased"]) == (0, 2)


def test_a_task_whose_claim_failed_between_its_writes_is_not_given_twice(queue: Queue) -> None:
    queue.enqueue("ada", "a0", expires_in=1000)
    queue.enqueue("ada", "a1")
    queue.client.rename(queue.key("expiring"), queue.key("spare"))
    queue.client.set(queue.key("expiring"), "of another type")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        queue.claim(1)
    assert queue.state("a0") == "leased"
    queue.client.rename(queue.key("spare"), queue.key("expiring"))
    assert [lease.id for lease in queue.claim(2)] == ["a1"]


def test_tasks_whose_claim_fails_in_the_same_call_are_stored(queue: Queue) -> None:
    queue.client.set(queue.key("runs"), "of another type")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        queue.call("enqueue_and_claim", "w", 1, "", "", "", "", "ada", "a", b"", b"{}")
    queue.client.delete(queue.key("runs"))
    assert queue.enqueue("ada", "a") == ["duplicate\nready"]
    assert [lease.id for lease in queue.claim(2)] == ["a"]


def test_a_task_is_not_done_when_storing_its_links_fails(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    (lease,) = queue.claim()
    queue.client.set(queue.key("delayed:ada"), "of another type")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        queue.link(lease, packed_link("b", delay=1))
    assert queue.state("a") == "leased"


@pytest.fixture
def shy(queue: Queue) -> Iterator[Queue]:
    """The same queue, as a user of the store that may publish nothing."""
    url = queue.client.connection_pool.connection_kwargs
    queue.client.execute_command("ACL", "SETUSER", "shy", "on", ">pw", "~*", "+@all", "resetchannels")
    client = stores.connect(f"redis://shy:pw@{url['host']}:{url['port']}/0")
    yield Queue(client)
    client.close()
    queue.client.execute_command("ACL", "DELUSER", "shy")


def test_who_may_not_publish_loses_no_task(shy: Queue) -> None:
    assert shy.claim(1) == []  # hungry: a call that makes work ready publishes
    assert shy.enqueue("ada", "a", events=1) == ["ok"]
    (lease,) = shy.claim(1)
    assert shy.end("ack", lease) == "ok"
    assert shy.events().events == [FeedEvent(1, "done", "a", shy.now, 1, "")]


def test_what_the_user_may_not_run_is_named(queue: Queue, shy: Queue) -> None:
    assert queue.call("permissions") == []
    assert shy.call("permissions") == [b"SPUBLISH"]
    queue.client.execute_command("ACL", "SETUSER", "shy", "-zadd", "-ltrim", "-info", "&*")
    assert shy.call("permissions") == [b"INFO", b"LTRIM", b"ZADD"]


@pytest.mark.parametrize("witness", [-1, -3_600_000])
def test_nothing_expires_by_a_clock_that_nobody_confirms(queue: Queue, witness: int) -> None:
    """The store's clock is an hour ahead: tasks, dead letters, results and ids that are remembered stay."""
    queue.configure(dead_keep_ms=60_000)
    queue.enqueue("ada", "done", result_ttl=60_000)
    queue.end("ack", queue.claim()[0])
    queue.bury("ada", "dead")
    queue.enqueue("ada", "late", "later", expires_in=60_000)
    started = queue.now
    queue.advance(3_600_000)
    reply = queue.tick(witness=started + witness)
    assert (reply.expired, reply.trimmed) == (0, 0)
    assert reply.next_due > queue.now, "and the ticker need not come again at once"
    assert [queue.state(id) for id in ("done", "dead", "late")] == ["done", "dead", "ready"]
    assert [lease.id for lease in leased_in(queue.call("claim", "w", 1, "", started + witness))] == ["late"]
    assert queue.tick(witness=queue.now - 60_000).expired == 1
    assert (queue.state("done"), [letter.id for letter in queue.dead()]) == ("unknown", ["later"])


def test_a_lease_runs_out_and_a_start_comes_whichever_server_confirms_it(queue: Queue) -> None:
    queue.enqueue("ada", "leased")
    queue.enqueue("ada", "delayed", delay=60_000)
    queue.claim()
    started = queue.now
    queue.advance(3_600_000)
    reply = queue.tick(witness=started)
    assert (reply.reaped, reply.promoted) == (1, 1)
