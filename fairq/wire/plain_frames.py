"""Frames of a websocket (RFC 6455), as bytes: where each begins and ends, and how a message in one frame is written."""

from __future__ import annotations

import os
import struct

from websockets.frames import apply_mask  # type: ignore[attr-defined]  # in C, where the library has it so

from fairq.wire.raw_payloads import Message

TEXT, BINARY = 0x81, 0x82  # the first byte of a frame that is a whole message
NOT_YET, BROKEN = 0, -1  # in place of a frame's end
_MASK_BYTES = 4
_MASKED = 0x80  # in the second byte; the rest is the size, or stands for a longer one that follows
_TWO_BYTES, _EIGHT_BYTES = 126, 127
_CONTROL = frozenset({0x88, 0x89, 0x8A})
_FIRST = _CONTROL | {0x00, 0x01, 0x02, 0x80, TEXT, BINARY}


def find_frame(held: bytearray, at: int, max_bytes: int, *, is_masked: bool) -> tuple[int, int]:
    """Find the frame at a place; returns where its payload begins, and where it ends.

    In place of the end: NOT_YET if the frame is incomplete, BROKEN if it breaks a rule.
    """
    if len(held) < at + 2:
        return at, NOT_YET
    first, second = held[at], held[at + 1]
    size, begin = second & ~_MASKED, at + 2
    if first not in _FIRST or (second >= _MASKED) != is_masked or (size >= _TWO_BYTES and first in _CONTROL):
        return at, BROKEN
    if size >= _TWO_BYTES:
        begin += 2 if size == _TWO_BYTES else 8
        size = int.from_bytes(held[at + 2 : begin])  # too small if it has come in part: NOT_YET
        if size > max_bytes:
            return at, BROKEN
    if is_masked:
        begin += _MASK_BYTES
    return begin, begin + size if len(held) >= begin + size else NOT_YET


def read_message(held: bytearray, at: int, begin: int, end: int, *, is_masked: bool) -> Message:
    """Read the message of the frame at a place, given the bounds of its payload. Raises: UnicodeDecodeError."""
    payload: bytes | bytearray = held[begin:end]
    if is_masked:
        payload = apply_mask(payload, held[begin - _MASK_BYTES : begin])
    return payload.decode() if held[at] == TEXT else bytes(payload)


def write_frame(message: Message, *, is_masked: bool) -> tuple[bytes, bytes]:
    """Write a message as one frame: header and payload."""
    first, payload = (TEXT, message.encode()) if isinstance(message, str) else (BINARY, message)
    size, mark = len(payload), _MASKED if is_masked else 0
    if size < _TWO_BYTES:
        head = bytes((first, mark | size))
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, mark | _TWO_BYTES, size)
    else:
        head = struct.pack("!BBQ", first, mark | _EIGHT_BYTES, size)
    if not is_masked:
        return head, payload
    mask = os.urandom(_MASK_BYTES)
    return head + mask, apply_mask(payload, mask)
