"""Commands that tidy up when ctrl-C, a service manager or the end of a session stops them."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from fairq.errors import FairqError
from fairq.io.scopes import background

T = TypeVar("T")


def _comes_of_stopping(error: BaseException) -> bool:
    """True if all that failed are calls: one part may miss another that ended before it."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_comes_of_stopping, error.exceptions))
    return isinstance(error, FairqError)


def run_stoppable(main: Callable[[], Awaitable[T]]) -> T:
    """Run an async function, which the first signal cancels. Raises: SystemExit then, with 128 and its number."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    wanted = [each for each in signals if signal.getsignal(each) != signal.SIG_IGN]  # nohup

    numbers: list[int] = []
    scope = trio.CancelScope()

    async def run() -> T:
        async def watch() -> None:
            async for number in received:
                numbers.append(number)
                scope.cancel()

        with trio.open_signal_receiver(*wanted) as received:
            async with background(watch):
                try:
                    with scope:
                        return await main()
                except Exception as error:
                    if not numbers or not _comes_of_stopping(error):
                        raise
        raise SystemExit(128 + numbers[0])

    return trio.run(run)
