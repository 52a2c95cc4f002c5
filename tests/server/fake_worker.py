"""A worker without a connection, as dispatching sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio
from attrs import define, field

from fairq.model.tasks import Lease
from fairq.server.engine.dispatch.worker_account import WorkerAccount


@define(eq=False)
class FakeWorker:
    """A worker that holds what it is given. A class of its own says what it does with a task (`begin`)."""

    account: WorkerAccount
    name: str = field(default="w", kw_only=True)
    may_take: bool = field(default=True, kw_only=True)
    tracks_leases: bool = field(default=True, kw_only=True)

    def push(self, place: str, lease_ms: int, leases: Sequence[Lease], run_timeout_ms: int, claimed_at: float) -> None:
        self.account.lease(place, leases, lease_ms / 1000, trio.current_time())
        for lease in leases:
            self.begin(place, lease)

    def begin(self, place: str, lease: Lease) -> None:
        """Begin a task."""

    def stop_tasks(self, queue: str, leases: Mapping[str, int]) -> None:
        raise AssertionError("nothing is cancelled")
