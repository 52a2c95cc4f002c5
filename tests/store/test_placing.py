"""A restore gives a queue another number of partitions: nothing is lost, and it answers as it did."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest
import redis
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fairq.model.limits import OpeningHours
from fairq.model.places import queue_of
from fairq.model.tasks import NewTask, Settlement
from fairq.store import keys, library
from fairq.store.backup_kinds import KINDS
from fairq.store.backup_lines import dump, load
from fairq.store.counts import QueueCounts, TenantCounts
from fairq.store.dumping import write_lines
from fairq.store.loading import Loading
from fairq.store.opening import open_store
from fairq.store.partitions import MAX_PARTITIONS, place_in, places_of
from fairq.store.placing import Placing
from fairq.store.store import Store
from tests import stores
from tests.lua.calls import Queue
from tests.lua.keyspace import Keyspace
from tests.lua.rebuilt import drain
from tests.upgrade.make import WALKED

from .backups import check, good_lines, reloaded
from .cases import raises_for
from .test_partitions import TENANTS, Pair

NOW = 1_795_700_000_000  # by the stores' clock, after all that the lines tell
EXAMPLES = max(5, int(os.environ.get("FAIRQ_FUZZ_EXAMPLES", "0")) // 30)
MADE_UP = ("batch_result", "kept")  # lines that no batch, and no account, has counted
PARTITIONS = st.sampled_from((1, 2, 4, 5, 12, MAX_PARTITIONS))


def placed(client: redis.Redis, lines: Sequence[bytes], **partitions: int) -> list[bytes]:
    """Restore lines with these numbers of partitions, and dump what the store has then, unrepaired."""
    placing = Placing.of(partitions)
    check(lines, placing)
    return reloaded(client, lines, placing)


def facts(lines: Sequence[bytes], queue: str) -> Counter[str]:
    """Tell what lines say of a queue with any partitions; times are absolute, and virtual time is from the level."""
    known = [(line, payload) for line, payload in map(load, lines) if queue_of(line.get("queue", "")) == queue]
    states = {line["queue"]: line for line, _ in known if line["kind"] == "state"}
    found, slots = Counter[str](), dict[str, Counter[str]]()
    for name in ("enqueued", "done", "buried", "expired", "cancelled", "delivered"):
        found[f"{name} {sum(state[name] for state in states.values())}"] += 1
    for line, payload in known:
        state, line["queue"] = states.get(line["queue"], {}), queue
        match line["kind"]:
            case "state" | "partitions":
                pass
            case "slot":
                rows, slot = line.pop("rows"), slots.setdefault(f"{line['step']} {line['number']}", Counter())
                slot.update({name: line[name] for name in ("enqueued", "done", "dead", "expired", "cancelled", "lost")})
                for row in rows:
                    slot.update({f"{row['name']} {name}": row[name] for name in ("enqueued", "started", "failed")})
                    slot.update({f"{row['name']} waits {bucket}": count for bucket, count in row["waits"]})
            case "tenant":
                found[repr(account_of(line, state))] += 1
            case _:
                line.pop("tag", None)
                if run := line.get("run"):
                    del run["tag"]
                    run["began_at"] += state["origin"] * (run["state"] in (0, 3))
                found[repr((sorted(line.items(), key=repr), payload))] = 1
    return found | Counter({f"slot {name} {sorted((+slot).items())}": 1 for name, slot in slots.items()})


def account_of(line: dict[str, Any], state: dict[str, Any]) -> Any:
    """Tell what a line says of a tenant."""
    account, details, books = line["account"], line["details"], line["account"]["books"]
    entitled = books["entitled"] + (account["standing"] == 2) * account["weight"] * state["clock"]
    behind = account["base"] - state["level"]
    return (
        account["name"], account["weight"], account["ready"], account["leased"], round(behind, 3), round(entitled, 3),
        books["seen_at"] + state["origin"], books["epoch"] == state["epoch"],
        {name: books[name] for name in ("done", "bytes", "events", "delivered")},
        {name: value for name, value in details.items() if name != "tag"},
    )  # fmt: skip


def uneven(lines: Sequence[bytes], queue: str) -> list[bytes]:
    """Let the partitions of a queue differ in their times and virtual times, and have the same tags and leases."""
    found = [(line, payload) for line, payload in map(load, lines)]
    places = sorted(
        {line["queue"] for line, _ in found if line["kind"] == "state" and queue_of(line["queue"]) == queue}
    )
    tags: dict[tuple[str, int], int] = {}
    for line, _ in found:
        if line["kind"] == "tenant" and (place := line["queue"]) in places:
            tags[place, line["tag"]] = 1 + sum(of == place for of, _ in tags)
    for line, _ in found:
        if (place := line.get("queue", "")) not in places:
            continue
        n, run = places.index(place), line.get("run")
        if "tag" in line:
            line["tag"] = tags[place, line["tag"]]
        if run:
            run["tag"], run["lease"] = tags[place, run["tag"]], 77
        if line["kind"] == "tenant":
            line["details"]["tag"] = line["tag"]
            line["account"]["standing"] = 2
        elif line["kind"] == "state":
            line |= {
                "origin": line["origin"] + 5_000 * n,
                "level": 50 * n,
                "clock": 7 * n + 1,
                "last_lease": 10**15 - n,
            }
            line |= {"now": line["now"] + 100 * n, "enqueued": 17, "delivered": 3.5}
    return [dump(line, payload) for line, payload in found]


def check_queue(client: redis.Redis, places: Sequence[str]) -> Counter[str]:
    """Repair the places of a queue, and check them; returns all that can be claimed."""
    claimed = Counter[str]()
    for place in places:
        prefix, number = keys.queue_prefix(place), b""
        client.set(f"{prefix}:test", 1)
        while (reply := client.fcall(library.function_name("repair"), 1, prefix, NOW, "", number))[0] == b"more":
            number = reply[1]
        queue = Queue(client, prefix, now=NOW)
        Keyspace(queue).check()
        claimed.update(drain(queue))
        Keyspace(queue).check()
    return claimed


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@example(chain=[1, 4])
@given(chain=st.lists(PARTITIONS, min_size=1, max_size=4))
def test_all_lines_are_there_after_any_restores(redis_client: redis.Redis, chain: list[int]) -> None:
    before = lines = uneven(placed(redis_client, good_lines(), mail=3), "mail")
    assert len({load(line)[0]["queue"] for line in lines if load(line)[0]["kind"] == "tenant"}) > 3
    for count in chain:
        lines = placed(redis_client, lines, mail=count, many=count)
        check(lines)
        for queue in (WALKED, "many", "emails"):
            assert facts(lines, queue) == facts(before, queue)
        states = [line for line, _ in map(load, lines) if line["kind"] == "state" and queue_of(line["queue"]) == "mail"]
        assert {line["queue"] for line in states} == set(places_of("mail", count))
        assert {line["last_lease"] for line in states} == {10**15}
    placed(redis_client, [line for line in lines if load(line)[0]["kind"] not in MADE_UP])
    claimed = check_queue(redis_client, places_of("mail", chain[-1]))
    reloaded(redis_client, [line for line in good_lines() if load(line)[0]["kind"] not in MADE_UP])
    assert claimed == check_queue(redis_client, places_of("mail", 1))


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """The typed API of an empty store, as its owner: servers may not write lines."""
    async with open_store(stores.of_owner(store_url), connect_timeout=30) as store:
        yield store


async def loaded(store: Store, lines: Sequence[bytes], placing: Placing) -> list[str]:
    """Write lines into a store as a restore does; returns the places that are to be repaired."""
    check(lines, placing)
    loading = Loading(store.connection.call, placing=placing)
    for line in lines:
        await loading.add(line)
    await loading.end()
    return loading.queues


async def restored(store: Store, queue: str, to: str, partitions: int) -> None:
    """Restore a backup of a queue under another name, with so many partitions."""
    found = list[bytes]()
    await write_lines(store.connection.call, found.append)
    places = await store.registry.places(queue)
    called = dict(zip([queue, *places], [to, *places_of(to, len(places))], strict=True))
    lines = []
    for line, payload in map(load, found):
        if line.get("queue") in called:
            lines.append(dump(line | {"queue": called[line["queue"]]}, payload))
    assert await loaded(store, lines, Placing.of({to: partitions})) == list(places_of(to, partitions))
    for name in (queue, to):
        assert (await store.repair(name)).outcome == "done"


async def _history(store: Store, queue: str) -> Any:
    found = []
    for step in (10, 60, 900):
        page = await store.history(queue, step, -1, 20)
        found.append([
            (*slot[:-1], sorted((row.tenant, row.started, sorted(row.waits.items())) for row in slot.rows))
            for slot in page.slots
        ])  # fmt: skip
    return found


async def _ever(store: Store, queue: str) -> Any:
    numbers = await store.numbers(queue)
    return [numbers[name] for name in ("enqueued", "done", "buried", "expired", "cancelled")]


async def _shares(store: Store, queue: str) -> Any:
    rows = await store.tenants(queue)
    return [(each.tenant, each.done, each.stored_bytes, each.is_limited, each.is_closed) for each in rows]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**9), before=PARTITIONS, after=PARTITIONS)
def test_a_restored_queue_answers_like_the_original(store_url: str, seed: int, before: int, after: int) -> None:
    async def compare() -> None:
        async with open_store(stores.of_owner(store_url), connect_timeout=30) as store:
            await store.connection.call("FLUSHDB")
            await compare_restored(store, seed, before, after)

    trio.run(compare)


async def compare_restored(store: Store, seed: int, before: int, after: int) -> None:
    """Use a queue, restore its backup as another one, and go on with both."""
    queue, to = "original", "restored"
    await store.registry.make(queue, "", partitions=before)
    pair = Pair(store, seed, [queue])
    for _ in range(60):
        await pair.step()
    counts = {tenant: TenantCounts(n, n, 0, {n: 1}) for n, tenant in enumerate([*TENANTS, ""])}
    places = await store.registry.places(queue)
    for place in places:
        here = {tenant: each for tenant, each in counts.items() if not tenant or place_in(places, tenant) == place}
        await store.add_history(place, QueueCounts(1, here))
    await restored(store, queue, to, after)
    assert len(await store.registry.places(to)) == after
    pair.leases[to] = dict(pair.leases[queue])  # workers hold their leases
    for read in (_history, _ever, _shares):
        await pair.same(partial(read, store))
    await pair.read()
    for _ in range(60):
        await pair.step()
    await pair.read()


@pytest.mark.parametrize("partitions", [1, 5])
async def test_a_change_that_broke_off_is_restored_as_it_was_shown(store: Store, partitions: int) -> None:
    """Everywhere there is what the first partition had, and a pause if any had it."""
    places = await store.registry.make("original", "", partitions=3)
    for tenant in TENANTS:
        await store.enqueue("original", tenant, [NewTask(f"{tenant}/a", b"1")])
    await store.configure(places[0], {"max_attempts": 4})
    await store.configure(places[2], {"max_attempts": 9, "lease_ms": 9_000})
    await store.set_limits(places[0], "", {"rate": 7})
    await store.set_limits(places[1], "", {"rate": 8, "burst": 9})
    await store.set_opening_hours(places[0], OpeningHours("", "mon-fri 08:00-18:00 UTC", False, 10**13))
    await store.add_webhook(places[1], "https://a.example/", "", has_fan_out=False, secrets=())
    await store.set_paused(places[1], "", True)
    await restored(store, "original", "restored", partitions)
    for place in places_of("restored", partitions):
        state, limits = await store.queue(place), await store.limits(place, "")
        assert (state.settings.max_attempts, state.settings.lease_ms) == (4, 30_000)
        assert (limits.rate, limits.burst, state.is_paused, state.is_closed) == (7, 0, True, True)
        assert await store.webhooks(place) == []
        assert (await store.claim(place, "w", 10)).leases == []
    assert (await store.queue("restored")).ready == len(TENANTS)


async def test_a_queue_with_a_reserve_is_not_divided(store: Store) -> None:
    await store.registry.make("original", "")
    await store.configure("original", {"reserve": 20})
    with raises_for("partitions", match="has no reserve"):
        await restored(store, "original", "restored", 4)
    assert not await store.registry.exists("restored")
    await restored(store, "original", "restored", 1)
    assert (await store.queue("restored")).settings.reserve == 20


async def test_a_lease_number_that_stood_in_two_places_opens_only_its_own_task(store: Store) -> None:
    places = await store.registry.make("many", "", partitions=4)
    tenants = [next(each for each in TENANTS if place_in(places, each) == place) for place in places[:2]]
    ids, number = [f"{tenant}/a" for tenant in tenants], 10**15
    for tenant, id in zip(tenants, ids, strict=True):
        await store.enqueue("many", tenant, [NewTask(id, b"1"), NewTask(f"{tenant}/b", b"1")])
    for place in places[:2]:
        assert [each.id for each in (await store.claim(place, "w", 1)).leases] in ([ids[0]], [ids[1]])
    found, lines = list[bytes](), list[bytes]()
    await write_lines(store.connection.call, found.append)
    for line, payload in map(load, found):
        if "run" in line:
            line["run"]["lease"] = number  # of both
        lines.append(dump(line | ({"last_lease": number} if line["kind"] == "state" else {}), payload))
    await store.connection.call("FLUSHDB")
    await loaded(store, lines, Placing.of({"many": 1}))
    store.registry.forget("many")
    await store.repair("many")
    assert await store.settle("many", [Settlement("ack", ids[0], number)]) == ["ok"]
    assert await store.settle("many", [Settlement("ack", ids[0], number)]) == ["gone"]
    assert (await store.tasks("many", ids))[1].state == "leased"
    assert await store.settle("many", [Settlement("extend", ids[1], number)]) == ["ok"]
    claim = await store.claim("many", "w", 10)
    assert {each.id for each in claim.leases} == {f"{tenant}/b" for tenant in tenants}
    assert claim.leases[0].lease > number
    assert await store.settle("many", [Settlement("ack", claim.leases[0].id, number)]) == ["stale"]
    assert await store.settle("many", [Settlement("ack", ids[1], number)]) == ["ok"]


def test_lines_of_another_partition_are_named() -> None:
    lines, places = list(good_lines()), places_of("many", 2)
    for kind in KINDS:
        at = next((n for n, line in enumerate(map(load, lines)) if line[0]["kind"] == kind), None)
        assert at is not None
        line, payload = load(lines[at])
        name, tenant = KINDS[kind].tenant(line)
        if not tenant:
            continue
        elsewhere = next(each for each in places if each != place_in(places, tenant))
        moved = [*lines, dump(line | {"queue": elsewhere}, payload)]
        with raises_for(name, match=f"line {len(moved) + 1} \\({kind}\\): .* another partition"):
            check(moved)


@pytest.mark.parametrize(
    ("partitions", "match"),
    [
        ({"none": 2}, "no queue none"),
        ({"mail": 0}, "1 to 64"),
        ({"mail": 65}, "1 to 64"),
        ({"mail/2.0": 2}, "no queue"),
    ],
)
def test_partitions_that_cannot_be_are_refused(partitions: dict[str, int], match: str) -> None:
    with raises_for("partitions", match=match):
        check(list(good_lines()), Placing.of(partitions))
