"""Workers and clients of a server in the test's own event loop; the rest is that of every runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import fairq
from fairq.server.run import Served
from tests.server.harness import WORKER, tenant, url_of
from tests.store.proxy import Proxy, open_proxy

from .runtimes import wait_state, working

__all__ = ["wait_state", "worker_of", "working"]


def worker_of(served: Served, concurrency: int = 5) -> fairq.Worker:
    """A worker without handlers yet."""
    return fairq.Worker(url_of(served), WORKER, concurrency, name="worker-1")


@asynccontextmanager
async def through_proxy(served: Served) -> AsyncIterator[tuple[Proxy, fairq.Client]]:
    """A tenant's client whose connection can be cut."""
    async with (
        open_proxy(served.port) as proxy,
        fairq.open_client(f"ws://127.0.0.1:{proxy.port}", token=tenant("ada")) as client,
    ):
        yield proxy, client


def waiting_at(served: Served) -> int:
    """Count the requests that wait for something in the queue."""
    return len(served.app.queues.long_polls["emails"]._watches) if "emails" in served.app.queues.long_polls else 0
