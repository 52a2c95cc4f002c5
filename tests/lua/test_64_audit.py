"""The audit's functions: what begins and ends is kept, in bounds, and nothing is lost between."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from .calls import Queue

WHAT = ("token", "pause", "q", "ada", "{}")
LOST_MS = 300_000


@pytest.fixture
def audit(redis_client: redis.Redis) -> Queue:
    """The audit on an empty store."""
    audit = Queue(redis_client, "fq:{audit}")
    redis_client.delete(audit.key("queue"))
    return audit


def kept(audit: Queue, name: str) -> list[dict[bytes, bytes]]:
    """Read a stream."""
    entries: Any = audit.client.xrange(audit.key(name))
    return [fields for _, fields in entries]


def test_a_change_is_begun_and_then_kept_with_how_it_ended(audit: Queue) -> None:
    id, at = audit.call("begin_change", *WHAT)
    assert at == audit.now
    assert [fields[b"verb"] for fields in kept(audit, "begun")] == [b"pause"]
    assert kept(audit, "changes") == []
    audit.advance(5)
    audit.call("end_change", id, at, '{"outcome":"ok"}', *WHAT)
    assert kept(audit, "begun") == []
    (fields,) = kept(audit, "changes")
    assert fields == {
        b"at": str(at).encode(), b"token": b"token", b"verb": b"pause", b"queue": b"q", b"tenant": b"ada",
        b"change": b"{}", b"ended": b'{"outcome":"ok"}',
    }  # fmt: skip


def test_one_that_never_began_is_of_now(audit: Queue) -> None:
    audit.call("end_change", "0-0", 0, "{}", *WHAT)
    (fields,) = kept(audit, "changes")
    assert fields[b"at"] == str(audit.now).encode()


def test_what_nobody_ends_is_kept_as_unknown_once(audit: Queue) -> None:
    for _ in range(12):
        audit.call("begin_change", *WHAT)
    audit.advance(LOST_MS - 1)
    audit.call("begin_change", *WHAT)
    assert len(kept(audit, "begun")) == 13
    audit.advance(1)
    audit.call("begin_change", *WHAT)
    assert len(kept(audit, "begun")) == 4, "ten at a time"
    for _ in range(2):
        audit.call("begin_change", *WHAT)
    assert len(kept(audit, "begun")) == 4
    unknown = kept(audit, "changes")
    assert [fields[b"ended"] for fields in unknown] == [b'{"outcome":"unknown"}'] * 12


def test_one_that_ends_after_all_is_kept_again(audit: Queue) -> None:
    id, at = audit.call("begin_change", *WHAT)
    audit.advance(LOST_MS)
    audit.call("begin_change", *WHAT)
    audit.call("end_change", id, at, '{"outcome":"ok"}', *WHAT)
    assert [fields[b"ended"] for fields in kept(audit, "changes")] == [b'{"outcome":"unknown"}', b'{"outcome":"ok"}']


def test_the_streams_are_bounded(audit: Queue) -> None:
    for _ in range(1_010):
        audit.call("begin_change", *WHAT)
    assert len(kept(audit, "begun")) == 1_000
    assert len(kept(audit, "changes")) == 10, "those that begun longest ago, as unknown"
    pipeline = audit.client.pipeline(transaction=False)
    for _ in range(12_000):
        pipeline.xadd(audit.key("changes"), {"at": 1})
    pipeline.execute()
    audit.call("end_change", "0-0", audit.now, "{}", *WHAT)
    assert 10_000 <= audit.client.xlen(audit.key("changes")) <= 10_200


def test_a_tenant_that_changes_much_pushes_out_its_own_changes_only(audit: Queue) -> None:
    def note(tenant: str, verb: str = "schedule") -> None:
        audit.call("end_change", "0-0", 0, "{}", "token", verb, "q", tenant, "{}")

    note("bob")
    for n in range(250):
        note("ada", f"v{n}")
    note("ad")
    found = kept(audit, "changes")
    assert [fields[b"tenant"] for fields in found] == [b"bob", *[b"ada"] * 200, b"ad"]
    assert (found[1][b"verb"], found[200][b"verb"]) == (b"v50", b"v249")
    assert audit.client.zcard(audit.key("of_tenants")) == len(found)


def test_all_tenants_changes_are_bounded_too(audit: Queue) -> None:
    audit.call("end_change", "0-0", 0, "{}", *WHAT)
    pipeline = audit.client.pipeline(transaction=False)
    for _ in range(9_999):
        pipeline.xadd(audit.key("changes"), {"at": 1})
    pipeline.execute()
    audit.call("end_change", "0-0", 0, "{}", "token", "pause", "q", "bob", "{}")
    assert audit.client.xlen(audit.key("changes")) == 10_000
    left: Any = audit.client.zrange(audit.key("of_tenants"), 0, -1)
    assert [place.partition(b"/")[0] for place in left] == [b"bob"]
