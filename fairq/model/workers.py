"""Workers, as operators see them, and the leases that they hold."""

from __future__ import annotations

from typing import NamedTuple

from attrs import frozen


class LeaseKey(NamedTuple):
    """The key of a lease: the queue and full id of its task, and its number."""

    queue: str
    id: str
    lease: int


@frozen
class WorkerState:
    """A worker that is attached to a server, or was cut off because nothing came from it.

    `silent_ms`: for how long nothing has come from it, if that is too long; `lost`: its leases that have run out.
    """

    server: str
    worker: str
    queues: list[str]
    credit: int
    held: int
    attached_at_ms: int
    is_draining: bool
    silent_ms: int = 0
    lost: int = 0


@frozen
class SilentWorker:
    """A worker from which nothing has come for too long: the tasks that it holds, and those it lost."""

    worker: str
    silent_ms: int
    held: int
    lost: int


@frozen
class HeldTask:
    """A task that a worker holds under a lease; `server` and `attached_at_ms` describe the worker."""

    id: str
    queue: str
    tenant: str
    attempt: int
    leased_at_ms: int
    server: str
    attached_at_ms: int


@frozen
class WorkerTasks:
    """Workers of a name, the first attached in front, and tasks that they hold, the first leased in front.

    `unanswered`: servers with workers that did not answer; the tasks of their workers are unknown.
    """

    workers: list[WorkerState]
    tasks: list[HeldTask]
    unanswered: list[str]
