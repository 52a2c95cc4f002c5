"""Tests that run under asyncio and under trio, against a server in a thread of its own, which is trio's."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial, wraps
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

import fairq
from fairq.model.tasks import TaskState
from fairq.server.run import Served
from tests.cli.harness import ServerThread
from tests.server.harness import WORKER, tenant, url_of
from tests.store.proxy import Proxy, open_proxy

LIMIT_S = 30.0
RUNTIMES = ("asyncio", "trio")


def on_both(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test under each runtime, for at most LIMIT_S; if it has an argument `runtime`, that is the name."""
    signature = inspect.signature(test)

    async def limited(**fixtures: Any) -> None:
        with anyio.fail_after(LIMIT_S):
            await test(**fixtures)

    @wraps(test)
    def run(runtime: str, **fixtures: Any) -> None:
        more = {"runtime": runtime} if "runtime" in signature.parameters else {}
        anyio.run(partial(limited, **fixtures, **more), backend=runtime)

    others = [parameter for name, parameter in signature.parameters.items() if name != "runtime"]
    own = inspect.Parameter("runtime", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(parameters=[*others, own])  # type: ignore[attr-defined]
    both: Callable[..., None] = pytest.mark.parametrize("runtime", RUNTIMES)(run)
    return both


class Service(ServerThread):
    """A server in a thread, with a proxy in front of it."""

    proxy: Proxy

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Served]:
        """Run the server and the proxy."""
        async with super().serving() as served, open_proxy(served.port) as self.proxy:
            yield served

    @property
    def proxied(self) -> str:
        """The URL of the proxy."""
        return f"ws://127.0.0.1:{self.proxy.port}"

    def soon(self, call: Callable[[], None]) -> None:
        """Call a function in the server's thread, without waiting for it."""
        self._token.run_sync_soon(call)

    def worker(self, concurrency: int = 5) -> fairq.Worker:
        """Make a worker without handlers."""
        return fairq.Worker(self.url, WORKER, concurrency, name="worker-1")

    @asynccontextmanager
    async def client(self, name: str = "ada") -> AsyncIterator[fairq.Client]:
        """Open a tenant's client."""
        async with fairq.open_client(self.url, token=tenant(name)) as client:
            yield client


@contextmanager
def running_service(store: str, **settings: Any) -> Iterator[Service]:
    """Run a service while the context lasts."""
    service = Service(store, **settings)
    try:
        service.start()
        yield service
    finally:
        service.stop()


@asynccontextmanager
async def working(app: fairq.Worker) -> AsyncIterator[TaskGroup]:
    """Run a worker until the block is left."""
    async with anyio.create_task_group() as group:
        await group.start(app.run)
        yield group
        group.cancel_scope.cancel()


async def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds; the test's limit ends it."""
    while not holds():  # noqa: ASYNC110 - other threads and processes make it hold
        await anyio.sleep(0.005)


async def wait_state(task: fairq.EnqueuedTask, wanted: str) -> TaskState:
    """Wait until a task is in a state; the test's limit ends it."""
    while (state := await task.state()).state != wanted:  # noqa: ASYNC110
        await anyio.sleep(0.005)
    return state


def tls_url(service: Service) -> str:
    """The URL of a service that has a certificate."""
    assert service.served is not None
    return url_of(service.served).replace("ws://", "wss://")
