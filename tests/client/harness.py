"""Workers of a server in the test's own event loop; the rest is that of every runtime."""

from __future__ import annotations

import fairq
from fairq.server.run import Served
from tests.server.harness import WORKER, url_of

from .runtimes import wait_state, working

__all__ = ["wait_state", "worker_of", "working"]


def worker_of(served: Served, concurrency: int = 5) -> fairq.Worker:
    """A worker without handlers yet."""
    return fairq.Worker(url_of(served), WORKER, concurrency, name="worker-1")
