"""Reads a store of version 14 of the data as one of today's, so that its backup is a backup of today's version.

The keys have the same names, so `dumping` reads them; each packed record is packed anew on its way. Left out are the
history, the max shares, and the queue to which an undelivered link was to go: its dead letter stays, as a rejected one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import ormsgpack
from attrs import fields

from fairq.errors import SettingsError
from fairq.model.queues import QueueSettings
from fairq.store import dumping, library
from fairq.store.backup_lines import FORMATS, dump, tell_text
from fairq.store.dumping import Call, Write, scan

VERSION = 14
OPTIONS_BYTES = 400  # that the options of a task count at least
_OLD = library.parse_formats("""\
--: QUEUE now:d clock:d level:d weight_sum:d running:d servable:d cursor:d origin:d epoch:d epoch_at:d estimate:d
--:   estimate_sq:d share:d hungry:d blocked:d limited:d sweeping:d anchored:d last_lease:d stage:d kept_until:d
--:   numbers:d minute:d lease_ms:d max_attempts:d retry_base_ms:d retry_cap_ms:d dead_keep_ms:d dead_keep:d
--:   events_keep:d max_tenants:d run_timeout_ms:d reserve:B slots:I loans:I max_shares:B fan_outs:B ready:d
--:   pending:d delayed:d leased:d dead:d tasks_with_options:d remembered:d links:d sequence:d enqueued:d done:d
--:   buried:d expired:d cancelled:d delivered:d entitled:d
--: ACCOUNT weight:I base:d starts:d estimate:d leased:I loan:B ready:I slot:i class:b standing:B is_on_wake_list:B
--:   is_odd:B name:t1 books:rest
--: BOOKS epoch:I entitled:d delivered:d done:d bytes:d
--: DETAILS tag:c4 pending:I delayed:I dead:I links:I theoretical_arrival:d tombstones:I grouped:I priorities:B
--:   blocked:B limited:B cause:B out_at:d let_in_at:d
--: LIMITS max_running:d guaranteed:d rate:d burst:d queued:d stored_bytes:d delayed:d dead:d max_share:d
--: HEADER type:B features:B max_attempts:H enqueued_at:d start_at:d expires_at:d tenant:t1 name:t1 webhook:t1
--: MARK how:B lease:d
--: RUN lease:d state:B features:B is_extended:B takeovers:B began_at:d lasts:I bytes:I tag:c4 attempt:I
--:   uncounted_attempts:I max_attempts:H expires_at:d made:t2 error:rest
--: DEATH reason:B attempts:I lease:d died_at:d tenant:t1 error:t2 traceback:rest
--: OPTIONS delay:d start_at:d expires_in:d expires_at:d expires_after_start:d max_attempts:h priority:B dedupe_period:d
--:   result_ttl:d events:B replace:B group_weight:d dedupe_key:t1 batch:t1 group:t1 name:t1
--: TASK_OPTIONS priority:B result_ttl:d opened_at:d events:B weight:d dedupe_key:t1 batch:t1 group:t1
--: BATCH max_running:d sequence:d total:d admitted:d running:d done:d dead:d cancelled:d expired:d created_at:d
--:   completed_at:d state:B events:B tenant:t1 on_complete:t2 on_success:t2 on_death:t2 copies:rest
--: SCHEDULE version:B paused:B misfire:B next_at:d last_fired_at:d timing:rest
--: TEMPLATE options:t2 payload:rest
--: HOURS is_open:B changes_at:d text:rest
--: WEBHOOK fan_out:B paused:B created_at:d name:t1 url:t2 secrets:rest
""")
_TRACE = "\x1f"  # between a task's name and its trace
_DONE, _CANCELLED = 0, 255  # how a task has ended
_REJECTED, _UNDELIVERED = 2, 5  # reasons of dead letters
_COMPLETE = 2  # the state of a batch
_PLAIN = {"priority": 50, "result_ttl": 0, "opened_at": 0, "events": 0, "dedupe_key": "", "batch": "", "group": ""}
_UNLIMITED = {"queued": 10_000_000, "delayed": 10_000_000, "stored_bytes": 1 << 30}  # other common limits: 0
_SETTINGS = {each.name: each.default for each in fields(QueueSettings)} | {"share": 0, "max_attempts": 5}  # of then
_KEY = re.compile(rb"fq:\{([a-z0-9][a-z0-9_-]*)/0\}:([a-z_]+)(?::.*)?", re.DOTALL)

Values = dict[str, Any]


def _anew(name: str, packed: bytes, change: Callable[[Values], object] = lambda values: None) -> bytes:
    """Pack a record as today; what follows it stays."""
    values, end = _OLD[name].unpack(packed)
    values["more"] = b""
    change(values)
    form = FORMATS[name]
    return form.pack({field.name: values.get(field.name, field.nothing) for field in [*form.fields, *form.later]}) + (
        packed[end:] if name == "HEADER" else b""
    )


def _less(values: Values, defaults: Values) -> bytes:
    """Pack a map of what is not the default."""
    found = {name: values[name] for name in defaults if values.get(name, defaults[name]) != defaults[name]}
    return ormsgpack.packb({
        name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in found.items()
    })  # fmt: skip


def _split_name(values: Values) -> None:
    values["name"], _, values["trace"] = values["name"].partition(_TRACE)


def _with_settings(values: Values) -> None:
    values["settings"] = _less(values, _SETTINGS)


def _with_books(values: Values) -> None:
    values["books"] = _anew("BOOKS", values["books"]) if values["books"] else b""


def _with_options(values: Values) -> None:
    values["options"] = _anew("OPTIONS", values["options"], _split_name) if values["options"] else b""


def _of_header(values: Values) -> None:
    _split_name(values)
    values["extra"] = OPTIONS_BYTES * (values["features"] & 1)


def _of_mark(values: Values) -> None:
    values["how"] = values["how"] if values["how"] == _DONE else _CANCELLED


def _of_death(values: Values) -> None:
    values["reason"] = _REJECTED if values["reason"] == _UNDELIVERED else values["reason"]


def _callbacks(values: Values) -> dict[str, bytes]:
    """Return the payloads of the callback tasks that are still to come."""
    due = () if values["state"] == _COMPLETE else ("complete", "success", "death")[: 2 if values["dead"] else 3]
    return {name: text for name in due if (text := values[f"on_{name}"].encode(errors="surrogateescape"))}


def _of_batch(values: Values) -> None:
    due = _callbacks(values)
    values |= {f"on_{name}": len(due.get(name, b"")) for name in ("complete", "success", "death")}


def _limits(tenant: bytes, packed: bytes) -> bytes:
    values, _ = _OLD["LIMITS"].unpack(packed)
    del values["max_share"]
    return _less(values, {name: -1 if tenant else _UNLIMITED.get(name, 0) for name in values})


def _record(name: str, change: Callable[[Values], object] = lambda values: None) -> Callable[[bytes, bytes], bytes]:
    return lambda _, packed: _anew(name, packed, change)


_PACKED: dict[bytes, Callable[[bytes, bytes], bytes]] = {  # by the name of a key: field, record -> today's record
    b"queue": _record("QUEUE", _with_settings),
    b"accounts": _record("ACCOUNT", _with_books),
    b"tenants": _record("DETAILS"),
    b"limits": _limits,
    b"opening_hours": _record("HOURS"),
    b"webhooks": _record("WEBHOOK"),
    b"batches": _record("BATCH", _of_batch),
    b"tasks": lambda _, packed: (
        _anew("HEADER", packed, _of_header) if packed[0] == dumping.TASK else _anew("MARK", packed, _of_mark)
    ),
    b"task_options": lambda _, packed: _less(_OLD["TASK_OPTIONS"].unpack(packed)[0], _PLAIN),
    b"runs": _record("RUN"),
    b"dead": _record("DEATH", _of_death),
    b"schedules": _record("SCHEDULE"),
    b"templates": _record("TEMPLATE", _with_options),
}


def translated(call: Call) -> Call:
    """Return what calls a store of version 14, and is told records of today."""

    async def told(command: str, *words: Any) -> Any:
        found = _KEY.fullmatch(words[0].encode() if isinstance(words[0], str) else words[0])
        if found and found[2] == b"history":
            return [b"0", []]
        reply = await call(command, *words)
        pack = _PACKED.get(found[2]) if found else None
        if pack is None or not reply:
            return reply
        match command:
            case "GET":
                return pack(b"", reply)
            case "HMGET":
                return [pack(b"", packed) if packed else packed for packed in reply]
            case "HSCAN":
                cursor, flat = reply
                pairs = zip(flat[::2], flat[1::2], strict=True)
                return [cursor, [word for name, packed in pairs for word in (name, pack(name, packed))]]
        return reply

    return told


async def write_lines(call: Call, write: Write) -> None:
    """Write the lines of all that is true in a node. Raises: SettingsError where links wait to be delivered."""
    await dumping.write_lines(translated(call), write)
    async with aclosing(scan(call)) as pages:
        async for page in pages:
            for key in page:
                queue, name = match.groups() if (match := _KEY.fullmatch(key)) else (b"", b"")
                if name == b"links":
                    raise SettingsError(
                        f"queue {queue.decode()} has tasks on their way to another queue: let the servers that wrote it"
                        " run until they are there",
                        field="store",
                    )
                if name == b"batches":
                    await _write_callbacks(call, queue.decode(), key, write)


async def _write_callbacks(call: Call, queue: str, key: bytes, write: Write) -> None:
    cursor: Any = "0"
    while cursor != b"0":
        cursor, flat = await call("HSCAN", key, cursor, "COUNT", dumping.PAGE)
        for id, packed in zip(flat[::2], flat[1::2], strict=True):
            values, _ = _OLD["BATCH"].unpack(packed)
            for name, payload in _callbacks(values).items():
                task = f"{tell_text(id)}-{name}-{values['created_at']:.0f}"
                write(dump({"kind": "callback", "queue": queue, "id": task}, payload))
