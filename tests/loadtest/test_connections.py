"""The load test's idle clients: they count once they are attached, and come back with or without their leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from attrs import define

from fairq.errors import Forbidden
from loadtest.pulse import PERIOD_S, Pulse


@define
class SlowServer:
    """Refuses each request after so many seconds, and those beyond at once."""

    delays: Iterator[float]

    async def request(self, kind: str, *, timeout: float) -> Any:
        """Take as long as the next delay."""
        await trio.sleep(next(self.delays, 0))
        raise Forbidden("tenant tokens may not list queues")


async def test_the_longest_silence_is_from_one_answer_to_the_next_or_to_the_end(autojump_clock: object) -> None:
    for delays, longest in (((), PERIOD_S), ((0, 0.5, 0), PERIOD_S + 0.5), ((0.5, 0.7), 0.7), ((0, 10), 2)):
        client: Any = SlowServer(iter(delays))
        pulse = Pulse(client)
        with trio.move_on_after(2):
            await pulse.run()
        assert pulse.longest_s == pytest.approx(longest), delays
