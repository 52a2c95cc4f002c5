"""The runners of a worker, and the tasks that it holds.

As many runners as `concurrency` run one task after the other, each in a scheduler task of its own. If a lease is lost,
or a handler has left something for the next (`fairq.client.isolation`), the runner ends, and another takes its place.
What a handler returns or raises decides the settlement: see `fairq.client.handlers.settlement_of`.

| a task | is in | until |
|---|---|---|
| waits | `waiting` | a runner takes it, or it goes back: the worker stops, the connection ends, a thread is abandoned |
| is in doubt | `in_doubt` | its lease is renewed, and it waits again: see `fairq.wire.held_leases` |
| runs | `running` | its handler ends; if its lease is lost before, it is in `cancelled` too |
| is settled | `session.settlements` | they are sent; while the server has not answered, `settling` has its trace |

The session holds its lease until it is settled. If the lease is lost while the task waits, the task is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from attrs import define, field

from fairq.client import tracing
from fairq.client.driver import Driver
from fairq.client.handlers import outcome_of, perform
from fairq.client.isolation import IN_TASK, OwnTask, in_context
from fairq.client.loops import fault_of
from fairq.client.threads import Threads
from fairq.client.traceback_frames import let_frames_go
from fairq.errors import FairqError, SettingsError
from fairq.io.runtime import Lot, Runtime
from fairq.log import Log
from fairq.model.checks import bare_id
from fairq.model.tasks import NewTask, Settlement, leased_at_ms
from fairq.wire.frames import HeldLease, Push, PushedTask, Report
from fairq.wire.held_leases import NOW, Start
from fairq.wire.raw_payloads import check_payload_size
from fairq.wire.worker_session import WorkerSession

if TYPE_CHECKING:
    from fairq.client.tracing import EndSettling
    from fairq.client.worker import Ended, Worker

log = Log("fairq.worker")

Running = tuple[OwnTask, PushedTask]  # a running task, and its runner
# A task that waits for a slot: its queue, itself, and the end of its time by the clock of the event loop, or later.
Waiting = tuple[str, PushedTask, float]

BURST = 32  # tasks that a runner runs before it yields to the others and the connection
_SEND_TURNS = 16  # how many turns a task waits for settlements to be sent: only if the socket is full
ASK_S = 30.0  # how long to wait for the answer to a handler's request


@define(eq=False)
class Runners:
    """The runners of one run of a worker. `stop` and `fail` end the run."""

    app: Worker
    driver: Driver[WorkerSession]
    runtime: Runtime
    threads: Threads
    stop: Callable[[Ended], None]
    fail: Callable[[FairqError], bool]  # returns whether this is the first fault
    fresh_context: Callable[[], Context] = field(init=False)  # of a handler
    _line: Lot = field(init=False)  # of runners that wait for a task
    waiting: deque[Waiting] = field(factory=deque, init=False)
    in_doubt: deque[Waiting] = field(factory=deque, init=False)  # they wait until their leases are renewed
    running: dict[tuple[str, str, int], Running] = field(factory=dict, init=False)
    cancelled: dict[tuple[str, str, int], str] = field(factory=dict, init=False)  # of `running`: `lost` or `cancelled`
    settling: dict[tuple[str, str, int], EndSettling] = field(factory=dict, init=False)  # called with the answer
    run_timeouts: dict[str, float] = field(factory=dict, init=False)  # of queues, in seconds: the last ones received

    def __attrs_post_init__(self) -> None:
        self._line = self.runtime.make_lot()

    def tell_running(self) -> int:
        """Log each task that runs, as one that is left; from any thread."""
        left = list(self.running.items())
        for (queue, _, lease), (_, task) in left:
            log.error(
                "a handler does not end; its task is left, and may run again when its lease is over",
                task=bare_id(task.id), queue=queue, tenant=task.tenant, lease=lease,
                handler=self.app.handlers[queue].find(task.name).title,
            )  # fmt: skip
        return len(left)

    def give_waiting_back(self) -> None:
        """Give back what no handler has begun."""
        self.look_again()
        while self.waiting:  # each goes to the head of its tenant's tasks: the oldest last
            self.release(*self.waiting.pop()[:2])

    def look_again(self) -> None:
        """Let runners look again at tasks with leases that were in doubt."""
        if self.in_doubt:
            self.waiting.extendleft(reversed(self.in_doubt))
            self.in_doubt.clear()
            self._line.unpark()

    def follow_leases(self) -> None:
        """React to leases that were renewed or lost, and to the end of a connection."""
        session = self.driver.session
        if session.has_renewed or session.lost:
            session.has_renewed = False
            self.look_again()
        if session.lost:
            self.waiting = deque(each for each in self.waiting if session.holds(each[0], each[1].id, each[1].lease))
        if not session.is_connected:  # others soon have the tasks that no handler has begun
            self.give_waiting_back()
        for lease in session.lost:
            key, is_cancelled = (lease.queue, lease.id, lease.lease), lease in session.cancelled
            say = partial(log.info, "task cancelled") if is_cancelled else partial(log.warning, "lease lost")
            say(task=lease.id, queue=lease.queue, lease=lease.lease)
            if running := self.running.get(key):
                self.cancelled[key] = "cancelled" if is_cancelled else "lost"
                running[0].scope.cancel()
        session.lost.clear()
        session.cancelled.clear()
        for lease in session.stale_settlements:
            log.warning("too late: the lease was lost before", task=lease.id, queue=lease.queue, lease=lease.lease)
        session.stale_settlements.clear()

    def settled(self, queue: str, settlements: Sequence[Settlement], answers: Sequence[str], error: str = "") -> None:
        """Note the server's answers to settlements, or that there will be none."""
        for settlement, answer in zip(settlements, answers, strict=True) if self.settling else ():
            if end := self.settling.pop((queue, settlement.id, settlement.lease), None):
                end(settlement, answer, error)

    def dropped(self, queue: str, settlement: Settlement, error: FairqError) -> None:
        """Report a settlement that the server, or no frame, takes."""
        log.error(
            "cannot settle a task; it runs again when its lease is over", task=settlement.id,
            queue=queue, lease=settlement.lease, error=error.message,
        )  # fmt: skip
        self.settled(queue, [settlement], ["error"], error.message)

    def add(self, push: Push) -> None:
        """Take in pushed tasks."""
        self.run_timeouts[push.queue] = push.run_timeout_ms / 1000 or inf
        for task in push.tasks:
            # By the store's clock: ours may be wrong. It is over already where the store's was set back.
            left_s = (task.expires_at_ms - leased_at_ms(task.lease)) / 1000 if task.expires_at_ms else 0.0
            begin_by = self.runtime.current_time() + left_s if left_s > 0 else inf
            self.waiting.append((push.queue, task, begin_by))
        session = self.driver.session
        while self.waiting and session.holding - session.unsettled > session.credit:  # pushed before it was lowered
            self.release(*self.waiting.pop()[:2])
        self._line.unpark()

    def release(self, queue: str, task: PushedTask) -> None:
        """Give a task back."""
        self.driver.session.settle(queue, Settlement("release", task.id, task.lease))
        self.driver.wake_writer()

    def _stop_for(self, fault: SettingsError, task: PushedTask) -> Settlement:
        """Stop, since every task would meet this fault of the worker; returns how the first that did goes back."""
        if self.fail(fault):
            log.error("the worker stops", error=fault.message)
        return Settlement("release", task.id, task.lease, None, fault.message)

    def _report(self, queue: str, task: PushedTask, fraction: float, text: str) -> None:
        self.driver.session.report(queue, Report(task.id, task.lease, fraction, text))
        self.driver.wake_writer()

    async def _enqueue(self, queue: str, task: PushedTask, target: str, new: NewTask) -> str:
        """Store a task that a handler enqueues; returns the outcome."""
        session = self.driver.session
        check_payload_size(len(new.payload), session.enqueues.limits.payload_bytes)
        lease = HeldLease(queue, task.id, task.lease)
        call = session.enqueue(target, [new], self.runtime.current_time() + ASK_S, lease)
        (outcome,) = await self.driver.wait(call)
        return str(outcome)

    async def _read_results(self, queue: str, task: PushedTask, cursor: str | None) -> Any:
        """Read a page of the results of the batch for which a task calls back."""
        body = {"queue": queue, "id": task.id, "lease": task.lease, "cursor": cursor}
        call = self.driver.session.request("batch_results", body, self.runtime.current_time() + ASK_S)
        return await self.driver.wait(call)

    async def run_tasks(self, own: OwnTask) -> None:
        """Run one task after the other, until one leaves something behind or is cancelled.

        As many of these run as tasks may run at once. A runner that wakes and leaves tasks waiting wakes one more
        before it begins, so there is always one on its way while tasks wait; and handlers that never wait are run in a
        row, without a switch for each.
        """
        is_apart = False  # each handler from the others: one has changed the context that they had in common
        while True:
            await self._wait_for_task()
            for burst in range(BURST):
                if not self.waiting:
                    break
                if burst and self._is_ahead:
                    self.driver.send_now()
                    if self._is_ahead:
                        break
                queue, pushed, begin_by = waiting = self.waiting.popleft()
                if self.waiting and not burst:
                    self._line.unpark()
                if (start := self.driver.session.start_of(queue, pushed.id, pushed.lease, begin_by)) is not NOW:
                    self._put_off(waiting, start)
                    continue
                attempt = tracing.active.processing(queue, pushed, self._perform(queue, pushed, own))
                has_lost = await (in_context(self.fresh_context(), attempt) if is_apart else attempt)
                if has_lost or (left := own.left()) == IN_TASK:
                    return
                if left:  # in the context
                    is_apart = True

    @property
    def _is_ahead(self) -> bool:
        """True if the server would not count one more task as begun, should this worker die.

        The server counts the oldest `most_begun` tasks without a settlement as begun: see *Prefetch* in wire/VERBS.md.
        """
        session = self.driver.session
        return 0 < session.most_begun <= len(self.running) + session.unsent

    async def _wait_for_task(self) -> None:
        """Wait until a task may begin; if one is waiting already, give other runners a turn first."""
        if self.waiting:
            await self.runtime.checkpoint()
        turns = 0
        while not self.waiting or (self._is_ahead and turns < _SEND_TURNS):
            if self.waiting:
                self.driver.send_now()  # what all that ended in the last turn have settled
                if self._is_ahead:
                    turns += 1
                    await self.runtime.checkpoint()
            else:
                turns = 0
                await self._line.park()

    def _put_off(self, waiting: Waiting, start: Start) -> None:
        if start is Start.NEVER:
            self.release(*waiting[:2])  # the store lets it expire
        else:
            self.in_doubt.append(waiting)
            self.driver.wake_writer()  # its renewal is due

    async def _perform(self, queue: str, pushed: PushedTask, own: OwnTask) -> str:
        """Run a task; returns `lost` or `cancelled` if its lease was, though the handler went on to its end."""
        app, key = self.app, (queue, pushed.id, pushed.lease)
        began = self.runtime.current_time() if app.log_tasks else 0.0
        settlement: Settlement | None = None
        error: BaseException | None = None
        self.running[key] = own, pushed
        try:
            handler = app.handlers[queue].find(pushed.name)
            settlement, error = await perform(
                handler, queue, pushed, self.threads, self._report, self._enqueue, self._read_results,
                self.run_timeouts.get(queue, inf), own.is_cancelled,
            )  # fmt: skip
            outcome = outcome_of(pushed, settlement)
            if error is not None and handler.is_async and (fault := fault_of(error, self.runtime.name, handler)):
                outcome, settlement = "released", self._stop_for(fault, pushed)
        finally:
            del self.running[key]
            cancelled = self.cancelled.pop(key, "")
            if settlement is None:
                outcome = cancelled or "released"
                if not cancelled:  # it is the worker that is cancelled
                    self.stop("cancelled")
                    self.release(queue, pushed)
            else:
                if end := tracing.active.settling(queue, pushed, settlement, outcome):
                    self.settling[key] = end
                if not self.driver.session.settle(queue, settlement):
                    self.settled(queue, [settlement], ["stale"])
                self.driver.send_soon(waits=not self.waiting)
            app.counts[outcome] += 1
            if app.log_tasks:
                ms = round((self.runtime.current_time() - began) * 1000, 1)
                say = log.warning if outcome == "dead" else log.info
                say(
                    "task", task=bare_id(pushed.id), queue=queue, tenant=pushed.tenant, attempt=pushed.attempt,
                    outcome=outcome, ms=ms,
                )  # fmt: skip
        if error is not None:
            let_frames_go(error)
        return cancelled
