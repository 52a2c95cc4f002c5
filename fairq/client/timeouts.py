"""How long a handler may run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import TypeVar

from fairq.errors import BadRequest

T = TypeVar("T")

Limit = Callable[[float], AbstractContextManager[object]]  # holds what is cancelled after so many seconds

MAX_TIMEOUT_S = 604_800.0  # a week, as of the queue's run_timeout_ms


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


async def within(limit_s: float, call: Callable[[], Awaitable[T]], limit: Limit = nullcontext) -> T:
    """Await a call for at most so long, then cancel it, in `limit`. Raises: TimedOut, and what the call does."""
    if limit_s == inf:
        return await call()
    import anyio

    with anyio.move_on_after(limit_s), limit(limit_s):
        return await call()
    raise TimedOut(f"the handler did not end within {limit_s:g} s")
