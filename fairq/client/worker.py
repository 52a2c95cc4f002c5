"""The SDK for those who do the work, under asyncio and trio."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import define, field

from fairq.client.registration import Registration

if TYPE_CHECKING:
    import ssl

    from anyio.abc import TaskStatus

    from fairq.client.working import Working


def default_name() -> str:
    """Name this worker after its machine and process, so that no other has the name."""
    node = "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in platform.node() or "worker")
    return f"{node[:44]}-{os.getpid()}-{os.urandom(3).hex()}"


@define(eq=False)
class Worker(Registration):
    """An app of handlers, by queue and by the name of the task, that is attached to the service while `run` runs.

    `concurrency` tasks run at once; plain functions run in threads, and cannot be cancelled when their lease is lost:
    they keep their place until they return.
    `prefetch` tasks more are held, and begin as soon as a place is free: for tasks of a few ms, or where the server is
    far away. To the queue they are running: they count in limits and shares, and a tenant that comes later waits.
    `name` is one for the worker to come back under: it ends older connections of that name, so that what they held is
    ready again at once; no two workers may have the same.

    It runs under asyncio and trio. `url` and `token` are those of FAIRQ_URL and FAIRQ_TOKEN unless they are given.

    `queues` are those to work for, if they are not all that have handlers; those with tasks take turns. `log_tasks`
    gives each task a line in the log when it ends. `counts` says how they ended: `done`, `retry`, `dead`, `lost` (the
    lease, while the handler ran) or `released` (the worker was cancelled).
    """

    url: str | Sequence[str] | None = None
    token: str = field(default="", repr=False)
    concurrency: int = 10
    name: str = field(factory=default_name)
    tls: ssl.SSLContext | None = None
    queues: Sequence[str] | None = None
    log_tasks: bool = False
    prefetch: int = 0
    counts: Counter[str] = field(factory=Counter, init=False)
    _working: Working = field(init=False)  # the newest run
    _is_stopped: bool = field(default=False, init=False)  # in advance of the first run

    async def run(self, *, burst: bool = False, task_status: TaskStatus[None] | None = None) -> None:
        """Work until cancelled or stopped. Cancelled: handlers are cancelled too, and their tasks given back.

        `burst`: stop by itself when it holds nothing and a claim on its queues finds nothing; what is delayed, also for
        its next attempt, is not waited for.
        Raises: BadRequest without handlers; Unauthorized or Forbidden when the server will not have the token;
        Superseded when a worker that came later attached under this name; and what a function of on_startup raises.
        """
        from fairq.client.working import Working

        self._working = Working.of(self)
        if self._is_stopped:
            self._is_stopped = False
            self._working.stop()
        await self._working.run(burst, task_status)

    def stop(self) -> None:
        """Take no more tasks; `run` returns when those held are settled, and at once if it has not begun."""
        if hasattr(self, "_working"):
            self._working.stop()
        else:
            self._is_stopped = True
