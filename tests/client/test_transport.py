"""A client's websocket on a plain socket, under asyncio and trio: deadlines, ends, and what a cancellation leaves."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import pytest
from attrs import define, field
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import OPEN, Protocol, Side

from fairq.client import transport as module
from fairq.client.channel import Channel, Target
from fairq.client.connect_steps import ConnectSteps
from fairq.client.transport import ClientTransport
from fairq.errors import BadFrame
from fairq.io import transport as shared
from fairq.io.exception_groups import ungrouped
from fairq.io.runtime import RECEIVE_BYTES
from fairq.wire.connection_errors import Disconnected
from fairq.wire.raw_payloads import Message
from fairq.wire.websocket import WebSocket
from tests.sending import send_message

from .runtimes import on_both, wait_until

LIMIT = 1 << 24


@define(eq=False)
class Peer:
    """The server's end, frame by frame."""

    socket: socket.socket
    protocol: Protocol = field(factory=lambda: Protocol(Side.SERVER, state=OPEN, max_size=None))

    def send(self, *frames: Frame) -> None:
        """Send frames in one piece."""
        self.socket.send(b"".join(frame.serialize(mask=False) for frame in frames))

    def received(self) -> list[Frame]:
        """Return the frames that are complete by now."""
        while True:
            try:
                data = self.socket.recv(1 << 20)
            except BlockingIOError:
                break
            if not data:
                break
            self.protocol.receive_data(data)
        return [event for event in self.protocol.events_received() if isinstance(event, Frame)]


@contextmanager
def open_ends(**owner: Any) -> Iterator[tuple[ClientTransport, Peer]]:
    """Open two ends of a connection."""
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
    opened = ConnectSteps(Target.parse("ws://127.0.0.1:1"), "token", [], 0.0)
    websocket = WebSocket(Protocol(Side.CLIENT, state=OPEN, max_size=LIMIT), LIMIT)
    opened.socket, opened.channel = ours, Channel(websocket)
    transport = ClientTransport.of(opened, **owner)
    with theirs:
        try:
            yield transport, Peer(theirs)
        finally:
            transport.close()


def text(data: str) -> Frame:
    return Frame(Opcode.TEXT, data.encode())


@on_both
async def test_a_peer_that_reads_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_S", 0.05)
    with open_ends() as (transport, _):
        with pytest.raises(Disconnected, match="too slowly"):
            await send_message(transport, "x" * (4 << 20))
        with pytest.raises(Disconnected):
            await send_message(transport, "and no half of a frame is followed by another")
        with pytest.raises(Disconnected):
            await transport.receive()


@on_both
async def test_a_cancelled_send_is_the_connections_end() -> None:
    with open_ends() as (transport, peer):
        async with anyio.create_task_group() as group:
            group.start_soon(send_message, transport, "x" * (4 << 20))
            await anyio.wait_readable(peer.socket)
            group.cancel_scope.cancel()
        with pytest.raises(Disconnected):
            await send_message(transport, "more")


@on_both
async def test_the_owner_is_woken_for_what_the_socket_does_not_take() -> None:
    messages, stuck = ["x" * (4 << 20)], anyio.Event()
    with open_ends(source=lambda _: [messages.pop()] if messages else [], stuck=stuck.set) as (transport, peer):
        transport.runtime.at_end_of_turn(transport.send_now)
        await stuck.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(transport.flush)
            await wait_until(lambda: bool(peer.received()))


@on_both
async def test_pings_are_answered_and_texts_come_in_order() -> None:
    with open_ends() as (transport, peer):
        peer.send(text("one"), Frame(Opcode.PING, b"?"), text("two"))
        assert [await transport.receive(), await transport.receive()] == ["one", "two"]
        assert [(frame.opcode, frame.data) for frame in peer.received()] == [(Opcode.PONG, b"?")]


@pytest.mark.parametrize("turn_s", [-1.0, 1.0], ids=["each in a turn", "all in one"])
@on_both
async def test_what_is_taken_where_it_arrives_comes_in_order_up_to_a_failure(
    turn_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (shared, module):
        monkeypatch.setattr(each, "TURN_S", turn_s)
    taken: list[Message] = []

    def take(message: Message, _: float = 0.0) -> None:
        taken.append(message)
        if message == "bad":
            raise BadFrame("bad")

    with open_ends(deliver=take) as (transport, peer):

        async def read() -> None:
            while True:
                take(await transport.receive())

        async def converse() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                await anyio.wait_all_tasks_blocked()
                peer.send(*(text(str(number)) for number in range(50)), Frame(Opcode.PING, b"?"))
                await anyio.wait_readable(peer.socket)
                assert [(frame.opcode, frame.data) for frame in peer.received()] == [(Opcode.PONG, b"?")]
                peer.send(text("bad"), text("never"))

        with pytest.raises(BadFrame), ungrouped():
            await converse()
        assert taken == [*map(str, range(50)), "bad"]


@on_both
async def test_a_cancelled_receive_loses_nothing() -> None:
    with open_ends() as (transport, peer):
        got: list[object] = []

        async def receive() -> None:
            got.append(await transport.receive())

        for number in range(20):
            async with anyio.create_task_group() as group:
                group.start_soon(receive)
                await anyio.lowlevel.checkpoint()
                peer.send(text(str(number)))
                group.cancel_scope.cancel()
        while len(got) < 20:
            await receive()
        assert got == [str(number) for number in range(20)]


@on_both
async def test_the_end_is_reported_with_its_code() -> None:
    with open_ends() as (transport, peer):
        peer.send(text("last"), Frame(Opcode.CLOSE, Close(4001, "enough").serialize()))
        assert await transport.receive() == "last"
        with pytest.raises(Disconnected, match="enough") as caught:
            await transport.receive()
        assert caught.value.code == 4001
    with open_ends() as (transport, peer):
        peer.socket.close()
        with pytest.raises(Disconnected, match="lost"):
            await transport.receive()
        with pytest.raises(Disconnected, match="lost"):
            await send_message(transport, "x" * (4 << 20))


@on_both
async def test_a_peer_that_breaks_a_rule_reads_why() -> None:
    with open_ends() as (transport, peer):
        peer.send(Frame(Opcode.TEXT, b"\xff"))
        peer.socket.shutdown(socket.SHUT_WR)
        with pytest.raises(Disconnected, match="UTF-8"):
            await transport.receive()
        (frame,) = peer.received()
        assert Close.parse(frame.data).reason == "text messages must be UTF-8"


@on_both
async def test_a_closed_socket_wakes_those_that_wait_for_it() -> None:
    with open_ends() as (transport, _):
        ended: list[str] = []

        async def wait(name: str) -> None:
            with pytest.raises(Disconnected):
                await (transport.receive() if name == "receive" else send_message(transport, "x" * (4 << 20)))
            ended.append(name)

        async with anyio.create_task_group() as group:
            group.start_soon(wait, "receive")
            group.start_soon(wait, "send")
            await anyio.wait_all_tasks_blocked()
            transport.close()
        assert sorted(ended) == ["receive", "send"]


@on_both
async def test_no_more_is_read_ahead_than_one_piece() -> None:
    with open_ends() as (transport, peer):
        peer.send(text("first"))
        assert await transport.receive() == "first"
        sent = 0
        with suppress(BlockingIOError):
            while sent < 100 << 20:
                sent += peer.socket.send(b"\0" * RECEIVE_BYTES)
                await anyio.lowlevel.checkpoint()
        room = transport.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert sent < 4 * room + 2 * RECEIVE_BYTES, "the kernel's buffers, and ours"
