"""Limits on tenants: what operators may set, for one or for all."""

from __future__ import annotations

from typing import Any

from attrs import define, frozen

from fairq.errors import BadRequest
from fairq.model.batches import MAX_RUNNING
from fairq.model.checks import check_int

LIMIT_RANGES: dict[str, int] = {  # limit -> maximum; 0 is none
    "max_running": MAX_RUNNING,
    "guaranteed": MAX_RUNNING,
    "rate": 1_000_000,
    "burst": 1_000_000,
    "queued": 1_000_000_000,
    "stored_bytes": 1 << 50,
    "delayed": 1_000_000_000,
    "dead": 10_000_000,
}


@frozen
class Limits:
    """What bounds a tenant; 0 is no limit, None (of a tenant's own) the one for all.

    At once at most `max_running` of its tasks run, and `guaranteed` of them are served before others' (for one tenant
    only). `rate` is starts a second, of which `burst` may come at once (0: as many as in a second). `queued` bounds
    the tasks that wait, `delayed` those that wait for their start, `stored_bytes` what all that it keeps takes in the
    store at most (tasks, also running ones and dead letters; results, dedupe keys, batches, schedules, events), `dead`
    its dead letters: of more, the oldest go. Where nothing is set for all, that is 10,000,000 tasks and 1 GiB.
    """

    max_running: int | None = None
    guaranteed: int | None = None
    rate: float | None = None
    burst: int | None = None
    queued: int | None = None
    stored_bytes: int | None = None
    delayed: int | None = None
    dead: int | None = None


@define
class OpeningHours:
    """When a tenant (empty: the queue) is open; `revision` is needed to change it."""

    tenant: str
    text: str
    is_open: bool
    changes_at_ms: int
    revision: bytes = b""


def check_limits(changes: object, tenant: str) -> dict[str, Any]:
    """Return changes of a tenant's limits (empty: of those for all), each within its range. Raises: BadRequest."""
    if not isinstance(changes, dict) or not changes:
        raise BadRequest("limits must be an object with at least one limit", field="limits")
    for name, value in changes.items():
        maximum = LIMIT_RANGES.get(name)
        if maximum is None:
            raise BadRequest(f"there is no limit {name!r:.80}", field=str(name)[:80])
        if name == "guaranteed" and not tenant:
            raise BadRequest("running tasks are guaranteed to one tenant, not to all", field=name)
        if value is None:
            continue
        if name != "rate":
            check_int(value, name, 0, maximum)
        elif type(value) not in (int, float) or not 0 <= value <= maximum:
            raise BadRequest(f"rate must be a number from 0 to {maximum}: starts a second", field=name)
    return changes
