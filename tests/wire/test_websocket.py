"""A websocket without I/O: what any bytes mean, compared with wsproto, and what a stranger may not do."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
import wsproto.events
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import OPEN, Protocol, Side
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.utilities import RemoteProtocolError

from fairq.wire.connection_errors import Refused
from fairq.wire.websocket import MAX_FRAGMENTS, ClientHandshake, WebSocket
from tests.store.cases import case

LIMIT = 1 << 20
MASK = b"\x11\x22\x33\x44"
REST = 140  # bytes that are more than what a frame may want still, and no frame themselves


def frame(opcode: int, payload: bytes = b"", final: bool = True, head: int = 0) -> bytes:
    """Spell a client's frame."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 65_536:
        length = bytes([0x80 | 126]) + struct.pack("!H", size)
    else:
        length = bytes([0x80 | 127]) + struct.pack("!Q", size)
    masked = bytes(byte ^ MASK[i % 4] for i, byte in enumerate(payload))
    return bytes([(0x80 if final else 0) | head | opcode]) + length + MASK + masked


def split(data: bytes, seed: int) -> list[bytes]:
    """Cut bytes into pieces at random."""
    source, pieces = random.Random(seed), []
    while data:
        size = source.choice([1, 2, 3, 7, 100, 5_000])
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def ours(pieces: list[bytes]) -> tuple[list[str | bytes], tuple[Any, ...]]:
    """Take bytes in; returns the messages, and how it ended."""
    websocket, messages = WebSocket.of_server(LIMIT), []
    for piece in pieces:
        messages += websocket.receive(piece)
    if websocket.has_failed and not websocket.end[0]:
        return messages, ("failed",)
    return messages, ("closed", *websocket.end) if websocket.is_over else ("open",)


def theirs(pieces: list[bytes]) -> tuple[list[str | bytes], tuple[Any, ...]]:
    """The same, as wsproto has it."""
    connection = Connection(ConnectionType.SERVER)
    messages: list[str | bytes] = []
    parts: list[Any] = []
    for piece in pieces:
        try:
            connection.receive_data(piece)
            for event in connection.events():
                if isinstance(event, wsproto.events.CloseConnection):
                    if connection.state is ConnectionState.OPEN:  # what it would send, since a rule was broken
                        return messages, ("failed",)
                    return messages, ("closed", int(event.code), event.reason or "")
                if isinstance(event, wsproto.events.Message):
                    parts.append(event.data)
                    if event.message_finished:
                        is_text = isinstance(event, wsproto.events.TextMessage)
                        messages.append("".join(parts) if is_text else b"".join(parts))
                        parts = []
        except RemoteProtocolError:
            return messages, ("failed",)
    return messages, ("open",)


texts = st.text(max_size=300).map(str.encode) | st.sampled_from([b"\xff\xfe", "é".encode()[:1], "é".encode()[1:]])
opcodes = st.sampled_from([0, 0, 1, 1, 2, 8, 9, 10, 3, 11])
_NEW = 1014  # "bad gateway", which wsproto does not know
codes = st.integers(0, 5_100).filter(lambda code: code != _NEW).map(lambda code: struct.pack("!H", code))
closes = st.builds(lambda code, reason: frame(8, code + reason[:100]), codes, texts)
frames = st.builds(frame, opcodes, texts, st.booleans(), st.sampled_from([0] * 20 + [0x40, 0x20, 0x10])) | closes
conversations = st.lists(frames | st.binary(max_size=1), max_size=12).map(b"".join)


def is_comparable(data: bytes) -> bool:
    """True if all lengths are spelt as short as can be, and none is over the limit: wsproto knows no limit."""
    websocket = Protocol(Side.SERVER, state=OPEN, max_size=None)
    at = 0
    websocket.receive_data(data)
    for event in websocket.events_received():
        assert isinstance(event, Frame)
        size, spelt = len(event.data), data[at + 1] & 0x7F
        if (spelt == 126 and size < 126) or (spelt == 127 and size < 65_536):
            return False
        at += 6 + size + (2 if spelt == 126 else 8 if spelt == 127 else 0)
    return len(data) < at + 2 or data[at + 1] & 0x7F < 126


@given(conversations, st.integers(0, 1_000))
def test_any_bytes_mean_what_they_mean_to_wsproto(data: bytes, seed: int) -> None:
    whole = data + bytes(REST)  # so that a frame has come to its end: only then is it looked at
    if is_comparable(data) and is_comparable(whole):
        assert ours(split(data, seed))[0] == theirs(split(data, seed))[0]
        assert ours(split(whole, seed)) == theirs(split(whole, seed))


def open_server() -> WebSocket:
    """Make the server's side of an open websocket."""
    return WebSocket.of_server(LIMIT)


def close_of(websocket: WebSocket) -> tuple[int, str]:
    """Read the close frame that a websocket sends."""
    client = Protocol(Side.CLIENT, state=OPEN)
    client.receive_data(websocket.outgoing())
    assert client.close_rcvd is not None
    return int(client.close_rcvd.code), client.close_rcvd.reason


def test_a_broken_rule_is_named() -> None:
    for data, code in [
        (frame(1, b"\xff"), 1007),
        (frame(1, b"\xff", final=False), 1007),
        (frame(1, "é".encode()[:1]), 1007),
        (frame(1, b"", head=0x40), 1002),
        (frame(3), 1002),
        (frame(0), 1002),
        (bytes([0x81, 0x00]), 1002),
        (bytes([0x81, 0xFF]) + struct.pack("!Q", LIMIT + 1) + MASK, 1009),
        (frame(1, b"x" * LIMIT, final=False) + frame(0, b"x"), 1009),
        (frame(1, b"x", final=False) * 2, 1002),
    ]:
        with case(data, code):
            websocket = open_server()
            assert websocket.receive(data) == []
            assert (websocket.has_failed, websocket.is_over, websocket.end[0]) == (True, True, 0)
            assert close_of(websocket)[0] == code
            assert websocket.receive(frame(1, b"more")) == []


def test_a_message_has_a_bounded_number_of_fragments() -> None:
    for part in [b"", b"x"]:
        with case(part):
            sound, broken = open_server(), open_server()
            parts = frame(1, b"", final=False) + frame(0, part, final=False) * (MAX_FRAGMENTS - 2)
            for _ in range(2):  # each message has as many
                assert sound.receive(parts + frame(0, b"end")) == [(part * (MAX_FRAGMENTS - 2) + b"end").decode()]
            assert broken.receive(parts + frame(0, part, final=False) + frame(0, b"end") + frame(1, b"after")) == []
            assert close_of(broken) == (1008, "a message may have at most 1024 fragments")


def test_frames_that_end_no_message_are_counted() -> None:
    websocket = open_server()
    websocket.receive(frame(9) + frame(10) + frame(1, b"a", final=False) + frame(9) + frame(0, b"b") + frame(1, b"c"))
    assert websocket.spare_frames == 4


def test_pings_are_answered_and_a_text_may_be_cut_anywhere() -> None:
    websocket, text = open_server(), "naïve — 漢字"
    whole = frame(9, b"there?") + b"".join(frame(0 if i else 1, bytes([b]), False) for i, b in enumerate(text.encode()))
    assert [m for piece in split(whole + frame(0), 3) for m in websocket.receive(piece)] == [text]
    assert websocket.outgoing() == bytes([0x8A, 6]) + b"there?"


def test_a_good_bye_is_answered_and_nothing_is_sent_behind_it() -> None:
    websocket = open_server()
    assert websocket.receive(frame(1, b"last") + frame(8, struct.pack("!H", 1001) + b"gone") + frame(1, b"no")) == [
        "last"
    ]
    assert (websocket.is_over, websocket.has_failed, websocket.end) == (True, False, (1001, "gone"))
    assert close_of(websocket) == (1001, "gone")
    websocket.send("more")
    websocket.close(1000)
    assert websocket.outgoing() == b""


def test_after_our_good_bye_what_is_under_way_still_comes() -> None:
    websocket = open_server()
    websocket.close(1001, "é" * 100)
    assert close_of(websocket) == (1001, "é" * 61)  # 123 bytes is what a close frame has room for
    assert websocket.receive(frame(1, b"late")) == ["late"]
    assert not websocket.is_over
    websocket.receive(frame(8, struct.pack("!H", 1001)))
    assert (websocket.is_over, websocket.has_failed) == (True, False)


def test_an_end_without_a_good_bye_has_no_code() -> None:
    websocket = open_server()
    websocket.receive_end()
    assert (websocket.is_over, websocket.has_failed, websocket.end) == (True, False, (0, "the connection was lost"))


def test_an_answer_that_is_no_websocket_is_refused() -> None:
    for answer, status, reason in [
        (b"HTTP/1.1 401 x\r\nContent-Length: 9\r\n\r\nno token\n", 401, "no token"),
        (b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n", 503, "HTTP 503"),
        (b"HTTP/1.1 301 x\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", 301, "HTTP 301"),
        (
            b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: no\r\n\r\n",
            0,
            "Accept",
        ),
        (b"SSH-2.0-OpenSSH\r\n\r\n", 0, "valid HTTP"),
        (b"", 0, "closed the connection before it answered"),
    ]:
        with case(answer, status, reason):
            handshake = ClientHandshake("ws://localhost:7700/", "secret")
            assert b"Authorization: Bearer secret\r\n" in handshake.outgoing()
            with pytest.raises(Refused, match=reason) as caught:
                handshake.receive(answer)
            assert caught.value.status == status


def test_what_comes_with_the_answer_is_not_lost() -> None:
    handshake = ClientHandshake("ws://localhost:7700/", "secret")
    server = ServerProtocol(subprotocols=[Subprotocol("fairq.v1")])
    server.receive_data(handshake.outgoing())
    (request,) = server.events_received()
    assert isinstance(request, Request)
    server.send_response(server.accept(request))
    server.send_text(b"welcome")
    websocket = handshake.receive(b"".join(server.data_to_send()))
    assert websocket is not None
    assert websocket.early == ["welcome"]


def test_a_message_reads_as_the_library_writes_it_and_the_other_way_round() -> None:
    for size in (0, 125, 126, 65_535, 65_536, LIMIT):
        for message in ("x" * size, b"\x00" * size):
            with case(type(message).__name__, size):
                server, library = open_server(), Protocol(Side.CLIENT, state=OPEN, max_size=LIMIT)
                send = library.send_text if isinstance(message, str) else library.send_binary
                send(message.encode() if isinstance(message, str) else message)
                pieces = split(b"".join(library.data_to_send()), size)
                assert [got for piece in pieces for got in server.receive(piece)] == [message]
                server.send(message)
                library.receive_data(server.outgoing())
                (event,) = library.events_received()
                assert isinstance(event, Frame)
                client = WebSocket(Protocol(Side.CLIENT, state=OPEN, max_size=LIMIT), LIMIT)
                client.send(message)
                assert bytes(event.data) == (message.encode() if isinstance(message, str) else message)
                assert open_server().receive(client.outgoing()) == [message]
