"""Where the SDK has spans: `active` makes none, unless `fairq.otel.instrument` was called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairq.model.tasks import NewTask, Settlement
    from fairq.wire.frames import PushedTask

    # The settlement as sent at last (None: unknown), its answer (also `error` and `unknown`), what is wrong.
    EndSettling = Callable[[Settlement | None, str, str], None]

_NOTHING = nullcontext()


class Tracing:
    """Makes no spans; what makes them has the span of an enqueue or an attempt as the current one inside its `with`."""

    def enqueueing(self, queue: str, tasks: Sequence[NewTask]) -> AbstractContextManager[Sequence[NewTask]]:
        """Enqueue tasks, which get the span's traceparent."""
        return nullcontext(tasks)

    def processing(self, queue: str, task: PushedTask) -> AbstractContextManager[None]:
        """Run a handler, in the trace of the task."""
        return _NOTHING

    def settling(self, queue: str, task: PushedTask, how: Settlement, outcome: str) -> EndSettling | None:
        """Begin to settle a task, inside `processing`; what is returned is called with the answer."""
        return None


active = Tracing()  # of this process
