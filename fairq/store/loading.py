"""Writes the lines of a backup into a store, by plain commands; the repair of queues restores all derived data."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import orjson
from attrs import define, field

from fairq.io.scopes import run_all
from fairq.store import keys
from fairq.store.backup_lines import load, read_map, read_number, read_record, read_text
from fairq.store.dumping import IS_LARGE, RECORDS, STREAMS, TIMES, Call, tell_slot
from fairq.store.placing import Placing, added

COMMANDS, PIECE_BYTES = 500, 1 << 20  # written at once
LATE_MS = 60_000  # how much later keys of results, and of held dedupe keys, expire

_HASHES = {kind: (name, record) for name, (kind, record) in RECORDS.items()}
_SETS = {kind: name for name, kind in TIMES.items()}
_STREAMS = {name: key for key, name in STREAMS.items()}
BAD = (ValueError, KeyError, TypeError, AttributeError, OverflowError, struct.error)  # of a line that cannot be packed
_ADD = """\
local at = 1
while at < #ARGV do
  local count = tonumber(ARGV[at + 1])
  if count == 0 then
    redis.call('XADD', KEYS[1], 'MAXLEN', 0, ARGV[at], '', '')
  else
    redis.call('XADD', KEYS[1], ARGV[at], unpack(ARGV, at + 2, at + 1 + count))
  end
  at = at + 2 + count
end"""  # id, how many words, and they: of each entry
_FILL = """\
redis.call('HSET', KEYS[1], unpack(ARGV))
redis.call('EXPIRE', KEYS[1], 1209600)"""  # two weeks: as long as the longest ring

Line = dict[str, Any]
Part = tuple[tuple[Any, ...], list[Any]]  # the beginning of a command, which others may share, and its last words


@define
class Counts:
    """The counts of a backup."""

    lines: int = 0
    queues: int = 0
    tasks: int = 0
    done: int = 0  # tasks that are remembered

    def add(self, kind: str) -> None:
        """Count a line."""
        self.lines += 1
        self.queues += kind == "queue"
        self.tasks += kind == "task"
        self.done += kind == "done"


def parts_of(line: dict[str, Any], payload: bytes | None) -> list[Part]:
    """Return the command parts for a line."""
    return list(_parts(line["kind"], line.get("queue", ""), line, payload))


def _parts(kind: str, queue: str, line: dict[str, Any], payload: bytes | None) -> Iterator[Part]:
    match kind:
        case "queue":
            yield ("HSET", keys.QUEUES), [queue, read_text(line["made"])]
        case "partitions":
            yield ("HSET", keys.PARTITIONS), [queue, line["count"]]
        case "token":
            yield ("HSET", keys.TOKENS), [read_text(line["id"]), orjson.dumps(line["value"])]
        case "token_use":
            yield ("HSET", keys.TOKEN_USES), [read_text(line["id"]), orjson.dumps(line["value"])]
        case "audit":
            yield _entry(_STREAMS[line["stream"]], line)
            if line["stream"] == "tenants":
                entry = f"{line['fields']['tenant']}/{line['id']}"
                yield ("ZADD", f"{keys.TENANTS_AUDIT}:of_tenants"), [0, entry]
        case _ if queue:
            yield from _parts_in_queue(kind, keys.queue_prefix(queue) + ":", line, payload)


def _parts_in_queue(kind: str, prefix: str, line: dict[str, Any], payload: bytes | None) -> Iterator[Part]:
    id = read_text(line.get("id", ""))
    match kind:
        case "state":
            yield ("SET", prefix + "queue"), [read_record("QUEUE", line)]
        case "tenant":
            tag, account, details = int(line["tag"]).to_bytes(4, "little"), line["account"], line["details"]
            yield ("HSET", prefix + "accounts"), [tag, read_record("ACCOUNT", account)]
            if details:
                yield ("HSET", prefix + "tenants"), [read_text(account["name"]), read_record("DETAILS", details)]
        case "task":
            yield from _parts_of_task(prefix, id, line, payload or b"")
        case "done":
            yield ("HSET", prefix + "tasks"), [id, read_record("MARK", line)]
        case "callback":
            yield ("HSET", prefix + "payloads"), [id, payload or b""]
        case "schedule":
            yield ("HSET", f"{prefix}schedules:{line['tenant']}"), [id, read_record("SCHEDULE", line)]
        case "template":
            record = read_record("TEMPLATE", line | {"payload": ""})
            yield ("HSET", prefix + "templates"), [id, record + (payload or b"")]
        case "kept":
            tag = int(line["tag"]).to_bytes(4, "little")
            member = struct.pack("<c4sI", line["of"].encode(), tag, line["bytes"]) + id
            yield ("ZADD", prefix + "ends"), [read_number(line["until"]), member]
        case "batch_result":
            key = f"{prefix}batch_results:".encode() + read_text(line["batch"])
            yield ("ZADD", key), [read_number(line["order"]), str(line["until"]).encode() + b" " + id]
        case "result" | "unique":
            until, key = read_number(line["until"]), f"{prefix}{kind}:".encode() + id
            when = ["PXAT", int(until) + LATE_MS] if until else []
            yield ("SET", key), [str(line["until"]).encode() + b" " + read_text(line["value"]), *when]
        case "event":
            yield _entry(f"{prefix}events:{line['tenant']}", line)
        case "slot":
            record = read_record("SLOT", line) + b"".join(read_record("SLOT_ROW", row) for row in line["rows"])
            yield ("EVAL", _FILL, 1, _ring(line["queue"], line["step"])), [id, record]
        case "limits":
            yield ("HSET", prefix + "limits"), [id, read_map(line["limits"])]
        case _ if kind in _HASHES:
            name, record_name = _HASHES[kind]
            yield ("HSET", prefix + name), [id, read_record(record_name, line)]
        case _ if kind in _SETS:
            yield ("ZADD", prefix + _SETS[kind]), [read_number(line["at"]), id]


def _parts_of_task(prefix: str, id: bytes, line: dict[str, Any], payload: bytes) -> Iterator[Part]:
    is_large = line.get("features", 0) & IS_LARGE
    body = struct.pack("<I", len(payload)) if is_large else payload
    yield ("HSET", prefix + "tasks"), [id, read_record("HEADER", line) + body]
    if is_large:
        yield ("HSET", prefix + "payloads"), [id, payload]
    if "options" in line:
        yield ("HSET", prefix + "task_options"), [id, read_map(line["options"])]
    for field_name, name, record in (("run", "runs", "RUN"), ("death", "dead", "DEATH")):
        if field_name in line:
            yield ("HSET", prefix + name), [id, read_record(record, line[field_name])]
    if "delayed_until" in line:
        yield ("ZADD", f"{prefix}delayed:{line['tenant']}"), [read_number(line["delayed_until"]), id]


def _entry(key: str, line: dict[str, Any]) -> Part:
    words = [word for name, value in line["fields"].items() for word in (name.encode(), read_text(value))]
    return ("EVAL", _ADD, 1, key), [line["id"], len(words), *words]  # XADD takes one entry


@define(eq=False)
class Loading:
    """Writes into a store: lines for one key share a command, up to some hundred at a time."""

    call: Call
    show: Callable[[int], None] = lambda _: None
    placing: Placing = field(factory=Placing)
    counts: Counts = field(factory=Counts, init=False)
    makers: dict[bytes, int] = field(factory=dict, init=False)
    queues: list[str] = field(factory=list, init=False)  # that are to be repaired
    _commands: dict[tuple[Any, ...], list[Any]] = field(factory=dict, init=False)
    _slots: dict[tuple[str, int, str], Line] = field(factory=dict, init=False)  # that are added to those in the store
    _seen: set[tuple[str, int, str]] = field(factory=set, init=False)  # the lines that were: one may come twice
    _count: int = field(default=0, init=False)
    _bytes: int = field(default=0, init=False)

    async def add(self, text: bytes) -> None:
        """Write a line that was checked (fairq/store/backup_check.py), soon."""
        line, payload = load(text)
        self.counts.add(line["kind"])
        if line["kind"] == "slot" and self.placing.is_new(line["queue"]):
            self._add_slot(line)
        else:
            for each in self.placing.placed(line):
                self._add(each, payload)
        self._count, self._bytes = self._count + 1, self._bytes + len(text)
        if self._count >= COMMANDS or self._bytes >= PIECE_BYTES:
            await self.flush()

    def _add(self, line: Line, payload: bytes | None) -> None:
        kind = line["kind"]
        if kind == "state":
            self.queues.append(line["queue"])
        for begin, words in parts_of(line, payload):
            if kind == "queue" and (maker := words[1].partition(b" ")[2]):
                self.makers[maker] = self.makers.get(maker, 0) + 1
            self._commands.setdefault(begin, []).extend(words)

    def _add_slot(self, line: Line) -> None:
        """Add an interval of a place's history to those of other places."""
        if (of := _slot_of(line)) in self._seen:
            return
        self._seen.add(of)
        for each in self.placing.placed(line):
            known = self._slots.get(of := _slot_of(each))
            self._slots[of] = _newer_or_sum(known, each) if known else each

    async def _add_stored(self) -> None:
        """Add what the store has by now to the intervals that are to be written."""
        rings: dict[tuple[str, int], list[Line]] = {}
        for line in self._slots.values():
            rings.setdefault((line["queue"], line["step"]), []).append(line)
        self._slots = {}
        for (place, step), lines in rings.items():
            found = await self.call("HMGET", _ring(place, step), *(line["id"] for line in lines))
            for line, packed in zip(lines, found, strict=True):
                self._add(_newer_or_sum(line | tell_slot(packed), line) if packed else line, None)

    async def end(self) -> None:
        """Write the rest."""
        for maker, count in self.makers.items():
            self._commands.setdefault(("HSET", f"{keys.REGISTRY}:makers"), []).extend((maker, count))
        await self.flush()

    async def flush(self) -> None:
        """Write what has been added so far."""
        await self._add_stored()
        commands, self._commands, self._count, self._bytes = self._commands, {}, 0, 0
        await run_all(*(partial(self.call, *begin, *words) for begin, words in commands.items()), stops_at_failure=True)
        self.show(self.counts.lines)


def _ring(place: str, step: int) -> str:
    return f"{keys.queue_prefix(place)}:history:{step}"


def _slot_of(line: Line) -> tuple[str, int, str]:
    return line["queue"], line["step"], line["id"]


def _newer_or_sum(known: Line, line: Line) -> Line:
    """Add two lines of one place in a ring; an interval of an earlier round has ended."""
    one, two = known.get("number", 0), line.get("number", 0)
    return added(known, line) if one == two else known if one > two else line
