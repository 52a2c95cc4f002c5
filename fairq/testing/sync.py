"""The service in memory for plain tests, which have no event loop, and for code that takes a client of fairq.sync.

An event loop in a thread of its own has the service and runs the handlers; each call here waits for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal, cast

from anyio.from_thread import BlockingPortal, start_blocking_portal
from attrs import define, field

import fairq.sync.client as blocking
from fairq.client import batch, operator
from fairq.client.caller import Caller
from fairq.client.worker import Worker
from fairq.errors import Closed
from fairq.model.checks import DEFAULT_PAYLOAD_BYTES, check_tenant
from fairq.model.tasks import NewTask
from fairq.sync.blocking import Same, call_for, make
from fairq.sync.driver import Driver, check_thread
from fairq.sync.operator import OperatorClient
from fairq.testing import service
from fairq.testing.caller import MemoryCaller
from fairq.testing.operator import MemoryOperator
from fairq.testing.running import Memory
from fairq.wire.calls import Call


@define(eq=False)
class _Caller:
    """A caller for threads: what waits, or changes something, does so in the service's event loop."""

    portal: BlockingPortal
    inner: MemoryCaller
    max_payload_bytes: int = DEFAULT_PAYLOAD_BYTES
    _is_closed: bool = field(default=False, init=False)

    def now(self) -> float:
        """Return the time of the event loop's clock. Raises: RuntimeError inside an event loop; Closed."""
        check_thread()
        if self._is_closed:
            raise Closed("the client was closed")
        return self.portal.call(self.inner.now)

    def enqueue(self, queue: str, tasks: Sequence[NewTask], deadline: float) -> Call:
        """Store tasks."""
        return self.portal.call(self.inner.enqueue, queue, tasks, deadline)

    def request(self, verb: str, body: Mapping[str, Any], deadline: float) -> Any:
        """Ask something; it is carried out when the answer is waited for."""
        return self.inner.request(verb, body, deadline)

    def wait_task(self, queue: str, id: str, deadline: float) -> Any:
        """Ask for a task's end."""
        return self.inner.wait_task(queue, id, deadline)

    async def wait(self, call: Call | Awaitable[Any]) -> Any:
        """Block the thread until there is an answer."""
        return self.portal.call(self.inner.wait, call)

    async def sleep_until(self, time: float) -> None:
        """Block the thread until a time of `now`."""
        self.portal.call(self.inner.sleep_until, time)

    async def pass_turn(self) -> None:
        """Other threads have their turns anyway."""

    def close(self) -> None:
        """Take no more calls."""
        self._is_closed = True


@define(repr=False)
class TrackedTask(blocking.EnqueuedTask):
    """A task of a test, which knows what has become of it; see `fairq.testing.TrackedTask`."""

    outcome = Same[str]()
    reason = Same[str]()
    error = Same[str]()
    attempts = Same[int]()
    exceptions = Same[Sequence[BaseException]]()
    progress = Same[Sequence[tuple[float, str]]]()


def _tracked(tasks: Sequence[Any]) -> list[TrackedTask]:
    return [TrackedTask(task) for task in tasks]


# in a class mypy would give these the types that they have in its base
_add = call_for(TrackedTask, batch.Batch.add)
_add_many = call_for(_tracked, batch.Batch.add_many)
_enqueue = blocking.enqueues(TrackedTask, service.MemoryClient.enqueue, TrackedTask)
_enqueue_many = blocking.enqueues(_tracked, service.MemoryClient.enqueue_many, TrackedTask)
_enqueue_tasks = blocking.enqueues(_tracked, service.MemoryClient.enqueue_tasks, TrackedTask)


@define(repr=False)
class Batch(blocking.Batch):
    """An open batch, of tasks that are tracked."""

    add = _add
    add_many = _add_many  # type: ignore[assignment]


_open_batch = call_for(Batch, service.MemoryClient.open_batch)
_batch = make(Batch, service.MemoryClient.batch)


@define(eq=False)
class MemoryClient(blocking.Client):
    """A client of one tenant, or of a producer: for the code under test, as one of `fairq.sync.open_client`."""

    tenant = Same[str | None]()
    enqueue = _enqueue
    enqueue_many = _enqueue_many  # type: ignore[assignment]
    enqueue_tasks = _enqueue_tasks  # type: ignore[assignment]
    open_batch = _open_batch
    batch = _batch


@define(eq=False)
class MemoryService(MemoryClient):
    """The service in memory, and a tenant's client of it. Handlers run inside `drain` and `advance` only.

    Nothing happens elsewhere, unless another thread is in one of these: give what waits a `timeout`.
    """

    _portal: BlockingPortal = field(kw_only=True, repr=False)
    _service: service.MemoryService = field(kw_only=True, repr=False)

    def as_tenant(self, tenant: str) -> MemoryClient:
        """Return another tenant's client."""
        return _client_of(self._portal, self._service._memory, check_tenant(tenant))

    def as_producer(self) -> MemoryClient:
        """Return the client of a producer, which names the tenant of each task, for all tenants."""
        return _client_of(self._portal, self._service._memory, None)

    def as_operator(self) -> OperatorClient:
        """Return the client of an operator, which sets weights and limits, and pauses."""
        caller = _Caller(self._portal, MemoryOperator(self._service._memory, None))
        return OperatorClient(operator.OperatorClient(cast(Caller, caller)), cast(Driver, caller))

    @property
    def now(self) -> datetime:
        """The time, as the service has it: it begins with the real one."""
        return self._portal.call(lambda: self._service.now)

    def drain(self) -> None:
        """Run all tasks that have a handler to their end, as `fairq.testing.MemoryService.drain` does."""
        check_thread()
        self._portal.call(self._service.drain)

    def advance(self, seconds: float) -> None:
        """Let this much time pass, and run to its end what is ready or becomes due meanwhile."""
        check_thread()
        self._portal.call(self._service.advance, seconds)


def _parts(portal: BlockingPortal, memory: Memory, tenant: str | None) -> tuple[service.MemoryClient, Driver]:
    caller = _Caller(portal, MemoryCaller(memory, tenant))
    return service.MemoryClient(cast(Caller, caller), memory=memory, tenant=tenant), cast(Driver, caller)


def _client_of(portal: BlockingPortal, memory: Memory, tenant: str | None) -> MemoryClient:
    return MemoryClient(*_parts(portal, memory, tenant))


@contextmanager
def run(
    worker: Worker,
    *,
    tenant: str = "test",
    settings: Mapping[str, Mapping[str, str | int]] | None = None,
    seed: int = 0,
    loop: Literal["asyncio", "trio"] = "asyncio",
) -> Iterator[MemoryService]:
    """Give a plain test the service in memory, as `fairq.testing.run` does; `loop` is what the handlers run under.

    Raises: RuntimeError inside an event loop, and what that raises.
    """
    check_thread()
    with start_blocking_portal(loop) as portal:
        opened = service.run(worker, tenant=tenant, settings=settings, seed=seed)
        with portal.wrap_async_context_manager(opened) as found:
            yield MemoryService(*_parts(portal, found._memory, tenant), portal=portal, service=found)
