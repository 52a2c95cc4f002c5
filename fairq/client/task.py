"""The argument of a handler, and the exceptions with which it settles its task."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, Unpack

from attrs import field, frozen

from fairq.client import lazy
from fairq.client.links import Links
from fairq.client.option_signatures import F, lists_options
from fairq.errors import BadRequest, Portable
from fairq.model.checks import bare_id
from fairq.model.texts import moment_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from fairq.model.batches import MemberResult
    from fairq.model.option_tables import Seconds, TaskOptions

    P = TypeVar("P", default=Any)
    ReadResults = Callable[[str | None], Awaitable[Any]]  # a page of `batch_results`, from a cursor on
else:
    from typing import TypeVar

    P = TypeVar("P")


class Retry(Portable):
    """Raised by a handler: try this task again, after `delay` seconds (none: the queue's backoff)."""

    def __init__(self, reason: str = "", *, delay: Seconds | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = None if delay is None else lazy.options.to_ms(delay, "delay")


class Postpone(Portable):
    """Raised by a handler: try this task again after `delay` seconds, and do not count this attempt."""

    def __init__(self, reason: str = "", *, delay: Seconds) -> None:
        super().__init__(reason)
        self.delay_ms = lazy.options.to_ms(delay, "delay")


class Reject(Portable):
    """Raised by a handler: this task can never succeed; it becomes a dead letter at once."""


async def _no_results(_: str | None) -> Any:
    raise BadRequest("only tasks that a worker runs can read results", field="task")


def _in_event_loop(method: F, *, must_run: bool = False) -> F:
    """Make an awaited method refuse threads, where it would never run; `must_run`: count calls that have not run."""

    @wraps(method)
    def call(task: Task[Any], *args: Any, **options: Any) -> Any:
        from fairq.io.event_loop import in_event_loop

        if not in_event_loop():
            raise RuntimeError(f"this is a thread: call anyio.from_thread.run(task.{method.__name__}, …)")
        called = method(task, *args, **options)
        task._links.unawaited += must_run
        return called

    return call  # type: ignore[return-value]


def _moment(ms: int | None) -> datetime | None:
    return None if not ms else moment_of(ms)


@frozen(slots=False)  # a dict is filled faster
class Task(Generic[P]):
    """The argument of a handler. `payload` is the decoded JSON value; `attempt` counts up from 1 with every lease.

    A failure of attempt `max_attempts` is final (0: no limit). If a handler is annotated `Task[Welcome]`, the payload
    becomes a `Welcome`: an attrs class, dataclass or TypedDict. The task of a payload that does not fit is rejected;
    keys that the class does not have are ignored.
    """

    id: str
    queue: str
    tenant: str
    attempt: int
    max_attempts: int
    payload: P
    enqueued_at_ms: int
    start_at_ms: int | None = None
    expires_at_ms: int | None = None
    wants_result: bool = False  # what the handler returns is kept; a dead letter if it is no JSON, or over 256 KiB
    name: str = ""  # what kind of task it is, as its caller named it
    webhook: str = ""  # the id of the webhook that it is for
    _report: Callable[[float, str], None] = field(default=lambda *_: None, repr=False, eq=False)
    _links: Links = field(factory=Links, repr=False, eq=False)
    _read_results: ReadResults = field(default=_no_results, repr=False, eq=False)

    @_in_event_loop
    async def progress(self, fraction: float, text: str = "") -> None:
        """Report the handler's progress, 0 to 1; `EnqueuedTask.state` returns it while the handler runs.

        As often as you like: at most once a second the newest is sent. From a thread: `anyio.from_thread.run`.
        """
        self._report(lazy.tasks.FRACTION.check(fraction, "fraction"), lazy.tasks.PROGRESS_TEXT.check(text, "text"))
        import anyio.lowlevel

        await anyio.lowlevel.checkpoint()

    @lists_options
    @partial(_in_event_loop, must_run=True)
    async def enqueue(self, queue: str, payload: Any, *, id: str | None = None, **options: Unpack[TaskOptions]) -> str:
        """Enqueue a task for the same tenant, now; returns its id, or that of the task which is there already.

        A later attempt that calls it again makes no second task: without an `id` of yours, the new task's is made from
        this task and the number of the call among those with this queue, `then` included. So a handler that may call it
        in another order the next time, or with other payloads, must give ids. A queue remembers such an id for an hour
        after its task is done; one of yours for a minute, or an hour too if it begins with `from-`.
        From a thread: `anyio.from_thread.run(task.enqueue, queue, payload)`.
        Raises: as `Client.enqueue`; Forbidden when the lease is lost, or the worker's token may not use the queue.
        """
        self._links.unawaited -= 1
        return await self._links.send(queue, payload, id, options)

    @lists_options
    def then(self, queue: str, payload: Any, *, id: str | None = None, **options: Unpack[TaskOptions]) -> str:
        """Enqueue a task for the same tenant if this attempt succeeds, and only then; returns its id.

        In this queue it is stored in the same step as the acknowledgement: neither without the other. In another one it
        is enqueued just before; it may be there though this task runs again, and then is not enqueued twice (see
        `enqueue`). What cannot be stored (a limit, a full store, a queue that is being deleted) fails this attempt.
        At most 16, of 1 MiB together; without a batch. Also from threads.
        Raises: BadRequest (also for an `id` that is this task's own, or of an earlier call with this queue), TooLarge.
        """
        return self._links.add(queue, payload, id, options)

    async def batch_results(self) -> AsyncGenerator[MemberResult, None]:
        """Yield what the tasks of a batch returned, if this task calls back for it.

        There is one for each task that is done and has a `result_ttl`, in the order of adding: `id`, `result`, and
        `is_kept`, which is false if the result's time is over, or its tenant's limit had no room for it.
        From a thread: iterate in an `async def` of yours, called by `anyio.from_thread.run`.
        Raises: NotFound, also a day after the batch was complete; Forbidden when the lease is lost.
        """
        cursor: str | None = None
        while True:
            page = await self._read_results(cursor)
            for row in page["results"]:
                yield lazy.batches.MemberResult(bare_id(row["id"]), row.get("result"), "result" in row)
            if not (cursor := page["cursor"]):
                return

    @property
    def is_last_attempt(self) -> bool:
        """True if a failure of this attempt is final."""
        return lazy.tasks.is_last_attempt(self.attempt, self.max_attempts)

    @property
    def enqueued_at(self) -> datetime:
        """When the service took the task over."""
        return moment_of(self.enqueued_at_ms)

    @property
    def start_at(self) -> datetime | None:
        """Its earliest start, if one was asked for."""
        return _moment(self.start_at_ms)

    @property
    def expires_at(self) -> datetime | None:
        """Its expiry, if one was asked for: it does not start from then on."""
        return _moment(self.expires_at_ms)


Function = Callable[[Task[Any]], Any]
