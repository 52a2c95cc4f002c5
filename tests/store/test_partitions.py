"""Queues with partitions: where tenants live, and that such a queue answers as one with one partition does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import redis
import trio
from attrs import evolve
from redis.crc import key_slot

from fairq.errors import Deleting, NotEmpty
from fairq.model.checks import owner_of
from fairq.model.dead_letters import DeadFilter
from fairq.model.limits import OpeningHours
from fairq.model.places import queue_of
from fairq.model.schedules import Timing
from fairq.model.tasks import NewTask, Settlement
from fairq.model.waiting import PAUSED
from fairq.store import keys
from fairq.store.changing import change_in_turn
from fairq.store.partitions import MAX_PARTITIONS, place_in, places_of
from fairq.store.store import Store
from fairq.store.topology import SLOTS
from tests.store.waiting import wait_until

TENANTS = [f"t{n}" for n in range(9)]
HOURLY = Timing(every_ms=3_600_000)


@pytest.mark.parametrize("partitions", [1, 2, 3, 12, MAX_PARTITIONS])
def test_the_places_of_a_queue_are_spread_over_the_slots(partitions: int) -> None:
    places = places_of("emails", partitions)
    assert {queue_of(place) for place in places} == {"emails"}
    if partitions > 1:  # one anywhere
        slots = [key_slot(keys.queue_prefix(place).encode()) for place in places]
        assert [slot * partitions // SLOTS for slot in slots] == list(range(partitions))


def test_tenants_are_spread_over_the_places() -> None:
    places = places_of("emails", 12)
    tenants = Counter(place_in(places, f"customer-{n}") for n in range(12_000))
    assert set(tenants) == set(places)
    assert max(tenants.values()) < 1.1 * 1_000 < 1.2 * min(tenants.values())


def test_queues_with_other_numbers_of_partitions_share_no_place() -> None:
    known = [place for partitions in (1, 6, 12, 64) for place in places_of("emails", partitions)]
    assert len(set(known)) == 1 + 6 + 12 + 64


class Pair:
    """The same calls of two queues, one with other partitions; the answers must be the same."""

    def __init__(self, store: Store, seed: int, queues: Sequence[str] = ("one", "many")) -> None:
        self.store, self.random = store, random.Random(seed)
        self.ids: list[str] = []
        self.leases: dict[str, dict[str, int]] = {queue: {} for queue in queues}

    async def same(self, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Call for both, `call(queue, *args)`, and compare."""
        first, *others = [await call(queue, *args) for queue in self.leases]
        assert others == [first] * len(others)
        return first

    def some(self, count: int = 5) -> list[str]:
        """Choose some tasks, known ones mostly."""
        return [
            self.random.choice([*self.ids, "t0/unknown", "t1/unknown"]) for _ in range(self.random.randrange(count))
        ]

    async def step(self) -> None:
        """Make a call."""
        await self.random.choice([self.enqueue, self.claim, self.settle, self.change, self.set, self.read])()

    async def enqueue(self) -> None:
        tenant = self.random.choice(TENANTS)
        options: dict[str, Any] = self.random.choice([
            {}, {"delay_ms": 60_000}, {"name": "n"}, {"result_ttl_ms": 10**8}, {"events": True}, {"priority": 3},
            {"group": "g"}, {"dedupe_key": "k"}, {"dedupe_key": "p", "dedupe_period_ms": 10**8},
        ])  # fmt: skip
        ids = [f"{tenant}/x{len(self.ids) + n}" for n in range(self.random.randrange(1, 4))]
        tasks = [NewTask(id, b"1", **options) for id in ids]
        await self.same(self.store.enqueue, tenant, tasks)
        self.ids += ids

    async def claim(self) -> None:
        async def claim_all(queue: str) -> dict[str, int]:
            places = await self.store.registry.places(queue)
            claims = [await self.store.claim(place, "w", 150) for place in places]
            self.leases[queue] |= {lease.id: lease.lease for claim in claims for lease in claim.leases}
            return {lease.id: lease.attempt for claim in claims for lease in claim.leases}

        await self.same(claim_all)

    async def settle(self) -> None:
        of = self.leases
        chosen = [id for id in self.some(9) if all(id in leases for leases in of.values())]
        action: Any = self.random.choice(["ack", "nack", "reject", "release", "extend"])
        if chosen := list(dict.fromkeys(chosen)):
            await self.same(
                lambda queue: self.store.settle(
                    queue, [Settlement(action, id, of[queue][id], result=b"7" * (action == "ack")) for id in chosen]
                )
            )

    async def change(self) -> None:
        ids = list(dict.fromkeys(self.some()))
        call = self.random.choice([self.store.cancel, self.store.replay, self.store.purge, self.store.reschedule])
        if ids:
            await self.same(call, ids)

    async def set(self) -> None:
        store, tenant = self.store, self.random.choice([*TENANTS, ""])
        name, weight, is_paused = (
            f"s{self.random.randrange(3)}",
            self.random.randrange(1, 9),
            self.random.random() < 0.3,
        )
        calls: list[tuple[Any, ...]] = [
            (store.set_limits, tenant, {"max_running": weight}),
            (store.set_paused, tenant, is_paused),
            (partial(_configure, store), {"max_attempts": weight}),
            (store.set_opening_hours, OpeningHours(tenant, "", True, 0)),
            (store.set_opening_hours, OpeningHours(tenant, "mon-fri 08:00-18:00 UTC", True, 10**13)),
            (partial(_add_webhook, store), f"https://{name}.example/"),
        ]
        if tenant:
            calls += [
                (store.set_weight, tenant, weight),
                (store.open_batch, tenant, f"{tenant}/{name}", 0, [b"", b"", b""]),
                (store.schedule, tenant, name, HOURLY, 10**13, "skip", NewTask("", b"1")),
                (store.unschedule, tenant, name),
            ]
        await self.same(*self.random.choice(calls))

    async def read(self) -> None:
        """Compare all that can be read."""
        store, ids = self.store, ["t0/first", *self.some(20)]
        await self.same(partial(_counts, store))
        await self.same(partial(_states, store), ids)
        await self.same(store.results, list(dict.fromkeys(ids)))
        for tenant in [*TENANTS, ""]:
            await self.same(store.limits, tenant)
            await self.same(partial(_hours, store), tenant)
        for tenant in TENANTS:
            await self.same(partial(_events, store), tenant)
        await self.same(partial(_webhooks, store))
        await self.same(partial(_tenants, store))
        await self.same(partial(_walked_tenants, store))
        await self.same(partial(_dead, store))
        await self.same(partial(_batches, store))
        await self.same(partial(_schedules, store))
        await self.same(partial(_peeked, store))


async def _counts(store: Store, queue: str) -> Any:
    state = await store.queue(queue)
    numbers = await store.numbers(queue)
    return (
        evolve(state.settings, partitions=1),
        state.ready,
        state.delayed,
        state.leased,
        state.dead,
        state.done,
        state.is_paused,
        set(numbers),
    )


async def _configure(store: Store, queue: str, changes: dict[str, Any]) -> Any:
    return evolve(await store.configure(queue, changes), partitions=1)


async def _add_webhook(store: Store, queue: str, url: str) -> str:
    return await store.add_webhook(queue, url, "", has_fan_out=False, secrets=())


async def _webhooks(store: Store, queue: str) -> Any:
    return sorted(each.url for each in await store.webhooks(queue))


async def _hours(store: Store, queue: str, tenant: str) -> Any:
    _, found = await store.opening_hours(queue, [tenant])
    return [(each.tenant, each.text, each.is_open, each.changes_at_ms) for each in found]


async def _events(store: Store, queue: str, tenant: str) -> Any:
    page = await store.events(queue, tenant, 0, 500)
    return page.oldest, page.newest, [(each.id, each.event, each.task, each.attempt) for each in page.events]


async def _states(store: Store, queue: str, ids: list[str]) -> Any:
    states = [(each.id, each.state, each.attempt) for each in await store.tasks(queue, ids)]
    return states, [(await store.why(queue, id)).state for id in ids]


async def _tenants(store: Store, queue: str) -> Any:
    named = await store.tenants(queue, TENANTS[::2])
    every = await store.tenants(queue)
    return [
        [(each.tenant, each.weight, each.ready, each.leased, each.is_paused) for each in rows]
        for rows in (named, every)
    ]


async def _walked_tenants(store: Store, queue: str) -> Any:
    cursor, found = "", list[str]()
    while True:
        page = await store.list_tenants(queue, cursor, 1)
        found += [each.tenant for each in page.tenants]
        if not (cursor := page.cursor):
            return sorted(found)


async def _dead(store: Store, queue: str) -> Any:
    found = []
    for tenant in (None, "t0", "t1"):
        cursor, letters = "", list[Any]()
        while True:
            page = await store.dead(queue, DeadFilter(tenant=tenant), cursor, 2)
            letters += page.letters
            if not (cursor := page.cursor):
                break
        assert [(each.died_at_ms, each.id) for each in letters] == sorted(
            (each.died_at_ms, each.id) for each in letters
        )
        found.append(sorted((each.id, each.reason, each.attempts) for each in letters))
    return found


async def _batches(store: Store, queue: str) -> Any:
    found = []
    for tenant in (None, "t0"):
        cursor, batches = "", list[Any]()
        while True:
            page = await store.list_batches(queue, tenant, None, cursor, 1)
            batches += page.batches
            if not (cursor := page.cursor):
                break
        found.append(sorted(each.id for each in batches))
    return found, [each and each.id for each in await store.batches(queue, [f"{t}/s0" for t in TENANTS])]


async def _schedules(store: Store, queue: str) -> Any:
    _, every = await store.schedules(queue)
    _, of_one = await store.schedules(queue, "t0")
    pages = [(await store.schedules(queue, offset=n, count=2))[1] for n in range(0, len(every), 2)]
    assert [each.field for page in pages for each in page] == [each.field for each in every]
    return sorted(each.field for each in every), sorted(each.field for each in of_one)


async def _peeked(store: Store, queue: str) -> Any:
    return [[task.id for task in await store.peek(queue, tenant, 100)] for tenant in TENANTS]


@pytest.mark.parametrize("seed", range(4))
async def test_a_queue_with_partitions_answers_like_one_without(store: Store, seed: int) -> None:
    assert len(await store.registry.make("many", "", partitions=5)) == 5
    pair = Pair(store, seed)
    for tenant in TENANTS:
        await pair.same(store.enqueue, tenant, [NewTask(f"{tenant}/first", b"1")])
        pair.ids.append(f"{tenant}/first")
    for _ in range(150):
        await pair.step()
    await pair.read()
    assert len({place_in(await store.registry.places("many"), owner_of(id)) for id in pair.ids}) > 2


async def test_a_queue_with_partitions_is_deleted_as_one(store: Store) -> None:
    places = await store.registry.make("many", "", partitions=4)
    for tenant in TENANTS:
        await store.set_weight("many", tenant, 2)
    tenant = next(each for each in TENANTS if place_in(places, each) == places[-1])
    await store.enqueue("many", tenant, [NewTask(f"{tenant}/a", b"1")])
    with pytest.raises(NotEmpty, match="1 ready"):
        await store.registry.delete("many", purge=False)
    weights = {each.tenant: each.weight for each in await store.tenants("many")}
    assert weights == dict.fromkeys(TENANTS, 2), "nothing was deleted"
    assert await store.enqueue("many", "t0", [NewTask("t0/b", b"1")]) == ["ok"], "and all places take tasks"
    assert await store.cancel("many", ["t0/b", f"{tenant}/a"]) == ["ok", "ok"]
    assert (await store.registry.delete("many", purge=False)).outcome == "ok"
    assert await store.queues() == []
    assert (await store.registry.delete("many", purge=False)).outcome == "gone"


async def test_a_deletion_that_has_begun_in_one_place_goes_on_in_all(store: Store) -> None:
    await store.registry.make("many", "", partitions=4)
    for n in range(1_000):  # more keys than one call deletes
        await store.enqueue("many", f"many-{n}", [NewTask(f"many-{n}/a", b"1")])
    assert (await store.registry.delete("many", purge=True, seconds=0)).outcome == "more"
    assert (await store.registry.delete("many", purge=False)).outcome == "ok"
    assert await store.queues() == []


@pytest.mark.parametrize("others", [1, 300])  # of which keys one call looks through, and of which it does not
@pytest.mark.parametrize("purge", [False, True])
async def test_nobody_makes_a_queue_anew_while_some_of_its_places_are_being_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch, purge: bool, others: int
) -> None:
    await store.registry.make("many", "", partitions=4)
    for n in range(others):
        await store.enqueue("other", f"t{n}", [NewTask(f"t{n}/a", b"1")])
    call, ended = store.registry.call, list[str]()

    async def then_enqueue(prefix: str, verb: str, *args: Any) -> Any:
        reply = await call(prefix, verb, *args)
        if verb == "delete_queue" and args[0] != "hold":
            ended.extend([prefix] if reply[0] == b"ok" else [])
            for tenant in TENANTS if 0 < len(ended) < 4 else ():
                with pytest.raises(Deleting):
                    await store.enqueue("many", tenant, [NewTask(f"{tenant}/a", b"1")])
        return reply

    monkeypatch.setattr(store.registry, "call", then_enqueue)
    assert (await store.registry.delete("many", purge=purge)).outcome == "ok"
    assert len(ended) == 4
    assert await store.queues() == ["other"]


async def breaking_off(store: Store, monkeypatch: pytest.MonkeyPatch, *, purge: bool) -> None:
    """Delete the queue `many`, and break off before the second place is asked."""
    asked, call = list[str](), store.registry.call

    async def call_once(prefix: str, verb: str, *args: Any) -> Any:
        if verb == "delete_queue":
            asked.append(prefix)
            if len(asked) > 1:
                raise trio.TooSlowError
        return await call(prefix, verb, *args)

    with monkeypatch.context() as patch:
        patch.setattr(store.registry, "call", call_once)
        with pytest.raises(trio.TooSlowError):
            await store.registry.delete("many", purge=purge)


@pytest.mark.parametrize("purge", [False, True])
async def test_a_deletion_that_broke_off_gives_no_leave_to_purge(
    store: Store, monkeypatch: pytest.MonkeyPatch, purge: bool
) -> None:
    places = await store.registry.make("many", "", partitions=4)
    for n in range(300):  # more keys than one call looks through
        await store.enqueue("other", f"t{n}", [NewTask(f"t{n}/a", b"1")])
    tenant = next(each for each in TENANTS if place_in(places, each) == places[-1])
    await store.enqueue("many", tenant, [NewTask(f"{tenant}/a", b"1")])
    await breaking_off(store, monkeypatch, purge=purge)
    for _ in range(2):
        with pytest.raises(NotEmpty, match="1 ready"):
            await store.registry.delete("many", purge=False)
    assert [task.id for task in await store.peek("many", tenant, 10)] == [f"{tenant}/a"]
    first = next(each for each in TENANTS if place_in(places, each) == places[0])
    if not purge:
        assert await store.enqueue("many", first, [NewTask(f"{first}/b", b"1")]) == ["ok"], "no place is blocked"
    assert (await store.registry.delete("many", purge=True)).outcome == "ok"
    assert await store.queues() == ["other"]


async def test_a_queue_whose_making_broke_off_is_made_by_the_next_call(store: Store) -> None:
    await store.registry.call(keys.REGISTRY, "add_queue", "many", "", "", 4)
    for tenant in TENANTS:
        assert await store.enqueue("many", tenant, [NewTask(f"{tenant}/a", b"1")]) == ["ok"]
    assert (await store.queue("many")).settings.partitions == 4


async def test_numbers_of_a_paused_queue_say_that_it_is_paused(store: Store) -> None:
    await store.registry.make("many", "", partitions=4)
    await store.set_paused("many", "", True)
    assert (await store.numbers("many"))["blocked"] == PAUSED


async def test_a_repair_of_a_queue_repairs_all_places(store: Store) -> None:
    places = await store.registry.make("many", "", partitions=4)
    for tenant in TENANTS:
        await store.enqueue("many", tenant, [NewTask(f"{tenant}/{n}", b"1") for n in range(50)])
    for place in places:
        await store.connection.call("DEL", f"{keys.queue_prefix(place)}:accounts")
    repair = await store.repair("many", seconds=0)
    steps = 1
    while repair.outcome == "more":
        repair, steps = await store.repair("many", repair.number, seconds=0), steps + 1
    assert (repair.outcome, steps > len(places)) == ("done", True)
    assert (repair.tasks, repair.tenants) == (50 * len(TENANTS), len(TENANTS))
    assert (await store.queue("many")).ready == 50 * len(TENANTS)
    assert sum([len((await store.claim(place, "w", 150)).leases) for place in places for _ in range(5)]) == 450


async def test_calls_for_a_queue_that_is_being_made_keep_their_order(store: Store) -> None:
    """The second one finds it registered while the first one still makes it."""
    outcomes: list[str] = []

    async def put(id: str) -> None:
        outcomes.extend(await store.enqueue("new", "ada", [NewTask(f"ada/{id}", b"1")]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, "0")
        while not await store.connection.call("HEXISTS", keys.QUEUES, "new"):
            pass
        for n in range(1, 5):
            nursery.start_soon(put, str(n))
            await trio.lowlevel.checkpoint()
    assert outcomes == ["ok"] * 5
    assert [task.id for task in await store.peek("new", "ada", 10)] == [f"ada/{n}" for n in range(5)]


async def test_a_partition_says_what_competes_there_as_it_begins_to_have_tasks(store: Store) -> None:
    """So a server weighs it right before its first claim; a queue without partitions says no more than before."""
    heard: list[str] = []
    store.subscription.on_message = lambda channel, message: heard.append(message)
    for queue, partitions in (("many", 4), ("one", 1)):
        (place, *_) = places = await store.registry.make(queue, "", partitions=partitions)
        ada, bob = [f"t{n}" for n in range(99) if place_in(places, f"t{n}") == place][:2]
        await store.set_weight(queue, bob, 3)
        await store.claim(place, "w", 1)
        await store.subscription.add(keys.ready_channel(place))
        await wait_until(lambda: heard == [""])  # it is subscribed
        heard.clear()
        await store.enqueue(queue, ada, [NewTask(f"{ada}/a", b"1")])
        await store.claim(place, "w", 2)
        await store.enqueue(queue, bob, [NewTask(f"{bob}/a", b"1")], notify="wake server-2")
        await wait_until(lambda: len(heard) == 2)
        assert heard == (["1/1000", "1 server-2/3000"] if partitions > 1 else ["1", "1 server-2"])
        heard.clear()


async def test_the_server_whose_call_has_a_tenant_begin_to_wait_learns_it_in_the_answer(store: Store) -> None:
    woken: list[tuple[str, int]] = []
    store.on_woken = lambda place, weight: woken.append((place, weight))
    for queue, partitions in (("one", 1), ("many", 4)):
        (place, *_) = places = await store.registry.make(queue, "", partitions=partitions)
        ada, bob = [f"t{n}" for n in range(99) if place_in(places, f"t{n}") == place][:2]
        for id in "ab":
            assert await store.enqueue(queue, ada, [NewTask(f"{ada}/{id}", b"1")]) == ["ok"]
        assert await store.enqueue(queue, ada, [NewTask(f"{ada}/a", b"1"), NewTask(f"{ada}/c", b"1")]) == [
            "duplicate\nready",
            "ok",
        ]
        await store.enqueue(queue, bob, [NewTask(f"{bob}/a", b"1", delay_ms=1)])
        await trio.sleep(0.002)
        assert (await store.tick(place)).promoted == 1
    assert woken == [(place, 1000), (place, 2000)], "those of the queue with partitions"
    await store.claim(place, "w", 9)
    await store.enqueue(queue, bob, [NewTask(f"{bob}/b", b"1")], notify="wake server-2")
    assert len(woken) == 2, "the server that was named serves it"


async def test_changes_of_all_places_reach_them_in_one_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes while the first, which is held up, has not reached all places."""
    monkeypatch.setattr("fairq.store.changing.TURN_MS", 60_000)
    places = await store.registry.make("q", "", partitions=3)
    reached, go_on, is_done = trio.Event(), trio.Event(), trio.Event()
    call_at, tries = type(store)._call_at, [0]

    async def hold_up(self: Store, prefix: str, verb: str, *args: Any, **options: Any) -> Any:
        tries[0] += verb == "begin_turn"
        if prefix == keys.queue_prefix(places[2]) and not reached.is_set():
            reached.set()
            await go_on.wait()
        return await call_at(self, prefix, verb, *args, **options)

    async def second() -> None:
        await store.set_limits("q", "", {"max_running": 2})
        is_done.set()

    async with trio.open_nursery() as nursery:
        monkeypatch.setattr(type(store), "_call_at", hold_up)
        nursery.start_soon(partial(store.set_limits, "q", "", {"max_running": 1}))
        await reached.wait()
        nursery.start_soon(second)
        await wait_until(lambda: is_done.is_set() or tries[0] > 3)
        go_on.set()
    assert [(await store.limits(place, "")).max_running for place in places] == [2] * 3


async def test_a_change_waits_for_no_server_that_died_in_another(store: Store) -> None:
    (first, *_) = await store.registry.make("q", "", partitions=3)
    assert await store.begin_turn(first, "dead", 50)
    await store.set_paused("q", "", True)
    assert await store.begin_turn(first, "next", 50)


async def test_a_change_that_takes_too_long_leaves_the_next_its_turn(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, *_) = await store.registry.make("q", "", partitions=3)
    monkeypatch.setattr("fairq.store.changing.TURN_MS", 20)
    async with AsyncExitStack() as following:
        async with change_in_turn(store, first):
            monkeypatch.setattr("fairq.store.changing.TURN_MS", 60_000)
            await following.enter_async_context(change_in_turn(store, first))
        assert not await store.begin_turn(first, "next", 50)
    assert await store.begin_turn(first, "next", 50)


async def test_a_change_that_ends_late_ends_no_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its turn is over while it ends: after each command another change has it."""
    (first, *_) = await store.registry.make("q", "", partitions=3)
    connection: Any = store.connection
    key, call = f"{keys.queue_prefix(first)}:changing", partial(type(connection).call, connection)

    async def lapse(_connection: object, *words: Any, **options: Any) -> Any:
        reply = await call(*words, **options)
        await call("SET", key, "another")
        return reply

    async with change_in_turn(store, first):
        monkeypatch.setattr(type(connection), "call", lapse)
    assert await call("GET", key) == b"another"


async def test_changes_take_turns_in_a_full_store_too(store: Store, redis_client: redis.Redis) -> None:
    first, *others = await store.registry.make("q", "", partitions=3)
    redis_client.config_set("maxmemory", 1)
    try:
        async with change_in_turn(store, first):
            assert not await store.begin_turn(first, "next", 50)
        await store.set_paused("q", "", True)
    finally:
        redis_client.config_set("maxmemory", 0)
    assert all([(await store.queue(place)).is_paused for place in (first, *others)])
