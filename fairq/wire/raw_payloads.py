"""Raw payloads: they travel after their frame, in the same message, so that a server need not parse them.

A payload of more than MAX_INLINE_BYTES stands as `payload_bytes` in its frame, and the frame in a binary message: its
JSON text, a line feed, and those payloads, in the order of their `payload_bytes`. The server stores and forwards such a
payload unchanged. Only its reader checks that it is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from attrs import define, field, frozen

from fairq.errors import BadFrame, TooLarge
from fairq.model.checks import MAX_INLINE_BYTES

_LINE_FEED = b"\n"
_MAX_BYTES_PER_CHAR = 4  # in UTF-8
_MAX_BRACKETS = 250  # with fewer a payload cannot be nested too deeply

Message = str | bytes  # a text or binary message of the websocket


@frozen
class RawPayload:
    """A payload as JSON text, sent after its frame."""

    text: bytes


@frozen
class Unreadable:
    """Stands for a payload that is not JSON, and says why."""

    error: str


def check_payload_size(size: int, max_bytes: int) -> None:
    """Refuse a payload that is longer than a server takes. Raises: TooLarge."""
    if size > max_bytes:
        raise TooLarge(f"payload has {size} bytes; the limit is {max_bytes} (max_payload_bytes)", field="payload")


def check_inline(payload: bytes) -> bytes:
    """Return a payload if it may travel inside a frame. Raises: TooLarge."""
    if len(payload) > MAX_INLINE_BYTES:
        raise TooLarge(
            f"payload has {len(payload)} bytes; the limit inside a frame is {MAX_INLINE_BYTES}", field="payload"
        )
    return payload


def payload_field(payload: bytes) -> tuple[str, Any]:
    """Return the name and value of the field that carries a payload; an empty one, lost by the store, is no JSON."""
    if not payload or len(payload) > MAX_INLINE_BYTES:
        return "payload_bytes", RawPayload(payload)
    return "payload", orjson.Fragment(payload)


def to_message(frame: Mapping[str, Any]) -> Message:
    """Write a frame; its `RawPayload` values become their lengths."""
    payloads: list[bytes] = []

    def move(value: object) -> int:
        if type(value) is not RawPayload:
            raise TypeError(f"{type(value).__name__} is not JSON")
        payloads.append(value.text)
        return len(value.text)

    text = orjson.dumps(frame, default=move)
    return _LINE_FEED.join((text, b"".join(payloads))) if payloads else text.decode()


@define(eq=False)
class Payloads:
    """The raw payloads of a message, taken in order."""

    _rest: memoryview
    _at: int = field(default=0, init=False)

    def take(self, size: int) -> bytes:
        """Take the next payload. Raises: BadFrame if there are fewer bytes."""
        payload = bytes(self._rest[self._at : self._at + size])
        if len(payload) != size:
            raise BadFrame("the message ends before its payloads do")
        self._at += size
        return payload

    def check_end(self) -> None:
        """Check that all were taken. Raises: BadFrame."""
        if self._at != len(self._rest):
            raise BadFrame("the message has bytes that belong to no payload")


NO_PAYLOADS = Payloads(memoryview(b""))


def size_of(message: Message, limit: int) -> int:
    """Count a message's bytes; exactly only if they might exceed a limit."""
    if isinstance(message, bytes) or _MAX_BYTES_PER_CHAR * len(message) <= limit:
        return len(message)
    return len(message.encode())


def split(message: Message) -> tuple[str, Payloads]:
    """Divide a message into the frame's text and its raw payloads. Raises: BadFrame."""
    if isinstance(message, str):
        return message, NO_PAYLOADS
    end = message.find(_LINE_FEED)
    if end < 0:
        raise BadFrame("a binary message must be a frame on one line, and payloads")
    try:
        return message[:end].decode(), Payloads(memoryview(message)[end + 1 :])
    except UnicodeDecodeError:
        raise BadFrame("a frame must be UTF-8") from None


def decode_payload(payload: bytes) -> Any:
    """Read a payload; returns Unreadable if it is not JSON, or nested more deeply than inside a frame."""
    try:
        value = orjson.loads(payload)
        if payload.count(b"[") + payload.count(b"{") > _MAX_BRACKETS:
            orjson.dumps([[[value]]])  # handlers, tables and webhooks must be able to write it again
    except orjson.JSONDecodeError as error:
        return Unreadable(str(error))
    except orjson.JSONEncodeError:
        return Unreadable("nested too deeply")
    return value
