"""Waiting for what nothing announces: polling under a deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable

import trio


async def wait_until(holds: Callable[[], bool | Awaitable[bool]], seconds: float = 30.0) -> None:
    """Wait until a condition holds; it may be an async one. Raises: trio.TooSlowError."""
    with trio.fail_after(seconds):
        while True:
            found = holds()
            if await found if isawaitable(found) else found:
                return
            await trio.sleep(0.005)
