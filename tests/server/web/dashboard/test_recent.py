"""Shares of the last seconds: of samples, and of a queue with more tenants than are sampled."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fairq.model.fairness import Service, Share
from fairq.model.history import OTHERS, Row, Slot
from fairq.model.tenants import TenantState
from fairq.server.web.dashboard import recent as module
from fairq.server.web.dashboard.recent import Interval, Watched
from fairq.store.overview import find_tenants, some_tenants
from fairq.store.queue_calls import HistoryPage
from tests.server.clock import StoreClock
from tests.server.harness import WORKER, raw, running, tenant

from .harness import Site, text_of, visited

GAINS = some.dictionaries(some.sampled_from("abcd"), some.tuples(some.integers(0, 9), some.integers(0, 9)), min_size=1)
FLAGS = False, False, False, False, False


def watched_of(*totals: dict[str, tuple[float, float]], many: int = 0, past: list[Interval] | None = None) -> Watched:
    """What is known after samples of these accounts, one each second, of a queue with so many more tenants."""
    watched = Watched(looked_at=0.0, past=past or [])
    for at, total in enumerate(totals):
        states = [TenantState(name, 1.0, 0, 0, 0, 0, 0, 9, *account, *FLAGS, 0) for name, account in total.items()]
        watched.sample(1_003.0 + at, states, len(states) + many)
    return watched


@settings(max_examples=40)
@given(some.lists(GAINS, min_size=2, max_size=30))
def test_shares_are_parts_of_what_was_gained_in_the_last_seconds(gains: list[dict[str, tuple[int, int]]]) -> None:
    totals = [dict.fromkeys("abcd", (0.0, 0.0))]
    for gained in gains:
        more = {name: gained.get(name, (0, 0)) for name in "abcd"}
        totals.append({name: (a + more[name][0], b + more[name][1]) for name, (a, b) in totals[-1].items()})
    counted = gains[-module._WINDOW :]
    sums = {name: [sum(gained.get(name, (0, 0))[n] for gained in counted) for n in (0, 1)] for name in "abcd"}
    given = sum(got for got, _ in sums.values())
    for name, share in watched_of(*totals).shares().items():
        assert share.delivered == (sums[name][0] / given if given else None)


def test_rows_stay_where_they_are_until_a_share_is_clearly_larger() -> None:
    watched = Watched(looked_at=0.0)

    def order(**given: int) -> str:
        watched.seconds.clear()
        watched.seconds.append(Interval(1, {name: Service(many, many) for name, many in given.items()}))
        return "".join(watched.in_calm_order(given))

    assert order(a=34, b=33, c=33) == "abc"
    assert order(a=33, b=34, c=33) == "abc"
    assert order(a=31, b=35, c=34) == "abc"
    assert order(a=20, b=20, c=60) == "cab"
    assert order(b=20, d=80) == "db"
    assert order(a=50, b=4, d=46) == "dab"


def test_the_chart_begins_with_what_was_before_anybody_looked() -> None:
    rows = [Row("ada", 0, 1, 1, 0, 3_000.0, 1_000.0, {}), Row("bob", 0, 1, 1, 0, 1_000.0, 3_000.0, {})]
    slots = [Slot(number, 0, 0, 0, 0, 0, 0, rows) for number in (80, 91, 98, 100)]
    past = module.past_of(HistoryPage(1_003_000, 1000.0, slots), 1_003.0)
    watched = watched_of({"ada": (50.0, 50.0)}, {"ada": (51.0, 52.0)}, past=past)
    assert watched.times_s() == [920, 990, 1_003, 1_004]  # not what is too old; the newest interval ends now
    assert watched.series(["ada"])["ada"] == [*[Share(0.75, 0.25, 0.0)] * 3, Share(1.0, None, 1.0)]
    assert watched.service()["ada"] == Service(10.0, 3.0, 1.0)


def test_a_flood_that_has_drained_is_reported_and_the_parts_of_each_moment_are_the_whole() -> None:
    accounts = [{"ada": (at, at)} for at in (1.0, 2.0)]  # then a tenant comes that nobody knew, and is gone soon
    accounts += [{"ada": (2.0 + at, 2.0), "flood": (99.0, 99.0)} for at in range(30)]
    watched = watched_of(*accounts)
    assert watched.service() == {"ada": Service(30.0, 0.0, 30.0), "flood": Service(99.0, 0.0, 99.0)}
    for named in (["ada"], ["ada", "flood"], ["flood"], []):
        found = watched.series(named)
        assert list(found) == [*named, *([OTHERS] if len(named) < 2 else [])]
        assert {sum(part.delivered or 0.0 for part in column) for column in zip(*found.values(), strict=True)} == {1.0}
    assert watched.series(["flood"])["flood"][1].delivered == 0.99, "in the second in which it came"
    assert watched_of(*accounts[:3], many=1).service()["flood"] == Service(), "it may have come long before"


@pytest.mark.parametrize("where", ["this server", "another server"])
async def test_what_tenants_got_just_before_the_first_look_is_reported(
    where: str, site: Site, server_store: str, store_clock: StoreClock
) -> None:
    async with (
        running(server_store) as other,
        raw(other if "another" in where else site.served, WORKER) as worker,
        raw(site.served, tenant("ada")) as ada,
        raw(site.served, tenant("bob")) as bob,
    ):
        for client in (ada, bob):
            await client.enqueue("q", ["t"])
        await worker.attach("q", credit=1)
        for _ in range(2):
            tasks = await worker.pushed()
            store_clock.move(store_clock.now_ms + 1_000, site.served, other)
            await worker.settle("q", "ack", *tasks)
        watched = await module.Recent(site.served.app, site.served.app.nursery).look("q")
        assert {name: round(each.delivered, 1) for name, each in watched.service().items()} == {"ada": 1.0, "bob": 1.0}


async def test_colors_stay_a_tenants_own_after_nobody_looked(site: Site) -> None:
    recent = module.Recent(site.served.app, site.served.app.nursery)
    first = await recent.look("q")
    assert [first.color(name) for name in ("ada", "bob")] == [0, 1]
    del recent._watched["q"]
    again = await recent.look("q")
    assert again is not first
    assert again.color("bob") == 1


async def test_of_many_tenants_some_are_sampled_and_any_is_found(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TENANTS", 30)
    async with visited(server_store) as site, raw(site.served, "dev-producer") as producer:
        await site.store.configure("q", {"share": "count"})
        tasks = [{"id": "t", "payload": 1, "tenant": f"t{n:03}"} for n in range(120)]
        await producer.ask("enqueue", queue="q", tasks=tasks)
        total, names = await some_tenants(site.store, "q", 30)
        assert total == 120
        assert len(names) == 30
        recent = module.Recent(site.served.app, site.served.app.nursery)
        watched = await recent.look("q")
        assert (watched.total, len(watched.tenants)) == (120, 30)
        assert "Of 120 tenants, the two minutes are of 30" in await site.read("/?queue=q")
        text = text_of(await site.read("/tenants?queue=q"))
        assert "30 of 120: those that were served last" in text
        names = [f"t{n:03}" for n in range(120)]
        known, unknown = (next(each for each in names if (each in text) == is_shown) for is_shown in (True, False))
        for name, due in ((known, "no contest"), (unknown, "–")):
            assert f"{due} contested / due" in text_of(await site.read(f"/queues/q/tenants/{name}"))
        async with running(server_store) as other, raw(other, WORKER) as worker:
            await worker.attach("q", credit=120)
            await worker.settle("q", "ack", *await worker.pushed(120))
            for at in range(2):  # the history knows from the first time on what they get
                busy = [{"id": f"{at}-{n}", "payload": 1, "tenant": f"t11{5 + n % 5}"} for n in range(25)]
                await producer.ask("enqueue", queue="q", tasks=busy)
                await worker.settle("q", "ack", *await worker.pushed(25))
                await other.app.recorder.flush()
            again = await module.Recent(site.served.app, site.served.app.nursery).look("q")
            assert {task["tenant"] for task in busy} <= {each.tenant for each in again.tenants}
        assert await find_tenants(site.store, "q", "t11", 50) == ([f"t11{n}" for n in range(10)], True)
        many, is_whole = await find_tenants(site.store, "q", "t", 50)
        assert (len(many), is_whole) == (50, False)
        for odd in ("*", "?", "[a-z]", "\\", "t11*"):
            assert await find_tenants(site.store, "q", odd, 50) == ([], True)
