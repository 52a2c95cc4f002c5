"""One side of an open websocket (RFC 6455), without I/O: bytes in and messages out, texts in and bytes out.

The rules of its frames are those of the library `websockets`. The limits are ours, since a stranger chooses of how many
frames a message is made, and how many others it sends: each costs time, whatever it holds.
"""

from __future__ import annotations

import codecs

from attrs import define, field
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN, Protocol, Side
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from fairq.wire.messages import MAX_MESSAGE_BYTES, SUBPROTOCOL

MAX_FRAGMENTS = 1_024  # of one message


@define(eq=False)
class WebSocket:
    """The frames of one connection whose handshake is over.

    A message is a str, or None for a binary one. `spare_frames` counts frames so far that ended no message: pings,
    pongs, fragments. It is for the driver to bound how many there are in a second.
    """

    protocol: Protocol
    spare_frames: int = field(default=0, init=False)
    _fragments: int = field(default=0, init=False)
    _parts: list[str] = field(factory=list, init=False)
    _decoder: codecs.IncrementalDecoder | None = field(default=None, init=False)  # of the text that is under way
    _is_ended: bool = field(default=False, init=False)
    _broken: str | None = field(default=None, init=False)  # the rule of ours that the other side broke

    @classmethod
    def of_server(cls, max_message_bytes: int) -> WebSocket:
        """Make the server's side of a connection."""
        return cls(Protocol(Side.SERVER, state=OPEN, max_size=max_message_bytes))

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come: the other side has closed or gone, or has broken a rule."""
        return self._is_ended or self.protocol.close_rcvd is not None or self.has_failed

    @property
    def has_failed(self) -> bool:
        """Whether the other side broke a rule."""
        return self._broken is not None or isinstance(self.protocol.parser_exc, (WebSocketException, UnicodeError))

    @property
    def end(self) -> tuple[int, str]:
        """Tell the close code that the other side gave (0: none), and the reason of the end."""
        if self._broken is not None:
            return 0, self._broken
        if self.protocol.close_rcvd is not None:
            return int(self.protocol.close_rcvd.code), self.protocol.close_rcvd.reason
        if self.has_failed:
            return 0, str(self.protocol.parser_exc)
        return 0, "the connection was lost"

    def receive(self, data: bytes | bytearray) -> list[str | None]:
        """Take in bytes; returns the messages that they complete. `outgoing` may have something to say afterwards."""
        if not self.is_over:
            self.protocol.receive_data(data)
        return self.messages()

    def messages(self) -> list[str | None]:
        """Return the messages that have come and were not asked for yet."""
        messages: list[str | None] = []
        for event in self.protocol.events_received():
            assert isinstance(event, Frame)
            if self._broken is not None:
                break
            if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._take(event, messages)
            else:
                self.spare_frames += 1
        return messages

    def _take(self, frame: Frame, messages: list[str | None]) -> None:
        """Take in a message, or a part of one."""
        if frame.opcode is not Opcode.CONT:
            self._fragments, self._parts = 0, []
            self._decoder = codecs.getincrementaldecoder("utf-8")() if frame.opcode is Opcode.TEXT else None
        if not frame.fin:
            self.spare_frames += 1
            self._fragments += 1
            if self._fragments >= MAX_FRAGMENTS:
                return self.fail(CloseCode.POLICY_VIOLATION, f"a message of more than {MAX_FRAGMENTS} fragments")
        if self._decoder is not None:
            try:
                self._parts.append(self._decoder.decode(frame.data, frame.fin))
            except UnicodeDecodeError:
                return self.fail(CloseCode.INVALID_DATA, "a text message is UTF-8")
        if frame.fin:
            messages.append("".join(self._parts) if self._decoder is not None else None)
            self._parts = []
        return None

    def receive_end(self) -> None:
        """Take note that no more bytes will come."""
        self.protocol.receive_eof()
        self._is_ended = True

    def unlink(self) -> None:
        """Have the end of the connection leave no cycle of references behind; it is used no more."""
        if not self._is_ended:
            self.receive_end()
        self.protocol.parser_exc = None  # whose traceback leads back to the protocol

    def send(self, text: str) -> None:
        """Put a text into `outgoing`; nothing is sent any more once either side has closed."""
        if self.protocol.state is OPEN:
            self.protocol.send_text(text.encode())

    def close(self, code: int, reason: str = "") -> None:
        """Say good-bye; what still comes is received until the other side answers."""
        if self.protocol.state is OPEN:
            self.protocol.send_close(code, _short(reason))

    def fail(self, code: int, reason: str) -> None:
        """End the connection at once, for the other side broke a rule."""
        self._broken = reason
        if not self.protocol.eof_sent:  # nor has it ended already, by what came behind
            self.protocol.fail(code, _short(reason))

    def outgoing(self) -> bytes:
        """Take what is to be sent now."""
        return b"".join(self.protocol.data_to_send())


def _short(reason: str) -> str:
    """Cut a reason to what a close frame has room for: 123 bytes."""
    return reason.encode()[:123].decode(errors="ignore")


class Refused(Exception):
    """The server answered the handshake, but not with a websocket: `status` is HTTP's, 0 if it broke the rules."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ClientHandshake:
    """The client's side of a handshake: `outgoing` asks, and `receive` takes in the answer."""

    def __init__(self, url: str, token: str) -> None:
        self._protocol = ClientProtocol(
            parse_uri(url), subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=8 * MAX_MESSAGE_BYTES
        )
        request = self._protocol.connect()
        request.headers["Authorization"] = f"Bearer {token}"
        self._protocol.send_request(request)

    def outgoing(self) -> bytes:
        """Take what is to be sent."""
        return b"".join(self._protocol.data_to_send())

    def receive(self, data: bytes | bytearray) -> WebSocket | None:
        """Take in bytes (none: no more will come); returns the websocket once it is open. Raises: Refused."""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        error = self._protocol.handshake_exc
        if isinstance(error, InvalidStatus):
            status = error.response.status_code
            raise Refused(
                status, bytes(error.response.body or b"").decode(errors="replace").strip() or f"HTTP {status}"
            )
        if error is not None:
            raise Refused(0, "it ended the connection before it answered" if not data else str(error))
        if self._protocol.state is not OPEN:
            return None
        self._protocol.events = [event for event in self._protocol.events if isinstance(event, Frame)]
        return WebSocket(self._protocol)
