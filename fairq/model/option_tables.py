"""The options of tasks, limits, settings and filters: type and meaning of each.

The imports here are cheap: the SDK reads the tables to list the options of its methods.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Literal, TypedDict

Seconds = float | timedelta
Moment = datetime | float


class TaskOptions(TypedDict, total=False):
    """Options of a task; None is as good as absent."""

    delay: Annotated[Seconds | None, "time until it may start, in seconds or as a timedelta (0)"]
    start_at: Annotated[Moment | None, "or when it may start: an aware datetime, or seconds since the epoch (now)"]
    expires_in: Annotated[
        Seconds | None, "time after which it does not start any more, in seconds or as a timedelta (never)"
    ]
    expires_at: Annotated[Moment | None, "or when that is: an aware datetime, or seconds since the epoch (never)"]
    expires_after_start: Annotated[
        Seconds | None, "or that time from its start (delay, start_at, fire); in seconds or a timedelta (never)"
    ]
    max_attempts: Annotated[
        int | None, "how many attempts it has, until it is a dead letter; 0: no limit (as the queue is configured)"
    ]
    priority: Annotated[int | None, "0 (most urgent) to 99 among the tenant's own tasks (50)"]
    dedupe_key: Annotated[str | None, "no second task while one with this key is waiting or running (none)"]
    dedupe_payload: Annotated[bool, "the key is the payload's hash, whatever the order of its objects' keys (False)"]
    dedupe_period: Annotated[
        Seconds | None, "how long the key is held in any case, in seconds or as a timedelta (until it has ended)"
    ]
    replace: Annotated[bool | None, "the waiting task that has the key is cancelled, and this one has the key (False)"]
    result_ttl: Annotated[Seconds | None, "how long its result is kept, in seconds or as a timedelta (not kept)"]
    retry_base: Annotated[
        Seconds | None,
        "the longest wait before its second attempt, in seconds or as a timedelta; it doubles for each one after that"
        " (as the queue is configured)",
    ]
    retry_cap: Annotated[
        Seconds | None,
        "and the longest wait before any attempt, in seconds or as a timedelta (as the queue is configured)",
    ]
    events: Annotated[bool, "add events about it to its tenant's feed, `Client.events` (False)"]
    batch: Annotated[str | None, "the id of an open batch of this queue (none)"]
    group: Annotated[str | None, "a name; groups of one tenant and priority take turns (that of its batch, if any)"]

    name: Annotated[str | None, "what kind of task it is, which the worker can read (none; of a schedule: its name)"]


class LimitOptions(TypedDict, total=False):
    """Limits to set, as in `fairq.model.limits.Limits`; those that are absent stay as they are."""

    max_running: int | None
    guaranteed: int | None
    rate: float | None
    burst: int | None
    queued: int | None
    stored_bytes: int | None
    delayed: int | None
    dead: int | None


class SettingOptions(TypedDict, total=False):
    """Settings of a queue to change, as in `fairq.model.queues.QueueSettings`; those that are absent stay."""

    share: Literal["time", "count"]
    lease_ms: int
    max_attempts: int
    retry_base_ms: int
    retry_cap_ms: int
    dead_keep_ms: int
    dead_keep: int
    events_keep: int
    max_tenants: int
    reserve: int
    run_timeout_ms: int
    queue_weight: float
    max_lost_leases: int
    partitions: int


class DeadLetterFilter(TypedDict, total=False):
    """A filter of dead letters: all its conditions must hold; None is as good as absent."""

    tenant: Annotated[str | None, "for operators: the tenant (all)"]
    reason: Annotated[str | None, "exhausted, rejected, expired or lease_lost (any)"]
    error: Annotated[str | None, "text that the error contains (any)"]
    older_than: Annotated[Seconds | None, "how long they have been dead at least, in seconds or as a timedelta (0)"]
    younger_than: Annotated[Seconds | None, "and at most, in seconds or as a timedelta (any time)"]
