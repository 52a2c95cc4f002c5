"""Timeouts of handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import TypeVar

from fairq.errors import BadRequest

T = TypeVar("T")

MAX_TIMEOUT_S = 604_800.0  # a week, as for the queue's run_timeout_ms


class TimedOut(Exception):
    """A handler did not end in time: a failed attempt."""


def check_timeout(value: object) -> float:
    """Return a handler's timeout in seconds; inf for none. Raises: BadRequest."""
    if value is None:
        return inf
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_TIMEOUT_S:
        return float(value)
    raise BadRequest(
        f"timeout must be a number of seconds above 0, at most {MAX_TIMEOUT_S:.0f}, not {value!r:.80}", field="timeout"
    )


async def within(limit_s: float, call: Callable[[], Awaitable[T]]) -> T:
    """Await a call for at most `limit_s`, then cancel it. Raises: TimedOut, and what the call does."""
    if limit_s == inf:
        return await call()
    import anyio

    from fairq.client.traceback_frames import let_frames_go
    from fairq.io.cancel_backoff import limit

    with anyio.move_on_after(limit_s) as scope, limit(scope):
        try:
            return await call()
        except anyio.get_cancelled_exc_class() as cancelled:
            let_frames_go(cancelled)
            raise
    raise TimedOut(f"the handler did not end within {limit_s:g} s")
