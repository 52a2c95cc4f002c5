"""The file of a backup: a first line, then blocks, each with a checksum; the last one says that it is whole.

A block: its kind (one byte), the length of its content (four bytes, little-endian), the content (at most 1 MiB), and
16 bytes of BLAKE2b over the block's number, its kind and content: a block that is changed, lost, doubled or moved is
found.

| kind | content |
|---|---|
| H | header, JSON: the versions of the format's writer and of the data, when, and which database of how many nodes |
| N | the snapshot of a node begins, JSON: its address |
| D | a piece of it: the node's data in the store's own format (RDB), which has a checksum too |
| Z | end, JSON: how many bytes of data |
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, BinaryIO

import orjson
from attrs import asdict, define, field, frozen

from fairq.errors import BadRequest

FIRST_LINE = b"fairq backup 1\n"
MAX_BLOCK = 1 << 20
_HEAD = struct.Struct("<cI")
_SUM = 16


@frozen
class Header:
    """What a backup is of."""

    data_version: int
    made_at: str  # ISO 8601, UTC
    fairq: str
    store: str  # its kind and version
    database: int
    nodes: int


def _sum(number: int, kind: bytes, content: bytes) -> bytes:
    return blake2b(struct.pack("<Qc", number, kind) + content, digest_size=_SUM).digest()


@define(eq=False)
class Writer:
    """Writes a backup."""

    file: BinaryIO
    size: int = field(default=0, init=False)  # of the data, in bytes
    _number: int = field(default=0, init=False)
    _kept: bytearray = field(factory=bytearray, init=False)

    def begin(self, header: Header) -> None:
        """Write what stands before all data."""
        self.file.write(FIRST_LINE)
        self._write(b"H", orjson.dumps(asdict(header)))

    def begin_node(self, shown: str) -> None:
        """Begin the snapshot of a node."""
        self._flush()
        self._write(b"N", orjson.dumps({"node": shown}))

    def add(self, piece: bytes) -> None:
        """Write a piece of the node's data."""
        self.size += len(piece)
        self._kept += piece
        while len(self._kept) >= MAX_BLOCK:
            self._write(b"D", bytes(self._kept[:MAX_BLOCK]))
            del self._kept[:MAX_BLOCK]

    def end(self) -> None:
        """Say that the backup is whole."""
        self._flush()
        self._write(b"Z", orjson.dumps({"bytes": self.size}))
        self.file.flush()

    def _flush(self) -> None:
        if self._kept:
            self._write(b"D", bytes(self._kept))
            self._kept.clear()

    def _write(self, kind: bytes, content: bytes) -> None:
        self.file.write(_HEAD.pack(kind, len(content)) + content + _sum(self._number, kind, content))
        self._number += 1


def read_blocks(file: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Read the blocks of a backup: kind and content. Raises: BadRequest if it is none, is damaged or was cut off."""
    if file.read(len(FIRST_LINE)) != FIRST_LINE:
        raise _bad("it is no backup of fairq, or of a later version")
    number, size, kind = 0, 0, b""
    while kind != b"Z":
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise _bad(f"it was cut off after block {number}")
        kind, length = _HEAD.unpack(head)
        if length > MAX_BLOCK:
            raise _bad(f"block {number} is damaged")
        content = file.read(length)
        if len(content) < length or file.read(_SUM) != _sum(number, kind, content):
            raise _bad(f"block {number} is damaged")
        if kind == b"D":
            size += length
        yield kind, content
        number += 1
    if orjson.loads(content)["bytes"] != size or file.read(1):
        raise _bad("blocks are missing, or something follows its end")


def read_header(file: BinaryIO) -> Header:
    """Read the header of a backup, and go back to its beginning. Raises: BadRequest."""
    kind, content = next(read_blocks(file))
    file.seek(0)
    if kind != b"H":
        raise _bad("it has no header")
    told: dict[str, Any] = orjson.loads(content)
    return Header(**{name: told[name] for name in Header.__annotations__})


def _bad(why: str) -> BadRequest:
    return BadRequest(f"the backup cannot be used: {why}", field="file")
