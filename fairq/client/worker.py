"""The SDK for those who do the work, under asyncio and trio.

Every task runs in a task of its own, inside a cancel scope that ends when its lease is lost. What a handler returns
or raises decides the settlement: see `settlement_of`.
"""

from __future__ import annotations

import os
import platform
import secrets
import ssl
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from math import inf

import anyio
from anyio.abc import TaskStatus
from attrs import define, field

from fairq.client.driver import Driver
from fairq.client.handlers import outcome_of, perform
from fairq.client.registration import Registration
from fairq.client.runtime import Event, Lot, Runtime
from fairq.client.threads import Threads
from fairq.client.watchdog import watching
from fairq.errors import BadRequest, Closed, FairqError
from fairq.groups import ungrouped
from fairq.log import Log
from fairq.model.checks import bare_id, check_int, check_weight
from fairq.model.tasks import NewTask, Settlement
from fairq.wire.beside import check_payload_size
from fairq.wire.calls import RETRYABLE
from fairq.wire.frames import Dismiss, HeldLease, Push, PushedTask, Report
from fairq.wire.terms import MAX_CREDIT
from fairq.wire.worker_session import WorkerSession

log = Log("fairq.worker")

BURST = 32  # tasks that a runner runs before it lets the others, and the connection, have a turn
GIVE_BACK_S = 2.0  # how long a cancelled worker tries to give its tasks back
_ASK_S = 30.0  # how long an answer to `idle` is waited for


def default_name() -> str:
    """Name this worker after its machine and process, so that no other has the name."""
    node = "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in platform.node() or "worker")
    return f"{node[:44]}-{os.getpid()}-{secrets.token_hex(3)}"


@define(eq=False)
class Worker(Registration):
    """An app of handlers, by queue and by the name of the task, that is attached to the service while `run` runs.

    `concurrency` tasks run at once; plain functions run in threads, and cannot be cancelled when their lease is lost:
    they keep their place until they return.
    `name` is one for the worker to come back under: it ends older connections of that name, so that what they held is
    ready again at once; no two workers may have the same.

    It runs under asyncio and trio. `url` and `token` are those of FAIRQ_URL and FAIRQ_TOKEN unless they are given.

    `queues` are those to work for, with their weights, if they are not all that have handlers. `log_tasks` gives each
    task a line in the log when it ends. `counts` says how they ended: `done`, `retry`, `dead`, `lost` (the lease, while
    the handler ran) or `released` (the worker was cancelled).
    """

    url: str | Sequence[str] | None = None
    token: str = field(default="", repr=False)
    concurrency: int = 10
    name: str = field(factory=default_name)
    tls: ssl.SSLContext | None = None
    queues: Mapping[str, float] | None = None
    log_tasks: bool = False
    counts: Counter[str] = field(factory=Counter, init=False)
    _driver: Driver[WorkerSession] = field(init=False)
    _waiting: deque[tuple[str, PushedTask]] = field(factory=deque, init=False)
    _runtime: Runtime = field(init=False)
    _runners: Lot = field(init=False)
    _scopes: dict[tuple[str, str, int], anyio.CancelScope] = field(factory=dict, init=False)
    _threads: Threads = field(init=False)
    _run_timeouts: dict[str, float] = field(factory=dict, init=False)  # of queues, in seconds: the newest told
    _idle: Event = field(init=False)
    _rest: Event | None = field(default=None, init=False)  # somebody waits until nothing is held
    _is_stopping: bool = field(default=False, init=False)

    async def run(self, *, burst: bool = False, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled or stopped. Cancelled: handlers are cancelled too, and their tasks given back.

        `burst`: stop by itself when it holds nothing and a claim on its queues finds nothing; what is delayed, also for
        its next attempt, is not waited for.
        Raises: BadRequest without handlers; Unauthorized or Forbidden when the server will not have the token;
        Superseded when a worker that came later attached under this name; and what a function of on_startup raises.
        """
        session = self._prepare()
        log.info(
            "worker started", worker=self.name, server=",".join(target.url for target in self._driver.targets),
            queues=",".join(session.queues), slots=self.concurrency, loop=self._runtime.title,
        )  # fmt: skip
        await self.hooks.start()
        try:
            with watching(self._runtime):
                await self._work(burst, task_status)
        finally:
            await self.hooks.end()

    def _prepare(self) -> WorkerSession:
        """Make what one run needs. Raises: BadRequest, SettingsError."""
        weights = self._weights()
        if not weights:
            raise BadRequest("the worker has no handlers; register one with @app.task(queue)", field="queues")
        check_int(self.concurrency, "concurrency", 1, MAX_CREDIT)
        is_weighted = len(set(weights.values())) > 1
        session = WorkerSession(
            worker=self.name, queues=list(weights), weights=list(weights.values()) if is_weighted else (),
            credit=self.concurrency,
            started_at_ms=round(time.time() * 1000),
        )  # fmt: skip
        self._driver = Driver.to(self.url, self.token or None, session, self.tls)
        self._runtime = self._driver.runtime
        self._runners = self._runtime.make_lot()
        self._driver.handle, self._driver.on_change = self._take, self._on_change
        self._threads = Threads(self.concurrency, self._threads_changed)
        self._is_stopping, self._idle = False, self._runtime.make_event()
        self._waiting.clear()
        return session

    async def _work(self, burst: bool, task_status: TaskStatus[None]) -> None:
        """Stay connected and run tasks until idle."""
        connection = anyio.CancelScope(shield=True)  # outlives the handlers, so that their tasks can be given back
        with ungrouped():
            async with anyio.create_task_group() as group:
                group.start_soon(self._stay_connected, connection)
                task_status.started()
                try:
                    await self._run_until_idle(burst)
                finally:
                    await self._give_all_back()
                    connection.cancel()
                    self._threads.close()

    async def _run_until_idle(self, burst: bool) -> None:
        """Run tasks until nothing is held and no more are taken."""
        async with anyio.create_task_group() as runners:
            for _ in range(self.concurrency):
                runners.start_soon(self._run_tasks)
            if burst:
                runners.start_soon(self._stop_when_empty)
            await self._idle.wait()
            runners.cancel_scope.cancel()

    async def _give_all_back(self) -> None:
        """Give back what no handler has begun, and wait until the server knows how all the others ended."""
        self.stop()
        self._driver.handle = self._give_back
        for queue, task in self._waiting:
            self._release(queue, task)
        with anyio.move_on_after(GIVE_BACK_S, shield=True):
            while self._driver.session.holding and self._driver.is_connected:
                self._idle = self._runtime.make_event()
                await self._idle.wait()

    def stop(self) -> None:
        """Take no more tasks; `run` returns when those held are settled."""
        self._is_stopping = True
        if self._driver.session.credit:
            self._driver.session.set_credit(0)
            self._driver.wake_writer()
        self._on_change()

    def _threads_changed(self) -> None:
        """Offer no place that an abandoned thread still has."""
        if not self._is_stopping:
            self._driver.session.set_credit(self.concurrency - self._threads.abandoned)
            self._driver.wake_writer()

    def _weights(self) -> dict[str, float]:
        """Return the weights of the queues that this worker works for."""
        if self.queues is None:
            return {queue: kinds.weight for queue, kinds in self.handlers.items()}
        for queue, weight in self.queues.items():
            if queue not in self.handlers:
                raise BadRequest(f"the worker has no handler for queue {queue!r:.80}", field="queues")
            check_weight(weight)
        return dict(self.queues)

    async def _stop_when_empty(self) -> None:
        session = self._driver.session
        while not self._is_stopping:
            self._rest = self._runtime.make_event()
            self._on_change()
            await self._rest.wait()
            try:
                call = session.request("idle", {}, self._runtime.current_time() + _ASK_S)
                is_empty = (await self._driver.wait(call))["is_idle"]
            except FairqError as error:
                if error.code in RETRYABLE:
                    continue
                if session.fatal:  # `run` raises it
                    return
                raise
            if is_empty and not session.holding:
                self.stop()

    async def _stay_connected(self, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await self._driver.run()
        finally:
            self._idle.set()
        if self._driver.session.fatal and not isinstance(self._driver.session.fatal, Closed):
            raise self._driver.session.fatal

    def _on_change(self) -> None:
        """Hear of lost leases, and of the end of work when stopping."""
        session = self._driver.session
        for lease in session.lost:
            log.warning("lease lost", task=lease.id, queue=lease.queue, lease=lease.lease)
            if scope := self._scopes.get((lease.queue, lease.id, lease.lease)):
                scope.cancel()
        session.lost.clear()
        for lease in session.refused_settlements:
            log.warning("too late: the lease was lost before", task=lease.id, queue=lease.queue, lease=lease.lease)
        session.refused_settlements.clear()
        for lease, error in session.dropped_settlements:
            log.error(
                "the server refused how a task ended; it runs again when its lease is over",
                task=lease.id,
                queue=lease.queue,
                lease=lease.lease,
                error=error.message,
            )
        session.dropped_settlements.clear()
        if self._rest is not None and not session.holding:
            self._rest.set()
        if self._is_stopping and not session.holding and (session.is_quiet or not session.is_attached):
            self._idle.set()

    def _take(self, push: Push | Dismiss) -> None:
        if isinstance(push, Dismiss):
            log.info("an operator drains this worker", worker=self.name)
            self.stop()
            return
        self._run_timeouts[push.queue] = push.run_timeout_ms / 1000 or inf
        for task in push.tasks:
            self._waiting.append((push.queue, task))
        self._runners.unpark()

    def _give_back(self, push: Push | Dismiss) -> None:
        if isinstance(push, Dismiss):
            return
        for task in push.tasks:
            self._release(push.queue, task)

    def _release(self, queue: str, task: PushedTask) -> None:
        self._driver.session.settle(queue, Settlement("release", task.id, task.lease))
        self._driver.wake_writer()

    def _report(self, queue: str, task: PushedTask, fraction: float, text: str) -> None:
        self._driver.session.report(queue, Report(task.id, task.lease, fraction, text))
        self._driver.wake_writer()

    async def _enqueue(self, queue: str, task: PushedTask, target: str, new: NewTask) -> str:
        """Store a task that a handler enqueues; returns the outcome."""
        session = self._driver.session
        check_payload_size(len(new.payload), session.max_payload_bytes)
        lease = HeldLease(queue, task.id, task.lease)
        call = session.enqueue_from(lease, target, new, self._runtime.current_time() + _ASK_S)
        (outcome,) = await self._driver.wait(call)
        return str(outcome)

    async def _run_tasks(self) -> None:
        """Run one task after the other; as many of these run as tasks may run at once.

        A runner that wakes and leaves tasks waiting wakes one more before it begins, so there is always one on its way
        while tasks wait; and handlers that never wait are run in a row, without a switch for each.
        """
        while True:
            with anyio.CancelScope() as scope:
                while not scope.cancel_called:  # a lost lease cancels one task, and then its runner gets a new scope
                    if self._waiting:
                        await self._runtime.checkpoint()
                    while not self._waiting:
                        await self._runners.park()
                    for burst in range(BURST):
                        if not self._waiting or scope.cancel_called:
                            break
                        queue, task = self._waiting.popleft()
                        if self._waiting and not burst:
                            self._runners.unpark()
                        await self._perform(queue, task, scope)

    async def _perform(self, queue: str, pushed: PushedTask, scope: anyio.CancelScope) -> None:
        key = (queue, pushed.id, pushed.lease)
        if not self._driver.session.holds(*key):
            return  # the lease was lost before the task began
        settlement: Settlement | None = None
        outcome, began = "lost", self._runtime.current_time()
        self._scopes[key] = scope
        try:
            handler = self.handlers[queue].find(pushed.name)
            limit_s = self._run_timeouts.get(queue, inf)
            settlement, _ = await perform(handler, queue, pushed, self._threads, self._report, self._enqueue, limit_s)
            outcome = outcome_of(pushed, settlement)
        finally:
            del self._scopes[key]
            if settlement is None and not scope.cancel_called:  # it is the worker that is cancelled
                outcome = "released"
                self.stop()
                self._release(queue, pushed)
            if settlement is not None:
                self._driver.session.settle(queue, settlement)
                self._driver.wake_writer()
            self.counts[outcome] += 1
            if self.log_tasks:
                ms = round((self._runtime.current_time() - began) * 1000, 1)
                say = log.warning if outcome == "dead" else log.info
                say(
                    "task", task=bare_id(pushed.id), queue=queue, tenant=pushed.tenant, attempt=pushed.attempt,
                    outcome=outcome, ms=ms,
                )  # fmt: skip
