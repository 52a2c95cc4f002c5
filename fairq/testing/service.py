"""The service in memory: a client to enqueue with, and a worker's handlers, run when the test says so."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast

from attrs import define, field

from fairq.client.caller import Caller
from fairq.client.client import Client
from fairq.client.isolation import fresh_contexts
from fairq.client.tasks import EnqueuedTask
from fairq.client.worker import Worker
from fairq.errors import BadRequest, TenantsRefused
from fairq.model.checks import check_int, check_name, check_tenant, full_id
from fairq.model.queues import SETTINGS, QueueSettings
from fairq.model.tasks import NewTask
from fairq.testing.caller import MemoryCaller
from fairq.testing.memory import Record
from fairq.testing.operator import MemoryOperator
from fairq.testing.running import Memory
from fairq.wire.terms import MAX_CREDIT

if TYPE_CHECKING:
    from fairq.client.operator import OperatorClient

P = ParamSpec("P")
W = TypeVar("W")


@define
class TrackedTask(EnqueuedTask):
    """A task of a test, which knows what has become of it."""

    _record: Record = field(kw_only=True, repr=False, eq=False)

    @property
    def outcome(self) -> str:
        """Its state now: `done`, `dead`, or `ready`, `delayed` or `leased` if it is not over yet."""
        return self._record.state.state

    @property
    def reason(self) -> str:
        """Why it is dead: `exhausted`, `rejected` or `expired`."""
        return self._record.state.reason

    @property
    def error(self) -> str:
        """The last failure's message, as operators read it."""
        return self._record.state.error

    @property
    def attempts(self) -> int:
        """How often its handler was called."""
        return self._record.state.attempt

    @property
    def exceptions(self) -> Sequence[BaseException]:
        """The exceptions of its handler, call by call, with their tracebacks."""
        return tuple(self._record.exceptions)

    @property
    def progress(self) -> Sequence[tuple[float, str]]:
        """The reports of its handler's progress: fraction and text, in order."""
        return tuple(self._record.progress)

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in ("outcome", "attempts", "reason", "error")}
        shown = "".join(f", {name}={value!r}" for name, value in values.items() if value not in ("", 0))
        return f"TrackedTask({self.queue!r}, {self.id!r}{shown})"


def _returning(
    kind: type[W], method: Callable[Concatenate[Any, P], Awaitable[object]]
) -> Callable[[object], Callable[Concatenate[Any, P], Coroutine[Any, Any, W]]]:
    """Decorate a name that stands for a method: the annotation here says what it returns."""
    return lambda _: method  # type: ignore[return-value]


@define(eq=False)
class MemoryClient(Client):
    """A client of one tenant, or of a producer: to be given to the code under test, as one of `fairq.open_client`."""

    _memory: Memory = field(kw_only=True, repr=False)
    tenant: str | None = field(kw_only=True)  # None: a producer's

    @classmethod
    def of(cls, memory: Memory, tenant: str | None) -> Self:
        """Make a client."""
        caller = MemoryCaller(memory, tenant if tenant is None else check_tenant(tenant))
        return cls(cast(Caller, caller), memory=memory, tenant=tenant)

    @_returning(TrackedTask, Client.enqueue)  # by `enqueue_tasks`, and so is the next
    def enqueue(self) -> None: ...

    @_returning(list[TrackedTask], Client.enqueue_many)
    def enqueue_many(self) -> None: ...  # type: ignore[override]

    async def enqueue_tasks(  # type: ignore[override]
        self, queue: str, tasks: Sequence[NewTask], *, timeout: float | None = None
    ) -> list[TrackedTask]:
        """As `Client.enqueue_tasks`."""
        try:
            return [self._tracked(task) for task in await super().enqueue_tasks(queue, tasks, timeout=timeout)]
        except TenantsRefused as error:
            error.taken = [task and self._tracked(task) for task in error.taken]
            raise

    def _tracked(self, task: EnqueuedTask) -> TrackedTask:
        id = task.id if self.tenant is None else full_id(self.tenant, task.id)
        record = self._memory.queue(task.queue).records[id]
        return TrackedTask(
            task.id, task.queue, task.is_duplicate, client=self, is_replaced=task.is_replaced,
            duplicate_of_state=task.duplicate_of_state, keeps_result=task._keeps_result, record=record,
        )  # fmt: skip


@define(eq=False)
class MemoryService(MemoryClient):
    """The service in memory, and a tenant's client of it. Handlers run inside `drain` and `advance` only."""

    def as_tenant(self, tenant: str) -> MemoryClient:
        """Return another tenant's client."""
        return MemoryClient.of(self._memory, check_tenant(tenant))

    def as_producer(self) -> MemoryClient:
        """Return the client of a producer, which names the tenant of each task, for all tenants."""
        return MemoryClient.of(self._memory, None)

    def as_operator(self) -> OperatorClient:
        """Return the client of an operator, which sets weights and limits, and pauses."""
        from fairq.client.operator import OperatorClient

        return OperatorClient(cast(Caller, MemoryOperator(self._memory, None)))

    @property
    def now(self) -> datetime:
        """The time, as the service has it: it begins with the real one."""
        return datetime.fromtimestamp(self._memory.now() / 1000, UTC)

    async def drain(self) -> None:
        """Run all tasks that have a handler to their end, also delayed ones and every retry, however late they start.

        Raises: RuntimeError after 100,000 runs of handlers.
        """
        await self._memory.run_until(inf)

    async def advance(self, seconds: float) -> None:
        """Let this much time pass, and run to its end what is ready or becomes due meanwhile."""
        if not 0 <= seconds < inf:
            raise BadRequest(f"seconds must be 0 or more, not {seconds!r:.80}", field="seconds")
        await self._memory.run_until(self._memory.now() + round(seconds * 1000))


@asynccontextmanager
async def run(
    worker: Worker,
    *,
    tenant: str = "test",
    settings: Mapping[str, Mapping[str, str | int]] | None = None,
    seed: int = 0,
) -> AsyncIterator[MemoryService]:
    """Give a test the service in memory, with a worker's handlers; what its on_startup and on_shutdown do is done too.

    `settings` are queues' settings, by queue, as in `fairq queues set`; `seed` decides the jitter of retries.
    Raises: BadRequest for a worker that could not run, or unknown settings.
    """
    if not worker.handlers:
        raise BadRequest("the worker has no handlers; register one with @app.task(queue)", field="queues")
    check_int(worker.concurrency, "concurrency", 1, MAX_CREDIT)
    chosen = {
        check_name(queue, "queue"): QueueSettings(**SETTINGS.check(dict(changes), "settings"))
        for queue, changes in (settings or {}).items()
    }
    context = await worker.hooks.start()
    try:
        yield MemoryService.of(Memory(worker, chosen, random.Random(seed), fresh_contexts(context)), tenant)
    finally:
        await worker.hooks.end(context)
