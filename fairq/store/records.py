"""The packed formats shared with Lua: task records out of the store, options into it (lua/KEYS.md, 'Formats')."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from fairq.errors import StoreRefused
from fairq.model import Lease, NewTask

_HEADER = struct.Struct("<BHdddB")  # version, max_attempts, enqueued_at, start_at, expires_at, length of the tenant
_OPTIONS = struct.Struct("<ddddHBdB")  # times, max_attempts, priority, dedupe window, length of the dedupe key
_PLAIN = NewTask("", b"")[2:]
_RECORD_VERSION = 1


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
    if task[2:] == _PLAIN:
        return b""
    *fixed, dedupe_key, window_ms = task[2:]
    key = dedupe_key.encode()
    return _OPTIONS.pack(*fixed, window_ms, len(key)) + key
