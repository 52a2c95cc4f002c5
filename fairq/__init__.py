"""fairq: a multi-tenant fair-share task queue. A tenant that floods a queue delays only itself."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairq.client.batch import Batch
    from fairq.client.client import Client, open_client
    from fairq.client.events import EventStream
    from fairq.client.operator import OperatorClient, open_operator
    from fairq.client.task import Postpone, Reject, Retry, Task
    from fairq.client.tasks import EnqueuedTask
    from fairq.client.worker import Worker
    from fairq.errors import (
        BadRequest,
        BatchClosed,
        Closed,
        Deleting,
        Draining,
        FairqError,
        Forbidden,
        NoResult,
        NotEmpty,
        NotFound,
        NotYet,
        OutcomeUnknown,
        QuotaExceeded,
        Repairing,
        Retryable,
        SettingsError,
        StaleVersion,
        StoreFull,
        Superseded,
        TaskFailed,
        TenantsRefused,
        TokenExpired,
        TooLarge,
        TooMany,
        TooOld,
        Unauthorized,
        Unavailable,
    )

__all__ = [
    "BadRequest",
    "Batch",
    "BatchClosed",
    "Client",
    "Closed",
    "Deleting",
    "Draining",
    "EnqueuedTask",
    "EventStream",
    "FairqError",
    "Forbidden",
    "NoResult",
    "NotEmpty",
    "NotFound",
    "NotYet",
    "OperatorClient",
    "OutcomeUnknown",
    "Postpone",
    "QuotaExceeded",
    "Reject",
    "Repairing",
    "Retry",
    "Retryable",
    "SettingsError",
    "StaleVersion",
    "StoreFull",
    "Superseded",
    "Task",
    "TaskFailed",
    "TenantsRefused",
    "TokenExpired",
    "TooLarge",
    "TooMany",
    "TooOld",
    "Unauthorized",
    "Unavailable",
    "Worker",
    "open_client",
    "open_operator",
]

_HOMES = {  # of what is not an error
    "fairq.client.batch": ("Batch",),
    "fairq.client.client": ("Client", "open_client"),
    "fairq.client.events": ("EventStream",),
    "fairq.client.task": ("Postpone", "Reject", "Retry", "Task"),
    "fairq.client.operator": ("OperatorClient", "open_operator"),
    "fairq.client.tasks": ("EnqueuedTask",),
    "fairq.client.worker": ("Worker",),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for, so that the command line starts at once."""
    if name not in __all__:
        raise AttributeError(f"module 'fairq' has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "fairq.errors")
    return getattr(import_module(home), name)
