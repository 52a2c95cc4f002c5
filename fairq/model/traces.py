"""What spans say about tasks, at clients, workers and servers alike: never a payload.

Names are those of OpenTelemetry's conventions for messaging. Their status is Development, so they stand here only.
"""

from __future__ import annotations

from collections.abc import Mapping

Attributes = Mapping[str, str | int]

_SAMPLED = 1  # of the flags, a traceparent's last two characters


def describe(operation: str, kind: str, queue: str, **more: str | int) -> Attributes:
    """Describe an operation on tasks of a queue; `kind` is the conventions' word for it, and __ stands for a dot."""
    named = {
        "messaging.system": "fairq",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }
    return named | {name.replace("__", "."): value for name, value in more.items()}


def is_sampled(trace: str) -> bool:
    """True if a task has a traceparent, and its trace is recorded."""
    return bool(trace) and bool(int(trace[-2:], 16) & _SAMPLED)
