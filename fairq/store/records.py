"""The packed formats shared with Lua: records read from the store, options written to it (lua/KEYS.md, 'Formats')."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import orjson
from attrs import evolve

from fairq.errors import StoreRefused
from fairq.model.limits import OpeningHours
from fairq.model.schedules import MISFIRES, ScheduleState, Timing
from fairq.model.tasks import Lease, NewTask
from fairq.model.waiting import BlockedInterval, cause_of

_HEADER = struct.Struct("<BBHdddB")  # version, features, max_attempts, enqueued_at, start_at, expires_at; tenant
_OPTIONS = struct.Struct("<ddddHBddB")  # times, max_attempts, priority, dedupe period, result ttl, events; two texts
_PLAIN = NewTask("", b"")[2:]
_RECORD_VERSION = 1
_SCHEDULE = struct.Struct("<BBBdd")  # version, paused, misfire, next_at, last_fired_at; the timing follows
_TIMING = struct.Struct("<dBB")  # every, lengths of zone and cron, which follow
_TEMPLATE = struct.Struct("<H")  # length of the options, which follow, then the payload
_SCHEDULE_VERSION = 1
_WINDOW = struct.Struct("<Bd")  # is_open, changes_at; the text follows


def unpack_record(record: bytes) -> tuple[str, int, int, int, bytes]:
    """Split a task record into tenant, enqueued_at_ms, start_at_ms, expires_at_ms and payload."""
    version, _, _, enqueued_at, start_at, expires_at, size = _HEADER.unpack_from(record)
    if version != _RECORD_VERSION:
        raise StoreRefused(f"the store holds a task record of version {version}; this build reads {_RECORD_VERSION}")
    at = _HEADER.size
    return record[at : at + size].decode(), int(enqueued_at), int(start_at), int(expires_at), record[at + size :]


def unpack_leases(reply: Sequence[Any]) -> list[Lease]:
    """Read a claim's reply: six values (third: the leases' number; fourth: ids with kept results), four per lease."""
    leases, number, wanting = [], reply[2], set(reply[3])
    for i in range(6, len(reply), 4):
        id, attempt, max_attempts, record = reply[i : i + 4]
        leases.append(Lease(id.decode(), number, attempt, max_attempts, *unpack_record(record), id in wanting))
    return leases


def unpack_blocked_intervals(values: Sequence[Any]) -> list[BlockedInterval]:
    """Read the intervals of a claim's reply for which tenants were kept out."""
    rows = range(0, len(values), 4)
    return [BlockedInterval(values[i].decode(), cause_of(values[i + 1]), values[i + 2], values[i + 3]) for i in rows]


def pack_options(task: NewTask) -> bytes:
    """Pack a task's options; empty if all are defaults."""
    if task[2:] == _PLAIN:
        return b""
    *fixed, dedupe_key, window_ms, result_ttl_ms, events, batch = task[2:]
    texts = (dedupe_key.encode(), batch.encode())
    packed = _OPTIONS.pack(*fixed, window_ms, result_ttl_ms, events)
    return packed + b"".join(bytes([len(text)]) + text for text in texts)


def pack_timing(timing: Timing) -> bytes:
    """Pack a schedule's timing; Lua stores it without reading it."""
    zone, cron = timing.zone.encode(), timing.cron.encode()
    return _TIMING.pack(timing.every_ms, len(zone), len(cron)) + zone + cron


def pack_template(task: NewTask) -> bytes:
    """Pack the template of a schedule's tasks."""
    options = pack_options(task)
    return _TEMPLATE.pack(len(options)) + options + task.payload


def _unpack_template(template: bytes) -> NewTask:
    """Read the template of a schedule's tasks; every fire gives the task its id."""
    (size,) = _TEMPLATE.unpack_from(template)
    options, payload = template[_TEMPLATE.size :][:size], template[_TEMPLATE.size + size :]
    if not options:
        return NewTask("", payload)
    _, _, expires_in, _, max_attempts, priority, hours, result_ttl, events = _OPTIONS.unpack_from(options)
    dedupe_key = options[_OPTIONS.size + 1 :][: options[_OPTIONS.size]].decode()
    return NewTask(
        "", payload, expires_in_ms=int(expires_in), max_attempts=max_attempts, priority=priority,
        dedupe_key=dedupe_key, dedupe_period_ms=int(hours), result_ttl_ms=int(result_ttl), events=bool(events),
    )  # fmt: skip


def unpack_schedule(row: Sequence[bytes]) -> ScheduleState:
    """Read a schedule: its field, its head and, if given, its template."""
    field, head, *templates = row
    version, paused, misfire, next_at, last_fired_at = _SCHEDULE.unpack_from(head)
    if version != _SCHEDULE_VERSION:
        raise StoreRefused(f"the store holds a schedule of version {version}; this build reads {_SCHEDULE_VERSION}")
    every, zone_size, cron_size = _TIMING.unpack_from(head, _SCHEDULE.size)
    names = head[_SCHEDULE.size + _TIMING.size :].decode()
    tenant, _, name = field.decode().partition("/")
    state = ScheduleState(
        tenant, name, names[zone_size : zone_size + cron_size], names[:zone_size], int(every), MISFIRES[misfire],
        bool(paused), int(next_at), int(last_fired_at),
    )  # fmt: skip
    if not templates:
        return state
    task = _unpack_template(templates[0])
    return evolve(
        state, expires_in_ms=task.expires_in_ms, max_attempts=task.max_attempts, priority=task.priority,
        dedupe_key=task.dedupe_key, dedupe_period_ms=task.dedupe_period_ms, result_ttl_ms=task.result_ttl_ms,
        events=task.events, payload=orjson.Fragment(task.payload),
    )  # fmt: skip


def unpack_opening_hours(tenant: bytes, revision: bytes) -> OpeningHours:
    """Read opening hours; their revision is needed to change them (see `set_opening_hours`)."""
    is_open, changes_at = _WINDOW.unpack_from(revision)
    return OpeningHours(tenant.decode(), revision[_WINDOW.size :].decode(), bool(is_open), int(changes_at), revision)
