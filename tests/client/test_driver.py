"""The driver and its connections: servers that accept one and then say nothing, or end it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import evolve

from fairq.client import driver as drivers
from fairq.client.channel import Channel, Target
from fairq.client.dial import dial
from fairq.client.driver import Driver
from fairq.client.runtime import current_runtime
from fairq.client.transport import Transport
from fairq.errors import Unavailable
from fairq.wire.client_session import ClientSession
from fairq.wire.terms import TIMEOUT_S
from fairq.wire.websocket import WebSocket
from fairq.wire.worker_session import WorkerSession


async def test_an_idle_worker_gives_up_a_server_that_never_says_a_word(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[float] = []

    @asynccontextmanager
    async def dial(*_: Any) -> AsyncIterator[Transport]:
        await trio.lowlevel.checkpoint()
        dialled.append(trio.current_time())
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            runtime = current_runtime()
            yield Transport(runtime, ours, runtime.make_reader(ours), Channel(WebSocket.of_server(1)), "test")

    monkeypatch.setattr(drivers, "dial", dial)
    driver = Driver.to("ws://127.0.0.1:1", "token", WorkerSession(worker="w", queues=["q"]))
    with trio.move_on_after(4 * TIMEOUT_S):
        await driver.run()
    assert len(dialled) >= 3
    assert TIMEOUT_S <= dialled[1] - dialled[0] <= TIMEOUT_S + 10


async def test_a_server_that_dies_during_the_handshake_is_known_to_be_away_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairq.client.dial.HANDSHAKE_S", 3600.0)

    async def die(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, die, 0)
            port = listeners[0].socket.getsockname()[1]
            with pytest.raises(Unavailable, match="closed the connection before it answered"):
                async with dial(Target.parse(f"ws://127.0.0.1:{port}"), "token"):
                    pass
            nursery.cancel_scope.cancel()


async def test_a_caller_that_was_interrupted_amid_its_wait_is_not_woken_later() -> None:
    woken: list[str] = []

    class Interrupted:
        def set(self) -> None:
            woken.append("set")

        async def wait(self) -> None:
            raise KeyboardInterrupt  # trio raises it anywhere in its own wait, also when the task is registered already

    driver = Driver.to("ws://127.0.0.1:1", "token", ClientSession())
    driver.runtime = evolve(driver.runtime, make_wakeup=Interrupted)
    call = driver.request("ping", {}, trio.current_time() + 1)
    with pytest.raises(KeyboardInterrupt):
        await driver.wait(call)
    call.finish()
    assert woken == []
