"""Tasks that run alone in their worker's process: the next lost lease would be their last (lua/tasks/lost_leases.lua).

A claim says which tasks these are. One waits at this server until the worker that it was given to holds nothing; then
it is pushed, and until it is settled nothing is pushed beside it. So a worker need not know of this, and whoever held
one lease when its process died ran that task alone.

While tasks wait for a worker it gets no others, and the server renews their leases. A renewal is the last thing before
the push: a task that was cancelled, or whose lease is over, does not begin.

    waits --- the worker holds nothing, and a renewal says `ok` --------> pushed
    waits --- the worker takes no more, or the task is late or cancelled -> given back, without an attempt
    waits --- the lease is over ----------------------------------------> dropped
    waits --- the worker's connection ends -----------------------------> given back (fairq/server/leases.py)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.model.tasks import Lease, Settlement, leased_at_ms

if TYPE_CHECKING:
    from fairq.server.dispatch.capacity import Worker
    from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

_RENEWALS_PER_LEASE = 3
_RETRY_S = 1.0  # at most, while the store is away


@define(eq=False)
class Line:
    """The tasks that wait to run alone at one worker, in order; and the one that does, once it was pushed."""

    waiting: deque[Waiting] = field(factory=deque, init=False)
    alone: tuple[str, str] | None = field(default=None, init=False)  # queue and id

    def wake_first(self) -> None:
        """Have the first one look whether it may begin."""
        if self.waiting:
            self.waiting[0].wake()

    def wake_task(self, queue: str, id: str) -> bool:
        """Have a task that waits here ask what became of it; returns whether there is one."""
        found = [each for each in self.waiting if (each.queue, each.lease.id) == (queue, id)]
        for each in found:
            each.wake()
        return bool(found)

    def drop_all(self) -> dict[str, list[tuple[str, int, int]]]:
        """Remove all that wait; returns their leases by queue: id, number, times taken over."""
        by_queue: dict[str, list[tuple[str, int, int]]] = {}
        while self.waiting:
            each = self.waiting.popleft()
            by_queue.setdefault(each.queue, []).append((each.lease.id, each.lease.lease, 0))
            each.wake()
        return by_queue


@define(eq=False)
class Waiting:
    """A leased task that waits to run alone at a worker; `store_now_ms()` returns the store's time."""

    store: Store
    worker: Worker
    queue: str
    lease: Lease
    lease_ms: int
    run_timeout_ms: int
    store_now_ms: Callable[[], int]
    _woken: trio.Event = field(factory=trio.Event, init=False)

    def wake(self) -> None:
        """Have it look again what it is to do."""
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
        every_s, rest_s = self.lease_ms / 1000 / _RENEWALS_PER_LEASE, 0.0
        while not self._is_over:
            if rest_s or not self._is_next:
                with trio.move_on_after(rest_s or every_s):
                    await self._woken.wait()
                self._woken, rest_s = trio.Event(), 0.0
            outcome = "gone" if self._is_over else await self._renew()
            if self._is_over:
                return
            if outcome is None:
                rest_s = min(_RETRY_S, every_s)
            elif outcome == "ok" and self._can_run:
                if self._is_next:
                    self._push()
            else:
                await self._leave(is_open=outcome in ("ok", "cancelled"))

    async def _renew(self) -> str | None:
        """Renew the lease; returns the outcome, None if it is not known."""
        try:
            (outcome,) = await self.store.settle(self.queue, [Settlement("extend", self.lease.id, self.lease.lease)])
        except FairqError as error:
            log.warning("cannot renew a lease that waits", queue=self.queue, error=error.message)
            return None
        return outcome

    @property
    def _can_run(self) -> bool:
        account, expires_at_ms = self.worker.account, self.lease.expires_at_ms
        is_late = 0 < expires_at_ms <= self.store_now_ms()
        return not is_late and account.credit > 0 and account.may_take()

    def _push(self) -> None:
        lease, line = self.lease, self.worker.account.line
        line.waiting.popleft()
        line.alone = self.queue, lease.id
        if lease.expires_at_ms:  # a worker counts the time that is left from when the lease began
            waited_ms = max(0, self.store_now_ms() - leased_at_ms(lease.lease))
            lease = lease._replace(expires_at_ms=max(1, lease.expires_at_ms - waited_ms))
        log.info("a task runs alone", worker=self.worker.name, queue=self.queue, task=lease.id, attempt=lease.attempt)
        self.worker.push(self.queue, self.lease_ms, [lease], self.run_timeout_ms)

    async def _leave(self, *, is_open: bool) -> None:
        """Leave the line; an open lease is given back."""
        line = self.worker.account.line
        line.waiting.remove(self)
        line.wake_first()
        if not is_open:
            return
        try:
            await self.store.give_back(self.queue, [(self.lease.id, self.lease.lease, 0)], "release")
        except FairqError as error:
            log.warning("cannot give a lease back", queue=self.queue, error=error.message)
