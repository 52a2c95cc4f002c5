"""JSON schemas of attrs classes and named tuples, by their annotations."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

from attrs import NOTHING, Factory, fields, has

from fairq.wire.verbs import Cursor, Reply

Schema = dict[str, Any]
_PLAIN: dict[Any, Schema] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bytes: {},  # JSON text: any value
    bool: {"type": "boolean"},
    dict: {"type": "object"},
    NoneType: {"type": "null"},
    Any: {},
    Cursor: {"type": ["string", "null"]},
}


def schema_of(kind: Any) -> Schema:
    """Return the schema of a type."""
    origin = get_origin(kind)
    if origin is Literal:
        return {"enum": list(get_args(kind))}
    if origin in (Union, UnionType):
        return {"anyOf": [schema_of(arg) for arg in get_args(kind)]}
    if origin is NotRequired:
        return schema_of(*get_args(kind))
    if origin in (list, tuple):
        return {"type": "array", "items": schema_of(get_args(kind)[0])}
    if kind in _PLAIN or origin in _PLAIN:
        return dict(_PLAIN[kind if kind in _PLAIN else origin])
    return row_of(kind)


def row_of(kind: Any) -> Schema:
    """Return the schema of a row of an answer: fields that are empty or 0 may be left out of it."""
    return {"type": "object", "properties": {name: schema_of(hint) for name, hint in hints_of(kind).items()}}


def body_of(reply: Reply) -> Schema:
    """Return the schema of a reply's body: all fields of one that is no class are there, but those not required."""
    if type(reply) is not dict:
        return row_of(reply)
    hints: dict[str, Any] = reply
    required = [name for name, hint in hints.items() if get_origin(hint) is not NotRequired]
    return object_of(**{name: schema_of(hint) for name, hint in hints.items()}) | {"required": required}


def object_of(**properties: Schema) -> Schema:
    """Return the schema of an object with all of these fields."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def hints_of(kind: Any) -> dict[str, Any]:
    """Return the fields of a class, and their types."""
    hints = get_type_hints(kind)
    own = [each.name for each in fields(kind)] if has(kind) else getattr(kind, "_fields", hints)
    return {name: hints[name] for name in own}


def default_of(kind: Any, name: str) -> Any:
    """Return the default of a field, or NOTHING."""
    if not has(kind):
        return kind._field_defaults.get(name, NOTHING)
    default = next(each.default for each in fields(kind) if each.name == name)
    return default.factory() if isinstance(default, Factory) else default  # type: ignore[arg-type]
