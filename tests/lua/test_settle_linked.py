"""Links: tasks that are stored in the same call as the acknowledgement of the one that they follow."""

from __future__ import annotations

from typing import Any

import pytest

from fairq.model.queue.remembered import bytes_of_id

from .calls import LEASE_MS, START, Leased, Queue, counted, options, packed_link, refused, snapshot
from .keyspace import Keyspace

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def leased(queue: Queue, id: str = "a", tenant: str = "ada", **asked: Any) -> Leased:
    """Enqueue a task and lease it."""
    queue.enqueue(tenant, id, **asked)
    (lease,) = queue.claim(worker=f"to-{id}")
    return lease


def refused_links(queue: Queue, refusal: str, lease: Leased, *links: tuple[object, ...]) -> None:
    """An acknowledgement with these links is refused, and nothing has changed."""
    args = (lease.id, lease.lease, b"null", *(word for link in links for word in link))
    refused(queue, refusal, "settle_linked", *args)
    assert queue.state(lease.id) == "leased"
    Keyspace(queue).check()


def test_links_are_tasks_at_once(queue: Queue) -> None:
    lease = leased(queue, result_ttl=1000)
    links = packed_link("b", b"[1]"), packed_link("c", delay=500), packed_link("d", priority=3)
    assert queue.link(lease, *links, result=b"7") == "ok"
    assert [queue.state(id) for id in "abcd"] == ["done", "ready", "delayed", "ready"]
    assert queue.call("results", "a") == [b"7"]
    assert [each.id for each in queue.claim(2)] == ["d", "b"]
    Keyspace(queue).check()


@pytest.mark.parametrize("action", ["nack", "reject", "release", "reap"])
def test_nothing_leaves_with_a_lease_that_ended_otherwise(queue: Queue, action: str) -> None:
    lease = leased(queue)
    queue.end(action, lease, 1000)
    before = snapshot(queue)
    assert queue.link(lease, packed_link("b")) in ("gone", "stale")
    assert queue.link(lease._replace(lease=0), packed_link("b")) == "stale"
    assert snapshot(queue) == before


def test_a_lost_lease_links_nothing_and_the_next_one_does(queue: Queue) -> None:
    lease = leased(queue)
    queue.advance(LEASE_MS)
    queue.tick()
    (again,) = queue.claim()
    assert queue.link(lease, packed_link("b")) == "stale"
    assert queue.link(again, packed_link("b")) == "ok"
    assert queue.state("b") == "ready"


def test_a_task_that_was_cancelled_meanwhile_is_done_with_what_follows_it(queue: Queue) -> None:
    lease = leased(queue)
    queue.cancel("a")
    assert queue.link(lease, packed_link("b")) == "ok"
    assert [queue.state(id) for id in "ab"] == ["done", "ready"]


def test_a_key_that_is_held_by_another_or_for_a_period_is_held(queue: Queue) -> None:
    queue.enqueue("ada", "holder", dedupe_key="k", delay=99)
    queue.link(
        leased(queue, dedupe_key="p", dedupe_period=1000),
        packed_link("b", dedupe_key="k"),
        packed_link("c", dedupe_key="p"),
    )
    assert [queue.state(id) for id in "abc"] == ["done", "unknown", "unknown"]
    Keyspace(queue).check()


def test_links_go_into_batches_and_the_batch_of_the_first_is_complete(queue: Queue) -> None:
    queue.open_batch("first")
    queue.open_batch("second")
    lease = leased(queue, batch="first")
    queue.call("close_batch", "first")
    queue.link(lease, packed_link("b", batch="second"))
    first, second = queue.batch("first"), queue.batch("second")
    assert first
    assert second
    assert (first.state, second.total) == ("complete", 1)
    Keyspace(queue).check()


def test_a_link_goes_behind_what_waits_in_its_batch(queue: Queue) -> None:
    queue.open_batch("one", max_running=1)
    lease = leased(queue, batch="one")
    queue.enqueue("ada", "waiting", batch="one")
    queue.link(lease, packed_link("b", batch="one"))
    assert [queue.state(id) for id in ("waiting", "b")] == ["ready", "pending"]
    Keyspace(queue).check()


def test_a_link_with_the_id_of_a_callback_is_the_one_task_of_that_id(queue: Queue) -> None:
    queue.open_batch("one", complete="{}")
    lease = leased(queue, batch="one")
    queue.call("close_batch", "one")
    queue.link(lease, packed_link(f"one-complete-{START}"))
    Keyspace(queue).check()


def test_a_tenants_limits_refuse_all_of_it(queue: Queue) -> None:
    queue.set_limits("ada", queued=1)
    lease = leased(queue)
    refused_links(queue, "quota_exceeded queued", lease, packed_link("b"), packed_link("c"))
    assert queue.link(lease, packed_link("b")) == "ok"


def test_a_tenant_that_is_at_its_limit_of_bytes_may_go_on_with_a_chain_while_its_ids_have_room(queue: Queue) -> None:
    queue.set_limits("ada", stored_bytes=counted("a", 100) + bytes_of_id("a"))
    lease = leased(queue, payload=b"x" * 100)
    refused_links(queue, "quota_exceeded stored_bytes", lease, packed_link("b", b"x" * 101))
    assert queue.link(lease, packed_link("b", b"x" * 100)) == "ok"
    assert queue.tenant("ada").bytes == counted("b", 100) + bytes_of_id("a")
    Keyspace(queue).check()
    refused_links(queue, "quota_exceeded stored_bytes", queue.claim()[0], packed_link("c", b"x" * 100))


def test_a_link_may_have_the_bytes_of_its_task_and_of_the_one_that_it_replaces(queue: Queue) -> None:
    lease, both = leased(queue, payload=b"x" * 100), counted("a", 100) + counted("old", key="k")
    queue.enqueue("ada", "old", dedupe_key="k")
    queue.set_limits("ada", stored_bytes=both + bytes_of_id("a") + bytes_of_id("old"))
    most = b"x" * (both - counted("b", 0, key="k"))
    refused_links(queue, "quota_exceeded stored_bytes", lease, packed_link("b", most + b"x", dedupe_key="k", replace=1))
    assert queue.link(lease, packed_link("b", most, dedupe_key="k", replace=1)) == "ok"
    assert [queue.state(id) for id in ("old", "b")] == ["cancelled", "ready"]


def test_what_enqueue_refuses_is_refused(queue: Queue) -> None:
    lease = leased(queue)
    refused_links(queue, "bad_request expires_at", lease, packed_link("b"), packed_link("c", expires_at=START - 1))
    refused_links(queue, "bad_request priority", lease, packed_link("b"), packed_link("c", priority=100))
    refused_links(queue, "not_found batch", lease, packed_link("b"), packed_link("c", batch="none"))


def test_ids_that_sdks_derive_are_remembered_for_an_hour(queue: Queue) -> None:
    for id in ("ada/from-1", "ada/b"):
        queue.end("ack", leased(queue, id))
    known = []
    for ms in (2 * MINUTE_MS, HOUR_MS - 2 * MINUTE_MS, 2 * MINUTE_MS):
        queue.advance(ms)
        queue.tick()
        Keyspace(queue).check()
        known.append([queue.state(id) for id in ("ada/from-1", "ada/b")])
    assert known == [["done", "unknown"], ["done", "unknown"], ["unknown", "unknown"]]


def test_repair_remembers_derived_ids_for_an_hour_from_then(queue: Queue) -> None:
    queue.end("ack", leased(queue, "ada/from-1"))
    outcome, number = b"more", b""
    while outcome == b"more":
        outcome, number, *_ = queue.call("repair", number)
    queue.advance(HOUR_MS)
    queue.tick()
    assert queue.state("ada/from-1") == "done"
    Keyspace(queue).check()


def test_an_acknowledgement_without_a_link_is_none_of_these(queue: Queue) -> None:
    refused(queue, "bad_request tasks", "settle_linked", "a", leased(queue).lease, b"1")
    refused(queue, "bad_request action", "settle", "ack_linked", "a", 1, b"1", options())
