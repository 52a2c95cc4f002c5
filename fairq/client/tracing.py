"""Where the SDK has spans, if `fairq.otel.instrument` was called; else each of these does nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fairq.model.tasks import NewTask, Settlement
    from fairq.wire.frames import PushedTask

    # The settlement as sent at last (None: unknown), its answer (also `error` and `unknown`), what is wrong.
    EndSettling = Callable[[Settlement | None, str, str], None]


class Tracing(Protocol):
    """Makes spans; the span of an enqueue or an attempt is the current one inside its `with`."""

    def enqueueing(self, queue: str, tasks: Sequence[NewTask]) -> AbstractContextManager[Sequence[NewTask]]:
        """Enqueue tasks, which get the span's traceparent."""

    def processing(self, queue: str, task: PushedTask) -> AbstractContextManager[None]:
        """Run a handler, in the trace of the task."""

    def settling(self, queue: str, task: PushedTask, how: Settlement, outcome: str) -> EndSettling:
        """Begin to settle a task, inside `processing`; call the returned function with the answer."""


_active: Tracing | None = None
_NOTHING = nullcontext()


def activate(tracing: Tracing | None) -> None:
    """Have spans made from now on, in this process; None: no longer."""
    global _active
    _active = tracing


def enqueueing(queue: str, tasks: Sequence[NewTask]) -> AbstractContextManager[Sequence[NewTask]]:
    """As Tracing's."""
    return nullcontext(tasks) if _active is None else _active.enqueueing(queue, tasks)


def processing(queue: str, task: PushedTask) -> AbstractContextManager[None]:
    """As Tracing's."""
    return _NOTHING if _active is None else _active.processing(queue, task)


def settling(queue: str, task: PushedTask, how: Settlement, outcome: str) -> EndSettling | None:
    """As Tracing's."""
    return None if _active is None else _active.settling(queue, task, how, outcome)
