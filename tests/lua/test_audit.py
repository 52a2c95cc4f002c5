"""The audit's functions: what begins and ends is kept, in bounds, and nothing is lost between."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from .calls import Queue

ENDED = ("ended", '{"outcome":"ok"}')


@pytest.fixture
def audit(redis_client: redis.Redis) -> Queue:
    """The audit on an empty store."""
    return Queue(redis_client, "fq:{audit}")


def what(tenant: str = "ada", verb: str = "pause") -> tuple[str, ...]:
    """Return the fields of a change."""
    return ("token", "token", "verb", verb, "queue", "q", "tenant", tenant, "change", "{}")


def kept(audit: Queue, name: str) -> list[dict[bytes, bytes]]:
    """Read a stream."""
    entries: Any = audit.client.xrange(audit.key(name))
    return [fields for _, fields in entries]


def fill(audit: Queue, count: int) -> None:
    """Add changes to the stream `changes`."""
    pipeline = audit.client.pipeline(transaction=False)
    for _ in range(count):
        pipeline.xadd(audit.key("changes"), {"token": 1, "verb": 1, "queue": 1, "tenant": "x"})
    pipeline.execute()


def test_a_change_is_begun_and_then_kept_with_how_it_ended(audit: Queue) -> None:
    id = audit.call("begin_change", *what())
    assert [fields[b"verb"] for fields in kept(audit, "begun")] == [b"pause"]
    assert kept(audit, "changes") == []
    audit.call("end_change", id, *what(), *ENDED)
    assert kept(audit, "begun") == []
    (fields,) = kept(audit, "changes")
    assert fields == {
        b"token": b"token", b"verb": b"pause", b"queue": b"q", b"tenant": b"ada", b"change": b"{}",
        b"ended": b'{"outcome":"ok"}',
    }  # fmt: skip


def test_the_streams_are_bounded(audit: Queue) -> None:
    for _ in range(1_010):
        id = audit.call("begin_change", *what())
    assert len(kept(audit, "begun")) == 1_000
    fill(audit, 12_000)
    audit.call("end_change", id, *what(), *ENDED)
    assert 10_000 <= audit.client.xlen(audit.key("changes")) <= 10_200
    assert audit.client.exists(audit.key("of_tenants")) == 0


def test_a_tenant_that_changes_much_pushes_out_its_own_changes_only(audit: Queue) -> None:
    audit.call("end_change", "", *what("bob"), *ENDED)
    for n in range(250):
        audit.call("end_change", "", *what("ada", f"v{n}"), *ENDED)
    audit.call("end_change", "", *what("ad"), *ENDED)
    found = kept(audit, "changes")
    assert [fields[b"tenant"] for fields in found] == [b"bob", *[b"ada"] * 200, b"ad"]
    assert (found[1][b"verb"], found[200][b"verb"]) == (b"v50", b"v249")
    assert audit.client.zcard(audit.key("of_tenants")) == len(found)


def test_all_tenants_changes_are_bounded_too(audit: Queue) -> None:
    audit.call("end_change", "", *what(), *ENDED)
    fill(audit, 9_999)
    audit.call("end_change", "", *what("bob"), *ENDED)
    assert audit.client.xlen(audit.key("changes")) == 10_000
    left: Any = audit.client.zrange(audit.key("of_tenants"), 0, -1)
    assert [place.partition(b"/")[0] for place in left] == [b"bob"]
