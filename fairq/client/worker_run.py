"""A run of a worker, from its start until it holds no task. What it does with tasks: fairq/client/runners.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskStatus
from attrs import define, field

from fairq.client.declaring import Declaring, rows_of
from fairq.client.driver import Driver
from fairq.client.isolation import fresh_contexts, keep_running
from fairq.client.runners import ASK_S, Runners
from fairq.client.suspension import awake_clock
from fairq.client.threads import Threads
from fairq.client.watchdog import watching
from fairq.errors import BadRequest, Closed, FairqError, Retryable, Unavailable
from fairq.io.event_loop import cancellation_from_here, is_cancelled
from fairq.io.exception_groups import ungrouped
from fairq.io.forks import running_worker
from fairq.io.interrupts import remembering_interrupts
from fairq.io.runtime import Event, Runtime
from fairq.log import Log
from fairq.model.checks import check_int
from fairq.model.tasks import Settlement
from fairq.wire.frames import Dismiss, Push
from fairq.wire.held_leases import Watch
from fairq.wire.terms import MAX_CREDIT
from fairq.wire.worker_session import WorkerSession

if TYPE_CHECKING:
    from fairq.client.worker import Ended, Worker

log = Log("fairq.worker")

GIVE_BACK_S = 2.0  # how long a cancelled worker tries to give its tasks back
_CANCELLED = "a handler has cancelled the worker's connection or all of its handlers"


def _queues_of(app: Worker) -> list[str]:
    """Return the queues that this worker works for."""
    if app.queues is None:
        return list(app.handlers)
    for queue in app.queues:
        if queue not in app.handlers:
            raise BadRequest(f"the worker has no handler for queue {queue!r:.80}", field="queues")
    return list(app.queues)


@define(eq=False)
class WorkerRun:
    """The state of one run of a worker. Raises: BadRequest, SettingsError; RuntimeError outside an event loop."""

    app: Worker
    driver: Driver[WorkerSession] = field(init=False)
    runtime: Runtime = field(init=False)
    idle: Event = field(init=False)
    declaring: Declaring = field(init=False)
    threads: Threads = field(init=False)
    runners: Runners = field(init=False)
    fault: FairqError | None = field(default=None, init=False)  # of the worker, not of a task: it ends
    rest: Event | None = field(default=None, init=False)  # set while a task waits until nothing is held
    ended: Ended = field(default="", init=False)  # why it takes no more tasks: the first reason
    is_cancelled: Callable[[], bool] = field(default=is_cancelled, init=False)  # asked by a handler
    is_leaving: bool = field(default=False, init=False)  # all handlers are cancelled
    has_rested: bool = field(default=False, init=False)  # nothing was held, and no task has come since

    def __attrs_post_init__(self) -> None:
        app = self.app
        queues = _queues_of(app)
        if not queues:
            raise BadRequest("the worker has no handlers; register one with @app.task(queue)", field="queues")
        check_int(app.concurrency, "concurrency", 1, MAX_CREDIT)
        check_int(app.prefetch, "prefetch", 0, MAX_CREDIT - app.concurrency)
        # More tasks may have begun than run: a slot is free before the settlement of its last task is sent.
        most_begun = app.concurrency + min(app.concurrency, app.prefetch // 2) if app.prefetch else 0
        session = WorkerSession(
            worker=app.name, queues=queues, credit=app.concurrency + app.prefetch, most_begun=most_begun,
            started_at_ms=round(time.time() * 1000), watch=Watch(awake_clock()),
            settled=self._settled, dropped=self._dropped,
        )  # fmt: skip
        self.driver = Driver.to(app.url, app.token, session, app.tls, self._take, self._on_change)
        self.runtime = self.driver.runtime
        self.idle = self.runtime.make_event()
        self.threads = Threads(app.concurrency, self._threads_changed)
        self.runners = Runners(app, self.driver, self.runtime, self.threads, self.stop, self._fail)
        rows = rows_of(app.declared, app.handlers, queues)
        self.declaring = Declaring(app.app, rows, self.driver, lambda: self.is_stopping, self._fail)

    @property
    def is_stopping(self) -> bool:
        """True if it takes no more tasks."""
        return bool(self.ended)

    async def run(self, burst: bool, task_status: TaskStatus[None] | None) -> None:
        """Do what `Worker.run` says."""
        if self.is_stopping:  # `stop` was called first
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
                self.runners.fresh_context = fresh_contexts(context)
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
                    for end in self.runners.settling.values():
                        end(None, "unknown", "the worker ended without an answer")
        if self.fault:
            raise self.fault

    async def _run_until_idle(self, burst: bool) -> None:
        """Run tasks until nothing is held and no more are taken."""
        is_idle = False
        async with anyio.create_task_group() as runners:
            for _ in range(self.app.concurrency):
                runners.start_soon(keep_running, self.runners.fresh_context, self.runners.run_tasks, self.is_cancelled)
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
        """Take no more tasks, give back those that wait for a slot; `run` returns when the others are settled."""
        self.ended = self.ended or why
        if self.driver.session.credit:
            self.driver.session.credit = 0
            self.driver.wake_writer()
        self.runners.give_waiting_back()
        self._on_change()

    def _fail(self, fault: FairqError) -> bool:
        """Stop for a fault of the worker; `run` raises the first one. Returns whether this is the first."""
        is_first = self.fault is None
        self.fault = self.fault or fault
        self.stop("failed")
        return is_first

    def _threads_changed(self) -> None:
        """Offer no slots that abandoned threads still use; while there are any, hold no task that waits for a slot."""
        if self.is_stopping:
            return
        if abandoned := self.threads.abandoned:
            self.runners.give_waiting_back()
        self.driver.session.credit = self.app.concurrency + (-abandoned if abandoned else self.app.prefetch)
        self.driver.wake_writer()

    async def _stop_when_empty(self) -> None:
        await self.declaring.once()
        session = self.driver.session
        if not session.has_asked:  # no server came while it declared: `_run_until_idle` reports that
            self.stop("failed")
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
        if session.has_renewed or session.lost or session.stale_settlements or not session.is_connected:
            self.runners.follow_leases()
        if self.rest is not None and not session.holding:
            self.rest.set()
        if self.is_stopping and not session.holding and (session.is_quiet or not session.is_attached):
            self.idle.set()
            if not session.is_connected:  # it need not connect again
                session.close()

    def _settled(self, queue: str, settlements: Sequence[Settlement], answers: Sequence[str]) -> None:
        self.runners.settled(queue, settlements, answers)

    def _dropped(self, queue: str, settlement: Settlement, error: FairqError) -> None:
        self.runners.dropped(queue, settlement, error)
        self.runtime.call_from_end(self._on_change)

    def _take(self, push: Push | Dismiss) -> None:
        if isinstance(push, Dismiss):
            log.info("an operator drains this worker", worker=self.app.name)
            self.stop("drained")
            return
        if self.is_stopping:
            for task in reversed(push.tasks):
                self.runners.release(push.queue, task)
            return
        self.has_rested = False
        self.runners.add(push)
