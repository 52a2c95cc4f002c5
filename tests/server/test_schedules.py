"""Schedules through servers: each fire once however many there are, on time, and none for misfires."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from fairq.model.checks import bare_id
from fairq.model.schedules import Timing
from fairq.model.tasks import NewTask
from fairq.server.engine.timers.ticker import FLOOR_S
from fairq.server.run import Served
from fairq.store.store import Store
from tests import stores
from tests.store.waiting import wait_until

from .clock import StoreClock
from .harness import WORKER, Raw, Refused, daily, raw, running, tenant

NIGHTLY = {"queue": "q", "name": "nightly", "payload": {"n": 1}, "cron": "0 3 * * *"}
EVERY = {"queue": "q", "name": "every", "payload": 1, "every_ms": 1000}


async def overdue(store: Store, name: str, misfire: str, late_ms: int) -> int:
    """Make a schedule of ada's that should have fired `late_ms` ago; returns when."""
    now_ms, _ = await store.schedules("q", "ada", name)
    timing = Timing(every_ms=3_600_000)
    await store.schedule("q", "ada", name, timing, now_ms - late_ms, misfire, NewTask("late", b'"late"'))
    return now_ms - late_ms


async def row_of(client: Raw, name: str, **more: Any) -> dict[str, Any]:
    """Read one schedule."""
    (row,) = (await client.ask("schedules", queue="q", name=name, **more))["schedules"]
    return dict(row)


async def test_a_schedule_tells_its_next_fires_and_can_be_read(ada: Raw) -> None:
    body = await ada.ask("schedule", **NIGHTLY, zone="Europe/Copenhagen", max_attempts=2, expires_in_ms=5000)
    assert body["outcome"] == "created"
    one, two, three = body["fires_at_ms"]
    assert time.time() * 1000 - 1000 < one < two < three
    assert await row_of(ada, "nightly") == {
        "tenant": "ada", "name": "nightly", "cron": "0 3 * * *", "zone": "Europe/Copenhagen",
        "next_at_ms": one, "expires_in_ms": 5000, "max_attempts": 2, "payload": {"n": 1},
    }  # fmt: skip
    again = await ada.ask("schedule", **NIGHTLY, zone="Europe/Copenhagen", max_attempts=2, expires_in_ms=5000)
    assert again == {"outcome": "same", "fires_at_ms": [one, two, three]}
    changed = await ada.ask("schedule", **{**NIGHTLY, "cron": "0  4 * * *"})
    assert (changed["outcome"], (await row_of(ada, "nightly"))["cron"]) == ("changed", "0 4 * * *")
    await ada.ask("set_schedule_paused", paused=True, queue="q", name="nightly")
    row = await row_of(ada, "nightly")
    assert row["is_paused"] is True
    assert "next_at_ms" not in row, "it has none"
    await ada.ask("schedule", queue="q", name="often", payload=1, every_ms=3_600_000)
    assert [row["name"] for row in (await ada.ask("schedules", queue="q"))["schedules"]] == ["often", "nightly"]


async def has_moved_on(client: Raw, name: str, now_ms: int) -> None:
    """Wait until the next fire of a schedule is later than that."""

    async def has_moved() -> bool:
        return bool((await row_of(client, name))["next_at_ms"] > now_ms)

    await wait_until(has_moved)


async def test_a_fire_makes_no_task_while_that_of_an_earlier_one_runs(
    served: Served, worker: Raw, ada: Raw, store_clock: StoreClock
) -> None:
    await worker.attach("q", credit=10)
    (first, *_) = (await ada.ask("schedule", **EVERY, dedupe_key="every", task_name="tick"))["fires_at_ms"]
    store_clock.move(first, served)
    (task,) = await worker.pushed()
    assert (task["start_at_ms"], task["name"]) == (first, "tick")
    for later in (first + 1000, first + 2000):
        store_clock.move(later, served)
        await has_moved_on(ada, "every", later)
    await worker.quiet()
    row = await row_of(ada, "every")
    assert (row["last_fired_at_ms"], row["next_at_ms"]) == (first, first + 3000)
    await worker.settle("q", "ack", task)
    store_clock.move(first + 3000, served)
    (task,) = await worker.pushed()
    assert task["start_at_ms"] == first + 3000


async def test_with_many_servers_each_fire_is_one_task(
    server_store: str, store_clock: StoreClock, one: Served, two: Served
) -> None:
    async with running(server_store) as three, raw(one, tenant("ada")) as ada, raw(two, WORKER) as worker:
        for name in "abcde":
            (first, *_) = (await ada.ask("schedule", **{**EVERY, "name": name}))["fires_at_ms"]
        await worker.attach("q", credit=100)
        for number in range(5):
            store_clock.move(first + 1000 * number, one, two, three)
            tasks = await worker.pushed(5)
            assert sorted(task["id"] for task in tasks) == [f"{name}-{first + 1000 * number}" for name in "abcde"]
        for served in (one, two, three):
            await served.app.ticker._tick("q")
        await worker.quiet()
        assert (await one.app.store.queue("q")).enqueued == 25


@pytest.mark.parametrize(("misfire", "fires_over", "count"), [("skip", 10, 0), ("once", 10, 1), ("skip", 0, 1)])
async def test_what_was_missed_while_no_server_ran_is_skipped_or_made_up_for_once(
    served: Served, misfire: str, fires_over: int, count: int
) -> None:
    """A fire that is a little late is not missed."""
    store = served.app.store
    due_at = await overdue(store, "late", misfire, fires_over * 3_600_000 + 5)

    async def has_moved() -> bool:
        now_ms, (found,) = await store.schedules("q", "ada", "late")
        return found.state.next_at_ms > now_ms

    served.app.ticker.tick_within("q", 0)
    await wait_until(has_moved)
    _, (found,) = await store.schedules("q", "ada", "late")
    assert found.state.next_at_ms - due_at == (fires_over + 1) * 3_600_000
    assert found.state.last_fired_at_ms == (due_at if count else 0)
    assert (await store.queue("q")).enqueued == count


async def test_more_schedules_than_a_call_takes_fire_together(served: Served) -> None:
    for number in range(250):
        await overdue(served.app.store, f"s{number}", "once", 1000)

    async def have_fired() -> bool:
        return (await served.app.store.queue("q")).ready == 250

    served.app.ticker.tick_within("q", 0)
    await wait_until(have_fired)


async def test_a_schedule_that_this_server_cannot_compute_holds_up_no_other(served: Served) -> None:
    store = served.app.store
    timing = Timing("0 3 * * *", "Mars/Olympus")
    await store.schedule("q", "ada", "mars", timing, 1_000, "once", NewTask("mars", b"0"))
    await overdue(store, "late", "once", 1000)
    async with raw(served, WORKER) as worker:
        await worker.attach("q", credit=5)
        assert [task["payload"] for task in await worker.pushed()] == ["late"]
        await worker.quiet()


async def test_pause_holds_fires_back_and_resume_makes_up_for_nothing(
    served: Served, worker: Raw, ada: Raw, store_clock: StoreClock
) -> None:
    await worker.attach("q", credit=10)
    first = (await ada.ask("schedule", **EVERY, misfire="once"))["fires_at_ms"][0]
    assert (await ada.ask("set_schedule_paused", paused=True, queue="q", name="every"))["previous"] is False
    assert (await ada.ask("set_schedule_paused", paused=True, queue="q", name="every"))["previous"] is True
    store_clock.move(first + 2500)
    await served.app.ticker._tick("q")
    await worker.quiet()
    assert (await ada.ask("set_schedule_paused", paused=False, queue="q", name="every"))["previous"] is True
    assert (await ada.ask("set_schedule_paused", paused=False, queue="q", name="every"))["previous"] is False
    await served.app.ticker._tick("q")
    await worker.quiet()
    store_clock.move(first + 3000, served)
    (task,) = await worker.pushed()
    assert task["start_at_ms"] == first + 3000
    assert (await ada.ask("unschedule", queue="q", name="every"))["previous"] is True
    assert (await ada.ask("unschedule", queue="q", name="every"))["previous"] is False
    store_clock.move(first + 5000)
    await served.app.ticker._tick("q")
    await worker.quiet()


async def test_the_thousand_and_first_schedule_is_refused(served: Served) -> None:
    for number in range(1000):
        await overdue(served.app.store, f"s{number}", "skip", -3_600_000)
    async with raw(served, tenant("ada")) as ada:
        with pytest.raises(Refused, match="1000") as caught:
            await ada.ask("schedule", **NIGHTLY)
        assert (caught.value.code, caught.value.field) == ("too_large", "name")


async def test_a_store_that_is_away_delays_a_fire_and_loses_none(
    start_store: Callable[..., stores.LocalServer], store_clock: StoreClock
) -> None:
    server = start_store({"appendfsync": "always"})
    store_clock.govern(server.url)
    async with running(server.url) as served, raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada:
        await worker.attach("q", credit=5)
        (first, *_) = (await ada.ask("schedule", **EVERY))["fires_at_ms"]
        server.kill()
        await wait_until(lambda: not served.app.store.connection.is_connected)
        store_clock.move(first + 200)
        server.start()
        (task,) = await worker.pushed()
        assert bare_id(task["full_id"]) == f"every-{first}"


async def test_schedules_and_opening_hours_wait_while_the_stores_clock_is_ahead(
    served: Served, ada: Raw, operator: Raw, store_clock: StoreClock
) -> None:
    """A fire by such a clock would set the next one to far in the future, and so would a change of opening hours."""
    now_ms, year_ms = store_clock.now_ms, 365 * 86_400_000
    fires = (await ada.ask("schedule", **NIGHTLY))["fires_at_ms"]
    hours = {"queue": "q", "tenant": "ada", "opening_hours": daily(now_ms, 60, 120)}
    answer = await operator.ask("set_opening_hours", **hours)
    store_clock.now_ms, store_clock.ahead_ms = now_ms + year_ms, year_ms
    with capture_logs() as logs:
        due, _ = await served.app.ticker._tick("q")
        await served.app.ticker._tick("q")
    assert [line["event"] for line in logs].count("the store's clock is ahead") == 1
    store_clock.now_ms, store_clock.ahead_ms = now_ms, 0
    assert (await row_of(ada, "nightly"))["next_at_ms"] == fires[0]
    _, (found,) = await served.app.store.opening_hours("q", ["ada"])
    assert (found.changes_at_ms, due) == (answer["changes_at_ms"], FLOOR_S)
