"""Waiting for what nothing announces: polling under a deadline."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable

import anyio


async def wait_until(holds: Callable[[], bool | Awaitable[bool]], seconds: float = 30.0) -> None:
    """Wait until a condition holds; it may be an async one. Raises: TimeoutError."""
    with anyio.fail_after(seconds):
        while True:
            found = holds()
            if await found if isawaitable(found) else found:
                return
            await anyio.sleep(0.005)


def wait_for(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Block the thread until a condition holds. Raises: TimeoutError."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)
