"""A claim whose outcome is unknown is repeated under its name, and what it had taken is handed out at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio
from attrs import define, field

from fairq.errors import OutcomeUnknown
from fairq.model.queues import Tick
from fairq.model.tasks import Lease
from fairq.server.dispatch.dispatcher import Dispatcher
from fairq.server.dispatch.worker_account import WorkerAccount
from fairq.server.timers.ticker import Ticker
from fairq.store.task_calls import Claim

LEASES = [Lease(f"t{i}", 70, 1, 5, "ada", 1, 0, 0, b"{}") for i in range(3)]


@define(eq=False)
class ForgetfulStore:
    """Carries out the first claim and loses its answer; gives it when it is asked for again."""

    asked: list[tuple[str, bool]] = field(factory=list)

    asked_thrice: trio.Event = field(factory=trio.Event)

    async def claim(self, queue: str, name: str, limit: int, *, slots: int | None = None, again: bool = False) -> Claim:
        await trio.lowlevel.checkpoint()
        self.asked.append((name, again))
        if len(self.asked) == 3:
            self.asked_thrice.set()
        if len(self.asked) == 1:
            raise OutcomeUnknown("the store was lost after the command was sent")
        return Claim(30_000, LEASES if again else [])

    async def tick(self, queue: str, server: str) -> Tick:
        raise AssertionError("the ticker does not run here")


@define(eq=False)
class Recorder:
    account: WorkerAccount
    name: str = "w"
    pushed: trio.Event = field(factory=trio.Event)

    def push(self, queue: str, lease_ms: int, leases: Sequence[Lease], run_timeout_ms: int) -> None:
        self.account.lease(queue, leases, lease_ms / 1000, 0.0)
        self.pushed.set()

    def stop_tasks(self, queue: str, leases: Mapping[str, int]) -> None:
        raise AssertionError("nothing is cancelled")


async def test_a_lost_claim_is_repeated_under_its_name(autojump_clock: trio.testing.MockClock) -> None:
    store = ForgetfulStore()
    worker = Recorder(WorkerAccount(10))
    dispatcher = Dispatcher("mail", store, Ticker(store, print), "server")  # type: ignore[arg-type]
    dispatcher.join(worker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher.run)
        await worker.pushed.wait()
        await store.asked_thrice.wait()
        nursery.cancel_scope.cancel()
    assert [again for _, again in store.asked] == [False, True, False]
    assert store.asked[0][0] == store.asked[1][0] != store.asked[2][0]
    assert set(worker.account.held) == {("mail", lease.id) for lease in LEASES}
