"""Tasks that run alone in their worker's process: the next lost lease would be their last (lua/tasks/lost_leases.lua).

A claim says which tasks these are. One waits at this server until the worker that it was given to holds nothing; then
it is pushed, and until it is settled nothing else is pushed. So a worker need not know of this, and one
that held one lease when its process died ran that task alone.

While tasks wait for a worker it gets no others, and the server renews their leases. A renewal is the last thing before
the push: a task that was cancelled, or has lost its lease, does not begin.

| a task that waits | when | becomes |
|---|---|---|
| is first in line | its worker holds nothing, and a renewal says `ok` | pushed |
| is not first, or its worker is busy | another worker holds nothing | first in line there |
| is late or cancelled, or its worker takes no more | a renewal shows it | given back, without an attempt |
| has lost its lease | a renewal shows it | dropped |
| has lost its worker | the connection ends | given back (fairq/server/engine/leases.py) |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.io.auto_reset_event import AutoResetEvent
from fairq.model.tasks import Lease, Outcome, Settlement, leased_at_ms
from fairq.server.engine.dispatch.giving_back import give_back

if TYPE_CHECKING:
    from trio import Nursery

    from fairq.server.engine.dispatch.capacity import QueueCapacity, Worker
    from fairq.server.engine.dispatch.store_clock import StoreClock
    from fairq.store.store import Store
    from fairq.store.task_calls import Claim

log = structlog.get_logger("fairq.server")

_RENEWALS_PER_LEASE = 3
_RETRY_S = 1.0  # at most, while the store is away


@define(eq=False)
class Line:
    """The tasks that wait to run alone at one worker, in order; and the one that does, once it was pushed."""

    waiting: deque[Waiting] = field(factory=deque, init=False)
    alone: tuple[str, str] | None = field(default=None, init=False)  # queue and id

    def wake_first(self) -> None:
        """Let the first one check whether it may begin."""
        if self.waiting:
            self.waiting[0].wake()

    def renew(self, queue: str, id: str) -> bool:
        """Renew the lease of a task that waits here, to see whether it is valid; returns whether there is one."""
        found = [each for each in self.waiting if (each.owner.queue, each.lease.id) == (queue, id)]
        for each in found:
            each.renew_at = 0.0
            each.wake()
        return bool(found)

    def drop_all(self) -> dict[str, list[tuple[str, int, int]]]:
        """Remove all that wait; returns their leases by queue: id, number, times taken over."""
        by_queue: dict[str, list[tuple[str, int, int]]] = {}
        while self.waiting:
            each = self.waiting.popleft()
            by_queue.setdefault(each.owner.queue, []).append((each.lease.id, each.lease.lease, 0))
            each.wake()
        return by_queue


@define(eq=False)
class AloneTasks:
    """The tasks of one place that wait to run alone; `look()` is called when a worker may be given others again."""

    place: str  # the queue or one of its partitions
    queue: str
    store: Store
    capacity: QueueCapacity
    clock: StoreClock
    look: Callable[[], None]
    _waiting: dict[Waiting, None] = field(factory=dict, init=False)

    def line_up(self, worker: Worker, leases: Sequence[Lease], claim: Claim, nursery: Nursery) -> Sequence[Lease]:
        """Let the tasks wait that run alone; returns the others. Without a record of the worker's leases none waits."""
        if not worker.tracks_leases:
            return leases
        for lease in leases:
            if lease.id in claim.alone:
                waiting = Waiting(self, worker, lease, claim.lease_ms, claim.run_timeout_ms)
                worker.account.line.waiting.append(waiting)
                self._waiting[waiting] = None
                nursery.start_soon(self._wait, waiting)
        return [each for each in leases if each.id not in claim.alone]

    async def _wait(self, waiting: Waiting) -> None:
        try:
            await waiting.run()
        finally:
            del self._waiting[waiting]

    def offer(self, worker: Worker) -> None:
        """Have a task that waits look at a worker, if that holds nothing: the first there, or another."""
        if worker.account.held:
            return
        if line := worker.account.line.waiting:
            line[0].wake()
        elif self._waiting:
            next(iter(self._waiting)).wake()

    def freed(self, worker: Worker) -> None:
        """Offer the slots of a worker at which one task fewer waits."""
        self.capacity.changed(worker)
        self.capacity.wake()
        self.look()


@define(eq=False)
class Waiting:
    """A leased task that waits to run alone at a worker; `owner`: all of its place that do."""

    owner: AloneTasks
    worker: Worker
    lease: Lease
    lease_ms: int
    run_timeout_ms: int
    renew_at: float = field(default=0.0, init=False)
    _woken: AutoResetEvent = field(factory=partial(AutoResetEvent, trio.Event), init=False)

    def wake(self) -> None:
        """Wake it, so that it checks its next step."""
        self._woken.set()

    @property
    def _is_over(self) -> bool:
        return self not in self.worker.account.line.waiting

    @property
    def _is_next(self) -> bool:
        account = self.worker.account
        return account.line.waiting[0] is self and not account.held

    async def run(self) -> None:
        """Keep the lease until its task can run alone, then push it; or give it back."""
        every_s = self.lease_ms / 1000 / _RENEWALS_PER_LEASE
        self.renew_at = trio.current_time() + every_s
        while not self._is_over:
            if trio.current_time() < self.renew_at and not (self._is_next or self.owner.capacity.find_idle()):
                with trio.move_on_at(self.renew_at):
                    await self._woken.wait()
                continue
            sent_at = trio.current_time()
            try:
                outcome = await self._renew()
            except FairqError as error:
                log.warning("cannot renew a lease that waits", queue=self.owner.queue, error=error.message)
                await trio.sleep(min(_RETRY_S, every_s))
                continue
            self.renew_at = trio.current_time() + every_s
            await self._go_on(outcome, sent_at)

    async def _renew(self) -> Outcome:
        renewal = Settlement("extend", self.lease.id, self.lease.lease)
        (outcome,) = await self.owner.store.settle(self.owner.place, [renewal])
        return outcome

    async def _go_on(self, outcome: Outcome, renewed_at: float) -> None:
        """Do what the outcome of a renewal allows, which was sent at that time."""
        if self._is_over:
            return
        if outcome != "ok" or not self._can_run:
            await self._leave(is_open=outcome in ("ok", "cancelled"))
            return
        if not self._is_next and (idle := self.owner.capacity.find_idle()):
            self._move(idle)
        if self._is_next:
            self._push(renewed_at)

    @property
    def _can_run(self) -> bool:
        expires_at_ms = self.lease.expires_at_ms
        is_late = 0 < expires_at_ms <= self.owner.clock.now_ms
        return not is_late and self.worker.account.credit > 0 and self.worker.may_take

    def _push(self, renewed_at: float) -> None:
        lease, line = self.lease, self.worker.account.line
        line.waiting.popleft()
        line.alone = self.owner.queue, lease.id
        if lease.expires_at_ms:  # a worker counts the time that is left from the renewal, as if the lease began then
            waited_ms = max(0, self.owner.clock.now_ms - leased_at_ms(lease.lease))
            lease = lease._replace(expires_at_ms=max(1, lease.expires_at_ms - waited_ms))
        log.info(
            "a task runs alone", worker=self.worker.name, queue=self.owner.queue, task=lease.id, attempt=lease.attempt
        )
        self.worker.push(self.owner.place, self.lease_ms, [lease], self.run_timeout_ms, renewed_at)

    def _move(self, worker: Worker) -> None:
        """Wait at another worker."""
        self._leave_line()
        self.worker = worker
        worker.account.line.waiting.append(self)

    def _leave_line(self) -> None:
        line = self.worker.account.line
        line.waiting.remove(self)
        line.wake_first()
        self.owner.freed(self.worker)

    async def _leave(self, *, is_open: bool) -> None:
        """Wait no more; an open lease is given back."""
        self._leave_line()
        if is_open:
            await give_back(self.owner.store, self.owner.place, [(self.lease.id, self.lease.lease, 0)], "release")
