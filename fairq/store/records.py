"""The packed formats shared with Lua: task records out of the store, options into it (lua/KEYS.md, 'Formats')."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from fairq.errors import StoreRefused
from fairq.model import Lease, NewTask

_HEADER = struct.Struct("<BHdddB")  # version, max_attempts, enqueued_at, start_at, expires_at, length of the tenant
_OPTIONS = struct.Struct("<ddddHBdd")  # times, max_attempts, priority, dedupe window, result ttl; then two texts
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
    """Read a claim's reply: which want their results kept, then id, attempt, max_attempts, record, and so on."""
    leases, wanting = [], set(reply[2])
    for i in range(3, len(reply), 4):
        id = reply[i]
        leases.append(Lease(id.decode(), reply[i + 1], reply[i + 2], *unpack_record(reply[i + 3]), id in wanting))
    return leases


def pack_options(task: NewTask) -> bytes:
    """Pack what a task asks beyond the defaults; empty for a plain one."""
    if task[2:] == _PLAIN:
        return b""
    *fixed, dedupe_key, window_ms, result_ttl_ms, batch = task[2:]
    texts = (dedupe_key.encode(), batch.encode())
    return _OPTIONS.pack(*fixed, window_ms, result_ttl_ms) + b"".join(bytes([len(text)]) + text for text in texts)
