"""What programs register with a worker: handlers, and functions around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from attrs import define, field

from fairq.client import later
from fairq.client.hooks import Hook, Hooks, Middleware, around_of
from fairq.client.task import Function, Task
from fairq.model.checks import check_name

if TYPE_CHECKING:
    from fairq.client.kinds import Kinds

F = TypeVar("F", bound=Function)
H = TypeVar("H", bound=Hook)
M = TypeVar("M", bound=Middleware)


@define(eq=False)
class Registration:
    """The decorators of a worker."""

    handlers: dict[str, Kinds] = field(factory=dict, init=False)
    hooks: Hooks = field(factory=Hooks, init=False)

    def task(self, queue: str, *, name: str = "", timeout: float | None = None) -> Callable[[F], F]:
        """Register a handler of a queue; `async def` runs in the event loop, `def` in a thread.

        With a `name` it is for the tasks that were enqueued under it (`enqueue(..., name="welcome")`); without, for all
        others, whatever their name. A task with neither is a failed attempt: another worker may have its handler.

        A handler that has run for `timeout` seconds, or the queue's `run_timeout_ms`, has failed: `async def` is
        cancelled; the thread of a `def` goes on, and keeps its slot until the function returns.
        """
        from fairq.client.kinds import Handler, Kinds, check_function
        from fairq.client.timeouts import check_timeout
        from fairq.client.typed import payload_type_of

        check_name(queue, "queue")
        later.tasks.SHORT_NAME.check(name, "name")
        timeout_s = check_timeout(timeout)

        def register(function: F) -> F:
            check_function(function)
            kinds = self.handlers.get(queue) or Kinds(queue)
            payload_type = payload_type_of(function, Task)
            kinds.add(Handler(function, queue, name, payload_type, timeout_s, self.hooks.around))
            self.handlers[queue] = kinds
            return function

        return register

    def on_startup(self, function: H) -> H:
        """Call a function when `run` begins, ahead of the first task; `def` in a thread.

        Several are called in the order registered. If one fails, `run` raises that, and takes no task.
        """
        self.hooks.startup.append(function)
        return function

    def on_shutdown(self, function: H) -> H:
        """Call a function when `run` ends, after the last task; `def` in a thread. It is not if on_startup failed.

        Several are called the last one first. Together they have five seconds, also where `run` is cancelled.
        """
        self.hooks.shutdown.append(function)
        return function

    def middleware(self, function: M) -> M:
        """Run an async context manager around each task, also those of plain functions.

        Several nest, the first outside. A function that yields once is made into one. What the handler raises comes
        out of its `yield`, as in contextlib, a timeout too: what it raises instead decides, and a task whose error it
        takes is done. To send errors to Sentry, for example:

            @app.middleware
            async def report(task):
                with sentry_sdk.new_scope() as scope:
                    scope.set_tag("queue", task.queue)
                    try:
                        yield
                    except fairq.Retry:
                        raise
                    except Exception as error:
                        sentry_sdk.capture_exception(error)
                        raise
        """
        self.hooks.around.append(around_of(function))
        return function
