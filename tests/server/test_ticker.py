"""The ticker: what is due starts on time, what is late never runs, and the store may go and come."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest
import structlog
import trio
import trio.testing

from fairq.errors import Unavailable
from fairq.model.checks import bare_id
from fairq.model.queues import Tick
from fairq.model.tasks import NewTask
from fairq.server.engine.timers.ticker import _STEP_S as STEP_S
from fairq.server.engine.timers.ticker import FLOOR_S, IDLE_FLOORS, TICKS_AT_ONCE, Ticker
from fairq.server.rated_log import LINES_AT_ONCE, LINES_PER_S
from fairq.server.run import Served
from tests import stores
from tests.store.waiting import wait_until

from .harness import WORKER, Raw, raw, running, tenant


@pytest.mark.usefixtures("no_polls")
async def test_a_delayed_task_starts_when_it_is_due_and_not_before(worker: Raw, ada: Raw) -> None:
    await worker.attach("q", credit=10)
    await ada.enqueue("q", ["a"], delay_ms=250)
    await ada.enqueue("q", ["b"], start_at_ms=int(time.time() * 1000) + 150)
    seen = set()
    for _ in range(2):
        for task in await worker.pushed():
            seen.add(task["id"])
            assert time.time() * 1000 >= task["start_at_ms"]
        if len(seen) == 2:
            break
    assert seen == {"a", "b"}


@pytest.mark.usefixtures("quick_floor")
async def test_a_delayed_task_of_another_server_is_found_at_the_floor(served: Served, worker: Raw) -> None:
    await worker.attach("q", credit=1)
    await served.app.store.enqueue("q", "ada", [NewTask("a", b"1", delay_ms=100)])  # as if elsewhere
    (task,) = await worker.pushed()
    assert time.time() * 1000 >= task["start_at_ms"]


@pytest.mark.usefixtures("quick_floor")
async def test_a_far_deadline_does_not_put_off_what_another_server_left(
    served: Served, ada: Raw, operator: Raw, worker: Raw
) -> None:
    """This server knows of a task due in a minute; leases that another had are still reaped within the floor."""
    await operator.ask("configure", queue="q", settings={"lease_ms": 100})
    await ada.enqueue("q", ["a"])
    await served.app.store.claim("q", "vanished", 1)
    await ada.enqueue("q", ["far"], delay_ms=60_000)
    await worker.attach("q", credit=1)
    (task,) = await worker.pushed()
    assert (task["id"], task["attempt"]) == ("a", 2)


@pytest.mark.usefixtures("no_polls")
async def test_a_retry_starts_after_its_delay(worker: Raw, ada: Raw) -> None:
    await worker.attach("q", credit=1)
    await ada.enqueue("q", ["a"])
    (task,) = await worker.pushed()
    began = time.monotonic()
    await worker.settle("q", "nack", task, delay_ms=200, error="not yet")
    (task,) = await worker.pushed()
    assert task["attempt"] == 2
    assert time.monotonic() - began > 0.19


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("start", ["delay_ms", "start_at_ms"])
async def test_a_rescheduled_task_starts_when_it_is_due(worker: Raw, ada: Raw, start: str) -> None:
    await worker.attach("q")
    await ada.enqueue("q", ["a"], delay_ms=7_200_000)
    await worker.quiet()
    at = 100 if start == "delay_ms" else int(time.time() * 1000) + 100
    assert await ada.ask("reschedule", queue="q", ids=["a"], **{start: at}) == {"outcomes": ["ok"]}
    (task,) = await worker.pushed()
    assert time.time() * 1000 >= task["start_at_ms"]


@pytest.mark.usefixtures("no_polls")
async def test_a_cancelled_batch_ends_at_once(ada: Raw) -> None:
    await ada.ask("open_batch", queue="q", id="b")
    ids = [f"a{n}" for n in range(100)]
    await ada.enqueue("q", ids, batch="b", delay_ms=3_600_000)
    await ada.ask("cancel_batch", queue="q", id="b")
    found = await ada.ask("wait_tasks", queue="q", ids=ids, timeout_ms=10_000)
    assert [task["state"] for task in found["tasks"]] == ["cancelled"] * len(ids)


async def test_a_task_that_expired_never_runs_and_is_a_dead_letter(worker: Raw, ada: Raw, operator: Raw) -> None:
    await ada.enqueue("q", ["waits", "delayed"], expires_in_ms=120)
    await ada.enqueue("q", ["never"], delay_ms=60, expires_in_ms=100)
    await ada.enqueue("q", ["lives"])

    async def are_dead() -> bool:
        letters = (await operator.ask("dead", queue="q"))["dead"]
        return {bare_id(row["id"]) for row in letters} == {"waits", "delayed", "never"}

    await wait_until(are_dead)
    await worker.attach("q", credit=10)
    assert [task["id"] for task in await worker.pushed()] == ["lives"]
    await worker.quiet()
    (row,) = (await operator.ask("queues"))["queues"]
    assert (row["expired"], row["dead"]) == (3, 3)


async def test_the_ticker_survives_the_loss_of_the_store(start_store: Callable[..., stores.LocalServer]) -> None:
    server = start_store()
    with structlog.testing.capture_logs() as logs:
        async with running(server.url) as served, raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada:
            await worker.attach("q", credit=5)
            await ada.enqueue("q", ["a"], delay_ms=1_000)
            server.kill()
            await wait_until(lambda: any(line["event"] == "tick failed" for line in logs))
            server.start()
            (task,) = await worker.pushed()
            assert task["id"] == "a"
            await ada.enqueue("q", ["b"], delay_ms=50)
            assert (await worker.pushed())[0]["id"] == "b"


def _ignore(queue: str) -> None:
    pass


class SlowStore:
    """Answers ticks on request."""

    def __init__(self) -> None:
        self.ticks = 0
        self.asked, self.answer = trio.Event(), trio.Event()
        self.ticked: list[tuple[float, str]] = []

    @property
    def registry(self) -> SimpleNamespace:
        """The list of queues, which are their places."""
        return SimpleNamespace(all_places=self.queues, places_known=lambda queue: [queue])

    @property
    def connection(self) -> SimpleNamespace:
        """The primary of each queue."""
        return SimpleNamespace(owner=self.owner)

    def owner(self, prefix: str) -> str:
        return "the only one"

    async def queues(self) -> list[str]:
        return ["q"]

    async def tick(self, queue: str, server: str) -> Tick:
        """Find nothing."""
        self.ticks += 1
        self.ticked.append((trio.current_time(), queue))
        self.asked.set()
        await self.answer.wait()
        return Tick(0, -1, 0, 0, 0, 0, 0)


async def test_what_comes_to_be_expected_during_a_tick_is_not_forgotten(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = SlowStore()
    ticker = Ticker(store, _ignore)  # type: ignore[arg-type]
    nursery.start_soon(ticker.run)
    ticker.tick_within("q", 0)
    await store.asked.wait()
    ticker.tick_within("q", 50)  # after the store looked, before its answer came
    store.answer.set()
    await trio.sleep(0.06)
    assert store.ticks == 2


async def test_a_queue_in_which_nothing_happens_is_ticked_ever_less_until_something_is_expected(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = SlowStore()
    store.answer.set()
    ticker = Ticker(store, _ignore)  # type: ignore[arg-type]
    nursery.start_soon(ticker.run)
    ticker.tick_within("q", 3_600_000)
    await trio.sleep(200)
    times = [at for at, _ in store.ticked]
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert gaps[0] < 1.5 * FLOOR_S
    assert all(0.75 * IDLE_FLOORS * FLOOR_S <= gap <= IDLE_FLOORS * FLOOR_S + 1 for gap in gaps[7:])
    assert max(gaps) <= IDLE_FLOORS * FLOOR_S + 1
    before = store.ticks
    ticker.tick_within("q", 3_600_000)  # by this server: others may know of more
    await trio.sleep(FLOOR_S + 0.01)
    assert store.ticks > before


class BusyStore(SlowStore):
    """Has a ready task that no worker takes, in one of many queues; counts ticks that are under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = self.most_at_once = 0

    async def queues(self) -> list[str]:
        """Name many queues."""
        return [f"q{n}" for n in range(500)]

    async def tick(self, queue: str, server: str) -> Tick:
        """Find a ready task in one queue, and nothing in the others."""
        self.ticked.append((trio.current_time(), queue))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await trio.sleep(0.001)
        self.at_once -= 1
        return Tick(0, -1, int(queue == "q7"), 0, 0, 0, 0)


async def test_few_ticks_are_under_way_at_once_and_queues_with_ready_tasks_are_ticked_every_second(
    autojump_clock: object,
) -> None:
    store, notified = BusyStore(), list[str]()
    ticker = Ticker(store, notified.append)  # type: ignore[arg-type]
    with trio.move_on_after(120):
        await ticker.run()
    assert store.most_at_once == TICKS_AT_ONCE
    assert len(notified) >= 115
    assert set(notified) == {"q7"}
    at_first = [at for at, _ in store.ticked[:500]]
    assert 0.4 < max(at_first) - min(at_first) < 2, "new queues are not all ticked in one go"
    late = [queue for at, queue in store.ticked if at >= 60 and queue != "q7"]
    assert 500 * 60 / (IDLE_FLOORS + 1) <= len(late) <= 500 * 60 / (0.75 * IDLE_FLOORS) + 500


class TwoClocks(SlowStore):
    """Has queues on two nodes: the clock of one is far ahead until it is set right."""

    ahead_ms = 600_000

    async def queues(self) -> list[str]:
        return ["right", "ahead"]

    async def tick(self, queue: str, server: str) -> Tick:
        """Find a ready task, so that it is ticked every second."""
        self.ticks += 1
        return Tick(0, -1, 1, 0, 0, 0, 0, ahead_ms=self.ahead_ms if queue == "ahead" else 0)


async def test_a_clock_of_one_node_that_is_ahead_is_reported_once(autojump_clock: object) -> None:
    store = TwoClocks()
    ticker = Ticker(store, _ignore)  # type: ignore[arg-type]
    with structlog.testing.capture_logs() as logs:
        with trio.move_on_after(60):
            await ticker.run()
        assert ticker.is_ahead
        store.ahead_ms = 0
        with trio.move_on_after(10):
            await ticker.run()
    assert not ticker.is_ahead
    assert [line["event"] for line in logs] == ["the store's clock is ahead", "the store's clock is right again"]


class CostlyStore(SlowStore):
    """Has one batch of queues; to take in each answer costs the server a millisecond of the same turn."""

    async def queues(self) -> list[str]:
        return [f"q{n}" for n in range(TICKS_AT_ONCE)]

    async def tick(self, queue: str, server: str) -> Tick:
        """Find nothing, late."""
        found = await SlowStore.tick(self, queue, server)
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(0.001)
        return found


async def test_ticks_at_the_floor_begin_at_the_same_moments_after_long_turns(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = CostlyStore()
    store.answer.set()
    ticker = Ticker(store, _ignore)  # type: ignore[arg-type]
    nursery.start_soon(ticker.run)
    await trio.sleep(60)
    late = [at for at, _ in store.ticked if at > FLOOR_S]
    assert late == pytest.approx([round(at / STEP_S) * STEP_S for at in late], abs=1e-6)


class CrowdedStore(BusyStore):
    """Has thousands of queues in which nothing is due."""

    async def queues(self) -> list[str]:
        """Name three thousand queues."""
        return [f"q{n}" for n in range(3_000)]


async def test_a_queue_with_a_due_task_is_ticked_before_thousands_without(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    """All of them are looked at all the same, while one of them is due at every moment."""
    store = CrowdedStore()
    ticker = Ticker(store, _ignore)  # type: ignore[arg-type]
    nursery.start_soon(ticker.run)
    for n in range(300):
        ticker.tick_within("q7", 10)
        due = trio.current_time() + 0.01
        await trio.sleep(0.0125)
        recent = store.ticked[-4 * TICKS_AT_ONCE :]  # more than two batches, of a millisecond each
        assert any(queue == "q7" and due <= at <= due + 0.0021 for at, queue in recent), n
    assert {queue for _, queue in store.ticked} == set(await store.queues())


class FrozenStore(SlowStore):
    """Has more queues on a primary that answers nothing than are ticked at once, and a queue on another one."""

    def __init__(self) -> None:
        super().__init__()
        self.names = {f"q{n}" for n in range(2 * TICKS_AT_ONCE)}
        self.frozen = {*self.names}

    def owner(self, prefix: str) -> str:
        return "frozen" if prefix.removeprefix("fq:{").removesuffix("/0}") in self.frozen else "well"

    async def queues(self) -> list[str]:
        return [*self.names, "well"]

    async def tick(self, queue: str, server: str) -> Tick:
        """Answer at once, or never."""
        self.ticked.append((trio.current_time(), queue))
        if queue in self.frozen:
            await self.answer.wait()
        return Tick(0, -1, 0, 0, 0, 0, 0)


async def test_a_primary_that_stands_still_holds_up_its_own_queues_alone(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = FrozenStore()
    ticker = Ticker(store, _ignore)  # type: ignore[arg-type]
    nursery.start_soon(ticker.run)
    await trio.sleep(2)
    for _ in range(100):
        ticker.tick_within("well", 10)
        due = trio.current_time() + 0.01
        await trio.sleep(0.02)
        assert store.ticked[-1] == (due, "well")
    assert sum(queue in store.frozen for _, queue in store.ticked) <= TICKS_AT_ONCE, "the rest waits"
    store.frozen.clear()
    store.answer.set()  # its queues are found at the other one after their ticks
    await trio.sleep(2)
    assert len(ticker._lanes) == 1
    assert ticker.queues == {"well", *store.names}


async def test_a_queue_keeps_its_due_time_when_its_slot_moves(autojump_clock: object, nursery: trio.Nursery) -> None:
    store = FrozenStore()
    ticker = Ticker(store, _ignore)  # type: ignore[arg-type]
    nursery.start_soon(ticker.run)
    ticker.tick_within("q1", 0)
    await trio.sleep(1)
    ticker.tick_within("q1", 500)
    store.frozen.clear()
    store.answer.set()
    due = trio.current_time() + 0.5
    await trio.sleep(0.6)
    assert (due, "q1") in store.ticked


class HerdStore(SlowStore):
    """Has more due tasks than any tick promotes, and another queue, in which one is due."""

    async def tick(self, queue: str, server: str) -> Tick:
        """Promote some; others' calls take longer at some times than at others."""
        self.ticked.append((trio.current_time(), queue))
        if queue != "q":
            return Tick(0, -1, 0, 1, 0, 0, 0)
        self.ticks += 1
        await trio.sleep((0.002, 0.020, 0.038)[self.ticks % 3])
        return Tick(0, 0, 0, 60, 0, 0, 0)


async def test_a_herd_is_promoted_by_one_short_tick_after_the_other(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    """So a caller waits behind one of them. Another queue is ticked when that one has ended."""
    store = HerdStore()
    ticker = Ticker(store, _ignore)  # type: ignore[arg-type]
    nursery.start_soon(ticker.run)
    ticker.tick_within("q", 0)
    await trio.sleep(2)
    times = [at for at, _ in store.ticked]
    gaps = {round(later - sooner, 3) for sooner, later in pairwise(times)}
    assert gaps == {0.002, 0.020, 0.038}, "each begins when the one before has ended"
    ticker.tick_within("other", 0)
    await trio.sleep(0.039)
    assert "other" in {queue for _, queue in store.ticked}


DAY_MS = 86_400_000


class PatientStore(SlowStore):
    """Has ready tasks, and one that is due tomorrow; no call takes as long as another."""

    async def tick(self, queue: str, server: str) -> Tick:
        """Find both."""
        self.ticks += 1
        now_ms = round(trio.current_time() * 1000)
        await trio.sleep(0.001 * (self.ticks * 7 % 5))
        return Tick(now_ms, DAY_MS, 1, 0, 0, 0, 0)


async def test_times_that_are_ever_sooner_are_not_all_kept(autojump_clock: object) -> None:
    """A tenant chooses when its tasks start: a hundred thousand delays, each shorter than the one before."""
    store = SlowStore()
    store.answer.set()
    ticker = Ticker(store, _ignore)  # type: ignore[arg-type]
    for n in range(100_000):
        ticker.tick_within("q", 3_600_000 - n)
    (lane,) = ticker._lanes.values()
    assert len(lane.due._heap) + len(lane.idle._heap) < 50


async def test_a_time_that_is_far_away_is_kept_once(autojump_clock: object) -> None:
    store = PatientStore()
    ticker = Ticker(store, _ignore)  # type: ignore[arg-type]
    with trio.move_on_after(2_000):
        await ticker.run()
    assert store.ticks > 1_500
    (lane,) = ticker._lanes.values()
    assert len(lane.due._heap) < 50


class StuckStore(SlowStore):
    """Has opening hours that are to change, and does not tell which."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_at: list[float] = []

    async def tick(self, queue: str, server: str) -> Tick:
        """Find one change of opening hours."""
        self.ticks += 1
        return Tick(0, 0, 0, 0, 0, 0, 0, opening_changes=1)

    async def opening_hours(self, queue: str) -> None:
        self.asked_at.append(trio.current_time())
        raise Unavailable("not now")


async def test_what_cannot_be_done_now_is_tried_again_at_the_floor_however_often_it_ticks(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = StuckStore()
    ticker = Ticker(store, _ignore)  # type: ignore[arg-type]
    nursery.start_soon(ticker.run)
    for _ in range(50):
        ticker.tick_within("q", 0)
        await trio.sleep(0.1)
    assert store.ticks >= 50
    assert len(store.asked_at) == 5


async def test_a_queue_that_is_none_is_not_ticked_for_ever(autojump_clock: object, nursery: trio.Nursery) -> None:
    store = SlowStore()
    store.answer.set()
    ticker = Ticker(store, _ignore)  # type: ignore[arg-type]
    nursery.start_soon(ticker.run)
    await trio.sleep(2)
    ticker.tick_within("q", 0)
    ticker.tick_within("typo", 0)
    await trio.sleep(100)
    ended = max(at for at, queue in store.ticked if queue == "typo") - store.ticked[0][0]
    assert ended < 6
    assert sum(queue == "q" for _, queue in store.ticked) >= 5
    assert ticker.queues == {"q"}


class Expiring(SlowStore):
    """Has a task that expires every 10 ms."""

    async def tick(self, queue: str, server: str) -> Tick:
        """Find one."""
        self.ticks += 1
        return Tick(0, 10, 0, 0, 1, 0, 0)


async def test_tasks_that_expire_all_the_time_do_not_fill_the_log(autojump_clock: object) -> None:
    store, seconds = Expiring(), 20.0
    with structlog.testing.capture_logs() as lines, trio.move_on_after(seconds):
        await Ticker(store, _ignore).run()  # type: ignore[arg-type]
    assert store.ticks > 1_000
    logged = [line for line in lines if line["event"] == "tick"]
    assert len(logged) <= LINES_AT_ONCE + LINES_PER_S * seconds
    assert len(logged) + sum(line.get("unlogged", 0) for line in logged) > 1_000
