"""Tasks that were enqueued: their state, result and cancellation."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from attrs import define, field

from fairq.client import lazy
from fairq.errors import NoResult

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from fairq.client.client import Client
    from fairq.model.option_tables import Seconds
    from fairq.model.tasks import TaskState

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


@define
class EnqueuedTask:
    """A task that the service has taken over.

    `is_duplicate`: the service knew the id already, perhaps from this call, which is sent again after an answer was
    lost; or another task holds the dedupe key, and then `id` is that one's.
    `duplicate_of_state`: the state of the task that was there before, as in `TaskState`: one that is `dead` does not
    run unless it is replayed. Empty if this is no duplicate, or the server is an older one.
    `is_replaced`: it took the place of the waiting task that held the dedupe key, which is cancelled.
    Producers get full ids, `<tenant>/<id>`, and name tasks by them.
    """

    id: str
    queue: str
    is_duplicate: bool = False
    is_replaced: bool = field(default=False, kw_only=True)
    duplicate_of_state: str = field(default="", kw_only=True)
    _client: Client = field(kw_only=True, repr=False, eq=False)
    _keeps_result: bool = field(default=True, kw_only=True, repr=False, eq=False)  # as far as is known

    async def state(self) -> TaskState:
        """Read its state."""
        return (await self._client.tasks(self.queue, [self.id]))[0]

    async def cancel(self) -> str:
        """Cancel it: `ok`, `running` (its worker is asked to stop) or `gone` (it has ended)."""
        return (await self._client.cancel(self.queue, [self.id]))[0]

    async def result(self, kind: type[T] | None = None, *, timeout: float | None = None) -> T:
        """Wait for its handler's result, across reconnects; it must have been enqueued with `result_ttl`.

        With a `kind`, such as `int`, `list[str]` or the class of a `Task[Welcome]`, it is converted to that type.
        Raises: TaskFailed (it is dead or was cancelled), NoResult (at once, if it was enqueued here without), NotYet
        after `timeout` seconds (None: never), BadRequest if it is not of that kind; Unavailable or OutcomeUnknown if
        the service could not be asked then.
        """
        if kind is not None:
            lazy.typed.check_result_type(kind)
        if not self._keeps_result:
            raise NoResult(
                f"task {self.id} was enqueued without result_ttl, so its result is not kept", field="result_ttl"
            )
        found: T = lazy.bodies.result_of(await self._client.wait_task(self.queue, self.id, timeout))
        return found if kind is None else lazy.typed.make_result(found, kind)

    async def reschedule(self, *, delay: Seconds | None = None, start_at: datetime | float | None = None) -> str:
        """Give it another start, or let it start now: `ok`, `running`, `expired`, `quota_exceeded` or `gone`."""
        return (await self._client.reschedule(self.queue, [self.id], delay=delay, start_at=start_at))[0]
