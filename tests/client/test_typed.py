"""Typed payloads: a handler gets what its annotation names, and what does not fit is rejected, with the field."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from attrs import frozen

import fairq
from fairq.client.task import Task
from fairq.client.typed import MAX_VALUES, Misfit, PayloadType, has_more_values, payload_type_of
from fairq.errors import BadRequest
from tests.store.cases import case

from .runtimes import Service, on_both, wait_state, working
from .typed_app import Address, Jump, Linked, Move, Node, Point, Welcome, make_app

if TYPE_CHECKING:
    from .typed_app import Address as Unknown


def test_keys_that_a_typed_dictionary_does_not_require_may_be_missing() -> None:
    assert PayloadType(Move).make({"by": 1}) == {"by": 1}
    assert PayloadType(Jump).make({"by": 1, "height": 2}) == {"by": 1, "height": 2}
    assert "payload.height" in misfit({"by": 1, "spin": 1}, Jump)
    assert "payload.by" in misfit({"height": 1}, Jump)


def misfit(payload: Any, kind: Any) -> str:
    """Return the error of a payload that does not fit."""
    with pytest.raises(Misfit) as caught:
        PayloadType(kind).make(payload)
    return str(caught.value)


@on_both
async def test_handlers_get_what_their_annotation_names(service: Service) -> None:
    seen = list[Any]()
    app = make_app(service.worker(), seen)
    at = datetime(2026, 1, 2, tzinfo=UTC)
    async with service.client() as client, working(app):
        for name, payload, result in [
            ("welcome", {"addresses": [{"to": "ada", "new_field": 1}], "at": at.isoformat(), "more": []}, "ada"),
            ("point", {"x": 3, "tags": ["a", "a"]}, 3),
            ("move", {"by": 4, "points": [{"x": 1}]}, 4),
            ("node", {"children": [{"children": []}, {}]}, 2),
            ("node", {"children": [{}] * 2 * MAX_VALUES}, 2 * MAX_VALUES),  # made in a thread
        ]:
            task = await client.enqueue("typed", payload, name=name, result_ttl=60)
            assert await task.result() == result
    assert seen[:4] == [
        Welcome([Address("ada")], at=at),
        Point(3, {"a"}),
        {"by": 4, "points": [Point(1)]},
        Node([Node(), Node()]),
    ]


@on_both
async def test_what_does_not_fit_is_rejected_at_once_and_names_the_field(service: Service) -> None:
    seen = list[Any]()
    app = make_app(service.worker(), seen)
    async with service.client() as client, working(app):
        task = await client.enqueue("typed", {"addresses": [{"to": "ada"}, {"to": 5}]}, name="welcome")
        state = await wait_state(task, "dead")
        assert (state.reason, state.error) == (
            "rejected",
            "the payload is not Welcome: expected text @ payload.addresses[1].to",
        )
        task = await client.enqueue("typed", {"tags": []}, name="point")
        assert (await wait_state(task, "dead")).error.endswith("required field missing @ payload.x")
    assert seen == []


def test_nothing_is_coerced() -> None:
    cases: list[tuple[Any, Any, str]] = [
        ({"x": "3"}, Point, "expected a whole number @ payload.x"),
        ({"x": True}, Point, "expected a whole number @ payload.x"),
        ({"x": 1.0}, Point, "expected a whole number @ payload.x"),
        ({"x": 1, "tags": "abc"}, Point, "expected a list @ payload.tags"),
        ({"x": 1, "tags": {"a": 1}}, Point, "expected a list @ payload.tags"),
        ([], Point, "expected an object @ payload"),
        ([["x", 1]], Point, "expected an object @ payload"),
        ("x", Point, "expected an object @ payload"),
        (None, Node, "expected an object @ payload"),
        ([], Node, "expected an object @ payload"),
        ({"children": [{"children": [{"children": 1}]}]}, Node, "expected a list @ payload.children[0].children[0]"),
        ({"by": None}, Move, "expected a whole number @ payload.by"),
        ([], Move, "expected an object @ payload"),
        ({"by": 1, "points": [[]]}, Move, "expected an object @ payload.points[0]"),
        ({"addresses": [], "kind": "huge"}, Welcome, "@ payload.kind"),
        ({"addresses": [], "at": "yesterday"}, Welcome, "@ payload.at"),
        ({"addresses": [], "at": 5}, Welcome, "@ payload.at"),
        ({"addresses": [], "weight": -1}, Welcome, "@ payload"),
        ({"addresses": {}}, Welcome, "expected a list @ payload.addresses"),
        ({"1": "2"}, dict[str, int], "expected a whole number @ payload['1']"),
        (["a", 1], tuple[str, int, int], "@ payload"),
        ("ab", tuple[str, str], "expected a list"),
        ({"id": 5}, Linked, "expected text @ payload.id"),
        ({"id": "x", "next": {}}, Linked, "required field missing @ payload.next.id"),
        ([1, 2, "3"], list[int], "expected a whole number @ payload[2]"),
    ]
    for payload, kind, said in cases:
        with case(payload, kind, said):
            assert said in misfit(payload, kind)


def test_a_few_of_many_errors_are_reported() -> None:
    message = misfit({"addresses": [], "kind": "x" * 5_000, "at": 5, "weight": "heavy"}, Welcome)
    assert "payload.kind" in message
    assert "payload.weight" in message
    assert len(message) < 2_048


@contextmanager
def counting_calls() -> Iterator[Counter[str]]:
    """Count the calls of functions, a measure of the cost that no other process changes."""
    counts = Counter[str]()
    sys.setprofile(lambda frame, event, _: counts.update([event.removeprefix("c_") + "s"]))
    try:
        yield counts
    finally:
        sys.setprofile(None)


def test_a_long_hostile_payload_costs_no_more_than_a_good_one_of_its_length() -> None:
    """Not errors by the ten thousand: each would cost many times what a value does."""
    cases: list[tuple[Any, Any, str]] = [
        ({"addresses": [{"to": "ada"}] * 10_000 + [{}]}, Welcome, "payload.addresses"),
        ({"addresses": [{"to": 1}] * 10_000, "kind": "huge"}, Welcome, "payload.addresses"),
        ({"addresses": [{"to": "x"}] * 10_000, "weight": "heavy"}, Welcome, "expected a number @ payload.weight"),
        ({"tags": ["x"] * 10_000}, Point, "required field missing @ payload.x"),
        ([[] for _ in range(10_000)], list[int], "payload[0]"),
        ({"children": [{"children": [5]}] * 10_000}, Node, "payload.children"),
    ]
    for payload, kind, said in cases:
        with case(payload, kind, said):
            with counting_calls() as of_good:
                PayloadType(Node).make({"children": [{}] * 10_000})
            with counting_calls() as of_hostile:
                message = misfit(payload, kind)
            assert said in message
            assert of_hostile["calls"] < 10 * of_good["calls"]


def test_deep_payloads_are_made_or_refused() -> None:
    value: dict[str, Any] = {}
    for _ in range(120):
        value = {"children": [value]}
    assert PayloadType(Node).make(value)
    for _ in range(20_000):
        value = {"children": [value]}
    assert "payload" in misfit(value, Node)
    while value:  # else the interpreter would do it, deeper than it can
        value = value["children"][0] if value["children"] else {}


def test_values_are_counted_up_to_a_limit() -> None:
    assert not has_more_values({"a": [1, 2, 3]}, 4)
    assert has_more_values({"a": [1, 2, 3]}, 3)
    assert has_more_values([[]] * 5, 4)
    assert not has_more_values("x" * 10_000, 1)


async def untyped(task: Task) -> None: ...
async def anything(task: Task[Any]) -> None: ...
async def without(task) -> None: ...  # type: ignore[no-untyped-def]
async def payload_itself(task: Point) -> None: ...
async def impossible(task: Task[threading_lock]) -> None: ...  # type: ignore[name-defined]  # noqa: F821
async def unknown(task: Task[Unknown]) -> None: ...
async def unknown_task(task: NoTask) -> None: ...  # type: ignore[name-defined]  # noqa: F821
async def typed(task: Task[Point]) -> None: ...
async def listed(task: Task[list[Point]]) -> None: ...
async def with_function(task: Task[Function]) -> None: ...
async def with_part(task: Task[Part]) -> None: ...
async def second(number: int, task: Task[Point]) -> None: ...


class Function:
    """What cannot be made of JSON."""

    def __init__(self, function: object) -> None: ...

    async def method(self, task: Task[Point]) -> None:
        """Handle a task."""


@frozen
class Part:
    """A class with an optional field that cannot be made of JSON."""

    function: Function | None = None


def test_the_annotation_decides() -> None:
    cases: list[tuple[Any, Any]] = [
        (untyped, None), (anything, None), (without, None), (unknown_task, None), (print, None), (typed, Point),
        (listed, list[Point]), (functools.partial(second, 1), Point), (Function(1).method, Point),
    ]  # fmt: skip
    for function, kind in cases:
        with case(function, kind):
            found = payload_type_of(function, Task)
            assert (found and found.kind) == kind


def test_an_annotation_that_cannot_be_made_is_an_error_at_registration() -> None:
    cases: list[tuple[Any, str]] = [
        (payload_itself, "annotate it as Task[Point]"),
        (impossible, "threading_lock"),
        (unknown, "names of the handler's module"),
        (with_part, f"cannot be converted to Part: {Function} is not an attrs class"),
        (with_function, "cannot be converted to Function"),
    ]
    for function, said in cases:
        with case(function, said):
            app = fairq.Worker(token="x")
            with pytest.raises(BadRequest) as caught:
                app.task("emails")(function)
            assert said in caught.value.message
            assert function.__name__ in caught.value.message
            assert app.handlers == {}
