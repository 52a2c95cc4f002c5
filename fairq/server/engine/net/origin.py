"""Where a request came from that shares its connection with others: those of a token over HTTP, of a dashboard."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class Origin(NamedTuple):
    """The address of a request's client, and the way it came: `http`, `dashboard`."""

    address: str
    via: str


ORIGIN: ContextVar[Origin | None] = ContextVar("fairq.origin", default=None)  # None: the connection's own
