"""The driver alone, in virtual time: servers that accept a connection and then say nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from fairq.client import driver as drivers
from fairq.client.driver import Driver
from fairq.wire.messages import SILENCE_S
from fairq.wire.worker_session import WorkerSession


class Mute:
    """A connection over which nothing comes."""

    peer = "test"

    async def receive(self) -> str:
        """Wait for ever."""
        await trio.sleep_forever()
        raise AssertionError

    async def send(self, text: str) -> None:
        """Take a text."""
        await trio.lowlevel.checkpoint()


async def test_an_idle_worker_gives_up_a_server_that_never_says_a_word(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[float] = []

    @asynccontextmanager
    async def dial(*_: Any) -> AsyncIterator[Mute]:
        await trio.lowlevel.checkpoint()
        dialled.append(trio.current_time())
        yield Mute()

    monkeypatch.setattr(drivers, "dial", dial)
    driver = Driver.to("ws://127.0.0.1:1", "token", WorkerSession(worker="w", queues=["q"]))
    with trio.move_on_after(4 * SILENCE_S):
        await driver.run()
    assert len(dialled) >= 3
    assert SILENCE_S <= dialled[1] - dialled[0] <= SILENCE_S + 10
