"""Commands that tidy up when a service manager or the end of a session stops them, as they do at ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from fairq.scopes import open_plain_nursery

T = TypeVar("T")


def run_stoppable(main: Callable[[], Awaitable[T]]) -> T:
    """Run an async function. Raises: SystemExit when SIGTERM or SIGHUP has cancelled it, with 128 and its number."""
    wanted = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]  # nohup

    async def run() -> T:
        found: list[T] = []
        with trio.open_signal_receiver(*wanted) as signals:
            async with open_plain_nursery() as nursery:

                async def work() -> None:
                    found.append(await main())
                    nursery.cancel_scope.cancel()

                nursery.start_soon(work)
                number = await anext(signals)
                nursery.cancel_scope.cancel()
        if found:
            return found[0]
        raise SystemExit(128 + number)

    return trio.run(run)
