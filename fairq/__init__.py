"""fairq: a multi-tenant fair-share task queue. Whoever floods it waits behind his own flood."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairq.client.batch import Batch
    from fairq.client.client import Client, EnqueuedTask, open_client
    from fairq.client.handlers import Reject, Retry, Task
    from fairq.client.worker import Worker
    from fairq.errors import FairqError

__all__ = ["Batch", "Client", "EnqueuedTask", "FairqError", "Reject", "Retry", "Task", "Worker", "open_client"]

_HOMES = {
    "fairq.client.batch": ("Batch",),
    "fairq.client.client": ("Client", "EnqueuedTask", "open_client"),
    "fairq.client.handlers": ("Reject", "Retry", "Task"),
    "fairq.client.worker": ("Worker",),
    "fairq.errors": ("FairqError",),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for, so that the command line starts at once."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'fairq' has no attribute {name!r}")
