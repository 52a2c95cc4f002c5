"""The functions that an app registers for a worker's start and end, and around each task."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import Context, copy_context
from typing import Any

from attrs import define, field

from fairq.errors import BadRequest
from fairq.log import Log, name_of

log = Log("fairq.worker")

SHUTDOWN_S = 5.0  # for all functions of on_shutdown together

Hook = Callable[[], Any]
Middleware = Callable[[Any], AsyncIterator[None] | Iterator[None]]
Around = Callable[[Any], AbstractAsyncContextManager[Any]]


@define(eq=False)
class Hooks:
    """The functions that an app registered, in their order.

    Around each task: `around` in the event loop, and within them `inside`, where the handler runs.
    """

    startup: list[Hook] = field(factory=list, init=False)
    shutdown: list[Hook] = field(factory=list, init=False)
    around: list[Around] = field(factory=list, init=False)
    inside: list[Callable[[Any], AbstractContextManager[Any]]] = field(factory=list, init=False)
    has_middleware: bool = field(default=False, init=False)

    def add(self, middleware: Middleware) -> None:
        """Add a generator function; its kind says where it runs. Raises: BadRequest."""
        if inspect.isasyncgenfunction(middleware):
            self.around.append(asynccontextmanager(middleware))
        elif inspect.isgeneratorfunction(middleware):
            self.inside.append(contextmanager(middleware))
        else:
            raise BadRequest(
                f"middleware {name_of(middleware)}: it must be a function with one `yield`, `def` or `async def`,"
                " without @contextmanager",
                field="middleware",
            )
        self.has_middleware = True

    async def start(self) -> Context:
        """Call the functions of on_startup, in order; returns their context. Raises: what one of them raises."""
        context = copy_context()
        for hook in self.startup:
            await _call(hook, context)
        return context

    async def end(self, context: Context) -> None:
        """Call the functions of on_shutdown, the last one first, for at most SHUTDOWN_S; what they raise is logged."""
        if not self.shutdown:
            return
        import anyio

        from fairq.io.interrupts import is_of_signal

        with anyio.move_on_after(SHUTDOWN_S, shield=True) as scope:
            for hook in reversed(self.shutdown):
                try:
                    await _call(hook, context)
                except BaseException as error:
                    if isinstance(error, anyio.get_cancelled_exc_class()) or is_of_signal(error):
                        raise
                    log.error("on_shutdown failed", function=name_of(hook), exc_info=error)
        if scope.cancelled_caught:
            log.error("on_shutdown took too long and was left", limit_s=SHUTDOWN_S)


async def _call(hook: Hook, context: Context) -> None:
    """Call a function in a thread, which goes on if it is left; await what it returns in the loop (`async def`)."""
    from fairq.client.isolation import in_context
    from fairq.client.threads import Threads

    threads = Threads(1)
    try:
        returned = await threads.run(lambda _: context.run(hook), None)
    finally:
        threads.close()
    if inspect.isawaitable(returned):
        await in_context(context, _await(returned))


async def _await(returned: Awaitable[Any]) -> None:
    from fairq.io.forks import OwnProcess

    with OwnProcess():
        await returned
