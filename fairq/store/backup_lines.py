"""The lines of a backup: the primary data of a store, as JSON.

A line is an object with `kind` first and, for data of a queue, `queue`. The rest of a line:

| kind | fields | content |
|---|---|---|
| `queue` | `made` (when, a space, and its maker) | the registry |
| `partitions` | `count` | how many a queue has, if several; other lines then name one, as `queue` |
| `token`, `token_use` | `id`, `value` (JSON; ms) | tokens' hashes, and when they were used |
| `audit` | `stream` (`operators`, `tenants` or `begun`), `id`, `fields` | a change that someone made |
| `state` | QUEUE | settings, pause, clock and counts of a queue |
| `tenant` | `tag`, `account` (ACCOUNT, with BOOKS in `books`), `details` (DETAILS) | |
| `limits` | `id` (a tenant, or empty), `limits` (a map) | |
| `opening_hours` | `id` (a tenant, or empty), HOURS | |
| `webhook`, `batch` | `id`, WEBHOOK or BATCH | |
| `task` | `id`, HEADER, `options` (a map), `run`, `death`, `delayed_until`, `payload` | a task |
| `done` | `id`, MARK | a task that was done or cancelled, or lost its dead letter, in the last minutes |
| `callback` | `id`, `payload` | the payload of a callback task of a batch |
| `schedule` | `tenant`, `id`, SCHEDULE (`timing`: `every`, `zone`, `cron`) | |
| `template` | `id`, `options` (OPTIONS), `payload` | a schedule's task |
| `opening_change`, `fire` | `id`, `at` | when a tenant opens or closes, when a schedule fires |
| `declared` | `id`, `at` | when a worker last declared a schedule |
| `cancelling` | `id`, `at` | since when a batch is being cancelled |
| `result`, `unique` | `id`, `until`, `value` | a kept result; the task that holds a dedupe key |
| `kept` | `of` (`r` or `k`), `tag`, `bytes`, `id`, `until` | the bytes that a result, or a held dedupe key, counts |
| `batch_result` | `batch`, `id`, `until`, `order` | a task that was done, and until when its result is kept |
| `event` | `tenant`, `id`, `fields` | an event of a feed; without fields: the last id of one that keeps no events |
| `slot` | `id` (place in its ring), `step` (s), SLOT, `rows` (SLOT_ROW; `waits`: pairs of bucket, count) | history |

Names in capitals are records of lua/KEYS.md; their fields are in the line by name. A missing field is 0 or empty; an
unknown one is refused. Infinity is `"inf"`. Text that is not UTF-8 is `{"base64": ...}`. A payload comes last in its
line, byte for byte, or in `payload_base64` if it is not JSON on one line. fairq/store/backup_kinds.py has the rules of
the fields.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import ormsgpack

from fairq.errors import BadRequest, FairqError
from fairq.model.checks import MAX_INLINE_BYTES
from fairq.model.schedules import Timing
from fairq.store import library
from fairq.store.records import pack_timing, pack_waits, unpack_timing, unpack_waits
from fairq.wire import strict_json

FORMATS = library.formats()
PAYLOAD = b',"payload":'
_EXACT = 1 << 53  # whole numbers beyond it would have more digits than they mean, and too many for JSON
_SPACES = b" \t\r"  # of JSON, in a line
_PAYLOAD = re.compile(rb',[ \t\r]*"payload"[ \t\r]*:')  # in a text the quotation marks would be escaped


def tell_text(text: bytes) -> Any:
    """Write bytes as a JSON value."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(text).decode()}


def read_text(value: Any) -> bytes:
    """Read bytes that `tell_text` wrote. Raises: ValueError."""
    if isinstance(value, dict):
        found = base64.b64decode(value["base64"], validate=True)
        if tell_text(found) != value:  # one text, one spelling: lines are compared as they are
            raise ValueError("a text is invalid")
        return found
    if not isinstance(value, str):
        raise ValueError("a text is invalid")
    return value.encode()


def tell_number(value: float) -> Any:
    """Write a number as a JSON value."""
    if not math.isfinite(value):
        return str(value)
    return int(value) if abs(value) < _EXACT and value == int(value) else value


def read_number(value: Any) -> float:
    """Read a number that `tell_number` wrote. Raises: ValueError."""
    if type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    if isinstance(value, str):
        return float(value)
    raise ValueError("a number is invalid")


def tell_record(name: str, packed: bytes) -> tuple[dict[str, Any], int]:
    """Unpack a record for a line, and return where it ends."""
    values, end = FORMATS[name].unpack(packed)
    line = {each: _TELLERS.get(each, _tell_value)(value) for each, value in values.items() if each != "more" or value}
    return line, end


def tell_map(packed: bytes) -> dict[str, Any]:
    """Unpack a map by name for a line."""
    found: dict[str, Any] = ormsgpack.unpackb(packed)
    return {name: value if isinstance(value, str) else tell_number(value) for name, value in found.items()}


def read_map(values: Mapping[str, Any]) -> bytes:
    """Pack a map by name. Raises: ValueError, AttributeError."""
    return ormsgpack.packb({
        name: value if isinstance(value, str) else read_number(value) for name, value in values.items()
    })  # fmt: skip


def read_record(name: str, line: Mapping[str, Any]) -> bytes:
    """Pack the record of a line. Raises: ValueError, KeyError, TypeError, struct.error, AttributeError."""
    return FORMATS[name].pack({each: read(line.get(each, nothing)) for each, nothing, read in _READERS[name]})


def _tell_value(value: Any) -> Any:
    if type(value) is int:
        return value
    if isinstance(value, str):
        return value if value.isascii() else tell_text(value.encode(errors="surrogateescape"))
    return tell_text(value) if isinstance(value, bytes) else tell_number(value)


def _tell_timing(packed: bytes) -> dict[str, Any]:
    timing = unpack_timing(packed)
    return {"every": timing.every_ms, "zone": timing.zone, "cron": timing.cron}


def _read_timing(line: Mapping[str, Any]) -> bytes:
    return pack_timing(Timing(line["cron"], line["zone"], int(read_number(line["every"]))))


_TELLERS: dict[str, Callable[[Any], Any]] = {  # of fields that are more than a number or a text
    "tag": lambda tag: int.from_bytes(tag, "little"),
    "settings": lambda packed: tell_map(packed) if packed else {},
    "books": lambda packed: tell_record("BOOKS", packed)[0] if packed else None,
    "options": lambda packed: tell_record("OPTIONS", packed)[0] if packed else None,
    "timing": _tell_timing,
    "waits": lambda packed: list(unpack_waits(packed).items()),
}
_READ: dict[str, Callable[[Any], bytes]] = {  # the same, back
    "tag": lambda value: int(value or 0).to_bytes(4, "little"),
    "settings": lambda value: read_map(value) if value else b"",
    "books": lambda value: read_record("BOOKS", value) if isinstance(value, dict) else b"",
    "options": lambda value: read_record("OPTIONS", value) if isinstance(value, dict) else b"",
    "timing": _read_timing,
    "waits": lambda value: pack_waits(dict(value)),
}
_READERS: dict[str, list[tuple[str, str | int, Callable[[Any], Any]]]] = {  # field, its default, how it is read
    name: [
        (each.name, each.nothing, _READ.get(each.name, read_text if each.nothing == "" else read_number))
        for each in [*form.fields, *form.later]
    ]
    for name, form in FORMATS.items()
}


def dump(line: dict[str, Any], payload: bytes | None = None) -> bytes:
    """Write a line, with its payload last."""
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
    """Read a line, and its payload: its bytes behind PAYLOAD, up to the end of the line. Raises: BadRequest."""
    mark, payload = _PAYLOAD.search(text), None
    head = text
    if mark:
        head, rest = text[: mark.start()] + b"}", text[mark.end() :].rstrip(_SPACES)
        payload = rest[:-1]
        if mark[0] != PAYLOAD or len(payload) <= MAX_INLINE_BYTES:  # servers store these without spaces around them
            payload = payload.strip(_SPACES)
        _check_end(rest, payload)
    try:
        line = strict_json.read(head.decode())
    except (FairqError, UnicodeDecodeError) as error:
        raise BadRequest(f"it is not JSON: {error}", field="line") from None
    if not isinstance(line, dict):
        raise BadRequest("it is not an object", field="line")
    if "payload_base64" in line and payload is None:
        payload = _decoded(line.pop("payload_base64"))
    return line, payload


def _check_end(rest: bytes, payload: bytes) -> None:
    try:
        orjson.loads(payload)
    except ValueError as error:
        raise BadRequest(f"payload is not JSON, or does not stand last: {error}", field="payload") from None
    if not rest.endswith(b"}"):
        raise BadRequest("payload must stand last in its line", field="payload")


def _decoded(coded: Any) -> bytes:
    try:
        return base64.b64decode(coded.encode(), validate=True)
    except (ValueError, AttributeError) as error:
        raise BadRequest(f"payload_base64 must be base64: {error}", field="payload_base64") from None
