"""The dispatcher: one per queue with attached workers. It claims as many tasks as there is free credit.

The tenant is chosen inside `claim`, when a worker is free, and no task is fetched ahead of credit. When a claim has
shown that the queue is empty, the dispatcher sleeps until it is notified (of a local enqueue, by the store's `ready`
channel, by the ticker).

    claiming.py        when the next claim leaves, and for how many tasks
    capacity.py        which workers have room
    queue_accounts.py  which queue gets a free slot of workers that serve several, and which partition of it
    slot_account.py    an account of such a queue or partition, and how free slots are divided among them
    dispatcher.py      hears of tasks and workers, and begins claims
    claim_calls.py     the claim itself, and what its answer changes
    handing_out.py     which worker gets which task
    running_alone.py   tasks that wait until their worker holds nothing else

Queues that share workers do not wait for one with claims that fail, or take longer than LATE_S: it gets no slots
until that is over, and those that it had reserved are the others'.

A dispatcher decides at the end of the scheduler's turn, before the turn's calls are sent: so its claim leaves with the
enqueues and settlements that it follows. A claim has no task (fairq/io/taskless.py): it costs the scheduler no turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import trio
from attrs import define, field

from fairq.io.taskless import Taskless, in_task
from fairq.io.turns import before_sending, call_from_end, turn_time
from fairq.model.places import queue_of
from fairq.model.tasks import MAX_LEASES
from fairq.server.engine.dispatch.capacity import Capacity, Pool, QueueCapacity, Worker
from fairq.server.engine.dispatch.claim_calls import ClaimCalls
from fairq.server.engine.dispatch.claiming import Claiming, Phase, Step
from fairq.server.engine.dispatch.queue_accounts import QueueAccounts
from fairq.server.engine.dispatch.running_alone import AloneTasks
from fairq.server.engine.dispatch.store_clock import StoreClock
from fairq.server.engine.stats.wait_times import WaitTimes
from fairq.server.engine.timers.ticker import Ticker
from fairq.store.covered import Covered
from fairq.store.store import Store

LATE_S = 0.1
_RETRY_S = 0.25
_EMPTY_S = 1.0  # how long `wait_empty` waits


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
    queue: str = field(init=False)
    capacity: QueueCapacity = field(init=False)
    room: Capacity | QueueCapacity = field(init=False)  # `capacity`; while no workers are shared, `capacity.own`
    clock: StoreClock = field(factory=StoreClock, init=False)
    alone: AloneTasks = field(init=False)
    claims: ClaimCalls = field(init=False)
    claiming: Claiming = field(init=False)
    covered: Covered = field(init=False)
    stopped: trio.Event = field(factory=trio.Event, init=False)
    _taskless: Taskless | None = field(default=None, init=False)  # while it runs
    _is_claiming: bool = field(default=False, init=False)  # or rests after a failure
    _is_late: bool = field(default=False, init=False)  # its last claim failed, or is not answered in time
    _late_at: float = field(default=0.0, init=False)  # when the claim under way is late
    _pace: trio.CancelScope = field(factory=trio.CancelScope, init=False)  # ends when it is time to decide again

    def __attrs_post_init__(self) -> None:
        self.queue = queue_of(self.place)
        self.capacity = QueueCapacity(self.place, self.accounts)
        self.room = self.capacity.own
        self.alone = AloneTasks(self.place, self.queue, self.store, self.capacity, self.clock, self.look)
        self.claims = ClaimCalls(
            self.place, self.queue, self.store, self.ticker, self.name, self.capacity, self.alone, self.clock
        )
        self.claiming, self.covered = self.claims.claiming, self.claims.covered

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

    def promise_claim(self, tasks: int) -> Covered | None:
        """Count tasks that are about to be enqueued; if a claim is promised to them, return what holds their enqueue.

        The conditions are in store/covered.py. Sends nothing.
        """
        if self.capacity.shared:
            self._tell_waiting(True)
        now, offered = turn_time(), self.room.offered
        enough = max(self.claiming.arrived + tasks, math.ceil(self.claiming.slots_needed(offered, now)))
        before_sending(self._decide)
        return self.covered if self.claiming.promise_claim(tasks, self.room.free(enough), offered, now) else None

    @property
    def has_room(self) -> bool:
        """True if the next claim has room for all tasks that have arrived since the last one left."""
        return self.claiming.has_room(self.room.free(self.claiming.arrived), self.room.offered)

    def weigh(self, competing: int) -> None:
        """Note the weight of the tenants that compete in this partition."""
        if self.capacity.shared:
            self.accounts.set_weight(self.place, None, turn_time(), competing)

    def serve_soon(self) -> None:
        """Note that a tenant has begun to wait, unless a claim is under way: it left later, and finds the tenant."""
        if self.capacity.shared and not self._is_claiming:
            self.accounts.serve_soon(self.place)
            self.look()

    def claim_first(self) -> bool:
        """Claim before the other servers look; returns whether there is any room."""
        if self.capacity.shared:
            self._tell_waiting(True)
            self.serve_soon()
        before_sending(self._decide)
        return self.claiming.claim_first(self.room.free(1))

    @property
    def slots(self) -> int:
        """How many slots are attached to the queue: each worker's whole credit, even if it has other queues too."""
        return self.room.offered + self.elsewhere(self.queue)

    async def wait_empty(self) -> bool:
        """Wait for a claim that finds fewer tasks than there is room for; returns False if none has in a second."""
        self.notify()  # a claim that is under way does not count
        with trio.move_on_after(_EMPTY_S) as waiting:
            await self.claims.emptied.park()
        return not waiting.cancelled_caught

    def forget(self) -> None:
        """Drop what is known of the tasks of a deleted queue, and tell all workers to stop them."""
        self.claims.wait_times = WaitTimes()
        if self.capacity.workers:  # they are there from the start of the new queue
            self.claims.wait_times.claimed(self.clock.now_ms, (), ())
        for worker in self.capacity.workers:
            if held := worker.account.held_of(self.queue):
                worker.stop_tasks(self.queue, held)

    def join(self, worker: Worker) -> None:
        """Start to give tasks to a worker that serves this queue alone."""
        self.capacity.own.join(worker)
        self.alone.offer(worker)
        self.notify()

    def leave(self, worker: Worker) -> None:
        """Remove a worker that served this queue alone, and is no longer attached."""
        self.capacity.own.leave(worker)
        self.left()

    def left(self, pool: Pool | None = None) -> None:
        """Note that a worker has left. `pool`: that it belonged to; its last worker takes the pool along."""
        if pool and not pool.workers:
            self.capacity.shared.remove(pool)
            if not self.capacity.shared:
                self.room, self.claiming.shared = self.capacity.own, None
        if not self.capacity.workers:
            self.claims.wait_times.left(self.clock.now_ms)

    def credit_changed(self, worker: Worker) -> None:
        """Note that the credit or room of a worker that serves this queue alone has changed."""
        self.capacity.own.changed(worker)
        self.alone.offer(worker)
        self.look()

    def share(self, pool: Pool) -> None:
        """Start to give tasks to workers that serve other queues, too."""
        self.capacity.shared.append(pool)
        self.room, self.claiming.shared = self.capacity, self.accounts.pace
        self.accounts.set_weight(self.place, None, turn_time())
        pool.on_change[self.place] = self.look

    def look(self) -> None:
        """Note that there may be free slots."""
        if not self.claiming.is_empty:
            before_sending(self._decide)

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
        free = 0 if self.claiming.is_empty else self.room.free(MAX_LEASES)
        step, until = self.claiming.step(free, offered, turn_time())
        if not self.claiming.promised:
            self.covered.send()
        if step is Step.CLAIM:
            self.capacity.reserve(self.claiming.wanted(offered))
        if step is Step.SLEEP:
            if until < self._pace.deadline:
                self._decide_by(until)
        elif step is Step.END:
            self._is_claiming = True
            self._taskless.begin_from_end(self._end(self._taskless.nursery))
        elif self.capacity.reserved or self.claiming.phase is Phase.IN_DOUBT:
            self._is_claiming = True
            self._taskless.begin_from_end(self._claim(self._taskless.nursery))
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
        self.capacity.freed(self.capacity.release())

    async def _end(self, nursery: trio.Nursery) -> None:
        if self.claiming.phase is Phase.IN_DOUBT:
            await self.claims.carry_out(self.slots, nursery)
        call_from_end(self.stopped.set)

    async def _claim(self, nursery: trio.Nursery) -> None:
        """Claim, and decide again."""
        if not await self.claims.carry_out(self.slots, nursery) and not self.claiming.is_stopping:
            self._set_late()
            await in_task()
            await trio.sleep(_RETRY_S)
        self._is_claiming = self._is_late = False
        if self.capacity.shared:
            self._tell_waiting(not self.claiming.is_empty)
        self._decide()
