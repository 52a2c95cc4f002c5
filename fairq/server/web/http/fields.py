"""The names and units that HTTP has for frames' fields: the SDK's, in seconds. So each frame class is its own schema.

A frame's `delay_ms` is `delay` here, in seconds; `start_at_ms` is `start_at`, in seconds since the epoch or as an RFC
3339 date and time; `timeout_ms` is `wait`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from hashlib import sha256
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import orjson
import uuid_utils
from attrs import evolve, fields

from fairq.errors import BadRequest, TooLarge
from fairq.model.checks import DERIVED, MAX_BATCH, MAX_PAYLOAD_BYTES, check_flag, check_task_id, check_tenant, full_id
from fairq.model.option_tables import TaskOptions
from fairq.model.options import hash_payload, pack_options, to_ms
from fairq.model.rules import MOMENT
from fairq.model.tasks import MAX_LINKS, OPTIONS, NewTask, Settlement
from fairq.wire import messages as wire
from fairq.wire import terms
from fairq.wire.codec import check_not_empty, structure
from fairq.wire.raw_payloads import RawPayload, check_payload_size

NOT_HERE = frozenset({"ref"})  # fields that only frames have
_OPTIONS = TaskOptions.__annotations__.keys()
_OWN = frozenset({"payload", "id", "tenant"})  # of a task, in addition to its options
_MOMENTS = ("start_at", "expires_at")
_WORDS = {"true": True, "false": False}
MAX_WAIT_S = terms.MAX_WAIT_MS // 1000


def name_of(field: str) -> str:
    """Return HTTP's name of a frame's field."""
    return "wait" if field == "timeout_ms" else field.removesuffix("_ms")


def is_moment(name: str) -> bool:
    """True if a field, by HTTP's name, is a time; the others with another name in frames are durations."""
    return name.endswith("_at") or name == "since"


@cache
def names_of(frame: Any) -> dict[str, str]:
    """Map HTTP's names of the fields of a frame, or of a part of one, to its own."""
    own = frame._fields if hasattr(frame, "_fields") else [field.name for field in fields(frame)]
    return {name_of(field): field for field in own if field not in NOT_HERE}


def _moment(value: Any, field: str) -> Any:
    """Return a moment as the SDK takes it; a text is a date and time with its zone. Raises: BadRequest."""
    if not isinstance(value, str):
        return value
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise BadRequest(
            f"{field} must be seconds since the epoch, or a date and time as in RFC 3339", field=field
        ) from None


def _value_of(name: str, field: str, value: Any) -> Any:
    if name == field or value is None:
        return value
    if name == "wait":
        return to_ms(value, name, wire.WAIT)
    if is_moment(name):
        moment = _moment(value, name)
        if isinstance(moment, datetime) and moment.tzinfo is None:
            raise BadRequest(f"{name} must have a time zone", field=name)
        return to_ms(moment.timestamp() if isinstance(moment, datetime) else moment, name, MOMENT)
    return to_ms(value, name)


def _object(value: Any, field: str, name: str = "") -> dict[str, Any]:
    if type(value) is not dict:
        raise BadRequest(f"{name or field} must be an object", field=field)
    return value


def make_request(frame: Any, given: Mapping[str, Any], max_bytes: int = MAX_PAYLOAD_BYTES) -> Any:
    """Make a request of what a path, a query and a body say; payloads of links have at most `max_bytes`.

    Raises: BadRequest, TooLarge, naming the field.
    """
    names, values = names_of(frame), dict[str, Any](ref=0)
    if isinstance(given.get("tenant"), str):
        check_tenant(given["tenant"])  # also where the verb would not look at it
    own = given if "tenant" in names or "tenant" not in given else _with_tenant(given)
    for name, value in own.items():
        if name not in names:
            raise BadRequest(f"unknown field {name!r:.80}", field=name[:80])
        if value is not None:
            values[names[name]] = _value_of(name, names[name], value)
    if frame is wire.Settle:
        asked = _list(values.get("settlements"), "settlements")
        values["settlements"] = [_settlement(each, max_bytes, values.get("queue")) for each in asked]
    return check_not_empty(structure(values, frame))


def _with_tenant(given: Mapping[str, Any]) -> dict[str, Any]:
    """Name a producer's tasks or batch by full ids, for frames that have no field for the tenant."""
    own = dict(given)
    if (tenant := own.pop("tenant")) is None:
        return own
    check_tenant(tenant)
    if isinstance(own.get("id"), str):
        own["id"] = full_id(tenant, own["id"])
    if isinstance(own.get("ids"), list):
        own["ids"] = [full_id(tenant, id) if isinstance(id, str) else id for id in own["ids"]]
    return own


def _list(value: Any, field: str, most: int = MAX_BATCH) -> list[Any]:
    if type(value) is not list or not value:
        raise BadRequest(f"{field} must be a list of at least 1 item", field=field)
    if len(value) > most:
        raise TooLarge(f"a list may have at most {most} items, not {len(value)}", field=field)
    return value


def _settlement(value: Any, max_bytes: int, queue: Any) -> dict[str, Any]:
    names = names_of(Settlement)
    given = _object(value, "settlements", "each settlement")
    if unknown := given.keys() - names.keys():
        raise BadRequest(f"unknown field {min(unknown)!r:.80} in a settlement", field=min(unknown)[:80])
    values = {
        names[name]: _value_of(name, names[name], it)
        for name, it in given.items()
        if it is not None or name == "result"
    }
    if values.get("links"):
        origin = f"{queue}\n{given.get('id')}\n{given.get('lease')}"  # so that a repeated request has the same ids
        asked = _list(values["links"], "links", MAX_LINKS)
        values["links"] = [_link(each, max_bytes, f"{origin}\n{n}") for n, each in enumerate(asked)]
    return values


def _link(value: Any, max_bytes: int, origin: str) -> dict[str, Any]:
    """Make what a frame has for a link of an object: a task and the name of its queue."""
    given = dict(_object(value, "links", "each link"))
    queue = given.pop("queue", None)
    if given.get("tenant") is not None:
        raise BadRequest("a link is for the tenant of its task", field="tenant")
    task, _ = make_task(given, max_bytes, f"{DERIVED}{sha256(origin.encode()).hexdigest()[:32]}")
    asked = {name: it for name, default in OPTIONS.items() if (it := getattr(task, name)) != default}
    return {"queue": queue, "id": task.id, "payload": RawPayload(task.payload), **asked}


def make_task(value: Any, max_bytes: int, id: str | None = None) -> tuple[NewTask, str | None]:
    """Make a task of an object; returns its tenant too. `id`: if it names none. Raises: BadRequest, TooLarge."""
    given = _object(value, "tasks", "each task")
    if unknown := given.keys() - _OPTIONS - _OWN:
        raise BadRequest(f"unknown field {min(unknown)!r:.80} in a task", field=min(unknown)[:80])
    if "payload" not in given:
        raise BadRequest("payload is missing", field="payload")
    payload = orjson.dumps(given["payload"])
    check_payload_size(len(payload), max_bytes)
    options = {name: value for name, value in given.items() if name not in _OWN and value is not None}
    options |= {name: _moment(options[name], name) for name in _MOMENTS if name in options}
    if "dedupe_payload" in options:
        check_flag(options["dedupe_payload"], "dedupe_payload")
    values = pack_options(options)  # type: ignore[arg-type]  # it checks them
    own = given.get("id")
    task = NewTask(check_task_id(own if own is not None else id or str(uuid_utils.uuid7())), payload, *values)
    if options.get("dedupe_payload"):
        task = task._replace(dedupe_key=hash_payload(payload))
    tenant = given.get("tenant")
    if tenant is None:
        return task, None
    return task._replace(id=full_id(check_tenant(tenant), task.id)), tenant


def make_enqueue(queue: str, values: Any, max_bytes: int, tenant: str | None = None) -> wire.Enqueue:
    """Make a request of the objects of tasks. Raises: BadRequest, TooLarge, naming the field."""
    tasks = [make_task(each, max_bytes)[0] for each in _list(values, "tasks")]
    return wire.Enqueue(0, queue, tasks, tenant)


def make_enqueue_from(given: Mapping[str, Any], max_bytes: int) -> wire.EnqueueFrom:
    """Make a request of a lease, a queue and the objects of tasks. Raises: BadRequest, TooLarge, naming the field."""
    if unknown := given.keys() - {"lease", "queue", "tasks"}:
        raise BadRequest(f"unknown field {min(unknown)!r:.80}", field=min(unknown)[:80])
    tasks = [make_task(each, max_bytes)[0] for each in _list(given.get("tasks"), "tasks")]
    lease = _object(given.get("lease"), "lease")
    values = {"ref": 0, "queue": given.get("queue"), "leases": [lease], "tasks": []}
    frame: wire.EnqueueFrom = structure(values, wire.EnqueueFrom)
    return evolve(frame, leases=frame.leases * len(tasks), tasks=tasks)


def read_query(frame: Any, query: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Read the values of a query string, each as the type of its field. Raises: BadRequest."""
    hints, names = _hints(frame), names_of(frame)
    found: dict[str, Any] = {}
    for name, text in query:
        kind = plain(hints[names[name]]) if name in names else str
        if get_origin(kind) is list:
            found.setdefault(name, []).append(text)
            continue
        if name in found:
            raise BadRequest(f"{name} is given twice", field=name[:80])
        found[name] = _read(name, text, float if name in names and names[name] != name else kind)
    return found


@cache
def _hints(frame: Any) -> dict[str, Any]:
    return get_type_hints(frame)


def plain(kind: Any) -> Any:
    """Return a type without `| None`."""
    kinds = get_args(kind)
    return next(each for each in kinds if each is not NoneType) if NoneType in kinds else kind


def _read(name: str, text: str, kind: Any) -> Any:
    try:
        if kind is int:
            if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 19:
                raise ValueError
            return int(text)
        if kind is float:
            if not text.isascii() or "_" in text or len(text) > 32:
                raise ValueError
            return float(text)
        return _WORDS[text] if kind is bool else text
    except (ValueError, KeyError):
        expected = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
        raise BadRequest(f"{name} must be {expected}, not {text!r:.80}", field=name) from None
