"""The SDK for enqueueing, and for operators, under asyncio and trio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack

from attrs import define

from fairq.client import lazy, tracing
from fairq.client.batch import Batch
from fairq.client.events import EventStream
from fairq.client.option_signatures import lists_options
from fairq.client.requests import DEFAULT_TIMEOUT, away_in, check_whole, named
from fairq.client.schedules import ScheduleRequests
from fairq.client.tasks import EnqueuedTask
from fairq.errors import FairqError, Retryable, TenantsRefused
from fairq.model.checks import (
    MAX_BATCH,
    check_batch_id,
    check_flag,
    check_known_batch,
    check_name,
    check_tenant,
    full_id,
    owner_of,
)

if TYPE_CHECKING:
    import ssl
    from datetime import datetime

    from fairq.client.dead_letters import DeadLetters
    from fairq.model.batches import BatchStage, BatchState
    from fairq.model.cancelling import CancelProgress
    from fairq.model.events import EventPage
    from fairq.model.option_tables import Seconds, TaskOptions
    from fairq.model.places import AwayPartition
    from fairq.model.tasks import NewTask, TaskState, WaitingTask
    from fairq.model.waiting import Why
    from fairq.wire.calls import Call


def _task_of(outcome: str, id: str, queue: str, client: Client) -> EnqueuedTask:
    """Return the task of an outcome: the new one, or the existing one with its id or its dedupe key."""
    word, holder, state = lazy.outcomes.read_sent(outcome)
    return EnqueuedTask(
        holder or id, queue, word == "duplicate", client=client, is_replaced=word == "replaced",
        duplicate_of_state=state,
    )  # fmt: skip


@define(eq=False)
class Client(ScheduleRequests):
    """A connection to the service that mends itself. Calls may be made by many tasks at once; they share frames.

    Every call gives up after `timeout` seconds (the client's, where the call names none): with OutcomeUnknown if it may
    have been done, else with the last refusal that is Retryable, or Unavailable. The same call with the same ids is
    safe to repeat while ids are remembered: a minute after a task has ended.
    """

    @lists_options
    async def enqueue(
        self,
        queue: str,
        payload: Any,
        *,
        id: str | None = None,
        tenant: str | None = None,
        timeout: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> EnqueuedTask:
        """Enqueue one task; it is durable when this returns.

        Without `id` the SDK makes one, and sends it again if an answer is lost. Give an `id` if you may repeat the
        call: it is remembered for a minute after the task has ended.
        `tenant`, for producers: the task's tenant; its id is then the full one, `<tenant>/<id>`.
        Raises: BadRequest, TooLarge, QuotaExceeded, StoreFull, Unavailable, OutcomeUnknown.
        """
        ids, max_bytes = None if id is None else [id], self._caller.max_payload_bytes
        tasks = lazy.bodies.new_tasks(queue, [payload], ids, tenant, options, max_bytes)
        return (await self.enqueue_tasks(queue, tasks, timeout=timeout))[0]

    @lists_options
    async def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        tenant: str | Sequence[str] | None = None,
        timeout: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> list[EnqueuedTask]:
        """Enqueue many tasks, as `enqueue` does one; any number, sent in frames of up to 500.

        Not atomic: on an error some may have been taken; repeat the call with the same `ids`. `tenant`, for producers:
        one tenant for all tasks, or one per payload. If some of several tenants are refused, the others' tasks are
        enqueued, and TenantsRefused is raised, with all `refusals` by tenant, and the tasks that were `taken`; or an
        error that is Retryable, if there is one among the refusals.
        """
        tasks = lazy.bodies.new_tasks(queue, payloads, ids, tenant, options, self._caller.max_payload_bytes)
        if not tasks:
            return []
        return await self.enqueue_tasks(queue, tasks, timeout=timeout)

    async def enqueue_tasks(
        self, queue: str, tasks: Sequence[NewTask], *, timeout: float | None = None
    ) -> list[EnqueuedTask]:
        """Enqueue at least one task, each with options of its own, as `enqueue_many` does tasks that share them.

        They are not checked here; the server refuses a frame with one that breaks a rule. Other calls in it go again.
        """
        with tracing.active.enqueueing(queue, tasks) as tasks:
            if owner_of(tasks[0].id):
                return await self._enqueue_for_tenants(queue, tasks, self._deadline(timeout))
            return await self._enqueued(queue, tasks, self._caller.enqueue(queue, tasks, self._deadline(timeout)))

    async def _enqueued(self, queue: str, tasks: Sequence[NewTask], call: Call) -> list[EnqueuedTask]:
        outcomes = await self._caller.wait(call)
        lazy.options.check_in_time(outcomes)
        return [
            EnqueuedTask(task.id, queue, client=self, keeps_result=task.result_ttl_ms > 0)
            if outcome == "ok"
            else _task_of(outcome, task.id, queue, self)
            for task, outcome in zip(tasks, outcomes, strict=True)
        ]

    async def _enqueue_for_tenants(self, queue: str, tasks: Sequence[NewTask], deadline: float) -> list[EnqueuedTask]:
        """Enqueue tasks with full ids: a call for each tenant, which share frames."""
        by_tenant: dict[str, list[int]] = {}
        for n, task in enumerate(tasks):
            by_tenant.setdefault(owner_of(task.id), []).append(n)
        send = self._caller.enqueue
        calls = {tenant: send(queue, [tasks[n] for n in of], deadline) for tenant, of in by_tenant.items()}
        results = {tenant: call.result for tenant, call in calls.items()}  # filled also by a call that fails later
        taken: list[EnqueuedTask | None] = [None] * len(tasks)
        refusals: dict[str, FairqError] = {}
        for tenant, call in calls.items():
            some = [tasks[n] for n in by_tenant[tenant]]
            try:
                done: Sequence[EnqueuedTask | None] = await self._enqueued(queue, some, call)
            except FairqError as error:
                refusals[tenant] = error
                done = [
                    _task_of(outcome, task.id, queue, self) if outcome not in (None, "expired") else None
                    for task, outcome in zip(some, results[tenant], strict=True)
                ]
            for n, each in zip(by_tenant[tenant], done, strict=True):
                taken[n] = each
        for refusal in refusals.values():
            if isinstance(refusal, Retryable) or len(by_tenant) == 1:
                raise refusal
        if refusals:
            raise TenantsRefused(refusals, taken)
        return [task for task in taken if task is not None]

    def task(self, queue: str, id: str) -> EnqueuedTask:
        """Name a task that was enqueued before; producers name it as `<tenant>/<id>`."""
        return EnqueuedTask(id, check_name(queue, "queue"), client=self)

    async def tasks(self, queue: str, ids: Sequence[str], *, timeout: float | None = None) -> list[TaskState]:
        """Read the states of any number of tasks, in their order."""
        found = await self.ask_of_each("tasks", queue, ids, "tasks", timeout=timeout)
        return lazy.bodies.rows(lazy.tasks.TaskState, found)

    async def cancel(self, queue: str, ids: Sequence[str], *, timeout: float | None = None) -> list[str]:
        """Cancel any number of tasks: `ok`, `running` (its worker is asked to stop) or `gone` (it has ended) for each.

        Repeating it is safe; the tasks that the first call cancelled are then `gone`.
        """
        return await self.ask_of_each("cancel", queue, ids, "outcomes", timeout=timeout)

    async def reschedule(
        self,
        queue: str,
        ids: Sequence[str],
        *,
        delay: Seconds | None = None,
        start_at: datetime | float | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Give any number of waiting tasks another start; without one, now.

        For each: `ok`; `running`, `expired` (it would start after its end) or `quota_exceeded` (its tenant's limit of
        delayed tasks), unchanged; or `gone`.
        """
        delay_ms, start_at_ms = lazy.options.pack_start(delay, start_at)
        times = {"delay_ms": delay_ms, "start_at_ms": start_at_ms}
        return await self.ask_of_each("reschedule", queue, ids, "outcomes", timeout=timeout, **times)

    async def peek(
        self, queue: str, count: int = 10, *, tenant: str | None = None, timeout: float | None = None
    ) -> list[WaitingTask]:
        """Read the next tasks of a tenant (an operator names it) in their order, without taking them."""
        body = {"queue": queue, "count": count} | ({} if tenant is None else {"tenant": tenant})
        found = (await self.request("peek", body, timeout=timeout))["tasks"]
        return lazy.bodies.rows(lazy.tasks.WaitingTask, found)

    async def why(self, queue: str, id: str, *, timeout: float | None = None) -> Why:
        """Explain why a task waits, and when it may start; operators name it as `<tenant>/<id>`. Raises: NotFound."""
        reply = await self.request("why", {"queue": queue, "id": id}, timeout=timeout)
        return lazy.bodies.structure(reply, lazy.waiting.Why)

    async def open_batch(
        self,
        queue: str,
        *,
        id: str | None = None,
        tenant: str | None = None,
        max_running: int = 0,
        on_complete: Any = None,
        on_success: Any = None,
        on_death: Any = None,
        on_complete_name: str = "",
        on_success_name: str = "",
        on_death_name: str = "",
        events: bool = False,
        timeout: float | None = None,
    ) -> Batch:
        """Open a batch; at most `max_running` of its tasks run at once (0: any number).

        `on_complete`, `on_success` and `on_death` are payloads of tasks that are enqueued once: when it is complete,
        when all its tasks were done, and when the first of them is dead. Each may have a name, of up to 64 bytes, as
        its handler has: `on_complete_name` and so on. With an `id` of yours a repeated call opens no second one.
        `events`: its completion is an event in the feed; each of its tasks asks for itself. `tenant`, for producers:
        its tenant; the batch's id is then the full one.
        """
        id = check_batch_id(lazy.bodies.new_id() if id is None else id)
        if tenant is not None:
            id = full_id(check_tenant(tenant), id)
        callbacks = {"on_complete": on_complete, "on_success": on_success, "on_death": on_death}
        body = named(queue) | {"id": id, "max_running": lazy.batches.RUNNING.check(max_running, "max_running")}
        texts = {name: lazy.bodies.encode_payload(it) for name, it in callbacks.items() if it is not None}
        body |= {name: lazy.bodies.Fragment(text) for name, text in texts.items()}
        names = {"on_complete": on_complete_name, "on_success": on_success_name, "on_death": on_death_name}
        given = {f"{event}_name": name for event, name in names.items()}
        lazy.batches.check_callback_names(callbacks | given)
        body |= {field: name for field, name in given.items() if name}
        if check_flag(events, "events"):
            body["events"] = True
        await self.request("open_batch", body, timeout=timeout)
        return Batch(id, queue, self)

    def batch(self, queue: str, id: str) -> Batch:
        """Name a batch that was opened before."""
        return Batch(check_known_batch(id), check_name(queue, "queue"), self)

    async def batches(
        self, queue: str, *, tenant: str | None = None, state: BatchStage | None = None
    ) -> AsyncGenerator[BatchState, None]:
        """List batches, also those that were complete in the last day, in no order; one may come twice.

        `tenant`: its batches only (default, for operators: those of all tenants). `state`: only those in this state.
        Raises: Unavailable at the end if some cannot be read, since their partition does not answer.
        """
        body = named(queue, tenant) | {"count": MAX_BATCH}
        away: list[AwayPartition] = []
        if state:
            body["state"] = state
        while True:
            page = await self.request("batches", body)
            for each in lazy.bodies.rows(lazy.batches.BatchState, page["batches"]):
                yield each
            away += away_in(page)
            if not page["cursor"]:
                break
            body["cursor"] = page["cursor"]
        check_whole(queue, away)

    async def read_batches(
        self, queue: str, ids: Sequence[str], *, timeout: float | None = None
    ) -> dict[str, BatchState]:
        """Read the progress of any number of batches, by id; unknown ones are left out."""
        found = await self.ask_of_each("batches", queue, ids, "batches", timeout=timeout)
        return {state.id: state for state in lazy.bodies.rows(lazy.batches.BatchState, found)}

    def events(self, queue: str, after: int = 0, *, tenant: str | None = None) -> EventStream:
        """Follow the tasks and batches that asked for `events`: `async for`, without an end.

        It begins after the event of that id (0: with the oldest that is kept), so a client that keeps the id of
        the last one that it has handled misses none; ids count up by one. `tenant`, for operators: the tenant.
        The iteration raises TooOld if what comes next is not kept any more, BadRequest if there is no event `after`.
        """
        body = named(queue, tenant)  # checks the arguments
        return EventStream(self, body["queue"], lazy.events.EVENT_ID.check(after, "after"), tenant)

    async def read_events(
        self, queue: str, after: int = 0, *, count: int = 100, tenant: str | None = None, timeout: float | None = None
    ) -> EventPage:
        """Read up to `count` events that are there now, as `events` yields them, and which ids the feed keeps."""
        page = {"after": lazy.events.EVENT_ID.check(after, "after"), "count": lazy.rules.COUNT.check(count, "count")}
        reply = await self.request("events", named(queue, tenant) | page, timeout=timeout)
        return lazy.bodies.structure(reply, lazy.events.EventPage)

    async def cancel_all(
        self,
        queue: str,
        *,
        tenant: str | None = None,
        older_than: Seconds | None = None,
        error: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Cancel one's own waiting tasks, all or those that match; returns how many. Running ones go on.

        `older_than`: only tasks that were enqueued longer ago, in seconds; `error`: only those with a last error that
        contains this text. `tenant`, for operators: the tenant. `timeout`: for each step, of about a second. Tasks
        enqueued meanwhile stay. Repeat it after an error: it goes on with the rest.
        """
        cancelled = 0
        steps = self.cancelling_all(queue, tenant=tenant, older_than=older_than, error=error, timeout=timeout)
        async with aclosing(steps):
            async for step in steps:
                cancelled = step.cancelled
        return cancelled

    async def cancelling_all(
        self,
        queue: str,
        *,
        tenant: str | None = None,
        older_than: Seconds | None = None,
        error: str | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> AsyncGenerator[CancelProgress, None]:
        """As `cancel_all`, but yield the progress after each step; `dry_run`: only count."""
        body = named(queue, tenant) | lazy.options.pack_waiting_filter(older_than, error)
        if check_flag(dry_run, "dry_run"):
            body["dry_run"] = True
        so_far = lazy.cancelling.CancelProgress()
        while True:
            reply = await self.request("cancel_all", body, timeout=timeout)
            step = lazy.bodies.structure(reply | {"cursor": reply["cursor"] or ""}, lazy.cancelling.CancelProgress)
            so_far = so_far.plus(step)
            yield so_far
            if not so_far.cursor:
                return
            body["cursor"] = so_far.cursor

    def dead_letters(self, queue: str) -> DeadLetters:
        """Return the dead letters of a queue, to list, replay and purge; for operators, of all tenants."""
        from fairq.client.dead_letters import DeadLetters

        return DeadLetters(self, check_name(queue, "queue"))


@asynccontextmanager
async def open_client(
    url: str | Sequence[str] | None = None,
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> AsyncIterator[Client]:
    """Open a client for the URL of a server (or several of servers on one store), while the context lasts.

    It runs under asyncio and trio, in the event loop that it is opened in, and connects in the background, again and
    again. URL and token are those of FAIRQ_URL and FAIRQ_TOKEN unless they are given.

    Raises: SettingsError for an invalid URL or no token; Unauthorized or Forbidden when the server will not have the
    token; RuntimeError outside an event loop.
    """
    from fairq.client.driver import connected

    async with connected(url, token, tls) as driver:
        yield Client(driver, timeout)
