"""A run of a worker: connected, its handlers at work.

As many runners as `concurrency` run one task after the other, each in a scheduler task of its own. If a lease is lost,
or a handler has left something for the next (`fairq.client.isolation`), that ends, and another runner takes its place.
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

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskStatus
from attrs import define, field

from fairq.client import tracing
from fairq.client.declaring import Declaring, rows_of
from fairq.client.driver import Driver
from fairq.client.frames import let_frames_go
from fairq.client.handlers import outcome_of, perform
from fairq.client.isolation import IN_TASK, OwnTask, fresh_contexts, in_context, keep_running
from fairq.client.loops import fault_of
from fairq.client.suspension import awake_clock
from fairq.client.threads import Threads
from fairq.client.watchdog import watching
from fairq.errors import BadRequest, Closed, FairqError, Retryable, SettingsError, Unavailable
from fairq.io.event_loop import cancellation_from_here, is_cancelled
from fairq.io.exception_groups import ungrouped
from fairq.io.forks import running_worker
from fairq.io.interrupts import remembering_interrupts
from fairq.io.runtime import Event, Lot, Runtime
from fairq.log import Log
from fairq.model.checks import bare_id, check_int
from fairq.model.tasks import NewTask, Settlement, leased_at_ms
from fairq.wire.frames import Dismiss, HeldLease, Push, PushedTask, Report
from fairq.wire.held_leases import NOW, Start, Watch
from fairq.wire.raw_payloads import check_payload_size
from fairq.wire.terms import MAX_CREDIT
from fairq.wire.worker_session import WorkerSession

if TYPE_CHECKING:
    from fairq.client.tracing import EndSettling
    from fairq.client.worker import Ended, Worker

log = Log("fairq.worker")

Running = tuple[OwnTask, PushedTask]  # a task whose handler runs, and its runner

BURST = 32  # tasks that a runner runs before it lets the others, and the connection, have a turn
GIVE_BACK_S = 2.0  # how long a cancelled worker tries to give its tasks back
_CANCELLED = "a handler has cancelled the worker's connection or all of its handlers"
_SEND_TURNS = 16  # how long a task waits for settlements to be sent: they are unless the socket is full
ASK_S = 30.0  # how long the answers to `idle` and to what a handler asks for are waited for


def _queues_of(app: Worker) -> list[str]:
    """Return the queues that this worker works for."""
    if app.queues is None:
        return list(app.handlers)
    for queue in app.queues:
        if queue not in app.handlers:
            raise BadRequest(f"the worker has no handler for queue {queue!r:.80}", field="queues")
    return list(app.queues)


# A task that waits for a place: its queue, itself, and the end of its time by the clock of the event loop, or later.
Waiting = tuple[str, PushedTask, float]


@define(eq=False)
class Working:
    """The state of one run of a worker."""

    app: Worker
    driver: Driver[WorkerSession]
    runtime: Runtime
    runners: Lot
    idle: Event
    declaring: Declaring = field(init=False)
    threads: Threads = field(init=False)
    fresh_context: Callable[[], Context] = field(init=False)  # of a handler
    waiting: deque[Waiting] = field(factory=deque, init=False)
    in_doubt: deque[Waiting] = field(factory=deque, init=False)  # they wait until their leases are renewed
    running: dict[tuple[str, str, int], Running] = field(factory=dict, init=False)
    cancelled: dict[tuple[str, str, int], str] = field(factory=dict, init=False)  # of `running`: `lost` or `cancelled`
    settling: dict[tuple[str, str, int], EndSettling] = field(factory=dict, init=False)  # what is told of the answer
    run_timeouts: dict[str, float] = field(factory=dict, init=False)  # of queues, in seconds: the newest told
    fault: FairqError | None = field(default=None, init=False)  # of the worker, not of a task: it ends
    rest: Event | None = field(default=None, init=False)  # somebody waits until nothing is held
    ended: Ended = field(default="", init=False)  # why it takes no more tasks: the first reason
    is_cancelled: Callable[[], bool] = field(default=is_cancelled, init=False)  # a handler, from outside of it
    is_leaving: bool = field(default=False, init=False)  # all handlers are cancelled
    has_rested: bool = field(default=False, init=False)  # no task has come since it was asked whether there are any

    @property
    def is_stopping(self) -> bool:
        """True if it takes no more tasks."""
        return bool(self.ended)

    @classmethod
    def of(cls, app: Worker) -> Working:
        """Make a run of an app. Raises: BadRequest, SettingsError; RuntimeError outside an event loop."""
        queues = _queues_of(app)
        if not queues:
            raise BadRequest("the worker has no handlers; register one with @app.task(queue)", field="queues")
        check_int(app.concurrency, "concurrency", 1, MAX_CREDIT)
        check_int(app.prefetch, "prefetch", 0, MAX_CREDIT - app.concurrency)
        # More may have begun than run: a place whose task has ended does not wait for its settlement to be sent.
        most_begun = app.concurrency + min(app.concurrency, app.prefetch // 2) if app.prefetch else 0
        session = WorkerSession(
            worker=app.name, queues=queues, credit=app.concurrency + app.prefetch, most_begun=most_begun,
            started_at_ms=round(time.time() * 1000), watch=Watch(awake_clock()),
        )  # fmt: skip
        driver = Driver.to(app.url, app.token, session, app.tls)
        run = cls(app, driver, driver.runtime, driver.runtime.make_lot(), driver.runtime.make_event())
        driver.handle, driver.on_change = run._take, run._on_change
        session.settled, session.dropped = run._settled, run._dropped
        run.threads = Threads(app.concurrency, run._threads_changed)
        rows = rows_of(app.declared, app.handlers, queues)
        run.declaring = Declaring(app.app, rows, driver, lambda: run.is_stopping, run._fail)
        return run

    async def run(self, burst: bool, task_status: TaskStatus[None] | None) -> None:
        """Do what `Worker.run` says."""
        if self.is_stopping:  # it was told to stop first
            self.threads.close()
            if task_status is not None:
                task_status.started()
            return
        log.info(
            "worker started", worker=self.app.name,
            server=self.driver.servers.names,
            queues=",".join(self.driver.session.queues), slots=self.app.concurrency, loop=self.runtime.title,
        )  # fmt: skip
        self.is_cancelled = cancellation_from_here()
        try:
            with running_worker(self.runtime), remembering_interrupts():
                context = await self.app.hooks.start()
                self.fresh_context = fresh_contexts(context)
                try:
                    with watching(self.runtime):
                        await self._work(burst, task_status)
                finally:
                    await self.app.hooks.end(context)
        finally:
            log.info("worker ended", worker=self.app.name, why=self.ended or "failed")

    async def _work(self, burst: bool, task_status: TaskStatus[None] | None) -> None:
        """Stay connected and run tasks until idle."""
        connection = anyio.CancelScope(shield=True)  # outlives the handlers, so that their tasks can be given back
        with ungrouped():
            async with anyio.create_task_group() as group:
                group.start_soon(self._stay_connected, connection)
                if task_status is not None:
                    task_status.started()
                try:
                    await self._run_until_idle(burst)
                finally:
                    await self._give_all_back()
                    connection.cancel()
                    self.threads.close()
                    for end in self.settling.values():
                        end(None, "unknown", "the worker ended without an answer")
        if self.fault:
            raise self.fault

    async def _run_until_idle(self, burst: bool) -> None:
        """Run tasks until nothing is held and no more are taken."""
        is_idle = False
        async with anyio.create_task_group() as runners:
            for _ in range(self.app.concurrency):
                runners.start_soon(keep_running, self.fresh_context, self._run_tasks, self.is_cancelled)
            runners.start_soon(self._stop_when_empty if burst else self.declaring.keep)
            try:
                await self.idle.wait()
            except anyio.get_cancelled_exc_class():
                if self.is_cancelled():
                    self.stop("cancelled")  # now, for some handlers go on for a while
                raise
            finally:
                self.is_leaving = True
            is_idle = True
            runners.cancel_scope.cancel()
        if not is_idle:
            self._fail(FairqError(_CANCELLED))
        if burst and not self.driver.session.has_asked:
            why = self.driver.session.obstacle or "no answer"
            self._fail(Unavailable(f"no connection to the server ({why})"))

    async def _give_all_back(self) -> None:
        """Give back what no handler has begun, and wait until the server knows how all the others ended."""
        self.stop("cancelled")
        with anyio.move_on_after(GIVE_BACK_S, shield=True):
            while self.driver.session.holding and self.driver.session.is_connected:
                self.idle = self.runtime.make_event()
                await self.idle.wait()

    def stop(self, why: Ended) -> None:
        """Take no more tasks, give back those that wait for a place; `run` returns when the others are settled."""
        self.ended = self.ended or why
        if self.driver.session.credit:
            self.driver.session.credit = 0
            self.driver.wake_writer()
        self._give_waiting_back()
        self._on_change()

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

    def _fail(self, fault: FairqError) -> None:
        """Stop for a fault of the worker; `run` raises the first one."""
        self.fault = self.fault or fault
        self.stop("failed")

    def _give_waiting_back(self) -> None:
        self._look_again()
        while self.waiting:  # each goes to the head of its tenant's tasks: the oldest last
            self._release(*self.waiting.pop()[:2])

    def _look_again(self) -> None:
        """Have runners look again at the tasks whose leases were in doubt."""
        if self.in_doubt:
            self.waiting.extendleft(reversed(self.in_doubt))
            self.in_doubt.clear()
            self.runners.unpark()

    def _threads_changed(self) -> None:
        """Offer no place that an abandoned thread still has; while there is one, hold no task without a place."""
        if self.is_stopping:
            return
        if abandoned := self.threads.abandoned:
            self._give_waiting_back()
        self.driver.session.credit = self.app.concurrency + (-abandoned if abandoned else self.app.prefetch)
        self.driver.wake_writer()

    async def _stop_when_empty(self) -> None:
        await self.declaring.once()
        session = self.driver.session
        while not self.is_stopping:
            self.rest = self.runtime.make_event()
            self._on_change()
            await self.rest.wait()
            self.has_rested = True
            try:
                call = session.request("idle", {}, self.runtime.current_time() + ASK_S)
                is_empty = (await self.driver.wait(call))["is_idle"]
            except FairqError as error:
                if isinstance(error, Retryable) and not isinstance(error, Unavailable):
                    continue
                if not session.fatal:  # `run` raises that
                    self._fail(error)
                return
            if is_empty and self.has_rested and not session.holding:  # a task that came may be there once more
                self.stop("burst")

    async def _stay_connected(self, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await self.driver.run()
        except anyio.get_cancelled_exc_class():
            if not self.is_cancelled():
                self._fail(FairqError(_CANCELLED))
            raise
        finally:
            self.idle.set()
        if self.driver.session.fatal and not isinstance(self.driver.session.fatal, Closed):
            self.ended = self.ended or "failed"
            raise self.driver.session.fatal

    def _on_change(self) -> None:
        """React to lost leases and connections, and to the end of work when stopping."""
        session = self.driver.session
        if session.has_renewed or session.lost:
            session.has_renewed = False
            self._look_again()
        if session.lost:
            self.waiting = deque(each for each in self.waiting if session.holds(each[0], each[1].id, each[1].lease))
        if not session.is_connected:  # others soon have the tasks that no handler has begun
            self._give_waiting_back()
        for lease in session.lost:
            key, is_cancelled = (lease.queue, lease.id, lease.lease), lease in session.cancelled
            say = partial(log.info, "task cancelled") if is_cancelled else partial(log.warning, "lease lost")
            say(task=lease.id, queue=lease.queue, lease=lease.lease)
            if running := self.running.get(key):
                self.cancelled[key] = "cancelled" if is_cancelled else "lost"
                running[0].scope.cancel()
        session.lost.clear()
        session.cancelled.clear()
        for lease in session.refused_settlements:
            log.warning("too late: the lease was lost before", task=lease.id, queue=lease.queue, lease=lease.lease)
        session.refused_settlements.clear()
        if self.rest is not None and not session.holding:
            self.rest.set()
        if self.is_stopping and not session.holding and (session.is_quiet or not session.is_attached):
            self.idle.set()
            if not session.is_connected:  # it need not connect again
                session.close()

    def _settled(self, queue: str, settlements: Sequence[Settlement], answers: Sequence[str], error: str = "") -> None:
        """Note the server's answers to settlements, or that there will be none."""
        for settlement, answer in zip(settlements, answers, strict=True) if self.settling else ():
            if end := self.settling.pop((queue, settlement.id, settlement.lease), None):
                end(settlement, answer, error)

    def _dropped(self, queue: str, settlement: Settlement, error: FairqError) -> None:
        """Report a settlement that the server, or no frame, takes."""
        log.error(
            "cannot settle a task; it runs again when its lease is over", task=settlement.id,
            queue=queue, lease=settlement.lease, error=error.message,
        )  # fmt: skip
        self._settled(queue, [settlement], ["error"], error.message)
        self.runtime.call_from_end(self._on_change)

    def _take(self, push: Push | Dismiss) -> None:
        if isinstance(push, Dismiss):
            log.info("an operator drains this worker", worker=self.app.name)
            self.stop("drained")
            return
        if self.is_stopping:
            for task in reversed(push.tasks):
                self._release(push.queue, task)
            return
        self.has_rested = False
        self.run_timeouts[push.queue] = push.run_timeout_ms / 1000 or inf
        for task in push.tasks:
            # By the store's clock: ours may be wrong. It is over already where the store's was set back.
            left_s = (task.expires_at_ms - leased_at_ms(task.lease)) / 1000 if task.expires_at_ms else 0.0
            begin_by = self.runtime.current_time() + left_s if left_s > 0 else inf
            self.waiting.append((push.queue, task, begin_by))
        session = self.driver.session
        while self.waiting and session.holding - session.unsettled > session.credit:  # pushed before it was lowered
            self._release(*self.waiting.pop()[:2])
        self.runners.unpark()

    def _release(self, queue: str, task: PushedTask) -> None:
        self.driver.session.settle(queue, Settlement("release", task.id, task.lease))
        self.driver.wake_writer()

    def _stop_for(self, fault: SettingsError, task: PushedTask) -> Settlement:
        """Stop, since every task would meet this fault of the worker; returns how the first that did goes back."""
        if self.fault is None:
            log.error("the worker stops", error=fault.message)
        self._fail(fault)
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

    async def _run_tasks(self, own: OwnTask) -> None:
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
                    self.runners.unpark()
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

        The server counts the oldest `most_begun` tasks without a settlement as begun: see `attach` in PROTOCOL.md.
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
                await self.runners.park()

    def _put_off(self, waiting: Waiting, start: Start) -> None:
        if start is Start.NEVER:
            self._release(*waiting[:2])  # the store lets it expire
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
                    self._release(queue, pushed)
            else:
                if end := tracing.active.settling(queue, pushed, settlement, outcome):
                    self.settling[key] = end
                if not self.driver.session.settle(queue, settlement):
                    self._settled(queue, [settlement], ["stale"])
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
