"""Tasks that a handler enqueues: at once, or with the acknowledgement of its task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from attrs import define, field

from fairq.client import lazy, tracing
from fairq.errors import BadRequest
from fairq.model.checks import DERIVED, MAX_PAYLOAD_BYTES, bare_id, check_known_id, check_name

if TYPE_CHECKING:
    from fairq.model.option_tables import TaskOptions
    from fairq.model.tasks import Link, NewTask
    from fairq.wire.frames import PushedTask

    Enqueue = Callable[[str, PushedTask, str, NewTask], Awaitable[str]]  # queue, task, queue of the new task, new task


async def _nowhere(*_: Any) -> str:
    raise BadRequest("only tasks that a worker runs can enqueue", field="task")


@define(eq=False)
class Links:
    """The tasks that one attempt has enqueued so far.

    `queue`, `id` and `enqueued_at_ms` are those of the task, and the same in each attempt. They differ if an id is used
    again, for another task, which has other links. `enqueue(target, task)` stores a task at once.
    """

    queue: str = ""
    id: str = ""
    enqueued_at_ms: int = 0
    enqueue: Callable[[str, NewTask], Awaitable[str]] = _nowhere
    found: list[Link] = field(factory=list, init=False)
    is_over: bool = field(default=False, init=False)
    unawaited: int = field(default=0, init=False)  # calls of `Task.enqueue` that were not awaited
    _calls: dict[str, int] = field(factory=dict, init=False)  # by target

    def _next_id(self, target: str) -> str:
        """Make an id that is the same for the same call in each attempt: the nth with this target."""
        from hashlib import sha256

        number = self._calls[target] = self._calls.get(target, 0) + 1
        call = f"{self.queue}\n{self.id}\n{self.enqueued_at_ms}\n{target}\n{number}"
        return f"{DERIVED}{sha256(call.encode()).hexdigest()[:32]}"

    def _make(self, target: str, payload: Any, id: str | None, max_bytes: int, options: TaskOptions) -> NewTask:
        check_name(target, "queue")
        id = self._next_id(target) if id is None else check_known_id(id)
        values = lazy.options.pack_options(options) if options else ()
        task = lazy.tasks.NewTask(id, lazy.bodies.encode_payload(payload, max_bytes=max_bytes), *values)
        if options.get("dedupe_payload"):
            task = task._replace(dedupe_key=lazy.options.hash_payload(task.payload))
        return task

    async def send(self, target: str, payload: Any, id: str | None, options: TaskOptions) -> str:
        """Store a task; returns its id, or the id of the task that is already there."""
        task = self._make(target, payload, id, MAX_PAYLOAD_BYTES, options)
        with tracing.active.enqueueing(target, [task]) as (task,):
            outcome = await self.enqueue(target, task)
        lazy.options.check_in_time([outcome])
        return lazy.outcomes.read_sent(outcome).holder or task.id

    def add(self, target: str, payload: Any, id: str | None, options: TaskOptions) -> str:
        """Keep a task until the acknowledgement; returns its id."""
        if self.is_over:
            raise BadRequest("the handler has ended: nothing can be sent with its task now", field="task")
        task = self._make(target, payload, id, lazy.tasks.MAX_LINKS_BYTES, options)
        if (target, task.id) == (self.queue, bare_id(self.id)):
            raise BadRequest("a task cannot be followed by itself: its id is remembered for a while", field="id")
        with tracing.active.enqueueing(target, [task]) as (task,):
            link = lazy.tasks.Link(target, task)
        lazy.tasks.check_links([*self.found, link])
        self.found.append(link)
        return task.id

    def close(self) -> tuple[Link, ...]:
        """Return what is sent with the acknowledgement; nothing more is accepted."""
        self.is_over = True
        return tuple(self.found)
