"""Parts of the SDK's requests and replies: payloads, names, rows.

Nothing here waits or knows of connections, so that every runtime shares it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import orjson
import uuid_utils
from attrs import asdict, has
from orjson import Fragment as Fragment

from fairq.errors import BadRequest, NoResult, TaskFailed, TooLarge
from fairq.model.checks import DEFAULT_PAYLOAD_BYTES, check_name, check_task_id
from fairq.model.option_tables import TaskOptions
from fairq.model.options import full_ids, hash_payload, pack_options
from fairq.model.tasks import NO_ROOM, NewTask
from fairq.wire.decode import structure as structure

T = TypeVar("T")
_attrs_of = partial(asdict, recurse=False)


def _object_of(value: Any) -> dict[str, Any]:
    """Return all fields of an object of a class, whatever their names; orjson would leave out those of a `_`."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return _attrs_of(value)


def rows(kind: type[T], found: Iterable[Mapping[str, Any]]) -> list[T]:
    """Read the rows of a reply."""
    return [structure(row, kind) for row in found]


def _has_nan(value: Any) -> bool:
    """True if a value that orjson can write holds a float that it writes as null."""
    try:
        json.dumps(value, allow_nan=False, default=_fields_of)
    except ValueError:
        return True
    return False


def _fields_of(value: Any) -> Any:
    """Return what an object of a class holds; None for the other values that only orjson knows: they hold no float."""
    if isinstance(value, Enum):
        return value.value
    return _object_of(value) if has(type(value)) or is_dataclass(value) else None


def encode_payload(value: Any, field: str = "payload", max_bytes: int = DEFAULT_PAYLOAD_BYTES) -> bytes:
    """Write a payload, or a result, as JSON. Raises: BadRequest if it is not JSON, TooLarge."""
    try:  # a frame holds it as deep, and may be no deeper than orjson writes
        text = orjson.dumps([[[[value]]]], _object_of, orjson.OPT_PASSTHROUGH_DATACLASS)[4:-4]
    except TypeError as error:
        raise BadRequest(f"the {field} is not JSON: {error}", field=field) from None
    if b"null" in text and _has_nan(value):
        raise BadRequest(f"the {field} is not JSON: it has a number that is NaN or infinite", field=field)
    if len(text) > max_bytes:
        raise TooLarge(f"the {field} has {len(text)} bytes; the limit is {max_bytes}", field=field)
    return text


def new_id() -> str:
    """Make an id: a UUID of version 7."""
    return str(uuid_utils.uuid7())


def new_tasks(
    queue: str,
    payloads: Iterable[Any],
    ids: Sequence[str] | None,
    tenant: str | Sequence[str] | None,
    options: TaskOptions,
    max_bytes: int,
) -> list[NewTask]:
    """Make tasks that share their options. Raises: BadRequest, TooLarge; TypeError for unknown options."""
    check_name(queue, "queue")
    if isinstance(payloads, str | bytes | Mapping):
        raise BadRequest("payloads must be a list; this is one payload", field="payloads")
    values = pack_options(options) if options else ()
    payloads = list(payloads)
    if ids is None:
        ids = [new_id() for _ in payloads]
    elif len(ids) != len(payloads):
        raise BadRequest(f"{len(ids)} ids were given for {len(payloads)} payloads", field="ids")
    else:
        for id in ids:
            check_task_id(id)
    if tenant is not None:
        ids = full_ids(ids, tenant)
    pairs = zip(ids, payloads, strict=True)
    made = [NewTask(id, encode_payload(payload, max_bytes=max_bytes), *values) for id, payload in pairs]
    if options.get("dedupe_payload"):
        made = [task._replace(dedupe_key=hash_payload(task.payload)) for task in made]
    return made


def result_of(row: Mapping[str, Any]) -> Any:
    """Return a task's result. Raises: NoResult, TaskFailed, which say why there is none."""
    if "result" in row:
        return row["result"]
    if row["state"] == "done" and row.get("reason") == NO_ROOM:
        raise NoResult(
            f"the result of task {row['id']} was dropped: its tenant's limit {NO_ROOM} left no room for it",
            field=NO_ROOM,
        )
    if row["state"] in ("done", "unknown"):
        raise NoResult(f"no result of task {row['id']} is kept", field="id")
    reason = ": ".join(filter(None, (row["state"], row.get("reason", ""), row.get("error", ""))))
    raise TaskFailed(f"task {row['id']} has no result; {reason}", field="id")
