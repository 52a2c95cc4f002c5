"""The options of the service in memory, written out: what people, editors and type checkers are shown.

Made by `python -m tests.docs.signatures testing`; nothing here is called. See `fairq.client.shown_as`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime, timedelta

    from fairq.testing import service, sync


class MemoryClient:
    """Of `MemoryClient`."""

    async def enqueue(
        self: Any,
        queue: str,
        payload: Any,
        *,
        id: str | None = None,
        tenant: str | None = None,
        timeout: float | None = None,
        delay: float | timedelta | None = None,
        start_at: datetime | float | None = None,
        expires_in: float | timedelta | None = None,
        expires_at: datetime | float | None = None,
        expires_after_start: float | timedelta | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        dedupe_key: str | None = None,
        dedupe_payload: bool = False,
        dedupe_period: float | timedelta | None = None,
        replace: bool | None = None,
        result_ttl: float | timedelta | None = None,
        events: bool = False,
        batch: str | None = None,
        group: str | None = None,
        group_weight: float | None = None,
        name: str | None = None,
    ) -> service.TrackedTask:
        """As `Client.enqueue`.

        Options:
            delay: time until it may start, in seconds or as a timedelta (0)
            start_at: or when it may start: an aware datetime, or seconds since the epoch (now)
            expires_in: time after which it does not start any more, in seconds or as a timedelta (never)
            expires_at: or when that is: an aware datetime, or seconds since the epoch (never)
            expires_after_start: or that time from its start (delay, start_at, fire); in seconds or a timedelta (never)
            max_attempts: how many attempts it has, until it is a dead letter; 0: no limit (as the queue is configured)
            priority: 0 (most urgent) to 99 among the tenant's own tasks (50)
            dedupe_key: no second task while one with this key is waiting or running (none)
            dedupe_payload: the key is the payload's hash, whatever the order of its objects' keys (False)
            dedupe_period: how long the key is held in any case, in seconds or as a timedelta (until it has ended)
            replace: the waiting task that has the key is cancelled, and this one has the key (False)
            result_ttl: how long what its handler returns is kept, in seconds or as a timedelta (not at all)
            events: what becomes of it is told in its tenant's feed, `Client.events` (False)
            batch: the id of an open batch of this queue (none)
            group: a name; groups of one tenant and priority take turns (that of its batch, if any)
            group_weight: its group's turns in proportion to other groups' of the tenant, 0.001 to 1000 (1)
            name: what kind of task it is, which its worker is told (none; of a schedule: its name)
        """
        raise NotImplementedError

    async def enqueue_many(
        self: Any,
        queue: str,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        tenant: str | Sequence[str] | None = None,
        timeout: float | None = None,
        delay: float | timedelta | None = None,
        start_at: datetime | float | None = None,
        expires_in: float | timedelta | None = None,
        expires_at: datetime | float | None = None,
        expires_after_start: float | timedelta | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        dedupe_key: str | None = None,
        dedupe_payload: bool = False,
        dedupe_period: float | timedelta | None = None,
        replace: bool | None = None,
        result_ttl: float | timedelta | None = None,
        events: bool = False,
        batch: str | None = None,
        group: str | None = None,
        group_weight: float | None = None,
        name: str | None = None,
    ) -> list[service.TrackedTask]:
        """As `Client.enqueue_many`.

        Options:
            delay: time until it may start, in seconds or as a timedelta (0)
            start_at: or when it may start: an aware datetime, or seconds since the epoch (now)
            expires_in: time after which it does not start any more, in seconds or as a timedelta (never)
            expires_at: or when that is: an aware datetime, or seconds since the epoch (never)
            expires_after_start: or that time from its start (delay, start_at, fire); in seconds or a timedelta (never)
            max_attempts: how many attempts it has, until it is a dead letter; 0: no limit (as the queue is configured)
            priority: 0 (most urgent) to 99 among the tenant's own tasks (50)
            dedupe_key: no second task while one with this key is waiting or running (none)
            dedupe_payload: the key is the payload's hash, whatever the order of its objects' keys (False)
            dedupe_period: how long the key is held in any case, in seconds or as a timedelta (until it has ended)
            replace: the waiting task that has the key is cancelled, and this one has the key (False)
            result_ttl: how long what its handler returns is kept, in seconds or as a timedelta (not at all)
            events: what becomes of it is told in its tenant's feed, `Client.events` (False)
            batch: the id of an open batch of this queue (none)
            group: a name; groups of one tenant and priority take turns (that of its batch, if any)
            group_weight: its group's turns in proportion to other groups' of the tenant, 0.001 to 1000 (1)
            name: what kind of task it is, which its worker is told (none; of a schedule: its name)
        """
        raise NotImplementedError


class SyncBatch:
    """Of `SyncBatch`."""

    def add(
        self: Any,
        payload: Any,
        *,
        id: str | None = None,
        timeout: float | None = None,
        delay: float | timedelta | None = None,
        start_at: datetime | float | None = None,
        expires_in: float | timedelta | None = None,
        expires_at: datetime | float | None = None,
        expires_after_start: float | timedelta | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        dedupe_key: str | None = None,
        dedupe_payload: bool = False,
        dedupe_period: float | timedelta | None = None,
        replace: bool | None = None,
        result_ttl: float | timedelta | None = None,
        events: bool = False,
        batch: str | None = None,
        group: str | None = None,
        group_weight: float | None = None,
        name: str | None = None,
    ) -> sync.TrackedTask:
        """Add one task, as `Client.enqueue` does. Raises: BatchClosed, NotFound, and what that raises.

        Options:
            delay: time until it may start, in seconds or as a timedelta (0)
            start_at: or when it may start: an aware datetime, or seconds since the epoch (now)
            expires_in: time after which it does not start any more, in seconds or as a timedelta (never)
            expires_at: or when that is: an aware datetime, or seconds since the epoch (never)
            expires_after_start: or that time from its start (delay, start_at, fire); in seconds or a timedelta (never)
            max_attempts: how many attempts it has, until it is a dead letter; 0: no limit (as the queue is configured)
            priority: 0 (most urgent) to 99 among the tenant's own tasks (50)
            dedupe_key: no second task while one with this key is waiting or running (none)
            dedupe_payload: the key is the payload's hash, whatever the order of its objects' keys (False)
            dedupe_period: how long the key is held in any case, in seconds or as a timedelta (until it has ended)
            replace: the waiting task that has the key is cancelled, and this one has the key (False)
            result_ttl: how long what its handler returns is kept, in seconds or as a timedelta (not at all)
            events: what becomes of it is told in its tenant's feed, `Client.events` (False)
            batch: the id of an open batch of this queue (none)
            group: a name; groups of one tenant and priority take turns (that of its batch, if any)
            group_weight: its group's turns in proportion to other groups' of the tenant, 0.001 to 1000 (1)
            name: what kind of task it is, which its worker is told (none; of a schedule: its name)
        """
        raise NotImplementedError

    def add_many(
        self: Any,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        timeout: float | None = None,
        delay: float | timedelta | None = None,
        start_at: datetime | float | None = None,
        expires_in: float | timedelta | None = None,
        expires_at: datetime | float | None = None,
        expires_after_start: float | timedelta | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        dedupe_key: str | None = None,
        dedupe_payload: bool = False,
        dedupe_period: float | timedelta | None = None,
        replace: bool | None = None,
        result_ttl: float | timedelta | None = None,
        events: bool = False,
        batch: str | None = None,
        group: str | None = None,
        group_weight: float | None = None,
        name: str | None = None,
    ) -> list[sync.TrackedTask]:
        """Add many tasks, as `Client.enqueue_many` does.

        Options:
            delay: time until it may start, in seconds or as a timedelta (0)
            start_at: or when it may start: an aware datetime, or seconds since the epoch (now)
            expires_in: time after which it does not start any more, in seconds or as a timedelta (never)
            expires_at: or when that is: an aware datetime, or seconds since the epoch (never)
            expires_after_start: or that time from its start (delay, start_at, fire); in seconds or a timedelta (never)
            max_attempts: how many attempts it has, until it is a dead letter; 0: no limit (as the queue is configured)
            priority: 0 (most urgent) to 99 among the tenant's own tasks (50)
            dedupe_key: no second task while one with this key is waiting or running (none)
            dedupe_payload: the key is the payload's hash, whatever the order of its objects' keys (False)
            dedupe_period: how long the key is held in any case, in seconds or as a timedelta (until it has ended)
            replace: the waiting task that has the key is cancelled, and this one has the key (False)
            result_ttl: how long what its handler returns is kept, in seconds or as a timedelta (not at all)
            events: what becomes of it is told in its tenant's feed, `Client.events` (False)
            batch: the id of an open batch of this queue (none)
            group: a name; groups of one tenant and priority take turns (that of its batch, if any)
            group_weight: its group's turns in proportion to other groups' of the tenant, 0.001 to 1000 (1)
            name: what kind of task it is, which its worker is told (none; of a schedule: its name)
        """
        raise NotImplementedError


class SyncClient:
    """Of `SyncClient`."""

    def enqueue(
        self: Any,
        queue: str,
        payload: Any,
        *,
        id: str | None = None,
        tenant: str | None = None,
        timeout: float | None = None,
        delay: float | timedelta | None = None,
        start_at: datetime | float | None = None,
        expires_in: float | timedelta | None = None,
        expires_at: datetime | float | None = None,
        expires_after_start: float | timedelta | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        dedupe_key: str | None = None,
        dedupe_payload: bool = False,
        dedupe_period: float | timedelta | None = None,
        replace: bool | None = None,
        result_ttl: float | timedelta | None = None,
        events: bool = False,
        batch: str | None = None,
        group: str | None = None,
        group_weight: float | None = None,
        name: str | None = None,
    ) -> sync.TrackedTask:
        """As `Client.enqueue`.

        Options:
            delay: time until it may start, in seconds or as a timedelta (0)
            start_at: or when it may start: an aware datetime, or seconds since the epoch (now)
            expires_in: time after which it does not start any more, in seconds or as a timedelta (never)
            expires_at: or when that is: an aware datetime, or seconds since the epoch (never)
            expires_after_start: or that time from its start (delay, start_at, fire); in seconds or a timedelta (never)
            max_attempts: how many attempts it has, until it is a dead letter; 0: no limit (as the queue is configured)
            priority: 0 (most urgent) to 99 among the tenant's own tasks (50)
            dedupe_key: no second task while one with this key is waiting or running (none)
            dedupe_payload: the key is the payload's hash, whatever the order of its objects' keys (False)
            dedupe_period: how long the key is held in any case, in seconds or as a timedelta (until it has ended)
            replace: the waiting task that has the key is cancelled, and this one has the key (False)
            result_ttl: how long what its handler returns is kept, in seconds or as a timedelta (not at all)
            events: what becomes of it is told in its tenant's feed, `Client.events` (False)
            batch: the id of an open batch of this queue (none)
            group: a name; groups of one tenant and priority take turns (that of its batch, if any)
            group_weight: its group's turns in proportion to other groups' of the tenant, 0.001 to 1000 (1)
            name: what kind of task it is, which its worker is told (none; of a schedule: its name)
        """
        raise NotImplementedError

    def enqueue_many(
        self: Any,
        queue: str,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        tenant: str | Sequence[str] | None = None,
        timeout: float | None = None,
        delay: float | timedelta | None = None,
        start_at: datetime | float | None = None,
        expires_in: float | timedelta | None = None,
        expires_at: datetime | float | None = None,
        expires_after_start: float | timedelta | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        dedupe_key: str | None = None,
        dedupe_payload: bool = False,
        dedupe_period: float | timedelta | None = None,
        replace: bool | None = None,
        result_ttl: float | timedelta | None = None,
        events: bool = False,
        batch: str | None = None,
        group: str | None = None,
        group_weight: float | None = None,
        name: str | None = None,
    ) -> list[sync.TrackedTask]:
        """As `Client.enqueue_many`.

        Options:
            delay: time until it may start, in seconds or as a timedelta (0)
            start_at: or when it may start: an aware datetime, or seconds since the epoch (now)
            expires_in: time after which it does not start any more, in seconds or as a timedelta (never)
            expires_at: or when that is: an aware datetime, or seconds since the epoch (never)
            expires_after_start: or that time from its start (delay, start_at, fire); in seconds or a timedelta (never)
            max_attempts: how many attempts it has, until it is a dead letter; 0: no limit (as the queue is configured)
            priority: 0 (most urgent) to 99 among the tenant's own tasks (50)
            dedupe_key: no second task while one with this key is waiting or running (none)
            dedupe_payload: the key is the payload's hash, whatever the order of its objects' keys (False)
            dedupe_period: how long the key is held in any case, in seconds or as a timedelta (until it has ended)
            replace: the waiting task that has the key is cancelled, and this one has the key (False)
            result_ttl: how long what its handler returns is kept, in seconds or as a timedelta (not at all)
            events: what becomes of it is told in its tenant's feed, `Client.events` (False)
            batch: the id of an open batch of this queue (none)
            group: a name; groups of one tenant and priority take turns (that of its batch, if any)
            group_weight: its group's turns in proportion to other groups' of the tenant, 0.001 to 1000 (1)
            name: what kind of task it is, which its worker is told (none; of a schedule: its name)
        """
        raise NotImplementedError
