"""fairq for threads, Django, Flask and scripts: the calls of the async SDK, which block the thread instead."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fairq.sync.client import Batch, Client, DeadLetters, EnqueuedTask, EventStream, open_client

if TYPE_CHECKING:
    from fairq.sync.operator import OperatorClient, open_operator

__all__ = [
    "Batch",
    "Client",
    "DeadLetters",
    "EnqueuedTask",
    "EventStream",
    "OperatorClient",
    "open_client",
    "open_operator",
]


def __getattr__(name: str) -> object:
    """Import what few programs use when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'fairq.sync' has no attribute {name!r}")
    return getattr(import_module("fairq.sync.operator"), name)
