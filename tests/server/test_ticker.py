"""The ticker: what is due starts on time, what is late never runs, and the store may go and come."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
import structlog
import trio
import trio.testing
from attrs import define, evolve

from fairq.errors import Unavailable
from fairq.model.checks import bare_id
from fairq.model.queues import Tick
from fairq.model.tasks import NewTask
from fairq.server.engine.timers.ticker import _STEP_S as STEP_S
from fairq.server.engine.timers.ticker import FLOOR_S, IDLE_FLOORS, TICKS_AT_ONCE, Ticker
from fairq.server.rated_log import LINES_AT_ONCE, LINES_PER_S
from fairq.server.run import Served
from fairq.store import keys
from tests import stores
from tests.store.cases import case
from tests.store.waiting import wait_until

from .clock import StoreClock
from .harness import WORKER, Raw, daily, lease_of, raw, running, tenant
from .refusals import REQUESTS, parts_of

SOON_MS = 100


@define
class Queue:
    """A queue whose time stands shortly before a minute; each row of DUE has a task start in it at that minute."""

    ada: Raw
    worker: Raw
    operator: Raw
    clock: StoreClock
    id: str = ""
    due_ms: int = 0

    def begin(self, id: str) -> None:
        """Go on to shortly before the next minute, for a task with another id."""
        self.id, self.due_ms = id, (self.clock.now_ms // 60_000 + 2) * 60_000
        self.clock.now_ms = self.due_ms - SOON_MS

    async def leased(self) -> dict[str, Any]:
        """Have a task pushed to the worker."""
        await self.ada.enqueue("q", [self.id])
        (task,) = await self.worker.pushed()
        return task

    async def enqueue(self, **start: int) -> None:
        assert await self.ada.enqueue("q", [self.id], **start) == ["ok"]

    async def enqueue_from(self, **start: int) -> None:
        new, task = {"id": f"{self.id}-new", "payload": 1, **start}, await self.leased()
        await self.worker.ask("enqueue_from", leases=[lease_of(task)], queue="q", tasks=[new])
        assert await self.worker.settle("q", "ack", task) == ["ok"]

    async def settle(self, action: str, **how: Any) -> None:
        assert await self.worker.settle("q", action, await self.leased(), **how) == ["ok"]

    async def reschedule(self, **start: int) -> None:
        await self.enqueue(delay_ms=7_200_000)
        assert await self.ada.ask("reschedule", queue="q", ids=[self.id], **start) == {"outcomes": ["ok"]}

    async def schedule(self) -> None:
        await self.ada.ask("schedule", queue="q", name=self.id, payload=1, cron="* * * * *")

    async def resume(self) -> None:
        self.clock.now_ms = self.due_ms + 1  # the server expects its first fire in a minute
        await self.schedule()
        self.begin(self.id)
        for paused in (True, False):
            await self.ada.ask("set_schedule_paused", queue="q", name=self.id, paused=paused)

    async def declare(self) -> None:
        terms = {"queue": "q", "tenant": "ada", "name": self.id, "payload": 1, "cron": "* * * * *"}
        await self.worker.ask("declare", app="jobs", schedules=[terms])

    async def open(self) -> None:
        hours = daily(self.clock.now_ms, 1, 120)
        await self.operator.ask("set_opening_hours", queue="q", opening_hours=hours)
        await self.enqueue()


DUE: dict[str, Callable[[Queue], Awaitable[None]]] = {
    "enqueue.tasks.delay_ms": lambda queue: queue.enqueue(delay_ms=SOON_MS),
    "enqueue.tasks.start_at_ms": lambda queue: queue.enqueue(start_at_ms=queue.due_ms),
    "enqueue_from.tasks.delay_ms": lambda queue: queue.enqueue_from(delay_ms=SOON_MS),
    "enqueue_from.tasks.start_at_ms": lambda queue: queue.enqueue_from(start_at_ms=queue.due_ms),
    "reschedule..delay_ms": lambda queue: queue.reschedule(delay_ms=SOON_MS),
    "reschedule..start_at_ms": lambda queue: queue.reschedule(start_at_ms=queue.due_ms),
    "settle.settlements.delay_ms": lambda queue: queue.settle("nack", delay_ms=SOON_MS),
    "a release": lambda queue: queue.settle("release", delay_ms=SOON_MS),
    "a link": lambda queue: queue.settle(
        "ack", links=[{"queue": "q", "id": f"{queue.id}-link", "payload": 1, "delay_ms": SOON_MS}]
    ),
    "a schedule": lambda queue: queue.schedule(),
    "a schedule that is resumed": lambda queue: queue.resume(),
    "a schedule that a worker declares": lambda queue: queue.declare(),
    "opening hours": lambda queue: queue.open(),
}


@pytest.mark.usefixtures("no_polls")
async def test_a_server_looks_when_what_it_knows_of_is_due(
    worker: Raw, ada: Raw, operator: Raw, store_clock: StoreClock
) -> None:
    """Nothing else would bring the task: the ticker's next round is in an hour, and so is the end of a lease."""
    assert {
        f"{verb}.{outer}.{name}"
        for verb in REQUESTS
        for outer, part in parts_of(verb).items()
        for name in ("delay_ms", "start_at_ms")
        if name in get_type_hints(part)
    } <= DUE.keys()
    await operator.ask("configure", queue="q", settings={"lease_ms": 3_600_000})
    await worker.attach("q")
    queue = Queue(ada, worker, operator, store_clock)
    for n, (what, put_off) in enumerate(DUE.items()):
        with case(what):
            await worker.quiet()
            queue.begin(f"t{n}")
            await put_off(queue)
            assert not worker.pushes
            store_clock.now_ms = queue.due_ms
            (task,) = await worker.pushed()
            assert task["id"].startswith(queue.id)
            await worker.settle("q", "ack", task)
            await ada.ask("unschedule", queue="q", name=queue.id)


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


NOTHING = Tick(0, -1, 0, 0, 0, 0, 0)
DAY_MS = 86_400_000


class QuietStore:
    """Finds nothing; queues that are frozen have a primary that does not answer before `answer` is set."""

    def __init__(self, *names: str, frozen: Iterable[str] = ()) -> None:
        self.names, self.frozen = names or ("q",), set(frozen)
        self.asked, self.answer = trio.Event(), trio.Event()
        self.ticked: list[tuple[float, str]] = []

    @property
    def registry(self) -> SimpleNamespace:
        """The list of queues, which are their places."""
        return SimpleNamespace(all_places=self.queues, places_known=lambda queue: [queue])

    @property
    def connection(self) -> SimpleNamespace:
        """The primary of each queue."""
        frozen = {keys.queue_prefix(queue) for queue in self.frozen}
        return SimpleNamespace(owner=lambda prefix: prefix in frozen)

    async def queues(self) -> Sequence[str]:
        return self.names

    async def tick(self, queue: str, server: str) -> Tick:
        """Find something, or nothing; at once, or when the primary answers."""
        self.ticked.append((trio.current_time(), queue))
        self.asked.set()
        await trio.lowlevel.checkpoint()
        if queue in self.frozen:
            await self.answer.wait()
        return await self.find(queue)

    async def find(self, queue: str) -> Tick:
        """Find nothing."""
        return NOTHING


def start_ticker(nursery: trio.Nursery, store: QuietStore, has_ready: Callable[[str], None] = lambda _: None) -> Ticker:
    """Begin to tick the queues of a store."""
    ticker = Ticker(store, has_ready)  # type: ignore[arg-type]
    nursery.start_soon(ticker.run)
    return ticker


async def test_what_comes_to_be_expected_during_a_tick_is_not_forgotten(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = QuietStore(frozen=["q"])
    ticker = start_ticker(nursery, store)
    ticker.tick_within("q", 0)
    await store.asked.wait()
    ticker.tick_within("q", 50)  # after the store looked, before its answer came
    store.answer.set()
    await trio.sleep(0.06)
    assert len(store.ticked) == 2


async def test_a_queue_in_which_nothing_happens_is_ticked_ever_less_until_something_is_expected(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = QuietStore()
    ticker = start_ticker(nursery, store)
    ticker.tick_within("q", 3_600_000)
    await trio.sleep(200)
    times = [at for at, _ in store.ticked]
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert gaps[0] < 1.5 * FLOOR_S
    assert all(0.75 * IDLE_FLOORS * FLOOR_S <= gap <= IDLE_FLOORS * FLOOR_S + 1 for gap in gaps[7:])
    assert max(gaps) <= IDLE_FLOORS * FLOOR_S + 1
    ticker.tick_within("q", 3_600_000)  # by this server: others may know of more
    await trio.sleep(FLOOR_S + 0.01)
    assert len(store.ticked) > len(times)


class BusyStore(QuietStore):
    """Has a ready task that no worker takes, in one of its queues; counts ticks that are under way at once."""

    at_once = most_at_once = 0

    async def find(self, queue: str) -> Tick:
        """Find the ready task, or nothing."""
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await trio.sleep(0.001)
        self.at_once -= 1
        return evolve(NOTHING, ready=int(queue == "q7"))


async def test_few_ticks_are_under_way_at_once_and_queues_with_ready_tasks_are_ticked_every_second(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store, notified = BusyStore(*(f"q{n}" for n in range(500))), list[str]()
    start_ticker(nursery, store, notified.append)
    await trio.sleep(120)
    assert store.most_at_once == TICKS_AT_ONCE
    assert len(notified) >= 115
    assert set(notified) == {"q7"}
    at_first = [at for at, _ in store.ticked[:500]]
    assert 0.4 < max(at_first) - min(at_first) < 2, "new queues are not all ticked in one go"
    late = [queue for at, queue in store.ticked if at >= 60 and queue != "q7"]
    assert 500 * 60 / (IDLE_FLOORS + 1) <= len(late) <= 500 * 60 / (0.75 * IDLE_FLOORS) + 500


async def test_a_queue_with_a_due_task_is_ticked_before_thousands_without(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    """All of them are looked at all the same, while one of them is due at every moment."""
    store = BusyStore(*(f"q{n}" for n in range(3_000)))
    ticker = start_ticker(nursery, store)
    for n in range(300):
        ticker.tick_within("q7", 10)
        due = trio.current_time() + 0.01
        await trio.sleep(0.0125)
        recent = store.ticked[-4 * TICKS_AT_ONCE :]  # more than two batches, of a millisecond each
        assert any(queue == "q7" and due <= at <= due + 0.0021 for at, queue in recent), n
    assert {queue for _, queue in store.ticked} == set(store.names)


class TwoClocks(QuietStore):
    """Has queues on two nodes: the clock of one is far ahead until it is set right."""

    ahead_ms = 600_000

    async def find(self, queue: str) -> Tick:
        """Find a ready task, so that the queue is ticked every second."""
        return evolve(NOTHING, ready=1, ahead_ms=self.ahead_ms if queue == "ahead" else 0)


async def test_a_clock_of_one_node_that_is_ahead_is_reported_once(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = TwoClocks("right", "ahead")
    with structlog.testing.capture_logs() as logs:
        ticker = start_ticker(nursery, store)
        await trio.sleep(60)
        assert ticker.is_ahead
        store.ahead_ms = 0
        await trio.sleep(10)
    assert not ticker.is_ahead
    assert [line["event"] for line in logs] == ["the store's clock is ahead", "the store's clock is right again"]


class CostlyStore(QuietStore):
    """To take in each of its answers costs the server a millisecond of the same turn."""

    async def find(self, queue: str) -> Tick:
        """Find nothing, late."""
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(0.001)
        return NOTHING


async def test_ticks_at_the_floor_begin_at_the_same_moments_after_long_turns(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = CostlyStore(*(f"q{n}" for n in range(TICKS_AT_ONCE)))  # one batch
    start_ticker(nursery, store)
    await trio.sleep(60)
    late = [at for at, _ in store.ticked if at > FLOOR_S]
    assert late == pytest.approx([round(at / STEP_S) * STEP_S for at in late], abs=1e-6)


async def test_a_primary_that_stands_still_holds_up_its_own_queues_alone(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    """It has more queues than are ticked at once."""
    frozen = [f"q{n}" for n in range(2 * TICKS_AT_ONCE)]
    store = QuietStore(*frozen, "well", frozen=frozen)
    ticker = start_ticker(nursery, store)
    await trio.sleep(2)
    for _ in range(100):
        ticker.tick_within("well", 10)
        due = trio.current_time() + 0.01
        await trio.sleep(0.02)
        assert store.ticked[-1] == (due, "well")
    assert sum(queue in frozen for _, queue in store.ticked) <= TICKS_AT_ONCE, "the rest waits"
    store.frozen.clear()
    store.answer.set()  # its queues are found at the other one after their ticks
    await trio.sleep(2)
    assert len(ticker._lanes) == 1
    assert ticker.queues == {*store.names}


async def test_a_queue_keeps_its_due_time_when_its_slot_moves(autojump_clock: object, nursery: trio.Nursery) -> None:
    store = QuietStore("q", "well", frozen=["q"])
    ticker = start_ticker(nursery, store)
    ticker.tick_within("q", 0)
    await trio.sleep(1)
    ticker.tick_within("q", 500)
    store.frozen.clear()
    store.answer.set()
    due = trio.current_time() + 0.5
    await trio.sleep(0.6)
    assert (due, "q") in store.ticked


class HerdStore(QuietStore):
    """Has more due tasks in q than any tick promotes; in any other queue, one is due."""

    async def find(self, queue: str) -> Tick:
        """Promote some; others' calls take longer at some times than at others."""
        if queue != "q":
            return evolve(NOTHING, promoted=1)
        await trio.sleep((0.002, 0.020, 0.038)[len(self.ticked) % 3])
        return evolve(NOTHING, next_due_ms=0, promoted=60)


async def test_a_herd_is_promoted_by_one_short_tick_after_the_other(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    """So a caller waits behind one of them. Another queue is ticked when that one has ended."""
    store = HerdStore()
    ticker = start_ticker(nursery, store)
    ticker.tick_within("q", 0)
    await trio.sleep(2)
    times = [at for at, _ in store.ticked]
    gaps = {round(later - sooner, 3) for sooner, later in pairwise(times)}
    assert gaps == {0.002, 0.020, 0.038}, "each begins when the one before has ended"
    ticker.tick_within("other", 0)
    await trio.sleep(0.039)
    assert "other" in {queue for _, queue in store.ticked}


async def test_times_that_are_ever_sooner_are_not_all_kept(autojump_clock: object) -> None:
    """A tenant chooses when its tasks start: a hundred thousand delays, each shorter than the one before."""
    ticker = Ticker(QuietStore(), print)  # type: ignore[arg-type]
    for n in range(100_000):
        ticker.tick_within("q", 3_600_000 - n)
    (lane,) = ticker._lanes.values()
    assert len(lane.due._heap) + len(lane.idle._heap) < 50


class PatientStore(QuietStore):
    """Has ready tasks, and one that is due tomorrow; no call takes as long as another."""

    async def find(self, queue: str) -> Tick:
        """Find both."""
        now_ms = round(trio.current_time() * 1000)
        await trio.sleep(0.001 * (len(self.ticked) * 7 % 5))
        return evolve(NOTHING, now_ms=now_ms, next_due_ms=DAY_MS, ready=1)


async def test_a_time_that_is_far_away_is_kept_once(autojump_clock: object, nursery: trio.Nursery) -> None:
    store = PatientStore()
    ticker = start_ticker(nursery, store)
    await trio.sleep(2_000)
    assert len(store.ticked) > 1_500
    (lane,) = ticker._lanes.values()
    assert len(lane.due._heap) < 50


class StuckStore(QuietStore):
    """Has opening hours that are to change, and does not tell which."""

    asked_for_hours = 0

    async def find(self, queue: str) -> Tick:
        """Find one change of opening hours."""
        return evolve(NOTHING, next_due_ms=0, opening_changes=1)

    async def opening_hours(self, queue: str) -> None:
        self.asked_for_hours += 1
        raise Unavailable("not now")


async def test_what_cannot_be_done_now_is_tried_again_at_the_floor_however_often_it_ticks(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = StuckStore()
    ticker = start_ticker(nursery, store)
    for _ in range(50):
        ticker.tick_within("q", 0)
        await trio.sleep(0.1)
    assert len(store.ticked) >= 50
    assert store.asked_for_hours == 5


async def test_a_queue_that_is_none_is_not_ticked_for_ever(autojump_clock: object, nursery: trio.Nursery) -> None:
    store = QuietStore()
    ticker = start_ticker(nursery, store)
    await trio.sleep(2)
    ticker.tick_within("q", 0)
    ticker.tick_within("typo", 0)
    await trio.sleep(100)
    ended = max(at for at, queue in store.ticked if queue == "typo") - store.ticked[0][0]
    assert ended < 6
    assert sum(queue == "q" for _, queue in store.ticked) >= 5
    assert ticker.queues == {"q"}


class ExpiringStore(QuietStore):
    """Has a task that expires every 10 ms."""

    async def find(self, queue: str) -> Tick:
        """Find one."""
        return evolve(NOTHING, next_due_ms=10, expired=1)


async def test_tasks_that_expire_all_the_time_do_not_fill_the_log(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store, seconds = ExpiringStore(), 20.0
    with structlog.testing.capture_logs() as lines:
        start_ticker(nursery, store)
        await trio.sleep(seconds)
    assert len(store.ticked) > 1_000
    logged = [line for line in lines if line["event"] == "tick"]
    assert len(logged) <= LINES_AT_ONCE + LINES_PER_S * seconds
    assert len(logged) + sum(line.get("unlogged", 0) for line in logged) > 1_000
