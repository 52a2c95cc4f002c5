"""A claim whose outcome is unknown is repeated under its name, and what it had taken is handed out at once.

One that fails by a fault of ours is logged, and another follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio
from attrs import define, field
from structlog.testing import capture_logs

from fairq.errors import OutcomeUnknown, Unavailable
from fairq.io.taskless import in_task
from fairq.model.queues import Tick
from fairq.model.tasks import Action, Lease
from fairq.server.engine.dispatch.dispatcher import Dispatcher
from fairq.server.engine.dispatch.worker_account import WorkerAccount
from fairq.server.engine.timers.ticker import Ticker
from fairq.store.task_calls import Claim

from .fake_worker import FakeWorker

LEASES = [Lease(f"t{i}", 70, 1, 5, "ada", 1, 0, 0, b"{}") for i in range(3)]


@define(eq=False)
class ForgetfulStore:
    """Carries out the first claim and loses its answer; gives it when it is asked for again."""

    asked: list[tuple[str, bool]] = field(factory=list)
    generous: bool = False  # each claim finds tasks
    asked_thrice: trio.Event = field(factory=trio.Event)

    async def claim(self, queue: str, name: str, limit: int, *, again: bool = False, **_: object) -> Claim:
        await in_task()
        await trio.lowlevel.checkpoint()
        self.asked.append((name, again))
        if len(self.asked) == 3:
            self.asked_thrice.set()
        if len(self.asked) == 1:
            raise OutcomeUnknown("the store was lost after the command was sent")
        return Claim(30_000, LEASES if again or self.generous else [])

    async def tick(self, queue: str, server: str) -> Tick:
        raise AssertionError("the ticker does not run here")


@define(eq=False)
class Recorder(FakeWorker):
    pushed: trio.Event = field(factory=trio.Event)

    def begin(self, place: str, lease: Lease) -> None:
        self.pushed.set()


async def dispatch(store: ForgetfulStore, worker: Recorder) -> None:
    """Give tasks to a worker until three claims have left."""
    dispatcher = Dispatcher("mail", store, Ticker(store, print), "server")  # type: ignore[arg-type]
    dispatcher.join(worker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher.run)
        with trio.fail_after(60):
            await worker.pushed.wait()
            await store.asked_thrice.wait()
        nursery.cancel_scope.cancel()


async def test_a_lost_claim_is_repeated_under_its_name(autojump_clock: object) -> None:
    store = ForgetfulStore()
    worker = Recorder(WorkerAccount(10))
    await dispatch(store, worker)
    assert [again for _, again in store.asked] == [False, True, False]
    assert store.asked[0][0] == store.asked[1][0] != store.asked[2][0]
    assert set(worker.account.held) == {("mail", lease.id) for lease in LEASES}


@define(eq=False)
class AwayStore(ForgetfulStore):
    """Cannot be reached when it is asked again for the first time."""

    async def claim(self, queue: str, name: str, limit: int, *, again: bool = False, **_: object) -> Claim:
        claim = await ForgetfulStore.claim(self, queue, name, limit, again=again)
        if len(self.asked) == 2:
            raise Unavailable("no connection to the store")
        return claim


async def test_a_lost_claim_is_repeated_until_the_store_answers(autojump_clock: object) -> None:
    store = AwayStore()
    worker = Recorder(WorkerAccount(10))
    await dispatch(store, worker)
    assert store.asked == [("server/1", False), ("server/1", True), ("server/1", True)]
    assert set(worker.account.held) == {("mail", lease.id) for lease in LEASES}


@define(eq=False)
class ExpiringStore(ForgetfulStore):
    """Is asked again for tasks; two of them expire."""

    given_back: list[str] = field(factory=list)

    async def claim(self, queue: str, name: str, limit: int, *, again: bool = False, **_: object) -> Claim:
        claim = await ForgetfulStore.claim(self, queue, name, limit, again=again)
        ends = (0, 1000, 99_000)
        leases = [LEASES[0]._replace(id=f"until-{end}", expires_at_ms=end) for end in ends if again]
        return claim._replace(leases=leases, now_ms=1000)

    async def give_back(self, queue: str, leases: Sequence[tuple[str, int, int]], action: Action) -> None:
        self.given_back += [f"{action} {id}" for id, _, _ in leases]


async def test_tasks_that_expire_are_claimed_anew_after_their_claim_was_lost(
    autojump_clock: object,
) -> None:
    """A worker would count the time that is left from the lease, which is older than the push."""
    store = ExpiringStore()
    worker = Recorder(WorkerAccount(10))
    await dispatch(store, worker)
    assert store.given_back == ["release until-1000", "release until-99000"]
    assert set(worker.account.held) == {("mail", "until-0")}


@define(eq=False)
class GarbledStore(ForgetfulStore):
    """Gives answers that cannot be read."""

    async def claim(self, queue: str, name: str, limit: int, *, again: bool = False, **_: object) -> Claim:
        await ForgetfulStore.claim(self, queue, name, limit, again=again)
        raise ZeroDivisionError


async def test_a_claim_whose_answer_cannot_be_read_is_the_only_one_and_does_not_hold_up_the_end(
    autojump_clock: object,
) -> None:
    store = GarbledStore()
    dispatcher = Dispatcher("mail", store, Ticker(store, print), "server")  # type: ignore[arg-type]
    dispatcher.join(Recorder(WorkerAccount(10)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher.run)
        await store.asked_thrice.wait()
        dispatcher.stop_claiming()
        await dispatcher.stopped.wait()
    assert len({name for name, _ in store.asked}) == 1


@define(eq=False)
class EmptyStore(ForgetfulStore):
    """Finds nothing, and takes a while."""

    async def claim(self, queue: str, name: str, limit: int, *, again: bool = False, **_: object) -> Claim:
        await in_task()
        self.asked.append((name, again))
        await trio.sleep(0.020)
        return Claim(30_000, [])


async def test_what_comes_right_after_a_claim_that_found_nothing_is_claimed_when_the_pace_is_over(
    autojump_clock: object,
) -> None:
    store, account = EmptyStore(), WorkerAccount(5)
    account.lease("mail", LEASES, 30, 0.0)  # less than half of the credit is free
    dispatcher = Dispatcher("mail", store, Ticker(store, print), "server")  # type: ignore[arg-type]
    dispatcher.join(Recorder(account))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher.run)
        await trio.sleep(0.025)
        dispatcher.notify()
        await trio.sleep(0.010)
        assert len(store.asked) == 1
        await trio.sleep(0.006)
        assert len(store.asked) == 2
        nursery.cancel_scope.cancel()


@define(eq=False)
class Clumsy(Recorder):
    has_failed: bool = False

    def push(self, queue: str, lease_ms: int, leases: Sequence[Lease], run_timeout_ms: int, claimed_at: float) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError
        Recorder.push(self, queue, lease_ms, leases, run_timeout_ms, claimed_at)


async def test_a_claim_that_fails_by_our_fault_is_logged_and_another_follows(autojump_clock: object) -> None:
    store = ForgetfulStore(generous=True)
    worker = Clumsy(WorkerAccount(10))
    with capture_logs() as logs:
        await dispatch(store, worker)
    assert "claiming failed" in [entry["event"] for entry in logs]
    assert worker.account.held
    assert not worker.account.reserved
