"""The library in a Lua of the test's own, whose instructions are counted; its commands go to a real store.

Of the store's Lua it lacks the sandbox, and `struct`, `bit` and `cmsgpack`, which Python stands in for.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import lupa.lua51
import ormsgpack
import redis

from fairq.store import library

ITEM = re.compile(rb"c(\d+)|([BbHhIid])")
COUNTER = b"""
local sethook, count = debug.sethook, 0
function count_on() sethook(function() count = count + 1 end, '', 1) end
function count_off() sethook() local counted = count count = 0 return counted end
"""


def items(fmt: bytes) -> list[tuple[int | None, str]]:
    """Parse a format of Lua's struct: the length of a text (0: it stands in the item before), or a number's code."""
    return [(int(found[1]), "") if found[1] else (None, found[2].decode()) for found in ITEM.finditer(fmt)]


def pack(fmt: bytes, *values: Any) -> bytes:
    """Pack as Lua's struct does."""
    parts = list[bytes]()
    for (length, code), value in zip(items(fmt), values, strict=True):
        if length is None:
            parts.append(struct.pack(f"<{code}", value if code == "d" else int(value)))
        else:
            parts.append(spell(value)[: length or None])
    return b"".join(parts)


def unpack(fmt: bytes, text: bytes, position: float = 1) -> tuple[Any, ...]:
    """Unpack as Lua's struct does: the values, and the position behind them."""
    at, values = int(position) - 1, list[Any]()
    for length, code in items(fmt):
        if length is None:
            (value,) = struct.unpack_from(f"<{code}", text, at)
            at += struct.calcsize(f"<{code}")
        else:
            size = length or int(values.pop())
            value, at = text[at : at + size], at + size
        values.append(value)
    return *values, at + 1


def spell(value: Any) -> bytes:
    """Spell an argument of a command as the store's Lua does."""
    return value if isinstance(value, bytes) else b"%.17g" % value


class CountingLua:
    """A client for the library's functions only: it carries them out itself."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.instructions = 0
        self._lua = lupa.lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._functions: dict[str, Callable[..., Any]] = {}
        names = self._lua.globals()
        names[b"redis"] = self._table(call=self._call, pcall=self._call, register_function=self._register)
        names[b"struct"] = self._table(pack=pack, unpack=unpack)
        names[b"cmsgpack"] = self._table(unpack=lambda packed: self._table(**ormsgpack.unpackb(packed)))
        self._lua.execute(COUNTER)
        self._lua.execute(library.source().partition("\n")[2].encode())
        self._count_on, self._count_off = names[b"count_on"], names[b"count_off"]

    def set(self, key: str, value: int) -> None:
        """Set a key of the store."""
        self.client.set(key, value)

    def fcall(self, name: str, keys: int, *args: object) -> Any:
        """Carry out a function of the library, and count its instructions."""
        given = [each if isinstance(each, bytes) else str(each).encode() for each in args]
        self._count_on()
        try:
            reply = self._functions[name](self._lua.table(*given[:keys]), self._lua.table(*given[keys:]))
        finally:
            self.instructions += int(self._count_off())
        return self._reply(reply)

    def _table(self, **fields: Any) -> Any:
        return self._lua.table_from({name.encode(): value for name, value in fields.items()})

    def _register(self, function: Any) -> None:
        self._functions[function[b"function_name"].decode()] = function[b"callback"]

    def _call(self, *words: Any) -> Any:
        connection = self.client.connection_pool.get_connection()
        try:
            connection.send_command(*map(spell, words))
            return self._value(connection.read_response())
        finally:
            self.client.connection_pool.release(connection)

    def _value(self, reply: Any) -> Any:
        if isinstance(reply, list):
            return self._lua.table(*map(self._value, reply))
        return False if reply is None else reply

    def _reply(self, value: Any) -> Any:
        if lupa.lua51.lua_type(value) == "table":
            return [self._reply(value[n]) for n in range(1, len(value) + 1)]
        return None if value is False else value
