"""A server on an empty store. What the store itself does is tested on each kind; here one kind is enough."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
import redis
import structlog
import trio

from fairq.server.run import Served
from fairq.store.address import Address
from tests import stores
from tests.store.certificates import make_certificate
from tests.store.proxy import Proxy, open_proxy

from .clock import StoreClock
from .harness import OPERATOR, WORKER, Raw, raw, running, tenant

DEADLINE_S = 120


def pytest_runtest_setup(item: pytest.Function) -> None:
    """Give every test that does I/O a deadline; pytest's own ends those with a jumping clock."""
    test = item.obj
    if not iscoroutinefunction(test) or hasattr(test, "hypothesis") or "autojump_clock" in item.fixturenames:
        return

    @wraps(test)
    async def in_time(**fixtures: Any) -> None:
        with trio.fail_after(DEADLINE_S):
            await test(**fixtures)

    item.obj = in_time


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """Logs with plain tracebacks: structlog's own take seconds, for they show every local variable."""
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[structlog.processors.add_log_level, renderer])
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def haste(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that tell each other of their workers, and leave clients that do not answer a good-bye, at once."""
    if "autojump_clock" not in request.fixturenames:
        monkeypatch.setattr("fairq.server.engine.net.worker_registry._GATHER_S", 0.01)
        monkeypatch.setattr("fairq.server.engine.net.transport.CLOSE_S", 0.1)


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers and clients that wait for answers, and for the store's, however busy the machine; else tests say less."""
    if "autojump_clock" not in request.fixturenames:
        for constant in "engine.net.questions.ANSWER_S", "web.admin.health.ANSWER_S", "web.dashboard.live.ANSWER_S":
            monkeypatch.setattr(f"fairq.server.{constant}", 60.0)
        monkeypatch.setattr("fairq.server.web.dashboard.site._ANSWER_S", 60.0)
        monkeypatch.setattr("fairq.client.requests._WHY_TIMEOUT_S", 60.0)


@pytest.fixture
def server_store(pytestconfig: pytest.Config, running_stores: Callable[[str], stores.Server]) -> str:
    """The URL of the session's store, emptied."""
    server = running_stores(pytestconfig.getoption("--store"))
    stores.empty(server)
    return server.url


@pytest.fixture
async def proxy(server_store: str) -> AsyncIterator[Proxy]:
    """A proxy in front of the store, for servers at `proxied`."""
    async with open_proxy(Address.parse(server_store).port) as proxy:
        yield proxy


@pytest.fixture
def proxied(server_store: str, proxy: Proxy) -> str:
    """The URL of the store behind the proxy."""
    return server_store.replace(str(Address.parse(server_store).port), str(proxy.port))


@pytest.fixture
def redis_store(server_store: str) -> Iterator[redis.Redis]:
    """A plain client of the store, past the servers."""
    with stores.connect(server_store) as client:
        yield client


@pytest.fixture
def store_clock(server_store: str, monkeypatch: pytest.MonkeyPatch) -> StoreClock:
    """The clock of queue q in the store: it stands until the test moves it."""
    clock = StoreClock(monkeypatch)
    clock.govern(server_store)
    return clock


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers and clients that do not look again for an hour: they do in time only what they know or hear of."""
    for constant in (
        "timers.ticker.FLOOR_S", "timers.ticker._DISCOVER_S", "long_poll.POLL_S", "net.revocations.POLL_S",
        "net.revocations.FLOOR_S",
    ):  # fmt: skip
        monkeypatch.setattr(f"fairq.server.engine.{constant}", 3600.0)
    monkeypatch.setattr("fairq.wire.waits.WAIT_MS", 50_000)  # longer than a test may take; servers wait for a minute


@pytest.fixture
def quick_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ticker that looks again after 50 ms instead of a second or more, and never for queues that it knows not of."""
    monkeypatch.setattr("fairq.server.engine.timers.ticker.FLOOR_S", 0.05)
    monkeypatch.setattr("fairq.server.engine.timers.ticker.IDLE_FLOORS", 1)
    monkeypatch.setattr("fairq.server.engine.timers.ticker._DISCOVER_S", 3600.0)


@pytest.fixture
async def served(server_store: str) -> AsyncIterator[Served]:
    """A server with development tokens."""
    async with running(server_store) as served:
        yield served


@pytest.fixture
def one(served: Served) -> Served:
    """One of two servers of a store."""
    return served


@pytest.fixture
async def two(server_store: str) -> AsyncIterator[Served]:
    """The other one."""
    async with running(server_store) as served:
        yield served


@pytest.fixture(params=["the same server", "another server"])
def either(request: pytest.FixtureRequest, one: Served, two: Served) -> Served:
    """A server of the store of `one`: that one, and the other one."""
    return one if request.param == "the same server" else two


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """A self-signed certificate for 127.0.0.1, and its key: paths of PEM files."""
    return make_certificate(tmp_path)


@pytest.fixture
async def ada(served: Served) -> AsyncIterator[Raw]:
    """A tenant's connection."""
    async with raw(served, tenant("ada")) as client:
        yield client


@pytest.fixture
async def bob(served: Served) -> AsyncIterator[Raw]:
    """Another tenant's connection."""
    async with raw(served, tenant("bob")) as client:
        yield client


@pytest.fixture
async def worker(served: Served) -> AsyncIterator[Raw]:
    """A worker's connection."""
    async with raw(served, WORKER) as client:
        yield client


@pytest.fixture
async def operator(served: Served) -> AsyncIterator[Raw]:
    """An operator's connection."""
    async with raw(served, OPERATOR) as client:
        yield client
