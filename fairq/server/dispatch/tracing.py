"""Where the dispatcher has spans, if the server makes any (fairq/server/spans.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fairq.model.tasks import Lease

Pushes = Mapping[tuple[str, int], Callable[[str], None]]
"""Traced tasks that are being pushed: id and lease number -> `end(why it failed, empty if it did not)`."""


class Claimed(Protocol):
    """The traced tasks of a claim."""

    def push(self, worker: str, leases: Sequence[Lease]) -> Pushes:
        """Begin the push spans of the traced ones of these tasks."""


class Tracing(Protocol):
    """Makes spans of claims and pushes."""

    def claimed(self, server: str, queue: str, leases: Sequence[Lease], began_ns: int) -> Claimed | None:
        """Return the span of an answered claim; None if none of its tasks is traced. `began_ns`: by `time_ns`."""
