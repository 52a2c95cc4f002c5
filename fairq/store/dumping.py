"""Writes what is true of a store as lines of a backup, from a copy of a node's data that does not change."""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from fairq.store import keys
from fairq.store.backup_lines import FORMATS, dump, tell_map, tell_number, tell_record, tell_text

PATTERN = "fq:*"
PAGE = 500
DELETING = 2  # the stage of a queue
TASK = 1  # the first byte of a task's record; another one: a mark of one that has ended
IS_LARGE = 4  # of a task's features: its payload stands apart
STREAMS = {
    f"{keys.AUDIT}:changes": "operators", f"{keys.TENANTS_AUDIT}:changes": "tenants", f"{keys.AUDIT}:begun": "begun",
}  # fmt: skip
RECORDS = {
    b"opening_hours": ("opening_hours", "HOURS"), b"webhooks": ("webhook", "WEBHOOK"),
    b"batches": ("batch", "BATCH"),
}  # fmt: skip
TIMES = {b"opening_changes": "opening_change", b"cancelling": "cancelling", b"fires": "fire"}
_NAME = re.compile(rb"fq:\{([a-z0-9][a-z0-9_-]*)/0\}:([a-z_]+)(?::(.*))?", re.DOTALL)
_KEPT = struct.Struct("<c4sI")  # of a member of `ends`: what, the tenant's tag, how many bytes; its name follows

Call = Callable[..., Awaitable[Any]]


async def scan(call: Call) -> AsyncGenerator[list[bytes], None]:
    """List fairq's keys in a node, some at a time; one may come twice."""
    cursor: Any = "0"
    while True:
        cursor, found = await call("SCAN", cursor, "MATCH", PATTERN, "COUNT", "1000")
        yield found
        if cursor == b"0":
            return


async def lines_of(call: Call) -> AsyncGenerator[bytes, None]:
    """Write the lines of all that is true in a node; derived keys, and those of living servers, have none."""
    streams = set[bytes]()
    async with aclosing(scan(call)) as found:
        async for some in found:
            for key in some:
                if key in streams:
                    continue  # it comes twice, and events may not
                async with aclosing(_lines_of_key(call, key, streams)) as lines:
                    async for line in lines:
                        yield line


async def _lines_of_key(call: Call, key: bytes, streams: set[bytes]) -> AsyncGenerator[bytes, None]:
    of_service = key.decode(errors="replace")
    found = _NAME.fullmatch(key)
    if of_service == keys.QUEUES:
        async for pairs in scanned(call, "HSCAN", key):
            for name, made in pairs:
                yield dump({"kind": "queue", "queue": name.decode(), "made": made.decode()})
    elif of_service in (keys.TOKENS, keys.TOKEN_USES):
        async for pairs in scanned(call, "HSCAN", key):
            for id, value in pairs:
                kind = "token" if of_service == keys.TOKENS else "token_use"
                yield dump({"kind": kind, "id": id.decode(), "value": orjson.loads(value)})
    elif of_service in STREAMS:
        streams.add(key)
        async for entry, fields in _entries(call, key):
            yield dump({"kind": "audit", "stream": STREAMS[of_service], "id": entry, "fields": fields})
    elif found and found[1] != b"queues":
        async with aclosing(_lines_in_queue(call, key, found, streams)) as lines:
            async for line in lines:
                yield line


async def _lines_in_queue(
    call: Call, key: bytes, found: re.Match[bytes], streams: set[bytes]
) -> AsyncGenerator[bytes, None]:
    queue, name, rest = found[1].decode(), found[2], found[3]
    prefix = keys.queue_prefix(queue) + ":"
    if name == b"queue" and rest is None:
        async for line in _state(call, queue, await call("GET", key)):
            yield line
    elif name == b"accounts":
        async for pairs in scanned(call, "HSCAN", key):
            for line in await _tenants(call, queue, pairs):
                yield line
    elif name == b"limits":
        async for pairs in scanned(call, "HSCAN", key):
            for id, packed in pairs:
                yield dump({"kind": "limits", "queue": queue, "id": tell_text(id), "limits": tell_map(packed)})
    elif name in RECORDS:
        kind, record = RECORDS[name]
        async for pairs in scanned(call, "HSCAN", key):
            for id, packed in pairs:
                yield dump({"kind": kind, "queue": queue, "id": tell_text(id)} | tell_record(record, packed)[0])
    elif name == b"tasks":
        async for pairs in scanned(call, "HSCAN", key):
            async for line in _tasks(call, queue, prefix, pairs):
                yield line
    elif name == b"payloads":
        async for line in _callbacks(call, queue, prefix, key):
            yield line
    elif name == b"schedules" and rest is not None:
        async for pairs in scanned(call, "HSCAN", key):
            for id, packed in pairs:
                head = {"kind": "schedule", "queue": queue, "tenant": rest.decode(), "id": tell_text(id)}
                yield dump(head | tell_record("SCHEDULE", packed)[0])
    elif name == b"templates":
        async for pairs in scanned(call, "HSCAN", key):
            for id, packed in pairs:
                told, _ = tell_record("TEMPLATE", packed)
                del told["payload"]
                payload = FORMATS["TEMPLATE"].unpack(packed)[0]["payload"]
                yield dump({"kind": "template", "queue": queue, "id": tell_text(id)} | told, payload)
    elif name in TIMES:
        async for pairs in scanned(call, "ZSCAN", key):
            for id, at in pairs:
                yield dump({"kind": TIMES[name], "queue": queue, "id": tell_text(id), "at": tell_number(float(at))})
    elif name == b"ends":
        async for pairs in scanned(call, "ZSCAN", key):
            for member, until in pairs:
                yield dump({"kind": "kept", "queue": queue} | _kept(member, until))
    elif name in (b"result", b"unique") and rest is not None:
        until, _, value = (await call("GET", key) or b"").partition(b" ")
        if until:
            head = {"kind": name.decode(), "queue": queue, "id": tell_text(rest)}
            yield dump(head | {"until": tell_number(float(until)), "value": tell_text(value)})
    elif name == b"events" and rest is not None:
        streams.add(key)
        async for entry, fields in _entries(call, key):
            yield dump({"kind": "event", "queue": queue, "tenant": rest.decode(), "id": entry, "fields": fields})


async def _state(call: Call, queue: str, packed: bytes) -> AsyncGenerator[bytes, None]:
    told, _ = tell_record("QUEUE", packed) if packed else ({"stage": DELETING}, 0)
    if told["stage"] != DELETING:  # else the same deletion removes what is left of it
        yield dump({"kind": "state", "queue": queue} | told)


async def _tenants(call: Call, queue: str, pairs: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    accounts = [(tag, tell_record("ACCOUNT", packed)[0]) for tag, packed in pairs]
    if not accounts:
        return []
    names = [account["name"] for _, account in accounts]
    details = await call("HMGET", keys.queue_prefix(queue) + ":tenants", *names)
    return [
        dump({
            "kind": "tenant", "queue": queue, "tag": int.from_bytes(tag, "little"), "account": account,
            "details": tell_record("DETAILS", packed)[0] if packed else None,
        })
        for (tag, account), packed in zip(accounts, details, strict=True)
    ]  # fmt: skip


async def _tasks(
    call: Call, queue: str, prefix: str, pairs: Sequence[tuple[bytes, bytes]]
) -> AsyncGenerator[bytes, None]:
    for id, packed in pairs:
        if packed[0] != TASK:
            yield dump({"kind": "done", "queue": queue, "id": tell_text(id)} | tell_record("MARK", packed)[0])
    tasks = [(id, packed, *tell_record("HEADER", packed)) for id, packed in pairs if packed[0] == TASK]
    if not tasks:
        return
    ids = [id for id, *_ in tasks]
    options = await call("HMGET", prefix + "task_options", *ids)
    runs = await call("HMGET", prefix + "runs", *ids)
    deaths = await call("HMGET", prefix + "dead", *ids)
    starts = dict[bytes, Any]()
    for tenant in {header["tenant"] for _, _, header, _ in tasks}:
        theirs = [id for id, _, header, _ in tasks if header["tenant"] == tenant]
        starts |= zip(theirs, await call("ZMSCORE", f"{prefix}delayed:{tenant}", *theirs), strict=True)
    for (id, packed, header, end), option, run, death in zip(tasks, options, runs, deaths, strict=True):
        line = {"kind": "task", "queue": queue, "id": tell_text(id)} | header
        if option:
            line["options"] = tell_map(option)
        for name, record, found in (("run", "RUN", run), ("death", "DEATH", death)):
            if found:
                line[name] = tell_record(record, found)[0]
        if starts[id] is not None:
            line["delayed_until"] = tell_number(float(starts[id]))
        is_large = header["features"] & IS_LARGE
        yield dump(line, await call("HGET", prefix + "payloads", id) or b"" if is_large else packed[end:])


async def _callbacks(call: Call, queue: str, prefix: str, key: bytes) -> AsyncGenerator[bytes, None]:
    """Write the payloads of callback tasks: those that no task has yet."""
    cursor: Any = "0"
    while True:
        cursor, flat = await call("HSCAN", key, cursor, "COUNT", 4)
        ids = flat[::2]
        known = await call("HMGET", prefix + "tasks", *ids) if ids else []
        for id, payload, record in zip(ids, flat[1::2], known, strict=True):
            if not record or record[0] != TASK:
                yield dump({"kind": "callback", "queue": queue, "id": tell_text(id)}, payload)
        if cursor == b"0":
            return


def _kept(member: bytes, until: bytes) -> dict[str, Any]:
    what, tag, size = _KEPT.unpack_from(member)
    return {
        "of": what.decode(), "tag": int.from_bytes(tag, "little"), "bytes": size,
        "id": tell_text(member[_KEPT.size :]), "until": tell_number(float(until)),
    }  # fmt: skip


async def scanned(call: Call, command: str, key: bytes) -> AsyncGenerator[list[tuple[bytes, bytes]], None]:
    """Read a hash or a sorted set in pages of pairs; one may come twice."""
    cursor: Any = "0"
    while True:
        cursor, flat = await call(command, key, cursor, "COUNT", PAGE)
        yield list(zip(flat[::2], flat[1::2], strict=True))
        if cursor == b"0":
            return


async def _entries(call: Call, key: bytes) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    first = b"-"
    while rows := await call("XRANGE", key, first, "+", "COUNT", PAGE):
        for id, flat in rows:
            yield id.decode(), dict(_fields(flat))
        first = b"(" + rows[-1][0]


def _fields(flat: Sequence[bytes]) -> Iterator[tuple[str, Any]]:
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        yield name.decode(), tell_text(value)
