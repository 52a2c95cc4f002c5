"""A websocket on a stream: deadlines for progress, turns for everybody else, and clients and servers of strangers."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN, Protocol, Side

from fairq.io import transport as shared
from fairq.io.transport import PIECE_BYTES
from fairq.server.engine.net import transport as module
from fairq.server.engine.net.transport import SEND_S, SPARE_FRAMES, ServerTransport
from fairq.wire.connection_errors import Disconnected
from fairq.wire.websocket import WebSocket
from tests.sending import send_message

LIMIT = 1 << 22


class Client:
    """The other end of a stream, frame by frame."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.protocol = Protocol(Side.CLIENT, state=OPEN, max_size=None)

    async def send(self, *frames: Frame) -> None:
        """Send frames in one piece."""
        await self.stream.send_all(b"".join(frame.serialize(mask=True) for frame in frames))

    async def receive(self, max_bytes: int | None = None) -> list[Frame]:
        """Receive some bytes; returns the frames that they complete."""
        self.protocol.receive_data(bytes(await self.stream.receive_some(max_bytes)))
        return [event for event in self.protocol.events_received() if isinstance(event, Frame)]


@pytest.fixture
async def ends() -> tuple[ServerTransport, Client]:
    """Two ends of a connection; nobody has room for more than the other one reads."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    return ServerTransport.of(ours, WebSocket.of_server(LIMIT), "test"), Client(theirs)  # type: ignore[arg-type]


def text(data: str, final: bool = True) -> Frame:
    return Frame(Opcode.TEXT, data.encode(), final)


async def test_a_long_text_may_take_its_time_as_long_as_it_moves(
    ends: tuple[ServerTransport, Client], autojump_clock: object
) -> None:
    ours, client = ends
    sent = "x" * (20 * PIECE_BYTES)
    frames: list[Frame] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_message, ours, sent)
        while not frames:
            await trio.sleep(SEND_S - 0.1)
            frames = await client.receive(PIECE_BYTES)
    assert frames[0].data == sent.encode()
    assert trio.current_time() > 20 * (SEND_S - 0.2)


async def test_a_peer_that_reads_nothing_for_a_while_is_left(
    ends: tuple[ServerTransport, Client], autojump_clock: object
) -> None:
    ours, client = ends
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.receive, PIECE_BYTES)
        with pytest.raises(Disconnected, match="too slowly"):
            await send_message(ours, "x" * (3 * PIECE_BYTES))
    assert trio.current_time() == pytest.approx(began + SEND_S)
    with pytest.raises(Disconnected):
        await send_message(ours, "and no half of a frame is followed by another")
    with pytest.raises(Disconnected):
        await ours.receive()


async def test_texts_and_answers_to_pings_do_not_mix(ends: tuple[ServerTransport, Client]) -> None:
    ours, client = ends
    received: list[Frame] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for letter in "abc":
                nursery.start_soon(send_message, ours, letter * (2 * PIECE_BYTES))
            nursery.start_soon(ours.receive)
            await client.send(Frame(Opcode.PING, b"?"), text("done"))
            while len(received) < 4:
                received += await client.receive(1_000)
    assert sorted(bytes(frame.data[:1]) for frame in received) == [b"?", b"a", b"b", b"c"]
    assert {len(set(frame.data)) for frame in received} == {1}


@pytest.mark.parametrize("spare", [Frame(Opcode.PONG, b""), Frame(Opcode.PING, b"")], ids=["pongs", "pings"])
async def test_frames_that_say_nothing_are_read_so_many_a_second(
    ends: tuple[ServerTransport, Client], autojump_clock: object, spare: Frame
) -> None:
    ours, client = ends
    began = trio.current_time()

    async def read_on() -> None:
        while True:
            await client.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, *[*[spare] * (5 * SPARE_FRAMES), text("at last")])
        nursery.start_soon(read_on)
        assert await ours.receive() == "at last"
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began > 3


async def test_texts_are_not_held_up(ends: tuple[ServerTransport, Client], autojump_clock: object) -> None:
    ours, client = ends
    began, count = trio.current_time(), 5 * SPARE_FRAMES
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, *[text(str(n)) for n in range(count)])
        assert [await ours.receive() for _ in range(count)] == [str(n) for n in range(count)]
    assert trio.current_time() == began


@pytest.mark.parametrize(
    "frames",
    [
        [text("x")] * 2_000,
        [*([text("", False), *[Frame(Opcode.CONT, b"", False)] * 400, Frame(Opcode.CONT, b"")] * 2)],
        [text("x" * 100_000)],
    ],
    ids=["texts", "fragments", "a long one"],
)
async def test_others_have_their_turns_while_one_sends_much(
    ends: tuple[ServerTransport, Client], monkeypatch: pytest.MonkeyPatch, frames: list[Frame]
) -> None:
    """With no time for a turn at all, no more than a slice or a text is taken in at once."""
    for each in (shared, module):
        monkeypatch.setattr(each, "TURN_S", -1.0)
    ours, client = ends
    whole = sum(len(frame.serialize(mask=True)) for frame in frames)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            nursery.start_soon(client.send, *frames)
            for _ in range(sum(frame.fin for frame in frames)):
                await ours.receive()
            nursery.cancel_scope.cancel()
    assert turns >= whole // module.SLICE_BYTES


async def test_a_cancelled_receive_loses_nothing(ends: tuple[ServerTransport, Client], autojump_clock: object) -> None:
    ours, client = ends
    got: list[str | bytes] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            spare = [Frame(Opcode.PONG, b"")] * (SPARE_FRAMES + 400)
            nursery.start_soon(client.send, *[text("first"), *spare, text("between"), *spare, text("last")])
            while "last" not in got:
                with trio.move_on_after(0.1):
                    got.append(await ours.receive())
    assert got == ["first", "between", "last"]


async def test_what_comes_right_behind_the_handshake_has_no_longer_turn(autojump_clock: object) -> None:
    stream, _ = trio.testing.lockstep_stream_pair()
    frames = [*[Frame(Opcode.PONG, b"")] * (3 * SPARE_FRAMES), text("at last")]
    early = b"".join(frame.serialize(mask=True) for frame in frames)
    websocket, began = WebSocket.of_server(LIMIT), trio.current_time()
    ours = ServerTransport.of(stream, websocket, "test", early)  # type: ignore[arg-type]
    assert websocket.spare_frames == 0
    with trio.fail_after(60):
        assert await ours.receive() == "at last"
    assert trio.current_time() - began > 1


async def test_a_cancelled_send_is_the_connections_end(ends: tuple[ServerTransport, Client]) -> None:
    ours, client = ends
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_message, ours, "x" * (2 * PIECE_BYTES))
            await client.receive(1_000)
            nursery.cancel_scope.cancel()
        with pytest.raises(Disconnected):
            await send_message(ours, "more")
