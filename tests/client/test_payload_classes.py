"""A payload keeps every field that it was given, of each kind of class that the guides name, or it is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairq.client.bodies import encode_payload
from fairq.errors import BadRequest

NAMES = ("a", "_b", "__c__", "é", "class_")  # of fields
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1 << 63, (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.sampled_from(NAMES), inner),
    max_leaves=6,
)  # fmt: skip
MAKERS: list[Any] = [
    dataclasses.make_dataclass("Plain", NAMES), dataclasses.make_dataclass("Slotted", NAMES, slots=True, frozen=True),
    attrs.make_class("Attrs", [*NAMES]), attrs.make_class("Open", [*NAMES], slots=False), dict,
]  # fmt: skip


def make(kind: Any, values: list[Any]) -> Any:
    """Make an object with these values in its fields."""
    return dict(zip(NAMES, values, strict=True)) if kind is dict else kind(*values)


@st.composite
def payloads(draw: st.DrawFn) -> tuple[Any, Any]:
    """Generate payloads with objects inside others, and the JSON that they are."""
    json = draw(JSON)
    value = json
    for kind in draw(st.lists(st.sampled_from(MAKERS), min_size=1, max_size=4)):
        rest = draw(st.lists(JSON, min_size=len(NAMES) - 1, max_size=len(NAMES) - 1))
        value, json = make(kind, [value, *rest]), dict(zip(NAMES, [json, *rest], strict=True))
        if draw(st.booleans()):
            value, json = [value, {"in": value}], [json, {"in": json}]
    return value, json


@settings(max_examples=100, deadline=None)
@given(payload=payloads())
def test_every_field_is_kept(payload: tuple[Any, Any]) -> None:
    value, json = payload
    assert orjson.loads(encode_payload(value)) == json


@pytest.mark.parametrize("kind", MAKERS[:-1])
@pytest.mark.parametrize("bad", [{1: 2}, {3}, b"x", 1 << 64, float("nan"), float("inf"), object(), "\ud800"])
def test_what_json_cannot_keep_is_refused_in_any_field(kind: Any, bad: Any) -> None:
    with pytest.raises(BadRequest):
        encode_payload(kind(1, bad, *[None] * (len(NAMES) - 2)))


def test_a_field_that_was_never_set_is_refused() -> None:
    value = MAKERS[0](*range(len(NAMES)))
    del value.a
    with pytest.raises(BadRequest):
        encode_payload(value)
