"""The options of tasks that `fairq enqueue` and `fairq schedules create` share."""

from __future__ import annotations

from typing import Annotated

from attrs import frozen
from cyclopts import Parameter

from fairq.cli.options import Span


@Parameter(name="*")
@frozen
class TaskFlags:
    """The options of a command for a task, or for all tasks of a file or a schedule: the SDK's keyword arguments."""

    expires_in: Annotated[
        Span | None,
        Parameter(help="Time from its enqueue after which a task no longer starts, as 5m (default: never)."),
    ] = None
    expires_after_start: Annotated[
        Span | None, Parameter(help="The same, counted from its start: --delay, or the fire, however late that is.")
    ] = None
    max_attempts: Annotated[
        int | None,
        Parameter(help="Attempts before a task becomes a dead letter, 0 for no limit (default: the queue's)."),
    ] = None
    retry_base: Annotated[
        Span | None,
        Parameter(help="Longest wait before a second attempt, as 10s; doubles each time (default: the queue's)."),
    ] = None
    retry_cap: Annotated[
        Span | None, Parameter(help="Longest wait before any attempt, as 1h (default: the queue's).")
    ] = None
    priority: Annotated[
        int | None,
        Parameter(help="Priority among the tenant's own tasks, 0 (most urgent) to 99 (default: 50)."),
    ] = None
    dedupe_key: Annotated[
        str | None, Parameter(help="While a task with this key waits or runs, make no second one.")
    ] = None
    dedupe_period: Annotated[
        Span | None,
        Parameter(help="Time to hold the dedupe key, as 5m, whatever happens (default: until the task ends)."),
    ] = None
    group: Annotated[
        str | None,
        Parameter(help="Group: the tenant's groups of one priority take turns (default: none, or the batch)."),
    ] = None
    events: Annotated[
        bool, Parameter(negative=(), help="Add events of tasks and batches to the tenant's feed: see `fairq events`.")
    ] = False
