"""Workers that post tasks: to one URL, or to the webhooks of their queues, which are read while they run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf

import structlog
import trio
from attrs import define, field, frozen

from fairq.client.bodies import rows
from fairq.client.client import Client, open_client
from fairq.client.requests import named
from fairq.client.runners import ASK_S
from fairq.client.worker import Worker, default_name
from fairq.errors import BadRequest, FairqError, Retryable, SettingsError, Unavailable
from fairq.io.scopes import open_plain_nursery, run_all
from fairq.model.checks import MAX_WORKER_CHARS, check_name
from fairq.model.webhooks import Webhook
from fairq.webhook.deliverer import Delivery, Target, open_deliverer
from fairq.webhook.network import CheckedNetwork
from fairq.webhook.registrations import Policy, Registrations, log_webhook

log = structlog.get_logger("fairq.webhook")

READ_S = 0.5  # between two looks at the webhooks of a queue
ANSWER_S = 5.0  # how long one look may take


@define(eq=False)
class WebhookService:
    """One worker per queue, attached while the queue has a webhook that is not paused.

    So if all webhooks of a queue are paused, its tasks stay where they are.
    """

    client: Client = field(repr=False)
    workers: Mapping[str, Worker]  # by queue
    registrations: Mapping[str, Registrations]
    _stopping: trio.Event = field(factory=trio.Event, init=False)
    _working: set[str] = field(factory=set, init=False)  # queues with a running worker
    _leaving: set[str] = field(factory=set, init=False)  # those of them with a worker that takes no more tasks
    _ended: set[str] = field(factory=set, init=False)  # served no more: stopped, drained, or their burst is over

    async def run(self, *, burst: bool = False, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled, stopped, or all workers were drained. Raises: as `Worker.run`.

        burst: each queue only until it has no ready task, or no webhook to post to; Unavailable without a server.
        """
        task_status.started()
        await run_all(*(partial(self._serve, queue, burst) for queue in self.workers), stops_at_failure=True)

    @property
    def running(self) -> int:
        """How many tasks run."""
        return sum(worker.running for worker in self.workers.values())

    @property
    def is_leaving(self) -> bool:
        """False: a queue's worker leaves, and others go on; no task of theirs swallows its cancellation."""
        return False

    def tell_running(self) -> int:
        """Log each task that runs; returns how many."""
        return sum(worker.tell_running() for worker in self.workers.values())

    def stop(self) -> None:
        """Take no more tasks; `run` returns once the tasks it holds are settled."""
        self._stopping.set()
        self._ended.update(self.workers)
        for queue in self._working:
            self._leave(queue)

    def _leave(self, queue: str) -> None:
        self._leaving.add(queue)
        self.workers[queue].stop()

    async def _serve(self, queue: str, burst: bool) -> None:
        heard_at = trio.current_time()
        async with open_plain_nursery() as nursery:
            while queue not in self._ended:
                is_needed = burst and queue not in self._working
                if is_read := await self._read(queue, heard_at + ASK_S if is_needed else inf):
                    heard_at = trio.current_time()
                is_active = self.registrations[queue].is_active and queue not in self._ended
                if is_active and queue not in self._working:
                    await nursery.start(self._work, queue, burst)
                elif not is_active and queue in self._working:
                    self._leave(queue)
                elif burst and is_read and not is_active:
                    return
                with trio.move_on_after(READ_S):
                    await self._stopping.wait()

    async def _work(self, queue: str, burst: bool, task_status: trio.TaskStatus[None]) -> None:
        """Run a queue's worker.

        If it was not stopped here, it is not started again: an operator has drained it, or its burst is over.
        """
        self._working.add(queue)
        try:
            await self.workers[queue].run(burst=burst, task_status=task_status)
        finally:
            self._working.discard(queue)
        if queue not in self._leaving:
            self._ended.add(queue)
        self._leaving.discard(queue)

    async def _read(self, queue: str, give_up_at: float) -> bool:
        """Read a queue's webhooks; those that were read last go on while the service does not answer (False).

        Raises: Unavailable if there is no server from `give_up_at` on.
        """
        try:
            reply = await self.client.request("webhooks", named(queue), timeout=ANSWER_S)
        except FairqError as error:
            may_give_up = isinstance(error, Unavailable) and trio.current_time() >= give_up_at
            if may_give_up or not isinstance(error, Retryable):
                raise
            log.warning("cannot read the webhooks", queue=queue, error=error.message)
            return False
        self.registrations[queue].update(rows(Webhook, reply["webhooks"]))
        return True


@frozen
class Asked:
    """The options of a webhook worker; `servers`: their URLs, with commas."""

    queues: Sequence[str]
    policy: Policy
    delivery: Delivery
    servers: str
    token: str = field(repr=False)
    concurrency: int
    name: str | None

    def worker(self, name: str) -> Worker:
        """Make a worker without handlers."""
        return Worker(self.servers, self.token, self.concurrency, name)

    def name_in(self, queue: str) -> str:
        """Return the name of the worker of one queue of several. Raises: SettingsError."""
        if len(self.queues) == 1:
            return self.name or default_name()
        if self.name is None:
            return f"{queue[:20]}.{default_name()[-(MAX_WORKER_CHARS - 21) :]}"
        if len(name := f"{self.name}.{queue}") > MAX_WORKER_CHARS:
            raise SettingsError(f"name and queue, {name}, have over {MAX_WORKER_CHARS} characters", field="name")
        return name


@asynccontextmanager
async def open_worker(asked: Asked, url: str) -> AsyncIterator[Worker]:
    """Open a worker that posts all tasks to one URL. Raises: SettingsError, BadRequest."""
    webhook = Webhook("", url)
    target = asked.policy.target_of(webhook)
    worker = asked.worker(asked.name or default_name())

    def find(_: object) -> Target:
        return target

    async with open_deliverer(find, asked.delivery, CheckedNetwork(asked.policy.rules)) as deliverer:
        for queue in asked.queues:
            worker.task(queue)(deliverer.deliver)
        for queue in asked.queues:
            log_webhook(queue, webhook, target)
        yield worker


@asynccontextmanager
async def open_service(asked: Asked) -> AsyncIterator[WebhookService]:
    """Open the workers that post each queue's tasks to its webhooks. Raises: SettingsError, BadRequest."""
    workers: dict[str, Worker] = {}
    registrations: dict[str, Registrations] = {}
    for queue in asked.queues:
        if check_name(queue, "queue") in workers:
            raise BadRequest(f"queue {queue} already has a handler", field="queue")
        workers[queue], registrations[queue] = asked.worker(asked.name_in(queue)), Registrations(queue, asked.policy)
    async with (
        open_deliverer(
            lambda task: registrations[task.queue].find(task),
            asked.delivery,
            CheckedNetwork(asked.policy.rules),
            others=lambda task: registrations[task.queue].others(task),
        ) as deliverer,
        open_client(asked.servers, token=asked.token) as client,
    ):
        for queue, worker in workers.items():
            worker.task(queue)(deliverer.deliver)
        yield WebhookService(client, workers, registrations)
