"""One side of an open websocket (RFC 6455), without I/O: bytes in and messages out, messages in and bytes out.

A message in one frame, as nearly all are, is read and written here. The library `websockets` has all other frames and
the handshake; it takes a frame once that has all come. The limits are ours: a client chooses how many frames a message
has and how many others it sends, and each frame costs time, even an empty one.
"""

from __future__ import annotations

import codecs
import logging
from typing import Any

from attrs import define, field
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN, Protocol, Side
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from fairq.wire.connection_errors import Refused
from fairq.wire.plain_frames import BINARY, BROKEN, NOT_YET, TEXT, find_frame, read_message, write_frame
from fairq.wire.raw_payloads import Message
from fairq.wire.terms import MAX_SERVER_MESSAGE_BYTES, SUBPROTOCOL

MAX_FRAGMENTS = 1_024  # of one message
_NOT_UTF8 = "text messages must be UTF-8"
_NO_LOG = logging.Logger("websockets")  # the library's own would log the token at DEBUG
_NO_LOG.disabled = True


@define(eq=False)
class WebSocket:
    """The frames of one connection, after its handshake.

    A message is a str, or bytes if it is binary. `spare_frames` counts all frames that ended no message: pings, pongs,
    fragments. The driver limits how many there are per second.
    """

    protocol: Protocol
    max_message_bytes: int
    spare_frames: int = field(default=0, init=False)
    _held: bytearray = field(factory=bytearray, init=False)  # of a frame that has not all come yet
    _is_broken: bool = field(default=False, init=False)  # a frame breaks a rule: the library finds out which
    _is_amid_message: bool = field(default=False, init=False)  # the last frame of data was not the end of one
    early: list[Message] = field(factory=list, init=False)  # came right behind the handshake
    _unsent: list[bytes] = field(factory=list, init=False)  # sent before the library's bytes
    _fragments: int = field(default=0, init=False)
    _parts: list[Any] = field(factory=list, init=False)  # str or bytes
    _decoder: codecs.IncrementalDecoder | None = field(default=None, init=False)  # of the text being received
    _is_ended: bool = field(default=False, init=False)
    _broken: str | None = field(default=None, init=False)  # which of our limits the other side broke

    @classmethod
    def of_server(cls, max_message_bytes: int) -> WebSocket:
        """Make the server's side of a connection."""
        protocol = Protocol(Side.SERVER, state=OPEN, max_size=max_message_bytes, logger=_NO_LOG)
        return cls(protocol, max_message_bytes)

    @property
    def is_over(self) -> bool:
        """True if no more messages will come: the other side has closed, has gone, or has broken a rule."""
        return self._is_ended or self.protocol.close_rcvd is not None or self.has_failed

    @property
    def has_failed(self) -> bool:
        """True if the other side broke a rule."""
        return self._broken is not None or isinstance(self.protocol.parser_exc, (WebSocketException, UnicodeError))

    @property
    def end(self) -> tuple[int, str]:
        """Return the close code that the other side sent (0: none), and why the connection ended."""
        if self._broken is not None:
            return 0, self._broken
        if self.protocol.close_rcvd is not None:
            return int(self.protocol.close_rcvd.code), self.protocol.close_rcvd.reason
        if self.has_failed:
            return 0, str(self.protocol.parser_exc)
        return 0, "the connection was lost"

    def receive(self, data: bytes | bytearray) -> list[Message]:
        """Process bytes; returns the messages that they complete. Afterwards `outgoing` may have bytes to send."""
        messages: list[Message] = []
        held, at, is_masked = self._held, 0, self.protocol.side is Side.SERVER
        if self.is_over:
            return messages
        held += data
        while at < len(held) and not (at and self.is_over):
            begin, end = find_frame(held, at, self.max_message_bytes, is_masked=is_masked)
            if self._is_broken or end == BROKEN:
                self._is_broken, end = True, len(held)
            elif end == NOT_YET:
                break
            if held[at] in (TEXT, BINARY) and not self._is_amid_message and not self._is_broken:
                try:
                    messages.append(read_message(held, at, begin, end, is_masked=is_masked))
                except UnicodeDecodeError:
                    self.fail(CloseCode.INVALID_DATA, _NOT_UTF8)
            else:
                self.protocol.receive_data(held[at:end])
                self._take_events(messages)
            at = end
        del held[:at]
        return messages

    def _take_events(self, messages: list[Message]) -> None:
        """Take the frames that the library has read; append complete messages to `messages`."""
        for event in self.protocol.events_received():
            assert isinstance(event, Frame)
            if self._broken is not None:
                break
            if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._take(event, messages)
            else:
                self.spare_frames += 1

    def _take(self, frame: Frame, messages: list[Message]) -> None:
        """Add a frame to the message; append the message to `messages` if it is complete."""
        if frame.opcode is not Opcode.CONT:
            self._fragments, self._parts = 0, []
            self._decoder = codecs.getincrementaldecoder("utf-8")() if frame.opcode is Opcode.TEXT else None
        self._is_amid_message = not frame.fin
        if not frame.fin:
            self.spare_frames += 1
            self._fragments += 1
            if self._fragments >= MAX_FRAGMENTS:
                return self.fail(CloseCode.POLICY_VIOLATION, f"a message may have at most {MAX_FRAGMENTS} fragments")
        try:
            self._parts.append(self._decoder.decode(frame.data, frame.fin) if self._decoder else bytes(frame.data))
        except UnicodeDecodeError:
            return self.fail(CloseCode.INVALID_DATA, _NOT_UTF8)
        if frame.fin:
            messages.append("".join(self._parts) if self._decoder else b"".join(self._parts))
            self._parts = []
        return None

    def receive_end(self) -> None:
        """Note that no more bytes will come."""
        self.protocol.receive_eof()
        self._is_ended = True
        self._held.clear()

    def unlink(self) -> None:
        """Break reference cycles after the end of the connection; the websocket is not used any more."""
        if not self._is_ended:
            self.receive_end()
        self.protocol.parser_exc = None  # its traceback refers to the protocol

    def send(self, message: Message) -> None:
        """Put a message into `outgoing`; does nothing once either side has closed."""
        if self.protocol.state is OPEN:
            self._unsent += write_frame(message, is_masked=self.protocol.side is Side.CLIENT)

    def ping(self) -> None:
        """Send a ping, which the other side's websocket answers by itself; does nothing once either side has closed."""
        if self.protocol.state is OPEN:
            self.protocol.send_ping(b"")

    def close(self, code: int, reason: str = "") -> None:
        """Send a close frame; messages are still received until the other side answers."""
        if self.protocol.state is OPEN:
            self.protocol.send_close(code, _short(reason))

    def fail(self, code: int, reason: str) -> None:
        """End the connection at once, because the other side broke a rule."""
        self._broken = reason
        if not self.protocol.eof_sent:  # later input may have ended it already
            self.protocol.fail(code, _short(reason))

    def outgoing(self) -> bytes:
        """Return the bytes to send now, and forget them."""
        if not self._unsent and not self.protocol.writes:
            return b""
        if self.protocol.writes:
            self._unsent += self.protocol.data_to_send()
        data = b"".join(self._unsent)
        self._unsent.clear()
        return data


def _short(reason: str) -> str:
    """Cut a reason to the 123 bytes that fit in a close frame."""
    return reason.encode()[:123].decode(errors="ignore")


class ClientHandshake:
    """The client's side of a handshake: send `outgoing`, and pass the answer to `receive`."""

    def __init__(self, url: str, token: str) -> None:
        self._protocol = ClientProtocol(
            parse_uri(url), subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=MAX_SERVER_MESSAGE_BYTES, logger=_NO_LOG
        )
        request = self._protocol.connect()
        request.headers["Authorization"] = f"Bearer {token}"
        self._protocol.send_request(request)

    def outgoing(self) -> bytes:
        """Return the bytes to send, and forget them."""
        return b"".join(self._protocol.data_to_send())

    def receive(self, data: bytes | bytearray) -> WebSocket | None:
        """Process bytes (empty: no more will come); returns the websocket once it is open. Raises: Refused."""
        if not data:
            self._protocol.receive_eof()
        at = 0
        while at < len(data) and self._protocol.state is not OPEN:  # bytes after the answer are the websocket's
            end = data.find(b"\n", at) + 1 or len(data)
            self._protocol.receive_data(data[at:end])
            at = end
        error = self._protocol.handshake_exc
        if isinstance(error, InvalidStatus):
            status = error.response.status_code
            raise Refused(
                status, bytes(error.response.body or b"").decode(errors="replace").strip() or f"HTTP {status}"
            )
        if error is not None:
            raise Refused(0, "the server closed the connection before it answered" if not data else str(error))
        if self._protocol.state is not OPEN:
            return None
        self._protocol.events_received()
        websocket = WebSocket(self._protocol, MAX_SERVER_MESSAGE_BYTES)
        websocket.early = websocket.receive(data[at:])
        return websocket
