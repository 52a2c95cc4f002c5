"""The claims of one queue: the calls of the store, and what their answers change.

If the outcome of a claim is unknown, the same claim is sent again, under its name (claiming.py). A task may be
cancelled while the reply of the claim that brings it is on its way. So ids of cancelled tasks without a holder are kept
until that reply. Tasks for which no worker has room any more are given back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

import structlog
import trio
from attrs import define, field

from fairq.errors import Deleting, FairqError, OutcomeUnknown, Retryable
from fairq.io.turns import turn_time
from fairq.model.tasks import Lease
from fairq.server.engine.dispatch.capacity import QueueCapacity, Worker
from fairq.server.engine.dispatch.claiming import Claiming, Phase
from fairq.server.engine.dispatch.giving_back import give_back
from fairq.server.engine.dispatch.handing_out import hand_out
from fairq.server.engine.dispatch.running_alone import AloneTasks
from fairq.server.engine.dispatch.store_clock import StoreClock
from fairq.server.engine.stats.wait_times import WaitTimes
from fairq.server.engine.timers.ticker import Ticker
from fairq.store.covered import Covered
from fairq.store.store import Store
from fairq.store.task_calls import Claim

log = structlog.get_logger("fairq.server")

_WARN_EVERY = 10  # attempts of a task without a limit of them
_id_of, _limit_of = attrgetter("id"), attrgetter("max_attempts")


@define(eq=False)
class ClaimCalls:
    """Claims the tasks of one place, and gives them to workers; `server`: this one's name, as leases have it."""

    place: str  # the queue or one of its partitions
    queue: str
    store: Store
    ticker: Ticker
    server: str
    capacity: QueueCapacity
    alone: AloneTasks
    clock: StoreClock
    claiming: Claiming = field(factory=Claiming, init=False)
    covered: Covered = field(factory=Covered, init=False)  # enqueues that leave with the next claim
    wait_times: WaitTimes = field(factory=WaitTimes, init=False)
    emptied: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)  # by a claim
    _claims: int = field(default=0, init=False)
    _cancelled: set[str] = field(factory=set, init=False)  # ids cancelled while a claim is under way
    _failed_at: float = field(default=0.0, init=False)  # since when claims fail; 0: they do not

    def stop_task(self, id: str) -> None:
        """Send a cancelled task's stop to the worker that holds it, now or when a claim under way has brought it."""
        for worker in self.capacity.workers:
            if (lease := worker.account.held.get((self.queue, id))) is not None:
                worker.stop_tasks(self.queue, {id: lease})
                return
            if worker.account.line.renew(self.queue, id):
                return
        if self.claiming.phase is not Phase.WAITING:
            self._cancelled.add(id)

    async def carry_out(self, slots: int, nursery: trio.Nursery) -> bool:
        """Claim as many tasks as slots are reserved, hand them out, and free the rest; returns whether that was done.

        A fault of ours is logged, and fails the claim.
        """
        shares, owed = self.capacity.reserved, self.capacity.owed
        wanted = max(1, sum(shares.values())) - owed
        try:
            claim = await self._claim(wanted, owed, slots)
            if has_succeeded := claim is not None:
                now = turn_time()
                was_first = self.claiming.answered(len(claim.leases) < wanted, now)
                unplaced = self._push(claim, shares, nursery) if claim.leases else []
                self._note(claim, now)  # once the workers have begun
                del claim  # its payloads may be long: they are not held during other calls
                if unplaced:
                    await give_back(self.store, self.place, unplaced, "release")
                if was_first and not self.claiming.is_empty:
                    await self.pass_on()
        except Exception:
            log.exception("claiming failed", queue=self.queue)
            self.claiming.broke_off()
            return False
        finally:
            self.capacity.freed(shares)
        if self.claiming.phase is not Phase.IN_DOUBT:
            self._cancelled.clear()
        return has_succeeded

    async def _claim(self, wanted: int, owed: int, slots: int) -> Claim | None:
        """Claim under a new name, or again under the last one if the outcome is unknown; None if that fails.

        Then the reserved slots are free for the tasks.
        """
        again = self.claiming.sent()
        if not again:
            self._claims += 1
        name = f"{self.server}/{self._claims}"
        try:
            claim = await self.store.claim(
                self.place, name, wanted, slots=slots, owed=owed, again=again, covered=self.covered
            )
            if self._failed_at:
                log.info("claims succeed again", queue=self.queue, after_s=round(turn_time() - self._failed_at, 1))
                self._failed_at = 0.0
            return await self._without_expiring(claim) if again else claim
        except Deleting:
            self.claiming.failed(is_deleted=True)
        except FairqError as error:
            if isinstance(error, OutcomeUnknown) or (again and isinstance(error, Retryable)):
                self.claiming.lost()
            else:
                self.claiming.failed()
            if not self._failed_at:
                log.warning("claims fail", queue=self.queue, error=error.message)
                self._failed_at = turn_time()
        finally:
            self.capacity.release()
        return None

    async def _without_expiring(self, claim: Claim) -> Claim:
        """Give back the tasks that expire: workers count the time that is left from the lease, which began earlier."""
        expiring = [each for each in claim.leases if each.expires_at_ms]
        if not expiring:
            return claim
        await give_back(self.store, self.place, [(each.id, each.lease, 0) for each in expiring], "release")
        return claim._replace(leases=[each for each in claim.leases if not each.expires_at_ms])

    def _push(self, claim: Claim, shares: Mapping[Worker, int], nursery: trio.Nursery) -> list[tuple[str, int, int]]:
        """Push the tasks to workers; returns the leases for which none has room."""
        given, unplaced = hand_out(claim, shares, self.capacity.workers)
        for worker, some in given.items():
            if together := self.alone.line_up(worker, some, claim, nursery) if claim.alone else some:
                worker.push(self.place, claim.lease_ms, together, claim.run_timeout_ms, self.claiming.first_left_at)
        for id in self._cancelled.intersection(map(_id_of, claim.leases)):
            self.stop_task(id)
        return [(each.id, each.lease, 0) for each in unplaced]

    def _note(self, claim: Claim, now: float) -> None:
        """Note what a claim says about times and the queue."""
        self.clock.set(claim.now_ms, now)
        if self.capacity.shared:
            accounts, by_count = self.capacity.accounts, claim.is_by_count
            accounts.owe(self.place, claim.owed)
            accounts.set_weight(self.place, claim.queue_weight, now, claim.tenants_weight, is_by_count=by_count)
        self.wait_times.claimed(claim.now_ms, claim.leases, claim.blocked)
        if claim.tick_in_ms is not None:
            self.ticker.tick_within(self.place, claim.tick_in_ms)
        if claim.leases:
            self.store.claimed(self.place, claim)
            self.ticker.tick_within(self.place, claim.lease_ms)
            if not all(map(_limit_of, claim.leases)):
                _warn_of_endless(self.queue, claim.leases)
        if self.claiming.is_empty and self.emptied:
            self.emptied.unpark_all()

    async def pass_on(self) -> None:
        """Notify all servers: there may be more tasks than this server has room for."""
        try:
            await self.store.wake(self.place)
        except FairqError as error:
            log.debug("cannot notify other servers", queue=self.queue, error=error.message)


def _warn_of_endless(queue: str, leases: Sequence[Lease]) -> None:
    """Warn of tasks without a limit of attempts at each tenth of them: nothing else ends them, and none is buried."""
    for lease in leases:
        if not lease.max_attempts and lease.attempt % _WARN_EVERY == 0:
            log.warning("a task without a limit of attempts goes on", queue=queue, task=lease.id, attempt=lease.attempt)
