"""Tasks that were enqueued: their state, result and cancellation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from attrs import define, field

from fairq.client.later import verbs
from fairq.errors import NoResult
from fairq.wire.terms import WAIT_MS

if TYPE_CHECKING:
    from fairq.client.verbs import Ask
    from fairq.model.option_tables import Seconds, TaskOptions
    from fairq.model.tasks import TaskState

T = TypeVar("T")


class Asks(Protocol):
    """What dead letters need of a client."""

    def clock(self) -> float:
        """Return the time in seconds, of a clock that only runs forward."""

    async def sleep_until(self, time: float) -> None:
        """Wait until a time of `clock`."""

    async def pass_turn(self) -> None:
        """Let others have a turn."""

    async def ask(self, ask: Ask[T], *, timeout: float | None = None) -> T:
        """Send a request and return what its reply says."""


class Requests(Asks, Protocol):
    """What tasks, batches and events need of a client."""

    async def ask_until(
        self, ask: Ask[T], timeout: float | None, is_enough: Callable[[T], bool], wait_s: float = WAIT_MS / 1000
    ) -> T | None:
        """Send a request that waits for something to happen, until its reply is enough; None after `timeout`."""

    async def wait_task(self, queue: str, id: str, timeout: float | None) -> dict[str, Any]:
        """Wait until a task has ended; returns its row of `wait_tasks`. Raises: NotYet."""

    async def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        tenant: str | Sequence[str] | None = None,
        timeout: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> Sequence[EnqueuedTask]:
        """Enqueue many tasks."""


@define
class EnqueuedTask:
    """A task that the service has taken over.

    `is_duplicate`: it knew the id already, or another task holds the dedupe key, and then `id` is that one's.
    `is_replaced`: it took the place of the waiting task that held the dedupe key, which is cancelled.
    Producers get full ids, `<tenant>/<id>`, and name tasks by them.
    """

    id: str
    queue: str
    is_duplicate: bool = False
    is_replaced: bool = field(default=False, kw_only=True)
    _client: Requests | None = field(default=None, repr=False, eq=False)
    _keeps_result: bool = field(default=True, kw_only=True, repr=False, eq=False)  # as far as is known

    async def state(self) -> TaskState:
        """Ask what has become of it."""
        assert self._client is not None
        return (await self._client.ask(verbs.tasks(self.queue, [self.id])))[0]

    async def cancel(self) -> str:
        """Cancel it: `ok`, `running` (its worker is told to stop) or `gone` (it has ended)."""
        assert self._client is not None
        return (await self._client.ask(verbs.cancel(self.queue, [self.id])))[0]

    async def result(self, *, timeout: float | None = None) -> Any:
        """Wait for what its handler returned, across reconnects; it must have been enqueued with `result_ttl`.

        Raises: TaskFailed (it is dead or was cancelled), NoResult (at once, if it was enqueued here without), NotYet
        after `timeout` seconds (None: never); Unavailable or OutcomeUnknown if the service could not be asked then.
        """
        assert self._client is not None
        if not self._keeps_result:
            raise NoResult(
                f"task {self.id} was enqueued without result_ttl, so that no result of it is kept", field="result_ttl"
            )
        return verbs.result_of(await self._client.wait_task(self.queue, self.id, timeout))

    async def reschedule(self, *, delay: Seconds | None = None, start_at: datetime | float | None = None) -> str:
        """Give it another start, or let it start now: `ok`, `running`, `expired`, `quota_exceeded` or `gone`."""
        assert self._client is not None
        return (await self._client.ask(verbs.reschedule(self.queue, [self.id], delay, start_at)))[0]
