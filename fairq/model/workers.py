"""Workers, as operators see them."""

from __future__ import annotations

from attrs import frozen


@frozen
class WorkerState:
    """A worker that is attached to a server."""

    server: str
    worker: str
    queues: list[str]
    credit: int
    held: int
    attached_at_ms: int
    is_draining: bool
