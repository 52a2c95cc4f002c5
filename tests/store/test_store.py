"""The typed store: every verb once, on a real one, and the errors that callers must tell apart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
import redis
import trio
from attrs import evolve

from fairq.errors import BadRequest, OutcomeUnknown, StoreFull, StoreRefused, TooOld
from fairq.model.checks import MAX_BATCH
from fairq.model.dead_letters import DeadFilter, DeadLetter, DeadPage
from fairq.model.events import EventPage
from fairq.model.queues import QueueSettings
from fairq.model.tasks import Action, NewTask, Settlement, TaskState
from fairq.store import keys
from fairq.store.opening import open_store
from fairq.store.store import Store
from tests.server.clock import StoreClock

from .cases import case
from .proxy import open_proxy

Q = "emails"


async def put(store: Store, *ids: str, tenant: str = "ada", **options: Any) -> None:
    """Enqueue tasks whose payload is their id."""
    tasks = [NewTask(id, orjson.dumps(id), **options) for id in ids]
    assert await store.enqueue(Q, tenant, tasks) == ["ok"] * len(ids)


async def state(store: Store, id: str) -> TaskState:
    """Read one task's state."""
    (found,) = await store.tasks(Q, [id])
    return found


async def test_enqueue_tells_per_task_what_became_of_it(store: Store) -> None:
    late = NewTask("late", b"1", expires_at_ms=1)
    tasks = [NewTask("a", b"1"), NewTask("a", b"2"), late, NewTask("b", b"3", delay_ms=60_000)]
    assert await store.enqueue(Q, "ada", tasks) == ["ok", "duplicate", "expired", "ok"]
    queue = await store.queue(Q)
    assert (queue.ready, queue.delayed, queue.enqueued) == (1, 1, 2)
    assert await store.queues() == [Q]


async def test_claim_leases_what_was_enqueued(store: Store) -> None:
    await put(store, "a", max_attempts=7)
    claim = await store.claim(Q, "worker-1", 10)
    (lease,) = claim.leases
    assert claim.lease_ms == 30_000
    assert (lease.id, lease.attempt, lease.max_attempts, lease.tenant, lease.payload) == ("a", 1, 7, "ada", b'"a"')
    assert lease.enqueued_at_ms > 1_600_000_000_000
    assert (lease.start_at_ms, lease.expires_at_ms) == (0, 0)
    leased = await state(store, "a")
    assert (leased.state, leased.worker, leased.attempt) == ("leased", "worker-1", 1)
    assert leased.at_ms >= lease.enqueued_at_ms + claim.lease_ms
    assert (await store.claim(Q, "worker-2", 1)).leases == []


async def test_settle_ends_leases_each_in_its_way(store: Store) -> None:
    await put(store, "acked", "nacked", "backoff", "rejected", "released", "extended")
    numbers = {lease.id: lease.lease for lease in (await store.claim(Q, "w", 10)).leases}
    assert len(set(numbers.values())) == 1
    settlements = [
        Settlement("ack", "acked", numbers["acked"]),
        Settlement("nack", "nacked", numbers["nacked"], 60_000, "later"),
        Settlement("nack", "backoff", numbers["backoff"]),
        Settlement("reject", "rejected", numbers["rejected"], None, "never"),
        Settlement("release", "released", numbers["released"]),
        Settlement("extend", "extended", numbers["extended"]),
    ]
    assert await store.settle(Q, settlements) == ["ok"] * 6
    assert await store.settle(Q, settlements[:1]) == ["gone"]
    states = {found.id: found for found in await store.tasks(Q, list(numbers))}
    assert {id: found.state for id, found in states.items()} == {
        "acked": "done", "nacked": "delayed", "backoff": "delayed", "rejected": "dead", "released": "ready",
        "extended": "leased",
    }  # fmt: skip
    assert states["nacked"].error == "later"
    assert (states["rejected"].reason, states["rejected"].error) == ("rejected", "never")


async def test_an_id_that_is_used_again_does_not_bring_an_old_lease_back(store: Store) -> None:
    await put(store, "a")
    (first,) = (await store.claim(Q, "slow", 1)).leases
    await store.write_progress(Q, "a", first.lease, 0.9, "of the first")
    await store.settle(Q, [Settlement("reject", "a", first.lease)])
    await store.purge(Q, ["a"])
    await put(store, "a")
    (second,) = (await store.claim(Q, "quick", 1)).leases
    assert (second.attempt, first.attempt) == (1, 1)
    assert await store.settle(Q, [Settlement("ack", "a", first.lease)]) == ["stale"]
    known = await state(store, "a")
    assert (known.state, known.worker, known.progress) == ("leased", "quick", 0)
    await store.write_progress(Q, "a", second.lease, 0.1, "of the second")
    assert (await state(store, "a")).progress_text == "of the second"


async def test_tick_promotes_expires_and_reaps_and_says_when_to_come_again(
    store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StoreClock(monkeypatch, Q)
    clock.govern(store_url)
    await store.configure(Q, {"lease_ms": 100})
    await put(store, "leased")
    await store.claim(Q, "w", 1)
    await put(store, "soon", delay_ms=40)
    await put(store, "late", delay_ms=60_000)
    await put(store, "brief", expires_in_ms=50)
    first = await store.tick(Q)
    assert (first.promoted, first.expired, first.reaped, first.next_due_ms) == (0, 0, 0, first.now_ms + 40)
    clock.move(clock.now_ms + 100)
    done = await store.tick(Q)
    assert (done.promoted, done.expired, done.reaped) == (1, 1, 1)
    assert (await store.queue(Q)).ready == 2
    assert (await state(store, "brief")).reason == "expired"


async def test_a_feed_tells_of_those_who_asked_and_where_it_goes_on(store: Store) -> None:
    await store.configure(Q, {"events_keep": 2})
    assert await store.events(Q, "ada", 0, 10) == EventPage(1, 0, [])
    await put(store, "plain", "told", "failed")
    await store.enqueue(Q, "ada", [NewTask(f"ada/{id}", b"1", events=True) for id in ("a", "b")])
    await store.open_batch(Q, "ada", "ada/batch", 0, (b"", b"", b""), events=True)
    leases = (await store.claim(Q, "w", 10)).leases
    await store.settle(Q, [Settlement("reject", lease.id, lease.lease, None, "ö" * 200) for lease in leases[3:4]])
    page = await store.events(Q, "ada", 0, 10)
    assert [(e.id, e.event, e.task, e.attempt, e.detail) for e in page.events] == [
        (1, "failed", "ada/a", 1, "ö" * 128),
        (2, "dead", "ada/a", 1, "rejected"),
    ]
    assert page.events[0].at_ms > 1_600_000_000_000
    await store.settle(Q, [Settlement("ack", "ada/b", leases[-1].lease)])
    await store.close_batch(Q, "ada/batch")
    page = await store.events(Q, "ada", 2, 10)
    assert [(e.id, e.event, e.task, e.batch) for e in page.events] == [
        (3, "done", "ada/b", ""),
        (4, "batch_completed", "", "ada/batch"),
    ]
    assert (page.oldest, page.newest) == (3, 4)
    with pytest.raises(TooOld, match=r"after event 1 .* goes on from event 3"):
        await store.events(Q, "ada", 1, 10)
    with pytest.raises(BadRequest, match="newest event is 4"):
        await store.events(Q, "ada", 5, 10)


async def test_configure_changes_all_settings_or_none(store: Store) -> None:
    assert (await store.queue(Q)).settings == QueueSettings()
    await store.configure(Q, {"share": "count", "lease_ms": 1_000, "dead_keep": 0})
    assert (await store.queue(Q)).settings == QueueSettings(share="count", lease_ms=1_000, dead_keep=0)
    with pytest.raises(BadRequest) as caught:
        await store.configure(Q, {"max_attempts": 9, "lease_ms": 1})
    assert caught.value.field == "lease_ms"
    assert (await store.queue(Q)).settings.max_attempts == 5


async def test_dead_letters_are_listed_replayed_and_purged(store: Store) -> None:
    await put(store, "a", "b", max_attempts=1)
    leases = (await store.claim(Q, "w", 2)).leases
    nacks = [Settlement("nack", lease.id, lease.lease, None, f"no {lease.id}") for lease in leases]
    await store.settle(Q, [each._replace(traceback=f"in {each.id}\né") for each in nacks])
    letters = (await store.dead(Q)).letters
    assert [d.traceback for d in letters] == [f"in {d.id}\né" for d in letters]
    assert sorted((d.id, d.tenant, d.reason, d.attempts, d.error) for d in letters) == [
        ("a", "ada", "exhausted", 1, "no a"), ("b", "ada", "exhausted", 1, "no b"),
    ]  # fmt: skip
    assert all(isinstance(d, DeadLetter) and d.died_at_ms >= d.enqueued_at_ms > 0 for d in letters)
    assert {d.payload for d in letters} == {b'"a"', b'"b"'}
    page = await store.dead(Q, DeadFilter("ada", error="no"), count=1, brief=True)
    assert (page.letters, page.left) == ([evolve(letters[0], enqueued_at_ms=0, payload=None, traceback="")], 1)
    assert [d.id for d in (await store.dead(Q, cursor=page.cursor)).letters] == [letters[1].id]
    letter = await store.dead_letter(Q, "b")
    assert letter is not None
    assert (letter.error, letter.payload) == ("no b", b'"b"')
    assert await store.dead_letter(Q, "nobody") is None
    assert await store.replay(Q, ["a", "nobody"]) == ["ok", "gone"]
    assert await store.purge(Q, ["b", "a"]) == ["ok", "gone"]
    assert await store.dead(Q) == DeadPage([], "", 0)
    assert [lease.id for lease in (await store.claim(Q, "w", 2)).leases] == ["a"]


async def test_tasks_of_many_batches_with_long_callbacks_take_several_calls(store: Store) -> None:
    ids, long = [f"a{n}" for n in range(20)], b"c" * 65_535
    for id in ids:
        assert await store.open_batch(Q, "ada", f"batch-{id}", 0, [long] * 3)
    tasks = [NewTask(id, b"1", batch=f"batch-{id}") for id in ids]
    assert await store.enqueue(Q, "ada", tasks) == ["ok"] * 20
    assert await store.enqueue(Q, "ada", tasks) == ["duplicate"] * 20
    assert await store.reschedule(Q, ids, delay_ms=60_000) == ["ok"] * 20
    assert await store.cancel_waiting(Q, ids[:10]) == 10
    assert await store.cancel(Q, ids) == ["gone"] * 10 + ["ok"] * 10


async def test_tasks_nobody_knows_are_unknown(store: Store) -> None:
    assert await state(store, "nobody") == TaskState("nobody", "unknown")


async def test_tenants_are_read_page_by_page(store: Store) -> None:
    names = [f"t{number}" for number in range(2 * MAX_BATCH + 7)]
    for name in names:
        await put(store, f"id-{name}", tenant=name)
    assert [row.tenant for row in await store.tenants(Q)] == sorted(names)


async def test_tokens_are_written_once_and_their_end_is_announced(store: Store, store_url: str) -> None:
    heard = trio.Event()

    def listen(channel: str, _: str) -> None:
        if channel == keys.REVOKED:
            heard.set()

    with trio.fail_after(30):
        async with open_store(store_url, on_message=listen) as other:
            await other.subscription.add(keys.REVOKED, sharded=False)
            assert await store.tokens.write("abcd", b"{}") is True
            assert await store.tokens.write("abcd", b"other") is False
            assert await other.tokens.read("abcd") == {"abcd": b"{}"}
            assert await other.tokens.read("none") == {}
            assert await store.tokens.delete("abcd") is True
            assert await store.tokens.delete("abcd") is False
            assert await other.tokens.read() == {}
            await heard.wait()


async def test_a_full_store_takes_no_tasks_but_can_be_drained(store: Store, redis_client: redis.Redis) -> None:
    await put(store, "a", "b", max_attempts=1)
    redis_client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull):
            await store.enqueue(Q, "ada", [NewTask("c", b"1")])
        assert (await state(store, "c")).state == "unknown"
        leases = (await store.claim(Q, "w", 2)).leases
        ends: tuple[Action, Action] = ("ack", "reject")
        ended = [Settlement(action, each.id, each.lease) for action, each in zip(ends, leases, strict=True)]
        assert await store.settle(Q, ended) == ["ok", "ok"]
        await store.tick(Q)
        await store.pause(Q, "ada")
        with pytest.raises(StoreFull):
            await store.replay(Q, [leases[1].id])
        assert await store.purge(Q, [leases[1].id]) == ["ok"]
    finally:
        redis_client.config_set("maxmemory", 0)
    await put(store, "c")


async def test_what_the_library_refuses_names_the_field(store: Store) -> None:
    cases: list[tuple[Callable[[Store], Awaitable[object]], str]] = [
        (lambda store: store.enqueue(Q, "a b", [NewTask("a", b"1")]), "tenant"),
        (lambda store: store.enqueue(Q, "ada", []), "tasks"),
        (lambda store: store.claim(Q, "w", 0), "limit"),
        (lambda store: store.claim(Q, "w", MAX_BATCH + 1), "limit"),
        (lambda store: store.settle(Q, []), "settlements"),
        (lambda store: store.settle(Q, [Settlement("nack", "a", 1, -1)]), "delay_ms"),
        (lambda store: store.set_weight(Q, "ada", 1e9), "weight"),
        (lambda store: store.configure(Q, {"colour": 1}), "colour"),
        (lambda store: store.dead(Q, count=MAX_BATCH + 1), "count"),
        (lambda store: store.dead(Q, cursor="x"), "cursor"),
        (lambda store: store.replay(Q, []), "ids"),
    ]
    for call, field in cases:
        with case(call, field):
            with pytest.raises(BadRequest) as caught:
                await call(store)
            assert caught.value.field == field


async def test_an_error_of_the_store_itself_is_told_as_such(store: Store, redis_client: redis.Redis) -> None:
    redis_client.set(f"{keys.queue_prefix(Q)}:tasks", "not a hash")
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        await store.enqueue(Q, "ada", [NewTask("a", b"1")])


async def test_a_claim_whose_reply_was_lost_is_given_once_more(store_port: int) -> None:
    with trio.fail_after(30):
        async with open_proxy(store_port) as proxy, open_store(f"redis://127.0.0.1:{proxy.port}/0") as store:
            await put(store, "a", "b", "c")
            proxy.lose_next_reply()
            with pytest.raises(OutcomeUnknown):
                await store.claim(Q, "server-1/7", 2)
            await store.connection.wait_connected()
            again = await store.claim(Q, "server-1/7", 2, again=True)
            assert sorted(lease.id for lease in again.leases) == ["a", "b"]
            assert {lease.attempt for lease in again.leases} == {1}
            assert [lease.id for lease in (await store.claim(Q, "server-1/8", 2)).leases] == ["c"]
            assert (
                await store.settle(Q, [Settlement("ack", each.id, each.lease) for each in again.leases]) == ["ok"] * 2
            )


async def test_an_enqueue_whose_reply_was_lost_can_be_repeated(store_port: int) -> None:
    with trio.fail_after(30):
        async with open_proxy(store_port) as proxy, open_store(f"redis://127.0.0.1:{proxy.port}/0") as store:
            await store.pause("other")
            await store.enqueue(Q, "ada", [NewTask("first", b"1")])
            proxy.lose_next_reply()
            with pytest.raises(OutcomeUnknown):
                await store.enqueue(Q, "ada", [NewTask("a", b"1")])
            await store.connection.wait_connected()
            assert await store.enqueue(Q, "ada", [NewTask("a", b"1")]) == ["duplicate"]
            assert (await store.queue(Q)).ready == 2
