"""Links: what leaves with an acknowledgement, the outbox, and what a running task has enqueued."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import pytest
import redis

from tests.limits_model import bytes_of

from .breakage import packed
from .calls import LEASE_MS, START, Leased, Queue, counted, packed_link, refused, snapshot, unpack, words
from .keyspace import Keyspace
from .link_walk import DAY_MS, name_of, walk_links

HOLD_MS, PER_TENANT = 1_000, 10_000


def leased(queue: Queue, id: str = "a", tenant: str = "ada", **asked: Any) -> Leased:
    """Enqueue a task and lease it."""
    queue.enqueue(tenant, id, **asked)
    (lease,) = queue.claim(worker=f"to-{id}")
    return lease


def test_a_link_to_the_same_queue_is_a_task_at_once(queue: Queue) -> None:
    lease = leased(queue)
    assert queue.link(lease, packed_link("b", payload=b"[1]"), packed_link("c", delay=500)) == "ok"
    assert (queue.state("a"), queue.state("b"), queue.state("c")) == ("done", "ready", "delayed")
    assert queue.queue_state()["links"] == 0
    assert queue.take_links() == {}
    Keyspace(queue).check()


def test_a_link_to_another_queue_waits_in_the_outbox(queue: Queue) -> None:
    queue.link(leased(queue), packed_link("b", "next", b"[1]", delay=500, expires_in=900))
    (tick, taken) = queue.tick(), queue.take_links()
    assert tick.links == 1
    assert list(taken) == [name_of("b")]
    link = taken[name_of("b")]
    assert (link.tenant, link.queue, link.id, link.payload, link.attempts) == ("ada", "next", "b", b"[1]", 0)
    assert link.origin == "a"
    asked = unpack("OPTIONS", link.options)
    assert (asked.delay, asked.start_at) == (0, START + 500), "times count from the acknowledgement"
    assert (asked.expires_in, asked.expires_at) == (0, START + 900)
    assert queue.tenant("ada").bytes == bytes_of(name_of("b"), 3)
    Keyspace(queue).check()
    assert queue.close_link(name_of("b")) == "ok"
    assert queue.close_link(name_of("b")) == "gone"
    assert queue.tenant("ada").bytes == 0
    Keyspace(queue).check()


def test_an_acknowledgement_that_comes_again_links_nothing_twice(queue: Queue) -> None:
    lease = leased(queue)
    links = packed_link("b"), packed_link("c", "next")
    assert [queue.link(lease, *links) for _ in range(3)] == ["ok", "gone", "gone"]
    assert (queue.queue_state()["enqueued"], queue.queue_state()["links"]) == (2, 1)


@pytest.mark.parametrize("action", ["nack", "postpone", "reject", "release", "reap"])
def test_nothing_leaves_with_a_lease_that_ended_otherwise(queue: Queue, action: str) -> None:
    lease = leased(queue)
    queue.end(action, lease, 1000)
    before = snapshot(queue)
    assert queue.link(lease, packed_link("b"), packed_link("c", "next")) in ("gone", "stale")
    assert snapshot(queue) == before


def test_a_lost_lease_links_nothing_and_the_next_one_does(queue: Queue) -> None:
    lease = leased(queue)
    queue.advance(LEASE_MS)
    queue.tick()
    (again,) = queue.claim()
    assert queue.link(lease, packed_link("b")) == "stale"
    assert queue.link(again, packed_link("b")) == "ok"
    assert queue.state("b") == "ready"


def test_a_known_id_is_not_enqueued_again(queue: Queue) -> None:
    queue.enqueue("ada", "b", delay=9)
    queue.link(leased(queue), packed_link("b"), packed_link("a"), packed_link("c"), packed_link("c"))
    assert queue.queue_state()["enqueued"] == 3
    assert queue.state("a") == "done", "it links to itself"
    Keyspace(queue).check()


def test_options_of_links_are_those_of_tasks(queue: Queue) -> None:
    queue.enqueue("ada", "holder", key="k", delay=99)
    queue.link(
        leased(queue, result=1000),
        packed_link("urgent", priority=3),
        packed_link("same", key="k"),
        packed_link("grouped", group="g"),
        packed_link("told", events=1),
        result=b"7",
    )
    assert queue.call("results", "a") == [b"7"]
    assert queue.state("same") == "unknown", "a duplicate by its key"
    assert [lease.id for lease in queue.claim(3)] == ["urgent", "told", "grouped"]
    Keyspace(queue).check()


def test_what_the_queue_cannot_take_now_waits(queue: Queue) -> None:
    queue.set_limits("ada", queued=1)
    queue.link(leased(queue), packed_link("b"), packed_link("c"), packed_link("late", expires_at=START - 1))
    assert (queue.state("b"), queue.state("c")) == ("ready", "unknown")
    assert set(queue.take_links()) == {name_of("c", ""), name_of("late", "")}
    Keyspace(queue).check()


@pytest.mark.parametrize("replaces", [False, True])
def test_copies_and_replacements_are_left_to_enqueue(queue: Queue, replaces: bool) -> None:
    if not replaces:
        queue.call("add_webhook", "0000000a", "https://a.example/", "", 1, "")
    lease = leased(queue)
    queue.link(lease, packed_link("b", key="k", replace=int(replaces)))
    assert list(queue.take_links()) == [name_of("b", "")]
    Keyspace(queue).check()


def test_a_link_that_is_taken_is_due_again_a_little_later(queue: Queue) -> None:
    queue.link(leased(queue), packed_link("b", "next"))
    assert len(queue.take_links(hold=HOLD_MS)) == 1
    assert queue.take_links() == {}
    assert queue.tick().next_due <= queue.now + HOLD_MS
    queue.advance(HOLD_MS)
    assert len(queue.take_links()) == 1


def test_tenants_take_turns_however_many_links_one_has(queue: Queue) -> None:
    for n in range(30):
        queue.link(leased(queue, f"a-{n}"), *(packed_link(f"l-{n}-{k}", "next") for k in range(16)))
    for tenant in ("bob", "eve"):
        queue.advance(1)
        queue.link(leased(queue, f"of-{tenant}", tenant), packed_link("z", "next"))
    taken = [link.tenant for link in queue.take_links(9).values()]
    assert taken == ["ada"] * 3 + ["bob", "eve"], "an equal part each"
    queue.advance(1)
    queue.link(leased(queue, "y", "bob"), packed_link("y", "next"))
    queue.advance(1)
    assert [link.tenant for link in queue.take_links(1).values()] == ["ada"]
    assert [link.tenant for link in queue.take_links(1).values()] == ["bob"], "the other has had its turn"
    assert [link.tenant for link in queue.take_links(100).values()] == ["ada"] * 100
    Keyspace(queue).check()


def test_a_call_looks_at_few_tenants_and_the_next_one_goes_on(queue: Queue) -> None:
    tenants = [f"t-{n:03}" for n in range(120)]
    for tenant in tenants:
        queue.link(leased(queue, f"of-{tenant}", tenant), *(packed_link(f"l-{k}", "next") for k in range(3)))
    assert queue.tick().links == 120
    takes = list[list[str]]()
    for _ in range(4):
        queue.advance(1)
        takes.append([link.tenant for link in queue.take_links().values()])
    assert takes[0] == [tenant for tenant in tenants for _ in range(3)][:100]
    assert takes[1] == [tenant for tenant in tenants[34:] for _ in range(3)][:100]
    assert tenants[33] not in takes[1][1:] + takes[2], "those that have had a turn come after the others"
    assert takes[3].count(tenants[33]) == 2
    Keyspace(queue).check()


def test_many_tenants_get_a_tenth_of_a_call_each(queue: Queue) -> None:
    for n in range(11):
        queue.link(leased(queue, f"a-{n}", f"t-{n:02}"), *(packed_link(f"l-{k}", "next") for k in range(16)))
    for n in range(60):
        queue.link(leased(queue, f"one-{n}", f"u-{n:02}"), packed_link("l", "next"))
    queue.advance(1)
    assert Counter(link.tenant for link in queue.take_links().values()) == {f"t-{n:02}": 10 for n in range(10)}
    queue.advance(1)
    taken = Counter(link.tenant for link in queue.take_links().values())
    assert taken == {"t-10": 10, "t-00": 6, "t-01": 6, "t-02": 6, "t-03": 6, "t-04": 6} | {
        f"u-{n:02}": 1 for n in range(60)
    }, "those that have had a turn come after the others"


def test_a_turn_waits_for_the_first_link_that_is_left(queue: Queue) -> None:
    queue.link(leased(queue), packed_link("b", "next"), packed_link("c", "next"))
    assert len(queue.take_links(hold=HOLD_MS)) == 2
    queue.close_link(name_of("b"), "later", 5 * HOLD_MS)
    queue.close_link(name_of("c"))
    queue.advance(HOLD_MS)
    assert queue.tick().links == 0
    queue.link(leased(queue, "z", "zoe"), packed_link("z", "next"))
    queue.advance(4 * HOLD_MS)
    assert {link.tenant for link in queue.take_links().values()} == {"ada", "zoe"}
    Keyspace(queue).check()


def test_links_taken_by_a_server_that_died_do_not_wait_for_a_time_that_went_back(queue: Queue) -> None:
    queue.link(leased(queue), packed_link("b", "next"), packed_link("c", "next"))
    queue.advance(DAY_MS)
    assert len(queue.take_links(1)) == 1, "and nothing else is written then"
    queue.advance(5_000 - DAY_MS)
    assert (queue.tick().links, len(queue.take_links())) == (1, 2)


@pytest.mark.parametrize("what", ["new", "taken", "mixed"])
def test_links_do_not_wait_for_a_time_that_went_back(queue: Queue, what: str) -> None:
    queue.enqueue("ada", *(f"a-{n}" for n in range(30)))
    leases = queue.claim(30)
    queue.advance(DAY_MS)
    for n, lease in enumerate(leases):
        queue.link(lease, packed_link(f"l-{n}", "next"))
    if what == "taken":
        queue.take_links(hold=HOLD_MS)
    queue.advance(-DAY_MS)
    if what == "mixed":
        queue.link(leased(queue, "late"), packed_link("l-30", "next"))
        assert len(queue.take_links(hold=HOLD_MS)) == 31
        queue.advance(HOLD_MS)
    queue.tick()
    assert queue.tick().links == 1
    assert len(queue.take_links(20)) == 20
    assert queue.tick().links == 1
    assert len(queue.take_links()) == (11 if what == "mixed" else 10)
    assert queue.tick().links == 0
    Keyspace(queue).check()


def test_links_that_are_due_wake_no_tick(queue: Queue) -> None:
    """Servers deliver them beside their ticks, and are told that they are due."""
    queue.link(leased(queue), packed_link("b", "next"))
    tick = queue.tick()
    assert (tick.links, tick.next_due > queue.now) == (1, True)
    queue.take_links(hold=HOLD_MS)
    assert queue.tick().next_due == queue.now + HOLD_MS


def test_one_that_is_put_off_is_given_up_after_a_day(queue: Queue) -> None:
    queue.link(leased(queue), packed_link("b", "next", b"x" * 5000))
    assert queue.close_link(name_of("b"), "later", 500, "full") == "ok"
    queue.advance(500)
    (link,) = queue.take_links().values()
    assert link.attempts == 1
    queue.advance(DAY_MS - 501)
    queue.close_link(name_of("b"), "later", 1, "full")
    assert queue.queue_state()["dead"] == 0
    queue.advance(1)
    queue.close_link(name_of("b"), "later", 1, "full")
    (letter,) = queue.dead()
    assert (letter.id, letter.reason, letter.attempts, letter.error) == (name_of("b"), "undelivered", 3, "full")
    assert letter.record.endswith(b"x" * 5000)
    Keyspace(queue).check()
    assert queue.tick().links == 0


def test_a_dead_letter_of_a_link_goes_off_again_when_replayed(queue: Queue) -> None:
    for payload in (b"[1]", b"x" * 5000):
        queue.link(leased(queue), packed_link("b", "next", payload, priority=3))
        queue.close_link(name_of("b"), "never", 0, "no such")
        Keyspace(queue).check()
        assert words(queue.call("replay", name_of("b"))) == ["ok"]
        Keyspace(queue).check()
        (link,) = queue.take_links().values()
        assert (link.payload, link.attempts, unpack("OPTIONS", link.options).priority) == (payload, 0, 3)
        assert queue.queue_state()["ready"] == queue.queue_state()["dead"] == 0
        queue.close_link(name_of("b"))
        queue.advance(180_000)
        queue.tick()
    assert Keyspace(queue).outbox == {}


@pytest.mark.parametrize("reason", ["undelivered", "rejected"])
def test_a_letter_whose_task_is_lost_takes_no_other_with_it(queue: Queue, reason: str) -> None:
    """A replay that failed half way would have taken the letters of its first half out for ever."""
    queue.enqueue("bob", "b-1", "b-2", "b-3")
    for lease in queue.claim(3):
        queue.end("reject", lease)
    name = "b-2"
    if reason == "undelivered":
        name = name_of("x")
        queue.link(leased(queue), packed_link("x", "next"))
        queue.close_link(name, "never")
    queue.client.hdel(queue.key("tasks"), name)
    assert words(queue.call("replay", "b-1", name, "b-3")) == ["ok", "gone", "ok"]
    assert (queue.state("b-1"), queue.state("b-3")) == ("ready", "ready")
    assert words(queue.call("replay", name)) == ["gone"]
    assert (queue.tenant("bob").ready, queue.queue_state()["links"]) == (2, 0)
    assert queue.queue_state()["dead"] == (1 if reason == "undelivered" else 0)
    assert Keyspace(queue).outbox == {}
    outcome, number = b"more", b""
    while outcome == b"more":  # the bytes of what is lost
        outcome, number, *_ = queue.call("repair", number)
    Keyspace(queue).check()


@pytest.mark.parametrize("how", ["purge", "age", "count"])
def test_nothing_is_left_of_one_that_is_deleted(queue: Queue, how: str) -> None:
    queue.link(leased(queue), packed_link("b", "next"))
    queue.close_link(name_of("b"), "never")
    if how == "purge":
        assert words(queue.call("purge", name_of("b"))) == ["ok"]
    elif how == "count":
        queue.configure(dead_keep=0)
        queue.tick()
    else:
        queue.advance(15 * DAY_MS)
        queue.tick()
    assert Keyspace(queue).outbox == {}
    assert queue.tenant("ada").bytes == 0
    Keyspace(queue).check()


@pytest.mark.deep("longest")
def test_a_tenant_with_too_many_links_has_the_next_as_dead_letters(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a-{n}" for n in range(500)))
    queue.enqueue("bob", "b")
    leases = {lease.id: lease for lease in queue.claim(501)}
    bob = leases.pop("b")
    done = 0
    for lease in leases.values():
        many = [packed_link(f"l-{done + n}", "next", b"1") for n in range(16)]
        done += len(many)
        queue.link(lease, *many)
    assert queue.queue_state()["links"] == 8000
    for n in range(126):
        lease = leased(queue, f"more-{n}")
        queue.link(lease, *(packed_link(f"m-{n}-{k}", "next", b"1") for k in range(16)))
    assert (queue.queue_state()["links"], queue.queue_state()["dead"]) == (PER_TENANT, 16)
    queue.link(bob, packed_link("x", "next"))
    assert queue.queue_state()["links"] == PER_TENANT + 1, "it is no other tenant's bound"
    Keyspace(queue).check()


def test_an_invalid_link_refuses_all_of_the_call(queue: Queue) -> None:
    lease = leased(queue)
    good = ("ack_linked", "a", lease.lease, b"1", packed_link("x", "next"))
    bad = ("ack_linked", "a", lease.lease, b"1", packed_link("x", priority=100))
    refused(queue, "bad_request priority", "settle_linked", *good, *bad)
    refused(queue, "bad_request action", "settle", *good)


def test_a_call_leaves_what_is_too_much_work_to_the_next(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a-{n}" for n in range(10)))
    leases = queue.claim(10)
    args = [
        arg
        for n, lease in enumerate(leases)
        for arg in (
            "ack_linked", lease.id, lease.lease, b"1", b"".join(packed_link(f"l-{n}-{k}", "next") for k in range(16)),
        )
    ]  # fmt: skip
    assert len(queue.call("settle_linked", *args)) == 2
    assert queue.queue_state()["links"] == 32


def test_a_tenant_with_links_stays(queue: Queue) -> None:
    queue.link(leased(queue), packed_link("b", "next"))
    outcome, *held = queue.call("drop_tenant", "ada")
    assert outcome == b"not_empty"
    assert dict(zip(held[::2], held[1::2], strict=True))[b"links"] == 1
    queue.close_link(name_of("b"))
    queue.advance(180_000)
    queue.tick()
    assert queue.call("drop_tenant", "ada") == [b"ok"]


def test_a_queue_with_links_is_not_forgotten(queue: Queue) -> None:
    queue.link(leased(queue), packed_link("b", "next"))
    queue.advance(2 * DAY_MS)
    queue.tick()
    assert queue.call("forget_queue", DAY_MS, 0, "", 1) == b"stays"


def test_a_run_remembers_what_its_handlers_enqueued(queue: Queue) -> None:
    first = leased(queue)
    made = [hashlib.sha256(f"{n}".encode()).digest()[:8] for n in range(3)]
    assert queue.made_by("a", first.lease, *made) == [0, 0, 0]
    assert set(queue.note_made("a", *made[:2])) == {"ok"}
    before = snapshot(queue)
    assert set(queue.note_made("a", *made[:2])) == {"ok"}
    assert snapshot(queue) == before
    queue.end("nack", first, 3_600_000)
    assert queue.made_by("a", first.lease, made[2]) == [-1]
    assert set(queue.note_made("a", made[2])) == {"ok"}, "the lease was lost behind the server's back"
    assert set(queue.note_made("b", made[2])) == {"gone"}
    queue.advance(3_600_000)
    queue.tick()
    (again,) = queue.claim()
    assert queue.made_by("a", again.lease, *made) == [1, 1, 1]
    assert queue.made_by("a", first.lease, *made) == [-1, -1, -1]
    queue.advance(LEASE_MS)
    queue.tick()
    (third,) = queue.claim()
    assert queue.made_by("a", third.lease, *made) == [1, 1, 1]
    queue.end("reject", third)
    queue.call("replay", "a")
    (fourth,) = queue.claim()
    assert queue.made_by("a", fourth.lease, *made) == [0, 0, 0]
    Keyspace(queue).check()


@pytest.mark.deep("longest")
def test_a_call_leaves_tasks_that_remember_much_to_the_next(queue: Queue) -> None:
    ids = [f"t-{n:03}" for n in range(200)]
    queue.enqueue("ada", *ids)
    leases = [*queue.claim(150), *queue.claim(50, "again")]
    made = [n.to_bytes(8, "big") for n in range(1000)]
    for id in ids:
        for part in (made[:500], made[500:]):
            queue.note_made(id, *part)
    asked = [word for lease in leases for word in (lease.id, lease.lease, made[-1])]
    told = queue.call("made_by", *asked)
    assert told == [1] * 150, "1 MiB, and the page in which that is reached"
    assert queue.call("made_by", *asked[3 * len(told) :]) == [1] * 50
    noted = queue.call("note_made", *(word for id in ids for word in (id, b"unknown!")))
    assert noted == [b"ok"] * 150
    assert queue.made_by(ids[0], leases[0].lease, *made[:500]) == [1] * 500, "a run is read once"


def test_a_digest_is_not_found_across_two(queue: Queue) -> None:
    lease = leased(queue)
    queue.note_made("a", b"12345678", b"abcdefgh")
    assert queue.made_by("a", lease.lease, b"5678abcd", b"abcdefgh") == [0, 1]
    queue.note_made("a", b"5678abcd")
    assert queue.made_by("a", lease.lease, b"5678abcd") == [1]


def test_a_run_remembers_at_most_a_thousand(queue: Queue) -> None:
    lease = leased(queue)
    made = [hashlib.sha256(f"{n}".encode()).digest()[:8] for n in range(1002)]
    for start in range(0, 1002, 334):
        queue.note_made("a", *made[start : start + 334])
    assert queue.made_by("a", lease.lease, *made[-3:]) == [1, 0, 0]
    assert len(Keyspace(queue).runs["a"].made) == 8000


@pytest.mark.parametrize("end", ["ack", "nack", "reject", "cancel", "expire", "reap", "replay"])
def test_what_a_run_remembers_counts_among_its_tenants_bytes_until_it_goes(queue: Queue, end: str) -> None:
    queue.enqueue("ada", "a", payload=b"12345", expires_in=10 * LEASE_MS, max_attempts=2 if end == "reap" else 9)
    (lease,) = queue.claim()
    queue.note_made("a", b"12345678", b"23456789")
    queue.note_made("a", b"12345678", b"34567890")
    assert queue.tenant("ada").bytes == counted("a", 5) + 24
    queue.end("nack", lease, 0)
    (lease,) = queue.claim(worker="again")
    queue.note_made("a", b"45678901")
    assert queue.tenant("ada").bytes == counted("a", 5) + 32
    Keyspace(queue).check()
    if end in ("ack", "reject", "nack", "replay"):
        queue.end("reject" if end == "replay" else end, lease, 1)
    elif end == "cancel":
        queue.end("nack", lease, 1000)
        queue.cancel("a")
    else:
        queue.advance(LEASE_MS if end == "reap" else 11 * LEASE_MS)
        queue.tick()
        queue.tick()
    if end == "replay":
        queue.call("replay", "a")
    kept = {"ack": 0, "cancel": 0, "nack": counted("a", 5) + 32}
    assert queue.tenant("ada").bytes == kept.get(end, counted("a", 5))
    Keyspace(queue).check()


def test_what_a_task_enqueued_long_ago_fills_its_tenants_quota(queue: Queue) -> None:
    queue.set_limits("ada", stored_bytes=2 * counted("a") + 103)
    leased(queue)
    queue.note_made("a", *(f"{n:08}".encode() for n in range(13)))
    refused(queue, "quota_exceeded stored_bytes", "enqueue", "ada", "b", b"", b"{}")


def test_repair_counts_what_runs_remember(queue: Queue) -> None:
    leased(queue)
    queue.note_made("a", b"12345678")
    queue.client.hset(queue.key("accounts"), *_with_bytes(queue, 3))
    outcome, number = b"more", b""
    while outcome == b"more":
        outcome, number, *_ = queue.call("repair", number)
    Keyspace(queue).check()


def _with_bytes(queue: Queue, bytes: int) -> tuple[bytes, bytes]:
    client: Any = queue.client
    ((tag, packed_account),) = client.hgetall(queue.key("accounts")).items()
    account = unpack("ACCOUNT", packed_account)
    books = unpack("BOOKS", account.books)
    books.bytes = bytes
    account.books = packed("BOOKS", books)
    return tag, packed("ACCOUNT", account)


def test_a_task_that_is_replaced_has_enqueued_nothing(queue: Queue) -> None:
    lease = leased(queue, key="k")
    queue.note_made("a", b"12345678")
    queue.end("nack", lease, 0)
    assert queue.enqueue("ada", "b", key="k", replace=1) == ["replaced a"]
    Keyspace(queue).check()
    (again,) = queue.claim()
    assert queue.made_by("a", again.lease, b"12345678") == [0]


def test_an_acknowledgement_without_links_runs_no_more_commands(queue: Queue) -> None:
    """Counted over a queue that has never had links, and one that has some in its outbox."""

    def commands(call: Any) -> int:
        def calls() -> dict[str, int]:
            stats = queue.client.info("commandstats")
            return {name: each["calls"] for name, each in stats.items() if name not in ("cmdstat_info",)}

        before = calls()
        call()
        after = calls()
        return sum(after.values()) - sum(before.values())

    plain = commands(lambda: queue.end("ack", first)) if (first := leased(queue)) else 0
    queue.link(leased(queue, "b"), packed_link("c", "next"))
    second = leased(queue, "d")
    assert commands(lambda: queue.end("ack", second)) == plain


BREAKS: dict[str, Any] = {
    "not due": lambda q, name: q.client.zrem(q.key("links:ada"), name),
    "due without a record": lambda q, _: q.client.zadd(q.key("links:ada"), {"ada/link-none": 5}),
    "an address is due": lambda q, _: q.client.zadd(q.key("links:ada"), {name_of("dead"): 5}),
    "another's is due": lambda q, name: q.client.zadd(q.key("links:bob"), {name: 5}),
    "a tenant is not due": lambda q, _: q.client.zrem(q.key("outbox_due"), "ada"),
    "a tenant is due late": lambda q, _: q.client.zadd(q.key("outbox_due"), {"ada": START + DAY_MS}),
    "a tenant without links is due": lambda q, _: q.client.zadd(q.key("outbox_due"), {"bob": 5}),
    "a record is lost": lambda q, name: q.client.hdel(q.key("outbox"), name),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_repair_mends_the_outbox(queue: Queue, broken: str) -> None:
    queue.link(leased(queue), packed_link("b", "next"), packed_link("dead", "next", b"x" * 5000))
    queue.close_link(name_of("dead"), "never")
    queue.enqueue("bob", "other")
    Keyspace(queue).check()
    BREAKS[broken](queue, name_of("b"))
    with pytest.raises(AssertionError):
        Keyspace(queue).check()
    outcome, number = b"more", b""
    while outcome == b"more":
        outcome, number, *_ = queue.call("repair", number)
    Keyspace(queue).check()
    assert queue.queue_state()["links"] == (0 if broken == "a record is lost" else 1)


def test_a_walk_agrees_with_the_model(redis_client: redis.Redis) -> None:
    walk_links(redis_client, 1, 100)


@pytest.mark.deep("longest")
@pytest.mark.timeout(600)
def test_long_walks_agree_with_the_model(redis_client: redis.Redis) -> None:
    walk_links(redis_client, 15, 300)
