"""The limit `stored_bytes`: whatever a tenant does, and whatever becomes of its tasks, the store has no more of it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import redis

from fairq.model.queue.limits import BATCH_BYTES, CUT, CUT_AT, EVENT_COST, RESULTS_BYTES, bytes_of
from fairq.model.queue.remembered import LONG_MINUTES, bytes_of_id

from .calls import Leased, Queue, counted, load_variant, options, packed_link, refused
from .keyspace import Keyspace

DAY = 86_400_000
MOST = 200_000
LONG = dict.fromkeys(("dedupe_key", "group", "name"), 250)
ALL_OPTIONS: dict[str, Any] = {"dedupe_period": DAY, "result_ttl": DAY, "expires_in": DAY, "events": 1, "priority": 9}
SAID = "é" * 3000  # a result, an error or a traceback: 6,000 bytes


def fill(queue: Queue, width: int, texts: dict[str, int], given: dict[str, Any]) -> int:
    """Enqueue tasks of one byte until they are refused; how many there are."""
    for n in itertools.count():
        try:
            own = {name: f"{n:0{size}}" for name, size in texts.items()}
            queue.enqueue("ada", f"{n:0{width}}", payload=b"1", **given, **own)
        except redis.ResponseError:
            return n
    raise AssertionError


def taken(queue: Queue) -> int:
    """Add up what the store really takes."""
    client: Any = queue.client
    return sum(client.memory_usage(key, samples=0) for key in client.keys("*"))


def kept(queue: Queue, most: float = MOST) -> int:
    """Tell what the tenant counts, which is within its limit."""
    Keyspace(queue).check()
    total = int(queue.tenant("ada").bytes)
    assert total <= most
    return total


def one(queue: Queue, id: str = "a", **given: Any) -> Leased:
    """Lease a task."""
    queue.enqueue("ada", id, **given)
    return queue.claim()[0]


def leave_room(queue: Queue, bytes: int) -> None:
    """Lower or raise the limit, so that so much room is left."""
    queue.set_limits("ada", stored_bytes=int(queue.tenant("ada").bytes) + bytes)


@pytest.mark.one_store
@pytest.mark.parametrize("end", ["", "claim", "ack", "reject", "nack", "release"])
@pytest.mark.parametrize("said", ["", SAID], ids=["short", "long"])
@pytest.mark.parametrize(
    ("width", "texts", "given"),
    [
        (1, {}, {}),
        (100, {}, {}),
        (250, {}, {"delay": 1}),
        (1, {}, {"events": 1, "result_ttl": DAY}),
        (100, {"group": 4}, {}),
        (250, LONG, ALL_OPTIONS),
        (250, {"dedupe_key": 4, "group": 4}, ALL_OPTIONS),
    ],
    ids=str,
)
def test_a_tenant_at_its_limit_takes_no_more_of_the_store(
    queue: Queue, width: int, texts: dict[str, int], given: dict[str, Any], end: str, said: str
) -> None:
    queue.set_limits("ada", stored_bytes=MOST)
    n = fill(queue, width, texts, given)
    assert MOST / 10 < taken(queue) < MOST, taken(queue) / n
    queue.advance(1)
    queue.tick()
    for lease in queue.claim(n) if end else []:
        if end != "claim":
            queue.end(end, lease, DAY if end in ("nack", "release") else "", said, said)
            assert queue.tenant("ada").bytes <= MOST
    kept(queue)
    assert taken(queue) < MOST, taken(queue) / n


def test_a_result_for_which_there_is_no_room_is_dropped_and_says_so(queue: Queue) -> None:
    for n, (id, more) in enumerate((("a", 5999), ("b", 6000))):
        lease = one(queue, id, result_ttl=DAY)
        task = int(queue.tenant("ada").bytes) - n * (bytes_of("a", 0) + bytes_of_id("a"))
        leave_room(queue, more - (task - bytes_of(id, 0) - bytes_of_id(id)))
        assert queue.end("ack", lease, "", SAID) == "ok"
        assert queue.end("ack", lease, "", SAID) == "gone"
    assert queue.call("results", "a", "b", "c") == [b"", SAID.encode(), None]
    assert kept(queue, 10**6) == bytes_of("a", 0) + bytes_of("b", 6000) + 2 * bytes_of_id("a")
    queue.advance(DAY + 1)
    queue.tick()
    assert queue.call("results", "a", "b") == [None, None]
    assert kept(queue) == 0, "its time is over, and there is room again"


def test_an_error_for_which_there_is_no_room_is_cut_and_says_so(queue: Queue) -> None:
    lease = one(queue)
    before = kept(queue)
    leave_room(queue, 2047)
    queue.end("nack", lease, 0, SAID)
    cut = SAID.encode()[:CUT_AT].decode() + CUT
    assert queue.tasks("a")[0].error == cut
    assert kept(queue) == before
    leave_room(queue, 2048)
    queue.end("nack", queue.claim()[0], 0, SAID)
    assert kept(queue) == before + 2048
    queue.end("release", queue.claim()[0], 0, "boom")
    assert kept(queue) == before + 4, "another one takes its place"
    leave_room(queue, 2048 - 4)
    queue.end("reject", queue.claim()[0], "", SAID, SAID)
    (letter,) = Keyspace(queue).dead.values()
    assert (letter.error.encode()[:2048], letter.traceback) == (SAID.encode()[:2048], CUT.encode())
    assert kept(queue) == before + 2048
    leave_room(queue, 6000)
    queue.call("replay", "a")
    assert kept(queue) == before
    leave_room(queue, 4 + 6000)
    queue.end("reject", queue.claim()[0], "", "boom", SAID)
    assert kept(queue) == before + 4 + 6000
    queue.call("purge", "a")
    assert kept(queue) == bytes_of_id("a")


def test_an_error_that_looks_as_if_it_was_cut_counts_what_is_longer(queue: Queue) -> None:
    lease = one(queue)
    before = kept(queue)
    queue.end("nack", lease, 0, "a" * (CUT_AT + 1) + CUT)
    assert kept(queue) == before + CUT_AT + 1 + len(CUT)


def test_a_feed_keeps_the_newest_events_for_which_there_is_room(queue: Queue) -> None:
    queue.enqueue("ada", "z", payload=b"x" * 20_000)
    queue.claim()
    lease = one(queue, events=1)
    leave_room(queue, 10 * EVENT_COST)
    for n in range(15):
        queue.end("nack", lease, 0, f"{n}")
        (lease,) = queue.claim()
    first, last, *events = queue.call("events", "ada", 0, 100)
    assert (last - first + 1, last, len(events)) == (9, 15, 9), "the error has the room of the tenth"
    leave_room(queue, -EVENT_COST)
    queue.end("nack", lease, 0, f"{n}")
    assert queue.call("events", "ada", 0, 100)[:2] == [9, 16], "a lowered limit: two have gone for one that came"


def test_events_take_no_more_than_half_of_a_limit(queue: Queue) -> None:
    lease = one(queue, events=1)
    queue.set_limits("ada", stored_bytes=20 * EVENT_COST)
    for _ in range(15):
        queue.end("nack", lease, 0)
        (lease,) = queue.claim()
    assert queue.call("events", "ada", 0, 100)[:2] == [6, 15]
    queue.enqueue("ada", "b", payload=b"x" * 5000)
    kept(queue, 20 * EVENT_COST)


@pytest.mark.parametrize("how", ["ack", "reject"])
def test_there_is_room_for_the_callbacks_of_a_batch(queue: Queue, how: str) -> None:
    payload = "x" * 3000
    queue.set_limits("ada", stored_bytes=20_000)
    queue.open_batch("b", complete=payload, success=payload, death=payload)
    queue.enqueue("ada", "a", batch="b", max_attempts=1)
    fill(queue, 1, {}, {})
    before = kept(queue, 20_000)
    leases = queue.claim(500)
    queue.end(how, next(lease for lease in leases if lease.id == "a"))
    queue.call("close_batch", "b")
    assert len([id for id in Keyspace(queue).records if id.startswith("b-")]) == 2
    assert kept(queue, 20_000) <= before, "that of success may still come where the dead one is replayed"


def test_the_callbacks_that_did_not_come_leave_their_room(queue: Queue) -> None:
    queue.open_batch("b", death="x" * 3000)
    queue.call("close_batch", "b")
    assert kept(queue) == bytes_of("b", BATCH_BYTES + RESULTS_BYTES)


def test_keys_that_are_held_for_a_period_have_room_before_they_are_stored(queue: Queue) -> None:
    room, given = 2 * (counted("a", key="k") + bytes_of("k", 1)), options(dedupe_key="k", dedupe_period=DAY)
    tasks = [part for id in "ab" for part in (id, given.replace(b"k", id.encode()), b"{}")]
    queue.set_limits("ada", stored_bytes=room - 1)
    refused(queue, "quota_exceeded", "enqueue", "ada", *tasks)
    queue.set_limits("ada", stored_bytes=room)
    assert queue.call("enqueue", "ada", *tasks) == [b"ok", b"ok"]
    assert kept(queue, room) == room


@pytest.mark.parametrize("room", [0, 1])
def test_a_result_leaves_the_room_that_links_were_promised(queue: Queue, room: int) -> None:
    lease = one(queue, result_ttl=DAY, events=1)
    most = max(kept(queue), counted("b", 1000) + bytes_of("a", 0) + bytes_of_id("a") + 4 * room)
    link = packed_link("b", b"x" * 1000)
    queue.set_limits("ada", stored_bytes=most - 4 * room - 1)
    refused(queue, "quota_exceeded", "settle_linked", lease.id, lease.lease, b"null", *link)
    queue.set_limits("ada", stored_bytes=most)
    assert queue.link(lease, link) == "ok"
    assert queue.call("results", "a") == [b"null" if room else b""]
    assert queue.call("events", "ada", 0, 100)[:2] == [2, 1]
    assert kept(queue, most) == most


def test_events_of_replaced_tasks_leave_the_room_of_new_ones(queue: Queue) -> None:
    queue.enqueue("ada", "a", dedupe_key="k", events=1)
    queue.set_limits("ada", stored_bytes=kept(queue) + bytes_of_id("a"))
    assert queue.enqueue("ada", "b", dedupe_key="k", events=1, replace=1) == ["replaced"]
    assert queue.call("events", "ada", 0, 100)[:2] == [2, 1]
    kept(queue, queue.tenant("ada").bytes)


def test_a_lowered_limit_drops_what_comes_and_nothing_that_is_kept(queue: Queue) -> None:
    leases = [one(queue, id, result_ttl=DAY) for id in "abc"]
    queue.end("ack", leases[0], "", SAID)
    queue.set_limits("ada", stored_bytes=1000)
    queue.end("ack", leases[1], "", SAID)
    queue.end("reject", leases[2], "", SAID, SAID)
    assert queue.call("results", "a", "b") == [SAID.encode(), b""]
    assert Keyspace(queue).dead["c"].error.endswith(CUT)
    queue.set_limits("ada", stored_bytes=0)
    queue.end("ack", one(queue, "d", result_ttl=DAY), "", SAID)
    assert queue.call("results", "d") == [SAID.encode()], "0: no limit"


def test_letters_and_batches_of_earlier_versions_count_as_they_did(redis_client: redis.Redis) -> None:
    load_variant(
        redis_client,
        "earlier",
        ("counted = errors.bytes_of(run.error) + more})", "counted = 0})"),
        ("add_bytes(call, account, more)\n  queue.buried", "add_bytes(call, account, -#run.error)\n  queue.buried"),
        ("reserves = 1}", "reserves = 0}"),
        ("  batches.name_results(batch)\n", ""),
    )
    earlier, queue = Queue(redis_client, version="earlier"), Queue(redis_client)
    earlier.end("reject", one(earlier), "", "boom", "trace")
    earlier.open_batch("b", complete="1", death="x" * 100)
    assert queue.tenant("ada").bytes == counted("a") + bytes_of("b", 101)
    assert queue.call("purge", "a") == [b"ok"]
    queue.call("close_batch", "b")
    queue.cancel(*(id for id in Keyspace(queue).records))
    queue.advance(DAY + 1)
    queue.tick()
    assert kept(queue) == 0


def end(queue: Queue, how: str, ids: list[str]) -> None:
    """Bring waiting tasks to an end, so that only their ids are left."""
    if how == "cancel":
        queue.cancel(*ids)
        return
    leases = queue.claim(len(ids))
    queue.settle(*(("ack" if how == "ack" else "reject", lease.id, lease.lease) for lease in leases))
    if how == "purge":
        queue.call("purge", *ids)


@pytest.mark.one_store
@pytest.mark.parametrize(("prefix", "minutes"), [("", 2), ("ada/from-", 2 * LONG_MINUTES)])
@pytest.mark.parametrize("width", [10, 36, 46, 120, 255])
@pytest.mark.parametrize("how", ["cancel", "ack", "purge"])
def test_ids_that_are_remembered_are_inside_the_limit(
    queue: Queue, how: str, width: int, prefix: str, minutes: int
) -> None:
    queue.set_limits("ada", stored_bytes=MOST)
    for n in range(0, 100_000, 50):
        ids = [f"{prefix}{n + m:0{width - len(prefix)}}" for m in range(50)]
        try:
            queue.enqueue("ada", *ids, payload=b"1")
        except redis.ResponseError:
            break
        end(queue, how, ids)
        assert kept(queue) <= MOST
    assert MOST / 2 < taken(queue) < MOST, taken(queue) / n
    for _ in range(2 * minutes):
        assert queue.tenant("ada").bytes > 0 or not queue.queue_state()["remembered"], "it counts while it is there"
        queue.advance(30_000)
        while 0 < queue.tick(500).next_due <= queue.now:
            pass
    assert queue.queue_state()["remembered"] == queue.tenant("ada").bytes == 0


def test_an_id_counts_while_a_later_one_comes(queue: Queue) -> None:
    """Of each minute and each hour what came counts until the next is over, in open books and packed ones."""
    sizes = []
    for n, hours in enumerate((0, 0, 0, LONG_MINUTES, LONG_MINUTES, 3 * LONG_MINUTES)):
        queue.advance(60_000 * (hours or 1))
        leases = [one(queue, id) for id in (f"{n}", f"ada/from-{n}")]
        queue.settle(*(("ack", lease.id, lease.lease) for lease in leases))
        sizes.append(kept(queue) - bytes_of_id("0"))
    of_short, of_long = bytes_of_id("0"), bytes_of_id("ada/from-0")
    assert sizes[:3] == [of_long, of_short + 2 * of_long, of_short + 3 * of_long]
    assert sizes[3:] == [4 * of_long, 2 * of_long, of_long]


def test_ids_count_nothing_more_where_the_clock_goes_back(queue: Queue) -> None:
    queue.advance(7 * DAY)
    queue.end("ack", one(queue))
    queue.advance(-7 * DAY)
    assert queue.tenant("ada").bytes == 0
    queue.end("ack", one(queue, "b"))
    assert kept(queue) == bytes_of_id("b")


def test_the_ids_of_copies_count_for_the_tenant_of_their_task(queue: Queue) -> None:
    queue.enqueue("ada", "ada/a", delay=DAY)
    copy = f"ada/a+3f2a81c0-{queue.now}"
    queue.end("ack", one(queue, copy))
    before = counted("ada/a")
    for _ in range(200):
        assert queue.state(copy) == "done"
        assert 1 <= (kept(queue) - before) / bytes_of_id(copy) <= 3, "what is named anew counts anew"
        queue.advance(60_000)
        queue.tick()


def test_older_servers_leave_what_ids_count_as_it_is(redis_client: redis.Redis) -> None:
    load_variant(redis_client, "earlier", ("    later = remembered.add(call, later, id)\n", ""))
    earlier, queue = Queue(redis_client, version="earlier"), Queue(redis_client)
    for each, id in ((queue, "a"), (earlier, "b"), (queue, "c"), (earlier, "d")):
        each.end("ack", one(each, id))
    assert kept(queue) == 2 * bytes_of_id("a")
