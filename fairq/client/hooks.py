"""What a worker's app does when it starts and ends, and around each task."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from attrs import define, field

from fairq.errors import BadRequest
from fairq.log import Log, name_of

log = Log("fairq.worker")

SHUTDOWN_S = 5.0  # for all functions of on_shutdown together

Hook = Callable[[], Any]
Around = Callable[[Any], AbstractAsyncContextManager[Any]]
Middleware = Around | Callable[[Any], AsyncIterator[None]]


@define(eq=False)
class Hooks:
    """The functions that an app registered, in their order."""

    startup: list[Hook] = field(factory=list, init=False)
    shutdown: list[Hook] = field(factory=list, init=False)
    around: list[Around] = field(factory=list, init=False)

    async def start(self) -> None:
        """Call the functions of on_startup, in order. Raises: what the first one does that fails."""
        for hook in self.startup:
            await _call(hook)

    async def end(self) -> None:
        """Call the functions of on_shutdown, the last one first, for at most SHUTDOWN_S; what they raise is logged."""
        if not self.shutdown:
            return
        import anyio

        with anyio.move_on_after(SHUTDOWN_S, shield=True) as scope:
            for hook in reversed(self.shutdown):
                try:
                    await _call(hook)
                except Exception as error:
                    log.error("on_shutdown failed", function=name_of(hook), exc_info=error)
        if scope.cancelled_caught:
            log.error("on_shutdown took too long and was left", limit_s=SHUTDOWN_S)


async def _call(hook: Hook) -> None:
    """Call a function in a thread, which goes on if it is left; await what it returns in the loop (`async def`)."""
    from fairq.client.threads import Threads

    threads = Threads(1)
    try:
        (returned,) = await threads.run(lambda _: [hook()], None)  # trio's threads refuse to return a coroutine
    finally:
        threads.close()
    if inspect.isawaitable(returned):
        await returned


def around_of(middleware: Middleware) -> Around:
    """Make a function that returns a context manager of registered middleware. Raises: BadRequest."""
    if inspect.isasyncgenfunction(middleware):
        return asynccontextmanager(middleware)
    if not callable(middleware) or inspect.iscoroutinefunction(middleware) or inspect.isgeneratorfunction(middleware):
        raise BadRequest(
            f"middleware {name_of(middleware)}: it must be an async generator function with one `yield`, or return an"
            " async context manager",
            field="middleware",
        )
    return middleware  # type: ignore[return-value]
