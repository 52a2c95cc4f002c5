"""Typed payloads: a handler that is annotated `Task[Welcome]` gets a `Welcome` as its task's payload.

cattrs converts it, to an attrs class, dataclass, TypedDict, or any other type that it supports. Nothing is coerced: a
text is not accepted as a number, nor a list as an object. Keys that a class does not have are ignored, so that
producers may send a new field while older workers still run.

A payload of more than MAX_VALUES values is made in a thread.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature, unwrap
from types import SimpleNamespace
from typing import Any, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

import attrs
from attrs import frozen

from fairq.errors import BadRequest
from fairq.log import name_of
from fairq.model.checks import MAX_ERROR_CHARS

MAX_VALUES = 1_000
_MAX_SHOWN = 5  # errors of one payload
_TYPED = re.compile(r"\bTask\s*\[")
T = TypeVar("T")


class Misfit(Exception):
    """A value that does not fit its type. A task with such a payload can never succeed."""


@frozen
class PayloadType:
    """The type that a handler wants its payloads to have, or a caller its result."""

    kind: Any
    of: str = "payload"

    def make(self, payload: Any) -> Any:
        """Make one of a decoded JSON value. Raises: Misfit, which names the field."""
        from fairq.client.json_types import errors_in, structure

        try:
            return structure(payload, self.kind)
        except Exception as error:  # of the class's own code too
            errors = errors_in(error, self.of)
        more = f", and {len(errors) - _MAX_SHOWN} more" if len(errors) > _MAX_SHOWN else ""
        found = "; ".join(errors[:_MAX_SHOWN]) + more
        raise Misfit(f"the {self.of} is not {type_name(self.kind)}: {found}"[:MAX_ERROR_CHARS])


def type_name(kind: Any) -> str:
    """Name a type as code does."""
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def has_more_values(payload: Any, limit: int) -> bool:
    """True if a JSON value holds more than `limit` values. O(limit)."""
    if type(payload) is not dict and type(payload) is not list:
        return False
    left, waiting = limit, [payload]
    while waiting:
        value = waiting.pop()
        left -= len(value)
        if left < 0:
            return True
        inner = value.values() if type(value) is dict else value
        waiting += [each for each in inner if type(each) is dict or type(each) is list]
    return False


def payload_type_of(function: Callable[..., Any], task_class: type) -> PayloadType | None:
    """Return the type in a handler's annotation of its task; None: the payload comes as it is.

    Raises: BadRequest for an annotation that cannot be made of JSON.
    """
    annotation = _first_annotation(function)
    if get_origin(annotation) is task_class:
        (kind,) = get_args(annotation)
        if kind is Any or kind is object or isinstance(kind, TypeVar):
            return None
        _check(kind, f"handler {name_of(function)}: a payload", "handler")
        return PayloadType(kind)
    has_fields = attrs.has(annotation) or hasattr(annotation, "__dataclass_fields__") or is_typeddict(annotation)
    if isinstance(annotation, type) and has_fields:
        if issubclass(annotation, task_class):
            return None
        raise BadRequest(
            f"handler {name_of(function)}: it takes a task with a typed payload: annotate it as"
            f" Task[{type_name(annotation)}]",
            field="handler",
        )
    return None


def check_result_type(kind: Any) -> None:
    """Check that results can be made ones of a type. Raises: BadRequest."""
    _check(kind, "a result", "kind")


def make_result(value: Any, kind: type[T]) -> T:
    """Make a result one of a type that was checked. Raises: BadRequest, which names the field."""
    try:
        made: T = PayloadType(kind, "result").make(value)
    except Misfit as error:
        raise BadRequest(str(error), field="kind") from None
    return made


def _check(kind: Any, what: str, field: str) -> None:
    from fairq.client.json_types import check_type

    try:
        check_type(kind)
    except Exception as error:  # cattrs and typing raise many kinds
        raise BadRequest(f"{what} cannot be converted to {type_name(kind)}: {error}"[:500], field=field) from None


def names_around(function: Any) -> dict[str, Any]:
    """Return the names of a function's module."""
    while isinstance(function, partial):
        function = function.func
    function = unwrap(function)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    names: dict[str, Any] = getattr(function, "__globals__", None) or getattr(module, "__dict__", {})
    return names


def _first_annotation(function: Callable[..., Any]) -> Any:
    """Return the annotation of a handler's first parameter; None if there is none, or it cannot be looked up."""
    try:
        parameters = list(signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if not parameters or (annotation := parameters[0].annotation) is Parameter.empty:
        return None
    named = SimpleNamespace(__annotations__={"task": annotation})
    try:
        return get_type_hints(named, names_around(function))["task"]
    except Exception as error:  # a name that only type checkers import, for instance
        if _TYPED.search(str(annotation)):
            raise BadRequest(
                f"handler {name_of(function)}: cannot look up the annotation {annotation!r:.80} ({error}): its classes"
                " must be names of the handler's module when it is registered",
                field="handler",
            ) from None
        return None
