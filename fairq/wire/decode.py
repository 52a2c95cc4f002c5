"""Frames of servers -> objects; lenient, as later servers may add fields. (Clients' frames: codec.py.)"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_origin, get_type_hints

import orjson

from fairq.errors import BadFrame
from fairq.wire.frames import SERVER_FRAMES, Push, PushedTask, Reply
from fairq.wire.raw_payloads import NO_PAYLOADS, Message, Payloads, Unreadable, decode_payload, split

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")
SERVER_TYPES: dict[str, type[Any]] = {frame.type: frame for frame in SERVER_FRAMES}
_ALWAYS = len(PushedTask._fields) - len(PushedTask._field_defaults)  # fields that each pushed task has
_always_in = itemgetter(*PushedTask._fields[:_ALWAYS])
_KINDS = tuple((get_type_hints(PushedTask) | {"payload": object}).values())
_plain_kinds = [{kind} for kind in _KINDS[: _ALWAYS - 1]]  # without the payload
_no_more = [repeat(each) for each in PushedTask._field_defaults.values()]
_make_pushed = partial(tuple.__new__, PushedTask)
_loads = orjson.loads


@cache
def _converter() -> Converter:
    from cattrs import Converter  # when the first frame comes: programs that only import the SDK do without

    converter = Converter(forbid_extra_keys=False)
    converter.register_structure_hook_func(_is_word, lambda value, _: value)
    return converter


def _is_word(kind: Any) -> bool:
    """True for a list of words, such as a task's states: a later server may say one that is not in it."""
    return get_origin(kind) is Literal


@cache
def _reader(kind: Any) -> Callable[[Any, Any], Any]:
    return _converter().get_structure_hook(kind)


def structure(data: Any, kind: type[T]) -> T:
    """Turn parsed JSON into an object; unknown fields are ignored."""
    read: T = _reader(kind)(data, kind)  # type: ignore[arg-type]  # a class is hashable
    return read


def _plain_pushed(tasks: list[dict[str, Any]]) -> list[PushedTask]:
    """Read tasks without optional fields, as nearly all are: without a step of Python for each.

    Returns an empty list if one has other fields or breaks a rule.
    """
    try:
        columns = list(zip(*map(_always_in, tasks), strict=True))
        kinds = [set(map(type, column)) for column in columns[:-1]]
        is_plain = set(map(len, tasks)) == {_ALWAYS} and kinds == _plain_kinds
    except (KeyError, IndexError):
        is_plain = False
    return list(map(_make_pushed, zip(*columns, *_no_more, strict=False))) if is_plain else []


def _pushed(task: dict[str, Any], payloads: Payloads) -> PushedTask:
    if "payload_bytes" in task:
        task["payload"] = decode_payload(payloads.take(task["payload_bytes"]))
    pushed = PushedTask(**{name: task[name] for name in PushedTask._fields if name in task})
    if not all(map(isinstance, pushed, _KINDS)):
        raise ValueError("a field of a pushed task has the wrong type")
    return pushed


def _put_beside(body: dict[str, Any], payloads: Payloads) -> None:
    """Put the raw payloads of a reply into its objects; text that is not JSON is shown as text."""
    for value in body.values():
        for row in value if type(value) is list else (value,):
            if type(row) is dict and "payload_bytes" in row:
                text = payloads.take(row.pop("payload_bytes"))
                payload = decode_payload(text)
                row["payload"] = text.decode(errors="replace") if isinstance(payload, Unreadable) else payload


def decode_server(message: Message) -> Any:
    """Read a server's frame; unknown fields are ignored, unknown frame types give None. Raises: BadFrame."""
    try:
        text, payloads = (message, NO_PAYLOADS) if isinstance(message, str) else split(message)
        data: dict[str, Any] = _loads(text)
        kind = SERVER_TYPES.get(data.pop("type"))
        if kind is None:
            return None
        if kind is Push:
            tasks = _plain_pushed(data["tasks"]) or [_pushed(task, payloads) for task in data["tasks"]]
            if type(data["queue"]) is not str:
                raise ValueError("the queue of a push is not text")
            attached_ms = data.get("attached_ms")
            return Push(
                data["queue"], int(data["lease_ms"]), tasks, int(data.get("run_timeout_ms", 0)),
                None if attached_ms is None else int(attached_ms), str(data.get("partition", "")),
            )  # fmt: skip
        if kind is Reply:
            if type(message) is bytes:
                _put_beside(data["body"], payloads)
            return Reply(int(data["ref"]), dict(data["body"]))
        return structure(data, kind)
    except Exception as error:
        raise BadFrame(f"invalid frame from the server: {error!r:.200}") from None
