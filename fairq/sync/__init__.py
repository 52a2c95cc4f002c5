"""fairq for threads, Django, Flask and scripts: the calls of the async SDK, which block the thread instead."""

from __future__ import annotations

from fairq.sync.client import (
    Batch,
    Client,
    DeadLetters,
    EnqueuedTask,
    EventStream,
    OperatorClient,
    open_client,
    open_operator,
)

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
