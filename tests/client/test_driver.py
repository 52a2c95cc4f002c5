"""The driver and its connections: servers that accept one and then say nothing, or end it."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio
from attrs import evolve

from fairq.client.channel import Channel, Target
from fairq.client.connect import connect
from fairq.client.connect_steps import ConnectSteps
from fairq.client.driver import Driver
from fairq.errors import Unavailable
from fairq.wire.client_session import ClientSession
from fairq.wire.suspicion import BESIDE_S, LEAVE_S
from fairq.wire.terms import TIMEOUT_S
from fairq.wire.websocket import WebSocket
from fairq.wire.worker_session import WorkerSession


@pytest.mark.parametrize("are_down", [False, True])
async def test_an_idle_worker_gives_up_a_server_that_never_says_a_word(
    are_down: bool, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens another connection first; where it cannot, it waits for TIMEOUT_S."""
    opened: list[float] = []
    ends = list[socket.socket]()

    async def connect(target: Target, *_: Any) -> ConnectSteps:
        await trio.lowlevel.checkpoint()
        if is_down():
            raise Unavailable("down")
        opened.append(trio.current_time())
        ours, theirs = socket.socketpair()
        ends.append(theirs)
        ours.setblocking(False)
        steps = ConnectSteps(target, "token", [], 0.0)
        steps.socket, steps.channel = ours, Channel(WebSocket.of_server(1))
        return steps

    def is_down() -> bool:
        return are_down and len(opened) == 1 and trio.current_time() < opened[0] + TIMEOUT_S

    monkeypatch.setattr("fairq.client.connect.connect", connect)
    driver = Driver.to("ws://127.0.0.1:1", "token", WorkerSession(worker="w", queues=["q"]))
    with trio.move_on_after(4 * TIMEOUT_S):
        await driver.run()
    assert len(opened) >= 3
    if are_down:
        assert TIMEOUT_S <= opened[1] - opened[0] <= TIMEOUT_S + 10
    else:
        assert BESIDE_S <= opened[1] - opened[0] <= 2 * BESIDE_S + 1
        assert LEAVE_S + BESIDE_S <= opened[2] - opened[0] < 15, "the second one is left as the first was"
    for end in ends:
        end.settimeout(10)
        with end:
            while end.recv(1 << 16):  # blocks unless the other end was closed
                pass


async def test_a_server_that_dies_during_the_handshake_is_known_to_be_away_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairq.client.connect.HANDSHAKE_S", 3600.0)

    async def die(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, die, 0)
            port = listeners[0].socket.getsockname()[1]
            with pytest.raises(Unavailable, match="closed the connection before it answered"):
                await connect(Target.parse(f"ws://127.0.0.1:{port}"), "token")
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
