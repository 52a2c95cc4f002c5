"""The dispatcher: one per queue with attached workers. It claims as many tasks as there is free credit.

The tenant is chosen inside `claim`, when a worker is free, and no task is fetched ahead of credit. When a claim has
shown that the queue is empty, the dispatcher sleeps until it is notified (of a local enqueue, by the store's `ready`
channel, by the ticker). claiming.py says when the next claim leaves. A task may be cancelled while the reply of the
claim that brings it is on its way. So ids of cancelled tasks without a holder are kept until that reply.

Queues that share workers do not wait for one with claims that fail, or take longer than LATE_S: it gets no slots
until that is over, and those that it had reserved are the others'. If its answer brings tasks after all, those without
room are given back.

A dispatcher decides at the end of the scheduler's turn, before the turn's calls are sent: so its claim leaves with the
enqueues and settlements that it follows. A claim has no task (fairq/io/taskless.py): it costs the scheduler no turn.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter

import structlog
import trio
from attrs import define, field

from fairq.errors import Deleting, FairqError, OutcomeUnknown, Retryable
from fairq.io.taskless import Taskless, in_task
from fairq.io.turns import before_sending, call_from_end, turn_time
from fairq.model.tasks import Action, Lease
from fairq.server.engine.dispatch.capacity import Capacity, Pool, QueueCapacity, Worker, free_of
from fairq.server.engine.dispatch.claiming import MOST_TASKS, Claiming, Phase, Step
from fairq.server.engine.dispatch.queue_accounts import QueueAccounts
from fairq.server.engine.dispatch.running_alone import Waiting
from fairq.server.engine.stats.wait_times import WaitTimes
from fairq.server.engine.timers.ticker import Ticker
from fairq.store.covered import Covered
from fairq.store.partitions import queue_of
from fairq.store.store import Store
from fairq.store.task_calls import Claim

log = structlog.get_logger("fairq.server")

LATE_S = 0.1
_RETRY_S = 0.25
_EMPTY_S = 1.0  # how long `wait_empty` waits
_WARN_EVERY = 10  # attempts of a task without a limit of them
_id_of, _limit_of = attrgetter("id"), attrgetter("max_attempts")


@define(eq=False)
class Dispatcher:
    """Gives tasks to the workers of one queue, or of one of its partitions; `name` is this server's.

    `elsewhere(queue)` returns how many slots workers of other servers have for a queue; `accounts` has those of the
    queues that share workers.
    """

    place: str
    store: Store
    ticker: Ticker
    name: str
    elsewhere: Callable[[str], int] = lambda _: 0
    accounts: QueueAccounts = field(factory=QueueAccounts)
    wait_times: WaitTimes = field(factory=WaitTimes, init=False)
    queue: str = field(init=False)
    capacity: QueueCapacity = field(init=False)
    room: Capacity | QueueCapacity = field(init=False)  # the same; without shared workers that of its own ones
    stopped: trio.Event = field(factory=trio.Event, init=False)
    claiming: Claiming = field(factory=Claiming, init=False)
    covered: Covered = field(factory=Covered, init=False)  # enqueues that leave with the next claim
    _claims: int = field(default=0, init=False)
    _store_ms: float = field(default=0.0, init=False)  # the store's clock, when this process's was 0
    _weight: float = field(default=1.0, init=False)  # of the queue, from its last claim
    _cancelled: set[str] = field(factory=set, init=False)  # ids cancelled while a claim is under way
    _waiting: dict[Waiting, None] = field(factory=dict, init=False)  # to run alone
    _emptied: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _taskless: Taskless | None = field(default=None, init=False)  # while it runs
    _is_claiming: bool = field(default=False, init=False)  # or rests after a failure
    _is_late: bool = field(default=False, init=False)  # its last claim failed, or is not answered in time
    _failed_at: float = field(default=0.0, init=False)  # since when claims fail; 0: they do not
    _late_at: float = field(default=0.0, init=False)  # when the claim under way is late
    _shares: dict[Worker, int] = field(factory=dict, init=False)  # places reserved for it
    _pace: trio.CancelScope = field(factory=trio.CancelScope, init=False)  # ends when it is time to decide again

    def __attrs_post_init__(self) -> None:
        self.queue = queue_of(self.place)
        self.capacity = QueueCapacity(self.place, self.accounts)
        self.room = self.capacity.own

    def notify(self) -> None:
        """Note that there may be work."""
        self.claiming.notify()
        if self.capacity.shared:
            self._tell_waiting(True)
        before_sending(self._decide)

    def _tell_waiting(self, may_have_tasks: bool) -> None:
        """Tell the account of the queues whether this one waits for slots of shared workers; if not, others may."""
        is_waiting = may_have_tasks and not self._is_late
        self.accounts.set_waiting(self.place, is_waiting, turn_time())
        if not is_waiting:
            self.capacity.wake()

    def cover(self, tasks: int) -> Covered | None:
        """Claim tasks that are about to be enqueued; if that claim leaves in this turn with all of them, return it.

        Then the enqueue leaves with it, and need not notify other servers.
        """
        if self.capacity.shared:
            self._tell_waiting(True)
        now, offered = turn_time(), self.room.offered
        enough = max(self.claiming.covered + tasks, math.ceil(self.claiming.places(offered, now)))
        before_sending(self._decide)
        return self.covered if self.claiming.cover(tasks, self.room.free(enough), offered, now) else None

    @property
    def has_room(self) -> bool:
        """True if the next claim has room for all tasks that it must take."""
        return self.claiming.has_room(self.room.free(self.claiming.covered), self.room.offered)

    def claim_first(self) -> bool:
        """Claim before the other servers look; returns whether there is any room."""
        if self.capacity.shared:
            self._tell_waiting(True)
        before_sending(self._decide)
        return self.claiming.claim_first(self.room.free(1))

    async def pass_on(self) -> None:
        """Notify all servers: there may be more tasks than this server has room for."""
        try:
            await self.store.wake(self.place)
        except FairqError as error:
            log.debug("cannot notify other servers", queue=self.queue, error=error.message)

    @property
    def store_now_ms(self) -> int:
        """The store's time in ms, by the last claim."""
        return round(self._store_ms + trio.current_time() * 1000)

    @property
    def slots(self) -> int:
        """How many slots are attached to the queue: each worker's whole credit, even if it has other queues too."""
        return self.room.offered + self.elsewhere(self.queue)

    async def wait_empty(self) -> bool:
        """Wait for a claim that finds fewer tasks than there is room for; returns False if none has in a second."""
        self.notify()  # a claim that is under way does not count
        with trio.move_on_after(_EMPTY_S) as waiting:
            await self._emptied.park()
        return not waiting.cancelled_caught

    def stop_task(self, id: str) -> None:
        """Tell the worker here that holds a cancelled task, or gets it from a claim under way; all servers do this."""
        for worker in self.capacity.workers:
            if (lease := worker.account.held.get((self.queue, id))) is not None:
                worker.stop_tasks(self.queue, {id: lease})
                return
            if worker.account.line.renew(self.queue, id):
                return
        if self.claiming.phase is not Phase.WAITING:
            self._cancelled.add(id)

    def forget(self) -> None:
        """Drop what is known of the tasks of a deleted queue, and tell all workers to stop them."""
        self.wait_times = WaitTimes()
        if self.capacity.workers:  # they are there from the start of the new queue
            self.wait_times.claimed(self.store_now_ms, (), ())
        for worker in self.capacity.workers:
            if held := worker.account.held_of(self.queue):
                worker.stop_tasks(self.queue, held)

    def join(self, worker: Worker) -> None:
        """Start to give tasks to a worker that serves this queue alone."""
        self.capacity.own.join(worker)
        self.wake_waiting(worker)
        self.notify()

    def leave(self, worker: Worker) -> None:
        """Remove such a worker that is no longer attached."""
        self.capacity.own.leave(worker)
        self.left()

    def left(self, pool: Pool | None = None) -> None:
        """Note that a worker has left, perhaps the last of a pool."""
        if pool and not pool.workers:
            self.capacity.shared.remove(pool)
            self.room = self.capacity if self.capacity.shared else self.capacity.own
        if not self.capacity.workers:
            self.wait_times.left(self.store_now_ms)

    def credit_changed(self, worker: Worker) -> None:
        """Note that such a worker's credit or room has changed."""
        self.capacity.own.changed(worker)
        self.wake_waiting(worker)
        self.look()

    def share(self, pool: Pool) -> None:
        """Start to give tasks to workers that serve other queues, too."""
        self.capacity.shared.append(pool)
        self.room = self.capacity
        self.accounts.set_weight(self.place, self._weight, turn_time())
        pool.on_change[self.place] = self.look

    def look(self) -> None:
        """Note that there may be free slots."""
        if not self.claiming.is_empty:
            before_sending(self._decide)

    def wake_waiting(self, worker: Worker) -> None:
        """Have a task that waits to run alone look at a worker that holds nothing: the first there, or another."""
        if worker.account.held:
            return
        if line := worker.account.line.waiting:
            line[0].wake()
        elif self._waiting:
            next(iter(self._waiting)).wake()

    def stop_claiming(self) -> None:
        """Let `run` end after the claim under way has been handed out."""
        self.claiming.is_stopping = True
        before_sending(self._decide)

    async def run(self) -> None:
        """Claim and push until stopped; a claim under way is always handed out or given back."""
        async with trio.open_nursery() as nursery:
            self._taskless = Taskless(nursery)
            try:
                while not self.stopped.is_set():
                    before_sending(self._decide)
                    with trio.CancelScope() as self._pace:
                        await self.stopped.wait()
            finally:
                self._taskless.close()

    def _decide(self) -> None:
        """Begin what is to be done now; covered enqueues that no claim has taken along leave on their own."""
        try:
            self._take_step()
        finally:
            if self.covered.held:
                self.covered.send()

    def _take_step(self) -> None:
        """Begin what is to be done now, unless a claim is under way."""
        if self._is_claiming or self._taskless is None:
            if self.capacity.shared:
                self._lend_if_late()
            return
        offered = self.room.offered
        free = 0 if self.claiming.is_empty else self.room.free(MOST_TASKS)
        step, until = self.claiming.step(free, offered, turn_time())
        if not self.claiming.promised:
            self.covered.send()
        if step is Step.CLAIM:
            self._shares = self.capacity.reserve(self.claiming.wanted(offered))
        if step is Step.SLEEP:
            if until < self._pace.deadline:
                self._decide_by(until)
        elif step is Step.END:
            self._is_claiming = True
            self._taskless.begin_from_end(self._end())
        elif self._shares or self.claiming.phase is Phase.IN_DOUBT:
            self._is_claiming = True
            self._taskless.begin_from_end(self._claim_and_decide())
            if self.capacity.shared:
                self._late_at = turn_time() + LATE_S
                self._lend_if_late()

    def _decide_by(self, time: float) -> None:
        if time < self._pace.deadline:
            call_from_end(partial(setattr, self._pace, "deadline", time))

    def _lend_if_late(self) -> None:
        """Leave shared slots to the other queues if the claim under way is late."""
        if self._is_claiming and not self._is_late:
            if turn_time() < self._late_at:
                self._decide_by(self._late_at)
            else:
                self._set_late()

    def _set_late(self) -> None:
        self._is_late = True
        if self.capacity.shared:
            self._tell_waiting(False)
        for worker, share in self._shares.items():
            worker.account.reserved -= share
        shares, self._shares = self._shares, {}
        self.capacity.freed(shares)

    async def _end(self) -> None:
        if self.claiming.phase is Phase.IN_DOUBT:
            await self._try_claim()
        call_from_end(self.stopped.set)

    async def _claim_and_decide(self) -> None:
        if not await self._try_claim() and not self.claiming.is_stopping:
            self._set_late()
            await in_task()
            await trio.sleep(_RETRY_S)
        self._is_claiming = self._is_late = False
        if self.capacity.shared:
            self._tell_waiting(not self.claiming.is_empty)
        self._decide()

    async def _try_claim(self) -> bool:
        """Claim as `_claim_for` does; a fault of ours is logged, and fails the claim."""
        shares = self._shares
        try:
            return await self._claim_for(shares)
        except Exception:
            log.exception("claiming failed", queue=self.queue)
            self.claiming.broke_off()
            return False
        finally:
            self.capacity.freed(shares)

    async def _claim_for(self, shares: dict[Worker, int]) -> bool:
        """Claim as many tasks as were reserved, hand them out, and free the rest; returns whether that was done."""
        wanted = max(1, sum(shares.values()))
        try:
            claim = await self._claim(wanted)
        finally:
            for worker, share in self._shares.items():
                worker.account.reserved -= share
            self._shares = {}
        has_failed = claim is None
        if claim is not None:
            now = turn_time()
            was_first = self.claiming.answered(len(claim.leases) < wanted, now)
            unplaced = self._hand_out(claim, shares) if claim.leases else []
            self._note(claim, now)  # once the workers have begun
            del claim  # its payloads may be long: they are not held during other calls
            if unplaced:
                await give_back(self.store, self.place, unplaced, "release")
            if was_first and not self.claiming.is_empty:
                await self.pass_on()
        if self.claiming.phase is not Phase.IN_DOUBT:
            self._cancelled.clear()
        return not has_failed

    async def _claim(self, wanted: int) -> Claim | None:
        """Claim under a new name, or again under the last one if the outcome is unknown; None if that fails."""
        again = self.claiming.sent()
        if not again:
            self._claims += 1
        name = f"{self.name}/{self._claims}"
        try:
            covered = self.covered
            claim = await self.store.claim(self.place, name, wanted, slots=self.slots, again=again, covered=covered)
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
        return None

    async def _without_expiring(self, claim: Claim) -> Claim:
        """Give back the tasks that expire: workers count the time that is left from the lease, which began earlier."""
        expiring = [each for each in claim.leases if each.expires_at_ms]
        if not expiring:
            return claim
        await give_back(self.store, self.place, [(each.id, each.lease, 0) for each in expiring], "release")
        return claim._replace(leases=[each for each in claim.leases if not each.expires_at_ms])

    def _note(self, claim: Claim, now: float) -> None:
        """Note what a claim says about times and the queue."""
        self._store_ms, self._weight = claim.now_ms - now * 1000, claim.queue_weight
        if self.capacity.shared:
            self.accounts.set_weight(self.place, self._weight, now, claim.tenants_weight)
        self.wait_times.claimed(claim.now_ms, claim.leases, claim.blocked)
        if claim.tick_in_ms is not None:
            self.ticker.tick_within(self.place, claim.tick_in_ms)
        if claim.leases:
            self.store.claimed(self.place, claim)
            self.ticker.tick_within(self.place, claim.lease_ms)
            _warn_of_endless(self.queue, claim.leases)
        if self.claiming.is_empty and self._emptied:
            self._emptied.unpark_all()

    def _hand_out(self, claim: Claim, shares: dict[Worker, int]) -> list[tuple[str, int, int]]:
        """Give each task to the worker with the most room; returns the leases for which no worker has room."""
        leases, workers = claim.leases, self.capacity.workers
        if claim.alone:  # to those with the most room: they soon hold nothing
            leases = sorted(leases, key=lambda each: each.id not in claim.alone)
        room, places = [], 0
        for i, worker in enumerate(chain(shares, workers)):
            is_other = i >= len(shares)  # others take what those with a share have no room for any more
            if is_other and places >= len(leases):
                break
            if worker in workers and not (is_other and worker in shares) and (free := free_of(worker)):
                room.append((-free, i, worker))
                places += free
        heapq.heapify(room)
        given: dict[Worker, list[Lease]] = {}
        at = 0
        while room and at < len(leases):
            free, i, worker = heapq.heappop(room)
            second = room[0][0] if room else 0
            some = leases[at : at + max(1, second - free)]  # until it has no more room than the second
            given.setdefault(worker, []).extend(some)
            at += len(some)
            if free + len(some) < 0:
                heapq.heappush(room, (free + len(some), i, worker))
        for worker, some in given.items():
            if together := self._line_up(worker, some, claim) if claim.alone and worker.tracks_leases else some:
                worker.push(self.place, claim.lease_ms, together, claim.run_timeout_ms, self.claiming.first_left_at)
        for id in self._cancelled.intersection(map(_id_of, leases)):
            self.stop_task(id)
        return [(each.id, each.lease, 0) for each in leases[at:]]

    def _line_up(self, worker: Worker, leases: Sequence[Lease], claim: Claim) -> Sequence[Lease]:
        """Hold back the leases of tasks that run alone; returns the others."""
        for lease in leases:
            if lease.id in claim.alone and self._taskless is not None:
                waiting = Waiting(
                    self.store, worker, self.queue, lease, claim.lease_ms, claim.run_timeout_ms,
                    lambda: self.store_now_ms, self.capacity.find_idle, self._freed,
                )  # fmt: skip
                worker.account.line.waiting.append(waiting)
                self._waiting[waiting] = None
                self._taskless.nursery.start_soon(self._let_wait, waiting)
        return [each for each in leases if each.id not in claim.alone]

    def _freed(self, worker: Worker) -> None:
        """Offer the places of a worker at which one task fewer waits to run alone."""
        self.capacity.changed(worker)
        self.capacity.wake()
        self.look()

    async def _let_wait(self, waiting: Waiting) -> None:
        try:
            await waiting.run()
        finally:
            del self._waiting[waiting]


def _warn_of_endless(queue: str, leases: Sequence[Lease]) -> None:
    """Warn of tasks without a limit of attempts at each tenth of them: nothing else ends them, and none is buried."""
    if all(map(_limit_of, leases)):
        return
    for lease in leases:
        if not lease.max_attempts and lease.attempt % _WARN_EVERY == 0:
            log.warning("a task without a limit of attempts goes on", queue=queue, task=lease.id, attempt=lease.attempt)


async def give_back(store: Store, queue: str, leases: Sequence[tuple[str, int, int]], action: Action) -> None:
    """Return leases (id, number, times taken over); if the store is unavailable they expire by themselves."""
    try:
        await store.give_back(queue, leases, action)
    except FairqError as error:
        log.warning("cannot give leases back", queue=queue, count=len(leases), error=error.message)
