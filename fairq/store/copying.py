"""Copies fairq's keys from one store to another, by plain commands: so between Valkey and Redis of different versions.

A key goes in pieces of about a megabyte, whatever its size, so that neither store is held up and this process stays
small. The source must not change meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import trio
from attrs import define, field

from fairq.errors import Unavailable
from fairq.scopes import run_all
from fairq.store import keys

PATTERN = "fq:*"
AT_ONCE = 8  # keys under way
PIECE_BYTES, MAX_PIECE = 1 << 20, 1_000
_LENGTHS = {b"hash": "HLEN", b"zset": "ZCARD", b"set": "SCARD", b"list": "LLEN", b"string": "STRLEN", b"stream": "XLEN"}
_GONE = -2  # the expiry of a key that does not exist
_OF_SERVERS = (keys.SERVERS.encode(), f"{keys.WORKERS}:".encode(), keys.WRITTEN.encode())  # that run, or ran

_ADD = """\
local at = 1
while at < #ARGV do
  local count = tonumber(ARGV[at + 1])
  redis.call('XADD', KEYS[1], ARGV[at], unpack(ARGV, at + 2, at + 1 + count))
  at = at + 2 + count
end"""  # id, how many words, and they: of each entry

Call = Callable[..., Awaitable[Any]]
Command = tuple[Any, ...]


def is_of_servers(key: bytes) -> bool:
    """Tell whether a key tells of servers that run: of no use in another store."""
    return key.startswith(_OF_SERVERS)


async def scan(call: Call) -> AsyncGenerator[list[bytes], None]:
    """List fairq's keys in a node, some at a time; one may come twice."""
    cursor: Any = "0"
    while True:
        cursor, found = await call("SCAN", cursor, "MATCH", PATTERN, "COUNT", "1000")
        yield found
        if cursor == b"0":
            return


@define(eq=False)
class Copying:
    """A copy under way: from a node, to a store."""

    source: Call
    target: Call
    show: Callable[[int], None] = lambda _: None
    keys: int = field(default=0, init=False)
    tasks: int = field(default=0, init=False)
    queues: int = field(default=0, init=False)

    async def run(self) -> None:
        """Copy all keys but the version of the data. Raises: Unavailable if a copy differs from its source."""
        lines = [trio.open_memory_channel[bytes](1) for _ in range(AT_ONCE)]
        copies = [partial(self._copy_all, receive) for _, receive in lines]
        await run_all(partial(self._list, [send for send, _ in lines]), *copies, stops_at_failure=True)

    async def _list(self, lines: Sequence[trio.MemorySendChannel[bytes]]) -> None:
        async with aclosing(scan(self.source)) as found:
            async for some in found:
                for key in some:
                    if not is_of_servers(key) and key != keys.DATA_VERSION.encode():
                        await lines[hash(key) % AT_ONCE].send(key)  # one that comes twice: after itself
        for send in lines:
            send.close()

    async def _copy_all(self, receive: trio.MemoryReceiveChannel[bytes]) -> None:
        async for key in receive:
            await self._copy(key)

    async def _copy(self, key: bytes) -> None:
        kind = await self.source("TYPE", key)
        if kind == b"none":
            return  # it expired
        length = await self.source(_LENGTHS[kind], key)
        await self.target("UNLINK", key)  # a key may come twice, and the copy of a list must not
        async for command in self._pieces(kind, key, length):
            await self.target(*command)
        until = await self.source("PEXPIRETIME", key)
        if until == _GONE:  # it expired meanwhile
            await self.target("UNLINK", key)
            return
        copied = await self.target(_LENGTHS[kind], key)
        if copied != length:
            raise Unavailable(f"the copy of {key!r:.200} has {copied} entries in place of {length}: is the store used?")
        if until > 0:
            await self.target("PEXPIREAT", key, until)
        self._note(key, length)

    def _note(self, key: bytes, length: int) -> None:
        self.keys += 1
        self.show(self.keys)
        if key == keys.QUEUES.encode():
            self.queues = length
        elif key.endswith(b"}:tasks"):
            self.tasks += length

    async def _pieces(self, kind: bytes, key: bytes, length: int) -> AsyncIterator[Command]:
        """Make the commands that write a key."""
        size = max(1, await self.source("MEMORY", "USAGE", key, "SAMPLES", "20") or 1)
        count = max(1, min(MAX_PIECE, PIECE_BYTES * max(1, length) // size))
        match kind:
            case b"hash" | b"set" | b"zset":
                async for command in self._scanned(kind, key, count):
                    yield command
            case b"list":
                for start in range(0, length, count):
                    yield ("RPUSH", key, *await self.source("LRANGE", key, start, start + count - 1))
            case b"string":
                for start in range(0, max(1, length), PIECE_BYTES):
                    piece = await self.source("GETRANGE", key, start, start + PIECE_BYTES - 1)
                    yield ("APPEND", key, piece) if start else ("SET", key, piece)
            case b"stream":
                async for command in self._streamed(key, count):
                    yield command

    async def _scanned(self, kind: bytes, key: bytes, count: int) -> AsyncIterator[Command]:
        read, write = {b"hash": ("HSCAN", "HSET"), b"set": ("SSCAN", "SADD"), b"zset": ("ZSCAN", "ZADD")}[kind]
        cursor: Any = "0"
        while True:
            cursor, flat = await self.source(read, key, cursor, "COUNT", count)
            if kind == b"zset":  # member and score; written the other way round
                flat = [part for n in range(0, len(flat), 2) for part in (flat[n + 1], flat[n])]
            for some in _parts(flat, 2 * MAX_PIECE):
                yield (write, key, *some)
            if cursor == b"0":
                return

    async def _streamed(self, key: bytes, count: int) -> AsyncIterator[Command]:
        told = await self.source("XINFO", "STREAM", key)
        info = dict(zip(told[::2], told[1::2], strict=True))
        first = b"-"
        while rows := await self.source("XRANGE", key, first, "+", "COUNT", count):
            told = [part for id, fields in rows for part in (id, len(fields), *fields)]
            yield ("EVAL", _ADD, 1, key, *told)  # XADD takes one entry
            first = b"(" + rows[-1][0]
        last = info[b"last-generated-id"]
        if not info[b"length"]:
            yield ("XADD", key, last, "", "")
            yield ("XDEL", key, last)
        yield (
            "XSETID", key, last, "ENTRIESADDED", info[b"entries-added"], "MAXDELETEDID", info[b"max-deleted-entry-id"],
        )  # fmt: skip


def _parts(flat: Sequence[bytes], size: int) -> list[Sequence[bytes]]:
    """Cut into parts of `size` at most; also where a part's bytes are many."""
    parts, start, total = [], 0, 0
    for n in range(0, len(flat), 2):
        total += sum(map(len, flat[n : n + 2]))
        if n > start and (n - start >= size or total > PIECE_BYTES):
            parts.append(flat[start:n])
            start, total = n, sum(map(len, flat[n : n + 2]))
    return [*parts, flat[start:]] if start < len(flat) else parts
