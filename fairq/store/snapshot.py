"""Reads a snapshot of a node: its data at one point in time, as a replica gets it.

The node forks and sends its data as an RDB stream (PSYNC, like `redis-cli --rdb`). So nothing waits, no queue is read
while it changes, and all tasks acknowledged when the backup began are in it. Reading key by key (SCAN, DUMP) would mix
states: a task that moves meanwhile would be there twice, or be missing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import trio
from attrs import define, evolve

from fairq.errors import StoreRefused, Unavailable
from fairq.store.address import Address
from fairq.store.node import BROKEN, ask, cause_of, connect

SILENT_S = 90.0  # a node that forks says nothing for a while; a node that has died says nothing for longer
_CHUNK = 1 << 18
_MARK = 40  # bytes at the end of a stream of unknown length
_MAX_LINE = 4_096
_REMEDY = "it must be a primary, and its user needs +psync and +replconf; a managed store has snapshots of its own"


@define
class _Line:
    """The header of the data: `size` bytes follow, or (None) all up to the mark."""

    size: int | None
    mark: bytes


@define(eq=False)
class _Source:
    stream: trio.abc.Stream
    buffer: bytearray

    async def more(self) -> None:
        """Wait for bytes. Raises: Unavailable at the end, or after SILENT_S."""
        try:
            with trio.fail_after(SILENT_S):
                data = await self.stream.receive_some(_CHUNK)
        except (*BROKEN, trio.TooSlowError) as error:
            raise Unavailable(f"the store stopped in the middle of its snapshot: {cause_of(error)}") from None
        if not data:
            raise Unavailable("the store closed the connection in the middle of its snapshot")
        self.buffer += data

    async def line(self) -> bytes:
        """Read a line; empty ones are signs of life."""
        while True:
            at = self.buffer.find(b"\n")
            if at >= 0:
                line = bytes(self.buffer[:at]).strip()
                del self.buffer[: at + 1]
                if line:
                    return line
            elif len(self.buffer) > _MAX_LINE:
                raise Unavailable("the store does not answer like a primary")
            else:
                await self.more()


async def read_snapshot(address: Address) -> AsyncGenerator[bytes, None]:
    """Read the data of a node, all its databases, in pieces. Raises: Unavailable, StoreRefused."""
    try:
        with trio.fail_after(SILENT_S):
            stream, reader = await connect(evolve(address, database=0))
    except (*BROKEN, trio.TooSlowError) as error:
        raise Unavailable(f"cannot connect to {address.shown}: {cause_of(error)}") from None
    async with stream:
        try:
            with trio.fail_after(SILENT_S):
                await ask(stream, reader, "REPLCONF", "rdb-only", "1")  # the node keeps no later changes for us
                await ask(stream, reader, "REPLCONF", "capa", "eof")  # the node need not write a file of its own first
                await stream.send_all(b"PSYNC ? -1\r\n")
            source = _Source(stream, bytearray())
            begun = await _begin(source)
            pieces = _marked(source, begun.mark) if begun.size is None else _sized(source, begun.size)
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        except StoreRefused as error:
            raise StoreRefused(f"{address.shown} gives no snapshot: {error.message} ({_REMEDY})") from None


async def _begin(source: _Source) -> _Line:
    while True:
        line = await source.line()
        if line.startswith(b"-"):
            raise StoreRefused(line[1:].decode(errors="replace"))
        if line.startswith(b"$EOF:"):
            return _Line(None, line[5:])
        if line.startswith(b"$"):
            return _Line(int(line[1:]), b"")
        if not line.startswith(b"+"):
            raise Unavailable("the store does not answer like a primary")


async def _sized(source: _Source, size: int) -> AsyncGenerator[bytes, None]:
    while size:
        if not source.buffer:
            await source.more()
        piece = bytes(source.buffer[:size])
        del source.buffer[: len(piece)]
        size -= len(piece)
        yield piece


async def _marked(source: _Source, mark: bytes) -> AsyncGenerator[bytes, None]:
    assert len(mark) == _MARK
    while (at := source.buffer.find(mark)) < 0:
        if (ready := len(source.buffer) - _MARK) > 0:
            yield bytes(source.buffer[:ready])
            del source.buffer[:ready]
        await source.more()
    if at:
        yield bytes(source.buffer[:at])
