"""A cattrs converter of JSON values to typed ones, without coercion; imported when a handler is first typed.

Lists and mappings stop at their first error, so a payload has no more errors than its type has fields.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from types import NoneType, UnionType
from typing import Any, NotRequired, Required, TypedDict, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from cattrs import (
    BaseConverter,
    IterableValidationError,
    IterableValidationNote,
    StructureHandlerNotFoundError,
    transform_error,
)
from cattrs.preconf.orjson import OrjsonConverter, configure_converter

Make = Callable[[Any, Any], Any]

_LISTS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list, Sequence: list, MutableSequence: list, tuple: tuple, set: set, frozenset: frozenset,
}  # fmt: skip
_PRIMITIVES = {int: "a whole number", str: "text", bool: "true or false"}


class _Converter(OrjsonConverter):
    """Makes classes and mappings of JSON objects only, and tuples of lists only."""

    def gen_structure_attrs_fromdict(self, cl: Any) -> Any:
        return _only(dict, "an object", super().gen_structure_attrs_fromdict(cl))

    def gen_structure_typeddict(self, cl: Any) -> Any:
        return _only(dict, "an object", super().gen_structure_typeddict(_with_its_keys(cl)))

    def gen_structure_mapping(self, cl: Any) -> Any:
        return _mapping_of(cl, self)

    def gen_structure_hetero_tuple(self, cl: Any) -> Any:
        return _only(list, "a list", super().gen_structure_hetero_tuple(cl))


def _with_its_keys(cl: Any) -> Any:
    """Return a TypedDict that knows which keys it requires.

    Where annotations are strings (`from __future__ import annotations`), Python takes none for NotRequired or Required.
    """
    if not isinstance(cl, type):
        return cl
    hints, kinds = get_type_hints(cl, include_extras=True), (Required, NotRequired)
    marks = {name: get_origin(hint) for name, hint in hints.items()}
    known = cl.__required_keys__  # type: ignore[attr-defined]
    required = {name for name, mark in marks.items() if mark is Required or (mark is not NotRequired and name in known)}
    inner = {name: get_args(hint)[0] if marks[name] in kinds else hint for name, hint in hints.items()}
    fields = {name: Required[hint] if name in required else NotRequired[hint] for name, hint in inner.items()}
    return TypedDict(cl.__name__, fields)  # type: ignore[operator]


def _only(shape: type, name: str, hook: Make) -> Make:
    def structure(value: Any, kind: Any) -> Any:
        if type(value) is not shape:
            raise TypeError(f"expected {name}")
        return hook(value, kind)

    return structure


def _exactly(kind: type, name: str) -> Make:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"expected {name}")
        return value

    return structure


def _number(value: Any, _: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise TypeError("expected a number")
    return float(value)


def _is_list(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    if origin is tuple:
        return get_args(kind)[1:] in ((), (...,)) and get_args(kind) != ((),)
    return isinstance(origin, type) and origin in _LISTS


def _list_of(kind: Any, converter: BaseConverter) -> Make:
    make = _LISTS[get_origin(kind) or kind]
    inner = (*get_args(kind), Any)[0]
    hook: Make = converter.get_structure_hook(inner)

    def structure(value: Any, _: Any) -> Any:
        if type(value) is not list:
            raise TypeError("expected a list")
        made: list[Any] = []
        try:
            for each in value:
                made.append(hook(each, inner))  # its length says where it failed
        except Exception as error:
            raise _at(len(made), error, inner, kind) from None
        return make(made)

    return structure


def _mapping_of(kind: Any, converter: BaseConverter) -> Make:
    of_key, inner = get_args(kind) or (Any, Any)
    key_hook, hook = converter.get_structure_hook(of_key), converter.get_structure_hook(inner)

    def structure(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise TypeError("expected an object")
        made, key = {}, None
        try:
            for key, each in value.items():
                made[key_hook(key, of_key)] = hook(each, inner)
        except Exception as error:
            raise _at(key, error, inner, kind) from None
        return made

    return structure


def _at(place: Any, error: Exception, inner: Any, kind: Any) -> IterableValidationError:
    """Say where in a list or mapping an error is."""
    note = IterableValidationNote(f"at {place!r}", place, inner)
    error.__notes__ = [*getattr(error, "__notes__", []), note]
    return IterableValidationError(f"invalid {kind}", [error], kind)


def _is_optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType) and len(get_args(kind)) == 2 and NoneType in get_args(kind)


def _optional_of(kind: Any, converter: BaseConverter) -> Make:
    """Find the hook at registration; cattrs would at the first payload."""
    (inner,) = (each for each in get_args(kind) if each is not NoneType)
    hook: Make = converter.get_structure_hook(inner)
    return lambda value, _: None if value is None else hook(value, inner)


def _uuid(value: Any, _: Any) -> UUID:
    if type(value) is not str:
        raise TypeError("expected text")
    return UUID(value)


def _converter() -> OrjsonConverter:
    converter = _Converter()
    configure_converter(converter)
    for kind, name in _PRIMITIVES.items():
        converter.register_structure_hook(kind, _exactly(kind, name))
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(UUID, _uuid)
    converter.register_structure_hook_factory(_is_optional, _optional_of)
    converter.register_structure_hook_factory(_is_list, _list_of)
    return converter


_ours = _converter()


def check_type(kind: Any) -> None:
    """Check that values of a type can be made. Raises: TypeError, and what else cattrs raises."""
    try:
        _ours.get_structure_hook(kind)
    except StructureHandlerNotFoundError as error:
        raise TypeError(f"{error.type_} is not an attrs class, dataclass or TypedDict") from None


def structure(payload: Any, kind: Any) -> Any:
    """Make a value of a type. Raises: many kinds of errors."""
    return _ours.get_structure_hook(kind)(payload, kind)


def errors_in(error: Exception, root: str) -> list[str]:
    """Return the faults of a value that raised this, with the path of each field from `root` on."""
    try:
        return transform_error(error, root, _say)
    except RecursionError:
        return [f"it is nested too deep @ {root}"]


def _say(error: BaseException, kind: Any) -> str:
    return "required field missing" if isinstance(error, KeyError) else str(error)[:200] or type(error).__name__
