"""Where the SDK has spans: `active` makes none, unless `fairq.otel.instrument` was called."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from fairq.model.tasks import NewTask, Settlement
    from fairq.wire.frames import PushedTask

    # The settlement as sent at last (None: unknown), its answer (also `error` and `unknown`), what is wrong.
    EndSettling = Callable[[Settlement | None, str, str], None]

T = TypeVar("T")


class Tracing:
    """Makes no spans; what makes them has the span of an enqueue or an attempt as the current one inside it."""

    def enqueueing(self, queue: str, tasks: Sequence[NewTask]) -> AbstractContextManager[Sequence[NewTask]]:
        """Enqueue tasks, which get the span's traceparent."""
        return nullcontext(tasks)

    def processing(self, queue: str, task: PushedTask, attempt: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return what awaits an attempt in the trace of its task."""
        return attempt

    def settling(self, queue: str, task: PushedTask, how: Settlement, outcome: str) -> EndSettling | None:
        """Begin to settle a task, inside `processing`; what is returned is called with the answer."""
        return None


active = Tracing()  # of this process
