"""Limits on tenants: what operators may set, for one or for all."""

from __future__ import annotations

from attrs import define, frozen

from fairq.model.batches import MAX_RUNNING
from fairq.model.rules import number, or_null, some_of, whole

LIMIT_RANGES: dict[str, int] = {  # limit -> maximum; 0: no limit
    "max_running": MAX_RUNNING,
    "guaranteed": MAX_RUNNING,
    "rate": 1_000_000,
    "burst": 1_000_000,
    "queued": 1_000_000_000,
    "stored_bytes": 1 << 50,
    "delayed": 1_000_000_000,
    "dead": 10_000_000,
}
BOUNDS: dict[str, str] = {  # what each bounds, for people
    "max_running": "Tasks that run at once.",
    "guaranteed": "Tasks that may run at once before other tenants are served (cannot be set for all tenants).",
    "rate": "Starts per second.",
    "burst": "Starts at once (no limit: as many as the rate allows in one second).",
    "queued": "Waiting tasks; more are refused with `quota_exceeded` and the time to try again.",
    "stored_bytes": "Bytes stored: tasks (500 and the payload, or more), results, keys, batches, schedules, events.",
    "delayed": "Tasks that wait for their start time; more are refused.",
    "dead": "Dead letters kept; when there are more, the oldest are deleted.",
}


@frozen
class Limits:
    """The limits of a tenant; 0: no limit, None (of a tenant's own): the default for all tenants.

    At most `max_running` of its tasks run at once, and `guaranteed` of them are served before others' (for one tenant
    only). `rate` is starts a second; `burst` of them may come at once (0: as many as in a second). `queued` bounds the
    waiting tasks, `delayed` those that wait for their start. `stored_bytes` bounds its memory in the store (tasks, also
    running ones and dead letters; results, dedupe keys, batches, schedules, events). `dead` bounds its dead letters:
    beyond it, the oldest are deleted. Unless set for all tenants, the limits are 10,000,000 tasks and 1 GiB.
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


LIMIT_RULES = {name: (number if name == "rate" else whole)(0, most) for name, most in LIMIT_RANGES.items()}
LIMITS = some_of({name: or_null(rule) for name, rule in LIMIT_RULES.items()}, "limit")
