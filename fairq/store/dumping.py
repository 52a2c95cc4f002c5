"""Writes the primary data of a store as lines of a backup, from a copy of a node's data that does not change."""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import orjson
from attrs import define, field

from fairq.store import keys
from fairq.store.backup_lines import dump, read_text, tell_map, tell_number, tell_record, tell_text

PATTERN = "fq:*"
PAGE, LONG_PAGE, KEPT_PAGE = 500, 4, 50  # elements; those that may be long; results
MADE = 1  # the stage of a queue
TASK = 1  # the first byte of a task's record; another one: a mark of one that has ended
IS_LARGE = 4  # of a task's features: its payload stands apart
STREAMS = {
    f"{keys.AUDIT}:changes": "operators", f"{keys.TENANTS_AUDIT}:changes": "tenants", f"{keys.AUDIT}:begun": "begun",
}  # fmt: skip
RECORDS = {
    "opening_hours": ("opening_hours", "HOURS"), "webhooks": ("webhook", "WEBHOOK"), "batches": ("batch", "BATCH"),
}  # fmt: skip
TIMES = {"opening_changes": "opening_change", "cancelling": "cancelling", "fires": "fire", "declared": "declared"}
_OF_SERVICE = (keys.QUEUES, keys.PARTITIONS, keys.TOKENS, keys.TOKEN_USES)
_SETS = (*TIMES, "ends", "batch_results")
_SCANNED = (
    *_OF_SERVICE, *RECORDS, *_SETS, "accounts", "tasks", "payloads", "limits", "schedules", "templates", "history",
)  # fmt: skip
_NAME = re.compile(rb"fq:\{([a-z0-9][a-z0-9_-]*)(?:/0|(/[0-9]+\.[0-9]+))\}:([a-z_]+)(?::(.*))?", re.DOTALL)
_STARTS = """\
local found = {}
for at = 2, #ARGV, 2 do found[at / 2] = redis.call('ZSCORE', ARGV[1] .. ARGV[at], ARGV[at + 1]) end
return found"""  # of tasks: their tenants and ids; a set for each tenant
_KEPT = struct.Struct("<c4sI")  # of a member of `ends`: what, the tenant's tag, how many bytes; its name follows

Call = Callable[..., Awaitable[Any]]
Write = Callable[[bytes], None]
Pairs = Sequence[tuple[bytes, bytes]]


class _Key(NamedTuple):
    """A key of a queue, or of the service (then its name is the whole key)."""

    key: bytes
    name: str
    queue: str = ""  # or one of its places
    rest: bytes = b""  # behind the name


async def scan(call: Call) -> AsyncGenerator[list[bytes], None]:
    """List fairq's keys in a node, some at a time; one may come twice."""
    cursor: Any = "0"
    while True:
        cursor, found = await call("SCAN", cursor, "MATCH", PATTERN, "COUNT", "1000")
        yield found
        if cursor == b"0":
            return


@define
class _Queues:
    """The states of queues by name, each read once; None: there is no such queue, or it is being deleted."""

    call: Call
    known: dict[str, dict[str, Any] | None] = field(factory=dict, init=False)

    async def state(self, queue: str) -> dict[str, Any] | None:
        if queue not in self.known:
            packed = await self.call("GET", f"{keys.queue_prefix(queue)}:queue")
            state = tell_record("QUEUE", packed)[0] if packed else None
            self.known[queue] = state if state and state["stage"] == MADE else None
        return self.known[queue]


async def write_lines(call: Call, write: Write) -> None:
    """Write the lines of all primary data in a node. Derived keys, and those of running servers, have no lines.

    Neither have keys of a queue that is being deleted: after a restore it does not exist.
    """
    streams, queues = set[bytes](), _Queues(call)
    async with aclosing(scan(call)) as pages:
        async for page in pages:
            parsed = [each for key in page if (each := _parse(key))]
            found = [each for each in parsed if not each.queue or await queues.state(each.queue)]
            await _write_kept(call, [each for each in found if each.name in ("result", "unique")], write)
            for each in found:
                if each.name == "queue" and not each.rest:
                    state = await queues.state(each.queue)
                    write(dump({"kind": "state", "queue": each.queue, **(state or {})}))
                elif each.name in _SCANNED:
                    await _write_pages(call, each, write)
                elif (each.name in STREAMS or each.name == "events") and each.key not in streams:
                    streams.add(each.key)
                    await _write_entries(call, each, write)


def _parse(key: bytes) -> _Key | None:
    name = key.decode(errors="replace")
    if name in _OF_SERVICE or name in STREAMS:
        return _Key(key, name)
    found = _NAME.fullmatch(key)
    if not found or found[1] == b"queues":
        return None
    queue, tag, kind, rest = found.groups(b"")
    return _Key(key, kind.decode(), (queue + tag).decode(), rest)


async def _write_kept(call: Call, found: Sequence[_Key], write: Write) -> None:
    """Write the lines of results, and of held dedupe keys: each has a key of its own."""
    for at in range(0, len(found), KEPT_PAGE):
        some = found[at : at + KEPT_PAGE]
        for key, packed in zip(some, await call("MGET", *(each.key for each in some)), strict=True):
            until, _, value = (packed or b"").partition(b" ")
            if until:
                head = {"kind": key.name, "queue": key.queue, "id": tell_text(key.rest)}
                write(dump(head | {"until": tell_number(float(until)), "value": tell_text(value)}))


async def _write_pages(call: Call, key: _Key, write: Write) -> None:
    """Write the lines of a hash or a sorted set."""
    command, count = "ZSCAN" if key.name in _SETS else "HSCAN", LONG_PAGE if key.name == "payloads" else PAGE
    write_page = {"accounts": _write_tenants, "tasks": _write_tasks, "payloads": _write_callbacks}.get(key.name)
    cursor: Any = "0"
    while cursor != b"0":
        cursor, flat = await call(command, key.key, cursor, "COUNT", count)
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        if write_page and pairs:
            await write_page(call, key, pairs, write)
            continue
        for pair in pairs:
            write(_line_of(key, *pair))


async def _write_entries(call: Call, key: _Key, write: Write) -> None:
    """Write the lines of a stream."""
    head = {"kind": "event", "queue": key.queue, "tenant": key.rest.decode()}
    if key.name in STREAMS:
        head = {"kind": "audit", "stream": STREAMS[key.name]}
    first = b"-"
    while rows := await call("XRANGE", key.key, first, "+", "COUNT", PAGE):
        for id, flat in rows:
            fields = {name.decode(): tell_text(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
            write(dump(head | {"id": id.decode(), "fields": fields}))
        first = b"(" + rows[-1][0]
    if first == b"-":  # the ids of a feed that keeps nothing go on
        info = await call("XINFO", "STREAM", key.key)
        write(dump(head | {"id": info[info.index(b"last-generated-id") + 1].decode(), "fields": {}}))


def _line_of(key: _Key, id: bytes, value: bytes) -> bytes:
    """Write the line of a field of a hash, or of a member of a set, that needs nothing else."""
    payload = None
    match key.name:
        case keys.QUEUES:
            return dump({"kind": "queue", "queue": id.decode(), "made": value.decode()})
        case keys.PARTITIONS:
            return dump({"kind": "partitions", "queue": id.decode(), "count": int(value)})
        case keys.TOKENS | keys.TOKEN_USES:
            kind = "token" if key.name == keys.TOKENS else "token_use"
            return dump({"kind": kind, "id": id.decode(), "value": orjson.loads(value)})
        case "limits":
            kind, fields = "limits", {"limits": tell_map(value)}
        case "schedules":
            kind, fields = "schedule", {"tenant": key.rest.decode()} | tell_record("SCHEDULE", value)[0]
        case "templates":
            kind, fields = "template", tell_record("TEMPLATE", value)[0]
            payload = read_text(fields.pop("payload"))
        case "history":
            kind, fields = "slot", {"step": int(key.rest)} | tell_slot(value)
        case "ends":
            kind, fields = "kept", _kept(id, value)
        case "batch_results":
            until, _, id = id.partition(b" ")
            order = tell_number(float(value))
            kind, fields = "batch_result", dict[str, Any](batch=tell_text(key.rest), until=int(until), order=order)
        case _ if key.name in TIMES:
            kind, fields = TIMES[key.name], {"at": tell_number(float(value))}
        case _:
            kind, record = RECORDS[key.name]
            fields, _ = tell_record(record, value)
    return dump({"kind": kind, "queue": key.queue, "id": tell_text(id)} | fields, payload)


async def _write_tenants(call: Call, key: _Key, pairs: Pairs, write: Write) -> None:
    accounts = [(tag, tell_record("ACCOUNT", packed)[0]) for tag, packed in pairs]
    names = [account["name"] for _, account in accounts]
    details = await call("HMGET", keys.queue_prefix(key.queue) + ":tenants", *names)
    for (tag, account), packed in zip(accounts, details, strict=True):
        fields = tell_record("DETAILS", packed)[0] if packed else None
        head = {"kind": "tenant", "queue": key.queue, "tag": int.from_bytes(tag, "little")}
        write(dump(head | {"account": account, "details": fields}))


async def _write_tasks(call: Call, key: _Key, pairs: Pairs, write: Write) -> None:
    queue, prefix = key.queue, keys.queue_prefix(key.queue) + ":"
    for id, packed in pairs:
        if packed[0] != TASK:
            write(dump({"kind": "done", "queue": queue, "id": tell_text(id)} | tell_record("MARK", packed)[0]))
    tasks = [(id, packed, *tell_record("HEADER", packed)) for id, packed in pairs if packed[0] == TASK]
    if not tasks:
        return
    ids = [id for id, *_ in tasks]
    options = await call("HMGET", prefix + "task_options", *ids)
    runs = await call("HMGET", prefix + "runs", *ids)
    deaths = await call("HMGET", prefix + "dead", *ids)
    pairs_of_tenants = [word for id, _, header, _ in tasks for word in (header["tenant"], id)]
    starts = await call("EVAL", _STARTS, 0, prefix + "delayed:", *pairs_of_tenants)
    found = zip(tasks, options, runs, deaths, starts, strict=True)
    for (id, packed, header, end), option, run, death, start in found:
        line = {"kind": "task", "queue": queue, "id": tell_text(id)} | header
        if option:
            line["options"] = tell_map(option)
        for name, record, state in (("run", "RUN", run), ("death", "DEATH", death)):
            if state:
                line[name] = tell_record(record, state)[0]
        if start is not None:
            line["delayed_until"] = tell_number(float(start))
        is_large = header["features"] & IS_LARGE
        payload = await call("HGET", prefix + "payloads", id) or b"" if is_large else packed[end:]
        write(dump(line, payload))


async def _write_callbacks(call: Call, key: _Key, pairs: Pairs, write: Write) -> None:
    """Write the payloads of callback tasks: those that no task has yet."""
    known = await call("HMGET", keys.queue_prefix(key.queue) + ":tasks", *(id for id, _ in pairs))
    for (id, payload), record in zip(pairs, known, strict=True):
        if not record or record[0] != TASK:
            write(dump({"kind": "callback", "queue": key.queue, "id": tell_text(id)}, payload))


def tell_slot(packed: bytes) -> dict[str, Any]:
    """Unpack an interval of a history, with its rows, for a line."""
    slot, at = tell_record("SLOT", packed)
    slot["rows"] = rows = list[dict[str, Any]]()
    while at < len(packed):
        row, size = tell_record("SLOT_ROW", packed[at:])
        rows.append(row)
        at += size
    return slot


def _kept(member: bytes, until: bytes) -> dict[str, Any]:
    what, tag, size = _KEPT.unpack_from(member)
    return {
        "of": what.decode(), "tag": int.from_bytes(tag, "little"), "bytes": size,
        "id": tell_text(member[_KEPT.size :]), "until": tell_number(float(until)),
    }  # fmt: skip
