"""The options of the async SDK, written out: what people, editors and type checkers are shown.

Made by `python -m tests.docs.signatures client`; nothing here is called. See `fairq.client.shown_as`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from datetime import datetime, timedelta

    from fairq.client.tasks import EnqueuedTask
    from fairq.model.dead_letters import DeadLetter, DeadPage, Sweep


class Client:
    """Of `Client`."""

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
    ) -> EnqueuedTask:
        """Enqueue one task; it is durable when this returns. `id`: yours, if repeating the call must make no second.

        `tenant`: whose, for producers; the task's id is then its full one, `<tenant>/<id>`.
        Raises: BadRequest, TooLarge, QuotaExceeded, StoreFull, Unavailable, OutcomeUnknown.

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
    ) -> list[EnqueuedTask]:
        """Enqueue many tasks, as `enqueue` does one; any number, sent in frames of up to 500.

        Not atomic: on an error some may have been taken; repeat the call with the same `ids`. `tenant`, for producers:
        whose they all are, or one for each payload. If some tenants are refused, the others' tasks are enqueued, and
        then the first refusal is raised: it has all `refusals` by tenant, and the tasks that were `taken`.

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

    async def schedule(
        self: Any,
        queue: str,
        name: str,
        payload: Any,
        *,
        cron: str | None = None,
        zone: str | None = None,
        every: float | timedelta | None = None,
        misfire: str = "skip",
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
    ) -> list[datetime]:
        """Enqueue a task again and again, or change how; returns the next three fires. The same again changes nothing.

        `cron`: five fields, read in the time zone (`Europe/Copenhagen`; None: UTC), or `every`: seconds. `misfire`:
        what becomes of fires when the service was down: `skip` them, or make up for all of them `once`. A task's
        `start_at` is the time of its fire; options that say another one are refused, and so is a batch. With a
        `dedupe_key` a fire makes no task while that of an earlier one is not done. `tenant`: whose, for
        operators; so in the other calls.

        Raises: BadRequest, naming the argument; TooLarge for the payload, or when there are 1,000 of them.

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
        """
        raise NotImplementedError


class Batch:
    """Of `Batch`."""

    async def add(
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
    ) -> EnqueuedTask:
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

    async def add_many(
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
    ) -> list[EnqueuedTask]:
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


class Task:
    """Of `Task`."""

    async def enqueue(
        self: Any,
        queue: str,
        payload: Any,
        *,
        id: str | None = None,
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
    ) -> str:
        """Enqueue a task for the same tenant, now; returns its id, or that of the task which is there already.

        A later attempt that calls it again makes no second task: without an `id` of yours, the new task's is made from
        this task and the number of the call among those with this queue, `then` included. So a handler that may call it
        in another order the next time, or with other payloads, must give ids. A queue remembers such an id for an hour
        after its task is done; one of yours for a minute, or an hour too if it begins with `from-`.
        From a thread: `anyio.from_thread.run(task.enqueue, queue, payload)`.
        Raises: as `Client.enqueue`; Forbidden when the lease is lost, or the worker's token may not use the queue.

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

    def then(
        self: Any,
        queue: str,
        payload: Any,
        *,
        id: str | None = None,
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
    ) -> str:
        """Have a task enqueued for the same tenant if this attempt succeeds, and only then; returns its id.

        In this queue it is stored in the same step as the acknowledgement: neither without the other. In another one it
        is enqueued just before; it may be there though this task runs again, and then is not enqueued twice (see
        `enqueue`). What cannot be stored (a limit, a full store, a queue that is being deleted) fails this attempt.
        At most 16, of 1 MiB together; without a batch. Also from threads.
        Raises: BadRequest (also for an `id` that is this task's own, or of an earlier call with this queue), TooLarge.

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


class DeadLetters:
    """Of `DeadLetters`."""

    async def page(
        self: Any,
        *,
        cursor: str = "",
        count: int = 100,
        brief: bool = False,
        tenant: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        younger_than: float | timedelta | None = None,
    ) -> DeadPage:
        """Read up to `count` dead letters that match, oldest first, from a cursor on; perhaps none before the end.

        `brief` leaves out payload, enqueueing and window.

        Options:
            tenant: for operators: whose (all)
            reason: exhausted, rejected, expired or lease_lost (any)
            error: text that the error contains (any)
            older_than: how long they have been dead at least, in seconds or as a timedelta (0)
            younger_than: and at most, in seconds or as a timedelta (any time)
        """
        raise NotImplementedError

    def pages(
        self: Any,
        *,
        count: int = 500,
        brief: bool = False,
        tenant: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        younger_than: float | timedelta | None = None,
    ) -> AsyncGenerator[DeadPage, None]:
        """Walk over the dead letters that match, page by page.

        Options:
            tenant: for operators: whose (all)
            reason: exhausted, rejected, expired or lease_lost (any)
            error: text that the error contains (any)
            older_than: how long they have been dead at least, in seconds or as a timedelta (0)
            younger_than: and at most, in seconds or as a timedelta (any time)
        """
        raise NotImplementedError

    def walk(
        self: Any,
        *,
        brief: bool = False,
        tenant: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        younger_than: float | timedelta | None = None,
    ) -> AsyncGenerator[DeadLetter, None]:
        """Walk over the dead letters that match, oldest first.

        Options:
            tenant: for operators: whose (all)
            reason: exhausted, rejected, expired or lease_lost (any)
            error: text that the error contains (any)
            older_than: how long they have been dead at least, in seconds or as a timedelta (0)
            younger_than: and at most, in seconds or as a timedelta (any time)
        """
        raise NotImplementedError

    def replay_all(
        self: Any,
        *,
        rate: float | None = None,
        tenant: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        younger_than: float | timedelta | None = None,
    ) -> AsyncGenerator[Sweep, None]:
        """Replay all dead letters that match, at most `rate` a second; tells after each step how far it has come.

        They go to their tenants' own lists, inside their shares, so other tenants do not wait longer. Stopping half-way
        leaves the rest dead; starting again goes on with it.

        Options:
            tenant: for operators: whose (all)
            reason: exhausted, rejected, expired or lease_lost (any)
            error: text that the error contains (any)
            older_than: how long they have been dead at least, in seconds or as a timedelta (0)
            younger_than: and at most, in seconds or as a timedelta (any time)
        """
        raise NotImplementedError

    def purge_all(
        self: Any,
        *,
        tenant: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
        younger_than: float | timedelta | None = None,
    ) -> AsyncGenerator[Sweep, None]:
        """Delete all dead letters that match; tells after each step how far it has come.

        Options:
            tenant: for operators: whose (all)
            reason: exhausted, rejected, expired or lease_lost (any)
            error: text that the error contains (any)
            older_than: how long they have been dead at least, in seconds or as a timedelta (0)
            younger_than: and at most, in seconds or as a timedelta (any time)
        """
        raise NotImplementedError
