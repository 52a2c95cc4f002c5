"""Messages of clients -> frames: one JSON object each, read strictly (fairq/wire/strict_json.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import repeat
from operator import itemgetter
from typing import Any, get_args, get_origin

import orjson
from attrs import NOTHING, fields, resolve_types
from cattrs import ClassValidationError, Converter, IterableValidationError
from cattrs.errors import ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn
from cattrs.preconf.orjson import make_converter

from fairq.errors import BadRequest, FairqError, TooLarge, UnknownVerb
from fairq.model.checks import (
    DEFAULT_PAYLOAD_BYTES,
    FULL_ID_PATTERN,
    MAX_BATCH,
    MAX_INLINE_BYTES,
    check_int,
    check_known_id,
    check_name,
    check_tenant,
    full_id,
)
from fairq.model.rules import FULL_ID, LEASE, MAX_LEASE, SPAN
from fairq.model.tasks import (
    ACTION,
    ACTIONS,
    ERROR,
    MAX_LINKS,
    MAX_RESULT_BYTES,
    OPTIONS,
    TRACEBACK,
    Action,
    Link,
    NewTask,
    Settlement,
    check_links,
)
from fairq.wire.frames import HeldLease, Report
from fairq.wire.raw_payloads import (
    NO_PAYLOADS,
    Message,
    Payloads,
    RawPayload,
    check_inline,
    check_payload_size,
    split,
)
from fairq.wire.strict_json import parse
from fairq.wire.verbs import VERBS

MAX_REF = (1 << 53) - 1
_TASK_FIELDS = frozenset(NewTask._fields)
_SETTLEMENT_FIELDS = frozenset(Settlement._fields)
_FENCED = {"action", "id", "lease"}
_FITTING = {  # the fields that a settlement may have, by its action
    "ack": _FENCED | {"result", "links"},
    "nack": _FENCED | {"delay_ms", "error", "traceback"},
    "reject": _FENCED | {"error", "traceback"},
    "release": _FENCED | {"delay_ms", "error"},
    "extend": _FENCED,
}
_NOT_EMPTY = "tasks", "settlements", "reports", "ids"  # lists of any frame
_ACTIONS = frozenset(ACTIONS)
_no_more = [repeat(each) for each in Settlement("ack", "", 1)[len(_FENCED) :]]
_fence_of = itemgetter("action", "id", "lease")
_make_settlement = partial(tuple.__new__, Settlement)
_REF, _REF_CHARS = re.compile(r'"ref"\s*:\s*(\d{1,15})\b'), 200  # the ref of a frame that is not read, in its first 200
_dumps, _loads = orjson.dumps, orjson.loads


def _payload_of(value: Any) -> bytes:
    return value.text if type(value) is RawPayload else check_inline(_dumps(value))


def _structure_task(data: Any, _: object) -> NewTask:
    if type(data) is not dict:
        raise BadRequest("each task must be an object", field="tasks")
    if "payload" not in data:
        raise BadRequest("payload is missing", field="payload")
    payload, tenant = _payload_of(data["payload"]), data.pop("tenant", None)
    if len(data) == 2:
        id = check_known_id(data.get("id"))
        return NewTask(id if tenant is None else full_id(check_tenant(tenant), id), payload)
    if extra := data.keys() - _TASK_FIELDS:
        raise BadRequest(f"unknown field {min(extra)!r:.80} in a task", field=min(extra)[:80])
    options = {name: data[name] for name in OPTIONS.keys() & data.keys() if data[name] is not None}
    task = NewTask(data.get("id"), payload, **options)  # type: ignore[arg-type]  # `check` checks it
    task.check()
    return task if tenant is None else task._replace(id=full_id(check_tenant(tenant), task.id))


def _structure_settlement(data: Any, _: object) -> Settlement:
    if type(data) is not dict:
        raise BadRequest("each settlement must be an object", field="settlements")
    get = data.get
    action: Action = ACTION.check(get("action"), "action")
    delay_ms, error = get("delay_ms"), get("error")
    if len(data) > 3 and (extra := data.keys() - _FITTING[action]):
        if unknown := extra - _SETTLEMENT_FIELDS:
            raise BadRequest(f"unknown field {min(unknown)!r:.80} in a settlement", field=min(unknown)[:80])
        if unfit := [name for name in sorted(extra) if data[name] is not None]:
            raise BadRequest(f"{action} has no {unfit[0]}", field=unfit[0])
    if delay_ms is not None:
        SPAN.check(delay_ms, "delay_ms")
    error = "" if error is None else ERROR.check(error, "error")
    lease = LEASE.check(get("lease"), "lease")
    result = _dumps(data["result"]) if "result" in data and action == "ack" else b""
    if len(result) > MAX_RESULT_BYTES:
        raise TooLarge(f"result has {len(result)} bytes; the limit is {MAX_RESULT_BYTES}", field="result")
    links = _structure_links(data["links"]) if data.get("links") is not None else ()
    traceback = TRACEBACK.check(data["traceback"], "traceback") if data.get("traceback") is not None else ""
    return Settlement(action, FULL_ID.check(get("id"), "id"), lease, delay_ms, error, result, links, traceback)


def _structure_plain_settlements(data: list[Any]) -> list[Settlement]:
    """Read settlements without optional fields, as nearly all are: without a step of Python for each.

    Returns an empty list if one has other fields or breaks a rule.
    """
    try:
        actions, ids, leases = zip(*map(_fence_of, data), strict=True)
        is_plain = (
            set(map(len, data)) == {len(_FENCED)}
            and set(map(type, leases)) == {int}
            and 1 <= min(leases) <= max(leases) <= MAX_LEASE
            and all(map(FULL_ID_PATTERN.match, ids))
            and _ACTIONS.issuperset(actions)
        )
    except (KeyError, TypeError, ValueError):
        is_plain = False
    return list(map(_make_settlement, zip(actions, ids, leases, *_no_more, strict=False))) if is_plain else []


def _structure_links(data: Any) -> tuple[Link, ...]:
    if type(data) is not list or any(type(each) is not dict for each in data):
        raise BadRequest("links must be a list of objects", field="links")
    if len(data) > MAX_LINKS:
        raise TooLarge(f"an acknowledgement has at most {MAX_LINKS} links", field="links")
    links = tuple(Link(check_name(each.pop("queue", None), "queue"), _structure_task(each, NewTask)) for each in data)
    if any("/" in link.task.id for link in links):
        raise BadRequest("a link is for the tenant of its task", field="tenant")
    check_links(links)
    return links


def _exactly(kind: type[Any], name: str) -> Any:
    def structure(value: Any, _: object) -> Any:
        if type(value) is kind or (kind is float and type(value) is int):
            return value
        raise ValueError(f"must be {name}")

    return structure


def _is_a(origin: object, kind: Any) -> bool:
    return get_origin(kind) is origin


def _optional_of(kind: type[Any]) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind) if field.default is not NOTHING)


def _less_nulls(data: dict[str, Any], optional: frozenset[str]) -> dict[str, Any]:
    """Leave out optional fields that are null: null means the default."""
    if None not in data.values():
        return data
    return {name: value for name, value in data.items() if value is not None or name not in optional}


def _fill(kind: type[Any], converter: Converter) -> Callable[[Any, Any], Any]:
    """Return what makes a record of an object; its fields are checked by their types here, by their rules later."""
    return make_dict_structure_fn(resolve_types(kind, include_extras=False), converter, _cattrs_forbid_extra_keys=True)


def _object(kind: type[Any], converter: Converter) -> Callable[[Any, Any], Any]:
    fill, optional = _fill(kind, converter), _optional_of(kind)

    def structure(value: Any, _: object) -> Any:
        if type(value) is not dict:
            raise ValueError("must be an object")
        held = fill(_less_nulls(value, optional), kind)
        FULL_ID.check(held.id, "id")
        LEASE.check(held.lease, "lease")
        return held

    return structure


_AT_ONCE = {Settlement: _structure_plain_settlements}


def _list_of(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    (inner,) = get_args(kind)
    hook, at_once = converter.get_structure_hook(inner), _AT_ONCE.get(inner)

    def structure(value: Any, _: object) -> Any:
        if type(value) is not list:
            raise ValueError("must be a list")
        if len(value) > MAX_BATCH:
            raise TooLarge(f"a list may have at most {MAX_BATCH} items, not {len(value)}")
        return (at_once and at_once(value)) or list(map(hook, value, repeat(inner)))

    return structure


_converter = make_converter(forbid_extra_keys=True)
for _kind, _name in (
    (int, "a whole number"), (str, "text"), (float, "a number"), (bool, "true or false"), (dict, "an object"),
):  # fmt: skip
    _converter.register_structure_hook(_kind, _exactly(_kind, _name))
_converter.register_structure_hook_func(partial(_is_a, dict), _exactly(dict, "an object"))
_converter.register_structure_hook_factory(partial(_is_a, list), _list_of)
_converter.register_structure_hook(NewTask, _structure_task)
_converter.register_structure_hook(Settlement, _structure_settlement)
for _lease in (HeldLease, Report):
    _converter.register_structure_hook(_lease, _object(_lease, _converter))

CLIENT_TYPES: dict[str, type[Any]] = {frame.type: frame for frame in VERBS}
_OPTIONAL = {kind: _optional_of(frame) for kind, frame in CLIENT_TYPES.items()}


@cache
def _fill_of(frame: Any) -> Callable[[Any, Any], Any]:
    """Return what makes a frame of an object: of a client's, or one that only HTTP has."""
    return _fill(frame, _converter)


def _explain(error: BaseException, path: str = "") -> FairqError:
    """Return the first error inside cattrs's tree of errors, with the name of its field."""
    if isinstance(error, FairqError):
        error.field = error.field or path or None
        return error
    if isinstance(error, ClassValidationError | IterableValidationError):
        for inner in error.exceptions:
            notes = getattr(inner, "__notes__", [])
            name = next((getattr(note, "name", None) for note in notes if hasattr(note, "name")), None)
            return _explain(inner, str(name) if name is not None else path)
    if isinstance(error, ForbiddenExtraKeysError):
        extra = min(error.extra_fields)
        return BadRequest(f"unknown field {extra!r:.80}", field=extra[:80])
    if isinstance(error, KeyError):
        return BadRequest(f"{error.args[0]} is missing", field=str(error.args[0]))
    return BadRequest(f"{path or 'the frame'} {error}"[:300], field=path or None)


def structure(data: dict[str, Any], frame: Any) -> Any:
    """Turn a parsed object without its `type` into a client's frame. Raises: BadRequest, naming the field."""
    try:
        return _fill_of(frame)(data, frame)
    except Exception as error:  # cattrs passes on any error of its hooks; all mean invalid input
        raise _explain(error) from None


def check_not_empty(frame: Any) -> Any:
    """Return a frame if its lists have items. Raises: BadRequest."""
    for name in _NOT_EMPTY:
        if getattr(frame, name, None) == []:
            raise BadRequest(f"{name} must have at least 1 item", field=name)
    return frame


def _ref_in(text: str) -> int | None:
    """Find the ref in the text of a frame that would take too long to read."""
    found = _REF.search(text, 0, _REF_CHARS)
    return int(found[1]) if found else None


def _tasks_in(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Go through all objects of a frame that stand for new tasks."""
    for settlement in _objects_in(data, "settlements"):
        yield from _objects_in(settlement, "links")
    yield from _objects_in(data, "tasks")


def _objects_in(data: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    found = data.get(name)
    return (each for each in (found if type(found) is list else ()) if type(each) is dict)


def _take_beside(data: dict[str, Any], payloads: Payloads, max_bytes: int) -> None:
    """Put the raw payloads of a frame into its tasks, or links. Raises: BadFrame, BadRequest, TooLarge."""
    for task in _tasks_in(data):
        if "payload_bytes" in task:
            size = check_int(task.pop("payload_bytes"), "payload_bytes", MAX_INLINE_BYTES + 1, MAX_REF)
            check_payload_size(size, max_bytes)
            if "payload" in task:
                raise BadRequest("give payload or payload_bytes, not both", field="payload_bytes")
            task["payload"] = RawPayload(payloads.take(size))
    payloads.check_end()


def decode_client(message: Message, max_payload_bytes: int = DEFAULT_PAYLOAD_BYTES) -> Any:
    """Read a client's frame. Raises: BadFrame, UnknownVerb, BadRequest, TooLarge; with `ref` if a frame had one."""
    text, payloads = (message, NO_PAYLOADS) if type(message) is str else split(message)
    try:
        data = parse(text)
    except TooLarge as error:
        error.ref = _ref_in(text)
        raise
    ref = data.get("ref")
    try:
        kind = data.pop("type", None)
        if not isinstance(kind, str) or kind not in CLIENT_TYPES:
            raise UnknownVerb(f"unknown frame type {kind!r:.80}", field="type")
        if ref is not None:
            check_int(ref, "ref", 0, MAX_REF)
        if type(message) is bytes:
            _take_beside(data, payloads, max_payload_bytes)
        return check_not_empty(structure(_less_nulls(data, _OPTIONAL[kind]), CLIENT_TYPES[kind]))
    except FairqError as error:
        error.ref = ref if type(ref) is int and 0 <= ref <= MAX_REF else None
        raise
