"""Tests that run under asyncio, under trio and for threads, against a server in a thread of its own."""

from __future__ import annotations

import inspect
import threading
from _thread import interrupt_main
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial, wraps
from typing import Any

import anyio
import pytest
import trio
from anyio.abc import TaskGroup

import fairq
import fairq.sync
import fairq.testing.sync
from fairq.errors import Unavailable
from fairq.io import cancel_backoff
from fairq.model.tasks import TaskState
from fairq.server.run import Served
from fairq.sync.blocking import finish
from tests.cli.harness import ServerThread
from tests.server.harness import WORKER, tenant, url_of
from tests.store.proxy import Proxy, open_proxy
from tests.store.waiting import wait_until as wait_until

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


class Api:
    """The SDK of one runtime, as the contract's tests use it."""

    def open_client(self, *args: Any, **options: Any) -> AbstractAsyncContextManager[Any]:
        return fairq.open_client(*args, **options)

    def open_operator(self, *args: Any, **options: Any) -> AbstractAsyncContextManager[Any]:
        """Open an operator's client."""
        return fairq.open_operator(*args, **options)

    def in_memory(self, app: fairq.Worker, **options: Any) -> AbstractAsyncContextManager[Any]:
        """Open the service in memory."""
        return fairq.testing.run(app, **options)

    def working(self, app: fairq.Worker) -> AbstractAsyncContextManager[Any]:
        """Run a worker until the block is left."""
        return working(app)

    async def work(self, app: fairq.Worker) -> None:
        await app.run(burst=True)

    async def unavailable(self, client: Any, why: str) -> None:
        """Check that calls fail for a reason, which they tell once they had the time to find it out."""
        for timeout in (0.3, 1, 4, 16):
            with pytest.raises(Unavailable) as caught:
                await client.enqueue("emails", 1, timeout=timeout)
            if why in caught.value.message:
                return
        raise AssertionError(caught.value.message)

    async def together(self, calls: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Make calls at the same time."""
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(call)


class SyncApi(Api):
    """`fairq.sync` behind the same names: nothing here waits for an event loop, and there is none."""

    @asynccontextmanager
    async def open_client(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        with fairq.sync.open_client(*args, **options) as client:
            yield Awaited(client)

    @asynccontextmanager
    async def open_operator(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Open an operator's client."""
        with fairq.sync.open_operator(*args, **options) as client:
            yield Awaited(client)

    @asynccontextmanager
    async def in_memory(self, app: fairq.Worker, **options: Any) -> AsyncIterator[Any]:
        """Open the service in memory."""
        with fairq.testing.sync.run(app, **options) as service:
            yield Awaited(service)

    @asynccontextmanager
    async def working(self, app: fairq.Worker) -> AsyncIterator[None]:
        """Run a worker in a thread until the block is left."""
        started, ended = threading.Event(), trio.Event()
        tokens: list[trio.lowlevel.TrioToken] = []

        async def work() -> None:
            tokens.append(trio.lowlevel.current_trio_token())
            async with working(app):
                started.set()
                await ended.wait()

        thread = threading.Thread(target=trio.run, args=(work,))
        thread.start()
        try:
            assert started.wait(LIMIT_S)
            yield
        finally:
            tokens[0].run_sync_soon(ended.set)
            thread.join(LIMIT_S)

    async def work(self, app: fairq.Worker) -> None:
        thread = threading.Thread(target=trio.run, args=(partial(app.run, burst=True),))
        thread.start()
        thread.join(LIMIT_S)

    async def together(self, calls: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Make calls at the same time, each in a thread."""
        threads = [threading.Thread(target=finish, args=(call(),)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)


_WRAPPED = (fairq.sync.client.__name__, fairq.testing.sync.__name__)


class Awaited:
    """An object of `fairq.sync` with the surface of the async one of its name."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            return _awaited(value(*args, **options))

        async def wait(*args: Any, **options: Any) -> Any:
            return call(*args, **options)

        is_waited_for = inspect.iscoroutinefunction(inspect.unwrap(value)) or name in ("drain", "advance")
        return wait if is_waited_for else call

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Awaited) and bool(self._inner == other._inner)

    def __hash__(self) -> int:
        return id(self)

    def __aiter__(self) -> Awaited:
        return self

    async def __anext__(self) -> Any:
        return next(self._inner)


def _awaited(value: Any) -> Any:
    if isinstance(value, Generator):
        return _iterated(value)
    if isinstance(value, list):
        return [_awaited(each) for each in value]
    return Awaited(value) if type(value).__module__ in _WRAPPED else value


async def _iterated(values: Generator[Any, None, None]) -> AsyncIterator[Any]:
    for value in values:
        yield _awaited(value)


def on_all(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test of the contract, with the argument `api`, under asyncio, trio and for threads, at most LIMIT_S."""

    async def limited(**fixtures: Any) -> None:
        with anyio.fail_after(LIMIT_S):
            await test(api=Api(), **fixtures)

    @wraps(test)
    def run(runtime: str, **fixtures: Any) -> None:
        if runtime != "sync":
            anyio.run(partial(limited, **fixtures), backend=runtime)
            return
        watch = threading.Timer(LIMIT_S, interrupt_main)
        watch.start()
        try:
            finish(test(api=SyncApi(), **fixtures))  # type: ignore[arg-type]
        finally:
            watch.cancel()

    parameters = [each for name, each in inspect.signature(test).parameters.items() if name != "api"]
    own = inspect.Parameter("runtime", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*parameters, own])  # type: ignore[attr-defined]
    all_three: Callable[..., None] = pytest.mark.parametrize("runtime", [*RUNTIMES, "sync"])(run)
    return all_three


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

    def hold(self) -> None:
        """Let no more replies through."""
        self._do(self.proxy.hold)

    def mute(self) -> None:
        """Let no more replies through on the connections that there are."""
        self._do(self.proxy.mute)

    def _do(self, call: Callable[[], None]) -> None:
        done = threading.Event()
        self.soon(call)
        self.soon(done.set)
        assert done.wait(LIMIT_S)

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


def limits(monkeypatch: pytest.MonkeyPatch) -> list[anyio.CancelScope]:
    """Collect the limits of handlers that have a timeout: it is over for one when its limit is cancelled."""
    found, limit = list[anyio.CancelScope](), cancel_backoff.limit

    def note(scope: anyio.CancelScope) -> AbstractContextManager[Any]:
        found.append(scope)
        return limit(scope)

    monkeypatch.setattr(cancel_backoff, "limit", note)
    return found


async def wait_state(task: fairq.EnqueuedTask, wanted: str) -> TaskState:
    """Wait until a task is in a state; the test's limit ends it."""
    while (state := await task.state()).state != wanted:  # noqa: ASYNC110
        await anyio.sleep(0.005)
    return state


def tls_url(service: Service) -> str:
    assert service.served is not None
    return url_of(service.served).replace("ws://", "wss://")
