"""Tenants of a queue."""

from __future__ import annotations

from attrs import evolve, frozen

from fairq.errors import BadRequest
from fairq.model.rules import CURSOR


def _check_scan(value: str, field: str) -> str:
    if value.isascii() and value.isdigit() and int(CURSOR.check(value, field)) < 1 << 64:
        return value
    raise BadRequest(f"invalid {field}: use the one of the previous page", field=field)


SCAN = evolve(CURSOR, check=_check_scan, bad=("", "x", "-1", "1.5", "9" * 21), long=())  # a place of the store's


@frozen
class TenantState:
    """A tenant's place in one queue.

    `delivered` and `entitled` are seconds of worker time, or tasks when the queue's share is `count`. It is closed
    outside its opening hours, and rate-limited while its rate allows no more starts.
    """

    tenant: str
    weight: float
    ready: int
    pending: int
    delayed: int
    leased: int
    dead: int
    done: int
    delivered: float
    entitled: float
    is_paused: bool
    is_closed: bool
    is_rate_limited: bool
    is_backlogged: bool
    is_limited: bool
    stored_bytes: int
    version: str = ""  # of its weight


@frozen
class TenantPage:
    """A page of a queue's tenants, by name; `cursor` is where the next page begins, empty at the end."""

    tenants: list[TenantState]
    cursor: str
