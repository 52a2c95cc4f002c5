"""The packed formats shared with Lua: records read from the store, options written to it (lua/KEYS.md, 'Formats')."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import orjson
from attrs import evolve

from fairq.model.checks import COPY_MARK
from fairq.model.history import Row, Slot
from fairq.model.limits import OpeningHours
from fairq.model.schedules import MISFIRES, ScheduleState, Timing
from fairq.model.tasks import NO_OPTIONS, OPTIONS, SCHEDULED, Lease, NewTask
from fairq.model.waiting import BlockedInterval, cause_of
from fairq.model.webhooks import Webhook, webhook_in
from fairq.store import library

_FORMATS = library.formats()
_FIELDS = {name.removesuffix("_ms"): name for name in OPTIONS}  # of the format OPTIONS
_FIXED = struct.Struct("<" + "".join(field.type for field in _FORMATS["OPTIONS"].fields if field.type != "t1"))
_fixed_of, _texts_of = (
    attrgetter(
        *(
            _FIELDS[field.name]
            for field in _FORMATS["OPTIONS"].fields
            if field.name != "more" and (field.type == "t1") is is_text
        )
    )
    for is_text in (False, True)  # texts stand behind the rest
)
_later_of = attrgetter(*(_FIELDS[each.name] for each in _FORMATS["OPTIONS"].later if each.name in _FIELDS))
_HEADER = struct.Struct(_FORMATS["HEADER"].head.removesuffix("BB"))  # up to the length of the tenant, which follows
_AT = _HEADER.size  # of the tenant
_QUEUES = -1  # a packed limit of attempts: the queue's
_TIMING = struct.Struct("<dBB")  # every, lengths of zone and cron, which follow
_SLOT, _ROW, _WAIT = (
    struct.Struct(head) for head in (_FORMATS["SLOT"].head, _FORMATS["SLOT_ROW"].head.removesuffix("BHB"), "<BI")
)


def unpack_record(record: bytes) -> tuple[str, int, int, int, bytes, str, str, int]:
    """Split a record into tenant, enqueued_at_ms, start_at_ms, expires_at_ms, payload, name, trace, max_attempts."""
    _, _, max_attempts, _, enqueued_at, start_at, expires_at, size = _HEADER.unpack_from(record)
    end, name, trace = _AT + size, "", ""
    begin = end + 2  # of the payload, if the task has no name and no later fields
    if record[end:begin] != b"\0\0":
        more = end + 1 + record[end]  # behind the name: fields of later versions, the trace first
        begin, name = more + 1 + record[more], record[end + 1 : more].decode()
        if record[more]:
            trace = record[more + 2 : more + 2 + record[more + 1]].decode()
    at, start, expires = int(enqueued_at), int(start_at), int(expires_at)
    return record[_AT:end].decode(), at, start, expires, record[begin:], name, trace, max_attempts


_NO_MORE = tuple(Lease._field_defaults.values())
_make_lease = partial(tuple.__new__, Lease)
CLAIM_HEAD = 13  # values of a claim's reply before its leases


def unpack_leases(reply: Sequence[Any]) -> list[Lease]:
    """Read a claim's reply: its head, then four values per lease.

    In the head: the leases' number (third), ids with kept results (fourth), ids within guarantees (twelfth).
    """
    leases, number, wanting, values = [], reply[2], set(reply[3]), iter(reply[CLAIM_HEAD:])
    for packed_id, attempt, last_attempt, record in zip(values, values, values, values, strict=True):
        id = packed_id.decode()
        tenant, enqueued_at, start_at, expires_at, payload, name, trace, limit = unpack_record(record)
        row = id, number, attempt, last_attempt, tenant, enqueued_at, start_at, expires_at, payload, *_NO_MORE
        lease = _make_lease(row)
        if name or trace or last_attempt != limit or packed_id in wanting or COPY_MARK in id:
            uncounted = last_attempt - limit if last_attempt > 0 else -last_attempt
            more = packed_id in wanting, name, webhook_in(id), trace, uncounted
            lease = Lease(id, number, attempt, max(last_attempt, 0), *lease[4:9], *more)
        leases.append(lease)
    if guaranteed := set(map(bytes.decode, reply[11])):
        return [each._replace(is_guaranteed=each.id in guaranteed) for each in leases]
    return leases


def unpack_blocked_intervals(values: Sequence[Any]) -> list[BlockedInterval]:
    """Read the intervals of a claim's reply for which tenants were kept out."""
    rows = range(0, len(values), 4)
    return [BlockedInterval(values[i].decode(), cause_of(values[i + 1]), values[i + 2], values[i + 3]) for i in rows]


def pack_options(task: NewTask) -> bytes:
    """Pack a task's options; empty if all are defaults."""
    if task[2:] == NO_OPTIONS:
        return b""
    if task.max_attempts is None:
        task = task._replace(max_attempts=_QUEUES)
    if any(_later_of(task)):
        values = {packed: getattr(task, name) for packed, name in _FIELDS.items()}
        return _FORMATS["OPTIONS"].pack({name: 0 if value is None else value for name, value in values.items()})
    packed = _FIXED.pack(*[value or 0 for value in _fixed_of(task)])
    for value in _texts_of(task):
        text = value.encode()
        packed += bytes((len(text),)) + text
    return packed + b"\0"  # the text `more`


def pack_timing(timing: Timing) -> bytes:
    """Pack a schedule's timing; Lua stores it without reading it."""
    zone, cron = timing.zone.encode(), timing.cron.encode()
    return _TIMING.pack(timing.every_ms, len(zone), len(cron)) + zone + cron


def unpack_timing(packed: bytes) -> Timing:
    """Read a schedule's timing."""
    every, zone_size, cron_size = _TIMING.unpack_from(packed)
    begin = _TIMING.size + zone_size  # of cron, behind the zone
    return Timing(packed[begin : begin + cron_size].decode(), packed[_TIMING.size : begin].decode(), int(every))


def pack_template(task: NewTask) -> bytes:
    """Pack the template of a schedule's tasks."""
    options = pack_options(task)
    return _FORMATS["TEMPLATE"].pack({"options": options, "payload": task.payload})


def _unpack_template(template: bytes) -> NewTask:
    """Read the template of a schedule's tasks; every fire gives the task its id."""
    found, _ = _FORMATS["TEMPLATE"].unpack(template)
    if not found["options"]:
        return NewTask("", found["payload"])
    asked, _ = _FORMATS["OPTIONS"].unpack(found["options"])
    return NewTask("", found["payload"], **named_options(asked))


def named_options(packed: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as NewTask has them: 0 stands for None, but of the attempts -1 does."""
    found = {name: packed[short] for short, name in _FIELDS.items() if short in packed}
    attempts = found.pop("max_attempts", 0)
    values = {name: _unpack_option(value, OPTIONS[name]) for name, value in found.items()}
    return values | {"max_attempts": None if attempts == _QUEUES else attempts}


def _unpack_option(value: Any, default: Any) -> Any:
    return (int(value) or None) if default is None else type(default)(value)


def unpack_schedule(row: Sequence[bytes]) -> ScheduleState:
    """Read a schedule: its field, its head and, if given, its template."""
    field, head, *templates = row
    found, _ = _FORMATS["SCHEDULE"].unpack(head)
    timing, (tenant, _, name) = unpack_timing(found["timing"]), field.decode().partition("/")
    state = ScheduleState(
        tenant, name, *timing, MISFIRES[found["misfire"]], bool(found["paused"]), int(found["next_at"]),
        int(found["last_fired_at"]), app=found["app"],
    )  # fmt: skip
    if not templates:
        return state
    task = _unpack_template(templates[0])
    asked = {name: getattr(task, name) for name in SCHEDULED}
    task_name = "" if task.name == state.name else task.name
    return evolve(state, **asked, task_name=task_name, payload=orjson.Fragment(task.payload))


def unpack_opening_hours(tenant: bytes, revision: bytes) -> OpeningHours:
    """Read opening hours; their revision is needed to change them (see `set_opening_hours`)."""
    found, _ = _FORMATS["HOURS"].unpack(revision)
    text, is_open, changes_at = found["text"].decode(), bool(found["is_open"]), int(found["changes_at"])
    return OpeningHours(tenant.decode(), text, is_open, changes_at, revision)


def unpack_webhook(id: bytes, packed: bytes) -> Webhook:
    """Read a webhook."""
    found, _ = _FORMATS["WEBHOOK"].unpack(packed)
    secrets = tuple(found["secrets"].decode().split())
    return Webhook(
        id.decode(), found["url"], found["name"], bool(found["fan_out"]), bool(found["paused"]),
        int(found["created_at"]), len(secrets), secrets,
    )  # fmt: skip


def pack_waits(waits: Mapping[int, int]) -> bytes:
    """Pack how many tasks waited for how long: counts by bucket."""
    return b"".join(_WAIT.pack(bucket, waits[bucket]) for bucket in sorted(waits))


def unpack_waits(packed: bytes) -> dict[int, int]:
    """Read how many tasks waited for how long."""
    return dict(_WAIT.iter_unpack(packed))


def unpack_slot(packed: bytes) -> Slot:
    """Read an interval of a queue's history."""
    number, *totals, more = _SLOT.unpack_from(packed)
    rows, at = [], _SLOT.size + more
    while at < len(packed):
        *counts, delivered, entitled = _ROW.unpack_from(packed, at)
        begin = at + _ROW.size + 1
        end = begin + packed[begin - 1]
        at = end + 2 + int.from_bytes(packed[end : end + 2], "little")
        waits = unpack_waits(packed[end + 2 : at])
        at += 1 + packed[at]
        rows.append(Row._make((packed[begin:end].decode(), *counts, delivered, entitled, waits, 0.0)))
    return Slot._make((int(number), *totals, rows))
