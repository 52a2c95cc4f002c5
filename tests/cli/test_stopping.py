"""Commands that a signal stops."""

from __future__ import annotations

import os
import signal

import pytest
import trio

from fairq.cli.stopping import run_stoppable
from fairq.errors import Unavailable


@pytest.mark.parametrize(
    ("error", "raised"),
    [(Unavailable("no connection to the store"), SystemExit), (ZeroDivisionError(), ZeroDivisionError)],
)
def test_what_fails_while_a_command_stops_is_reported_unless_it_comes_of_that(
    error: Exception, raised: type[BaseException]
) -> None:
    async def main() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.sleep_forever()
        finally:
            raise error

    with pytest.raises(raised):
        run_stoppable(main)
