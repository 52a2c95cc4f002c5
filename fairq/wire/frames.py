"""The frames that a client reads, or that either side sends; those that a server reads are in messages.py.

A client writes its requests by name, so that it need not load their classes.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, NamedTuple

from attrs import frozen

from fairq.model.checks import DEFAULT_PAYLOAD_BYTES
from fairq.model.rules import FULL_ID, LEASE, QUEUE
from fairq.model.tasks import FRACTION, PROGRESS_TEXT


@frozen
class Fence:
    """A task's id and a lease's number, which together name one lease."""

    id: Annotated[str, FULL_ID]
    lease: Annotated[int, LEASE]


@frozen
class HeldLease:
    """A lease that a worker brings to a new connection."""

    queue: Annotated[str, QUEUE]
    id: Annotated[str, FULL_ID]
    lease: Annotated[int, LEASE]


@frozen
class Report:
    """The progress of a leased task, 0 to 1."""

    id: Annotated[str, FULL_ID]
    lease: Annotated[int, LEASE]
    fraction: Annotated[float, FRACTION]
    text: Annotated[str, PROGRESS_TEXT] = ""


@frozen
class Ping:
    """A heartbeat, sent by either side and never answered."""

    type: ClassVar[str] = "ping"


@frozen
class Drain:
    """From the server: finish your tasks, then reconnect."""

    type: ClassVar[str] = "drain"


@frozen
class Dismiss:
    """From the server: finish your tasks, and do not reconnect: an operator drains this worker."""

    type: ClassVar[str] = "dismiss"


@frozen
class Welcome:
    """The server's first frame."""

    type: ClassVar[str] = "welcome"
    role: str
    server: str
    session: str
    max_batch: int
    max_message_bytes: int
    max_payload_bytes: int = DEFAULT_PAYLOAD_BYTES
    tenant: str | None = None
    warning: str | None = None


@frozen
class Reply:
    """The answer to a request that was carried out; the content of `body` depends on the verb."""

    type: ClassVar[str] = "reply"
    ref: int
    body: dict[str, Any]


@frozen
class Ended:
    """Part of the answer to a `wait_tasks`: tasks that have ended. More of it, and the reply, follow."""

    type: ClassVar[str] = "ended"
    ref: int
    tasks: list[dict[str, Any]]


@frozen
class Error:
    """The answer to a refused request (`ref`), or to an unreadable frame (no `ref`)."""

    type: ClassVar[str] = "error"
    code: str
    message: str
    ref: int | None = None
    field: str | None = None
    retry_in_ms: int | None = None


class PushedTask(NamedTuple):
    """One task in a push; times in ms, absent ones None."""

    id: str
    lease: int
    attempt: int
    max_attempts: int
    tenant: str
    enqueued_at_ms: int
    payload: Any
    start_at_ms: int | None = None
    expires_at_ms: int | None = None
    wants_result: bool = False
    name: str = ""
    webhook: str = ""
    trace: str = ""
    uncounted_attempts: int = 0


@frozen
class Push:
    """Tasks for a worker, each leased for `lease_ms`; their handlers may run for `run_timeout_ms` (0: on).

    The leases began when the worker had been attached for `attached_ms` or later, by the server's clock. `partition`:
    that of the queue in which they are, if it has several; tasks of different ones are settled in different frames.
    """

    type: ClassVar[str] = "push"
    queue: str
    lease_ms: int
    tasks: list[PushedTask]
    run_timeout_ms: int = 0
    attached_ms: int | None = None
    partition: str = ""


@frozen
class Stop:
    """From the server: these tasks were cancelled; release their leases."""

    type: ClassVar[str] = "stop"
    queue: str
    leases: list[Fence]


SERVER_FRAMES: tuple[type[Any], ...] = (Welcome, Reply, Ended, Error, Push, Stop, Drain, Dismiss, Ping)
