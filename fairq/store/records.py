"""The packed formats shared with Lua: task records out of the store, options into it (lua/KEYS.md, 'Formats')."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import orjson
from attrs import evolve

from fairq.errors import StoreRefused
from fairq.model import MISSED, Lease, NewTask, ScheduleState, Timing

_HEADER = struct.Struct("<BHdddB")  # version, max_attempts, enqueued_at, start_at, expires_at, length of the tenant
_OPTIONS = struct.Struct("<ddddH")  # delay, start_at, expires_in, expires_at, max_attempts
_RECORD_VERSION = 1
_SCHEDULE = struct.Struct("<BBBdd")  # version, paused, missed, next_at, last_fired_at; the timing follows
_TIMING = struct.Struct("<dBB")  # every, lengths of zone and cron, which follow
_TEMPLATE = struct.Struct("<dH")  # expires_in, max_attempts; the payload follows
_SCHEDULE_VERSION = 1


def unpack_record(record: bytes) -> tuple[str, int, int, int, bytes]:
    """Split a task record into tenant, enqueued_at_ms, start_at_ms, expires_at_ms and payload."""
    version, _, enqueued_at, start_at, expires_at, size = _HEADER.unpack_from(record)
    if version != _RECORD_VERSION:
        raise StoreRefused(f"the store holds a task record of version {version}; this build reads {_RECORD_VERSION}")
    at = _HEADER.size
    return record[at : at + size].decode(), int(enqueued_at), int(start_at), int(expires_at), record[at + size :]


def unpack_leases(reply: Sequence[Any]) -> list[Lease]:
    """Read the tail of a claim's reply: id, attempt, max_attempts, record, and so on."""
    leases = []
    for i in range(2, len(reply), 4):
        tenant, enqueued_at, start_at, expires_at, payload = unpack_record(reply[i + 3])
        leases.append(
            Lease(reply[i].decode(), reply[i + 1], reply[i + 2], tenant, enqueued_at, start_at, expires_at, payload)
        )
    return leases


def pack_options(task: NewTask) -> bytes:
    """Pack what a task asks beyond the defaults; empty for a plain one."""
    if not (task.delay_ms or task.start_at_ms or task.expires_in_ms or task.expires_at_ms or task.max_attempts):
        return b""
    return _OPTIONS.pack(task.delay_ms, task.start_at_ms, task.expires_in_ms, task.expires_at_ms, task.max_attempts)


def pack_timing(timing: Timing) -> bytes:
    """Pack when a schedule fires; Lua keeps it and does not look into it."""
    zone, cron = timing.zone.encode(), timing.cron.encode()
    return _TIMING.pack(timing.every_ms, len(zone), len(cron)) + zone + cron


def pack_template(payload: bytes, expires_in_ms: int = 0, max_attempts: int = 0) -> bytes:
    """Pack the task that a schedule enqueues."""
    return _TEMPLATE.pack(expires_in_ms, max_attempts) + payload


def unpack_schedule(row: Sequence[bytes]) -> ScheduleState:
    """Read a schedule: its field, its head and, if it is there, its template."""
    field, head, *templates = row
    version, paused, missed, next_at, last_fired_at = _SCHEDULE.unpack_from(head)
    if version != _SCHEDULE_VERSION:
        raise StoreRefused(f"the store holds a schedule of version {version}; this build reads {_SCHEDULE_VERSION}")
    every, zone_size, cron_size = _TIMING.unpack_from(head, _SCHEDULE.size)
    names = head[_SCHEDULE.size + _TIMING.size :].decode()
    tenant, _, name = field.decode().partition("/")
    state = ScheduleState(
        tenant, name, names[zone_size : zone_size + cron_size], names[:zone_size], int(every), MISSED[missed],
        bool(paused), int(next_at), int(last_fired_at),
    )  # fmt: skip
    if not templates:
        return state
    expires_in, max_attempts = _TEMPLATE.unpack_from(templates[0])
    payload = orjson.Fragment(templates[0][_TEMPLATE.size :])
    return evolve(state, expires_in_ms=int(expires_in), max_attempts=max_attempts, payload=payload)
