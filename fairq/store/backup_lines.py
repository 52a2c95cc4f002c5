"""What a line of a backup is of: the true data of a store, as JSON.

A line is an object with `kind` first and, of what is in a queue, `queue`. The rest of a line:

| kind | fields | what it is of |
|---|---|---|
| `queue` | `made` (when, a space, and its maker) | the registry |
| `token`, `token_use` | `id`, `value` (JSON; ms) | tokens' hashes, and when they were used |
| `audit` | `stream` (`operators`, `tenants` or `begun`), `id`, `fields` | a change that someone made |
| `state` | QUEUE | settings, pause, clock and counts of a queue |
| `tenant` | `tag`, `account` (ACCOUNT, with BOOKS in `books`), `details` (DETAILS) | |
| `limits` | `id` (a tenant, or empty), `limits` (a map) | |
| `opening_hours` | `id` (a tenant, or empty), HOURS | |
| `webhook`, `batch` | `id`, WEBHOOK or BATCH | |
| `task` | `id`, HEADER, `options` (a map), `run`, `death`, `delayed_until`, `payload` | a task |
| `done` | `id`, MARK | a task that was done or cancelled in the last minutes |
| `callback` | `id`, `payload` | the payload of a callback task of a batch |
| `schedule` | `tenant`, `id`, SCHEDULE (`timing`: `every`, `zone`, `cron`) | |
| `template` | `id`, `options` (OPTIONS), `payload` | a schedule's task |
| `opening_change`, `fire` | `id`, `at` | when a tenant opens or closes, when a schedule fires |
| `cancelling` | `id`, `at` | since when a batch is being cancelled |
| `result`, `unique` | `id`, `until`, `value` | a kept result; the task that holds a dedupe key |
| `kept` | `of` (`r` or `k`), `tag`, `bytes`, `id`, `until` | what a result, or a held dedupe key, counts |
| `event` | `tenant`, `id`, `fields` | an event of a feed |

Names in capitals are records of lua/KEYS.md; their fields stand in the line by name. A field that is missing is 0
or empty; one that is not known is ignored. Infinity is `"inf"`. A text that is no UTF-8 is `{"base64": ...}`. A payload
stands last in its line, byte for byte, or in `payload_base64` if it is no JSON in one line.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import orjson
import ormsgpack

from fairq.model.schedules import Timing
from fairq.store import library
from fairq.store.records import pack_timing, unpack_timing

FORMATS = library.formats()
PAYLOAD = b',"payload":'
NESTED = {"books": "BOOKS", "options": "OPTIONS"}  # fields that are records


def tell_text(text: bytes) -> Any:
    """Write bytes as a JSON value."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(text).decode()}


def read_text(told: Any) -> bytes:
    """Read bytes that `tell_text` wrote. Raises: ValueError."""
    if isinstance(told, dict):
        return base64.b64decode(told["base64"], validate=True)
    if not isinstance(told, str):
        raise ValueError("a text is none")
    return told.encode()


def tell_number(value: float) -> Any:
    """Write a number as a JSON value."""
    if not math.isfinite(value):
        return str(value)
    return int(value) if value == int(value) else value


def read_number(told: Any) -> float:
    """Read a number that `tell_number` wrote. Raises: ValueError."""
    if isinstance(told, str):
        return float(told)
    if isinstance(told, bool) or not isinstance(told, int | float):
        raise ValueError("a number is none")
    return told


def tell_record(name: str, packed: bytes) -> tuple[dict[str, Any], int]:
    """Unpack a record for a line, and tell where it ends."""
    values, end = FORMATS[name].unpack(packed)
    return {field: _tell_field(field, value) for field, value in values.items() if field != "more" or value}, end


def tell_map(packed: bytes) -> dict[str, Any]:
    """Unpack a map by name for a line."""
    found: dict[str, Any] = ormsgpack.unpackb(packed)
    return {name: value if isinstance(value, str) else tell_number(value) for name, value in found.items()}


def read_map(told: Mapping[str, Any]) -> bytes:
    """Pack a map by name. Raises: ValueError, AttributeError."""
    return ormsgpack.packb({
        name: value if isinstance(value, str) else read_number(value) for name, value in told.items()
    })  # fmt: skip


def _tell_field(field: str, value: Any) -> Any:
    if field == "tag":
        return int.from_bytes(value, "little")
    if field == "settings":
        return tell_map(value) if value else {}
    if field in NESTED:
        return tell_record(NESTED[field], value)[0] if value else None
    if field == "timing":
        timing = unpack_timing(value)
        return {"every": timing.every_ms, "zone": timing.zone, "cron": timing.cron}
    if isinstance(value, str):
        return tell_text(value.encode(errors="surrogateescape"))
    return tell_text(value) if isinstance(value, bytes) else tell_number(value)


def read_record(name: str, told: Mapping[str, Any]) -> bytes:
    """Pack what a line says of a record. Raises: ValueError, KeyError, TypeError, struct.error, AttributeError."""
    form = FORMATS[name]
    return form.pack({field.name: _read_field(field, told.get(field.name)) for field in [*form.fields, *form.later]})


def _read_field(field: library.Field, told: Any) -> Any:
    if field.name == "tag":
        return int(told or 0).to_bytes(4, "little")
    if field.name in NESTED:
        return read_record(NESTED[field.name], told) if told else b""
    if field.name == "settings":
        return read_map(told) if told else b""
    if field.name == "timing":
        return pack_timing(Timing(told["cron"], told["zone"], int(read_number(told["every"]))))
    if field.type in ("t1", "t2", "rest"):
        return read_text(told) if told is not None else b""
    number = read_number(0 if told is None else told)
    return float(number) if field.type == "d" else number


def dump(line: dict[str, Any], payload: bytes | None = None) -> bytes:
    """Write a line, with its payload behind all else."""
    if payload is None:
        return orjson.dumps(line)
    try:
        if b"\n" in payload:
            raise ValueError
        orjson.loads(payload)
    except ValueError:
        return orjson.dumps(line | {"payload_base64": base64.b64encode(payload).decode()})
    return orjson.dumps(line)[:-1] + PAYLOAD + payload + b"}"


def load(text: bytes) -> tuple[dict[str, Any], bytes | None]:
    """Read a line, and its payload. Raises: ValueError."""
    head, mark, payload = text.partition(PAYLOAD)
    line = orjson.loads(head + b"}" if mark else text)
    if not isinstance(line, dict):
        raise ValueError("it is no object")
    if mark:
        orjson.loads(payload[:-1])
        return line, payload[:-1]
    coded = line.pop("payload_base64", None)
    return line, None if coded is None else base64.b64decode(coded, validate=True)
