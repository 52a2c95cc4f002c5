"""What callers may write for payloads and times, and what is refused at once."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Any, get_type_hints
from uuid import UUID

import pytest
from attrs import frozen

import fairq
import fairq.sync
from fairq.client.bodies import encode_payload, new_tasks
from fairq.client.dead_letters import DeadLetters
from fairq.errors import BadRequest, NoResult
from fairq.model.option_tables import TaskOptions
from fairq.model.options import pack_options, to_ms
from fairq.server.run import Served
from tests.store.cases import case, raises_for

from .harness import wait_state


@dataclasses.dataclass
class Sums:
    """Rows of numbers."""

    rows: list[float | None]


@frozen
class Sum:
    """A number, in a class of attrs."""

    of: Any


class Level(Enum):
    """Numbers with names."""

    NONE = None
    UNKNOWN = Sum(float("nan"))


NAN, INF = float("nan"), float("inf")


def test_what_json_has_not_is_refused() -> None:
    deep: Any = []
    for _ in range(250):
        deep = [deep]
    numbers = [NAN, INF, -INF, {"a": [None, {"b": NAN}]}, Sums([1.0, INF]), [Sums([NAN])]]  # written as null
    cases: list[Any] = [*numbers, [Sum(NAN)], Level.UNKNOWN, object(), {1: "a key that is not text"}, "\ud800", deep]
    for value in cases:
        with case(value), raises_for("payload"):
            encode_payload(value)


def test_one_payload_is_not_taken_for_several() -> None:
    cases: list[Any] = [{"to": "ada"}, "ada", b"ada"]
    for payloads in cases:
        with case(payloads), pytest.raises(BadRequest, match="payloads must be a list"):
            new_tasks("emails", payloads, None, None, {}, 100)


def test_null_is_taken() -> None:
    cases: list[tuple[Any, str]] = [
        (None, "null"), ([None, 1.5], "[null,1.5]"), ("null", '"null"'), (Sums([None, 0.5]), '{"rows":[null,0.5]}'),
        ([Sum(1.5), None], '[{"of":1.5},null]'), (Sum(Sum(2)), '{"of":{"of":2}}'),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC), "of": None}, '{"at":"2026-01-02T00:00:00+00:00","of":null}'),
        ([UUID(int=1), None], '["00000000-0000-0000-0000-000000000001",null]'), (Level.NONE, "null"),
    ]  # fmt: skip
    for value, text in cases:
        with case(value, text):
            assert encode_payload(value).decode() == text


def test_a_span_is_seconds_or_a_timedelta() -> None:
    cases: list[tuple[Any, int]] = [(timedelta(minutes=5), 300_000), (1.5, 1500), (timedelta(0), 0)]
    for span, ms in cases:
        with case(span, ms):
            assert to_ms(span, "delay") == ms
            assert pack_options({"delay": span}) == pack_options({"delay": ms / 1000})
            assert fairq.Retry(delay=span).delay_ms == fairq.Postpone(delay=span).delay_ms == ms


TAKERS: list[Any] = [
    fairq.Client.enqueue, fairq.Client.enqueue_many, fairq.Batch.add, fairq.Batch.add_many, fairq.Task.enqueue,
    fairq.Task.then, fairq.sync.Client.enqueue, fairq.sync.Batch.add,
]  # fmt: skip


def test_an_invalid_start_is_refused_with_valid_ones() -> None:
    cases: list[Any] = ["2030-01-01T09:00:00Z", date(2030, 1, 1)]
    for start in cases:
        with case(start), pytest.raises(BadRequest, match="start_at must be a datetime, or seconds since the epoch"):
            pack_options({"start_at": start})


def test_help_shows_every_option_with_its_meaning_and_default() -> None:
    for function in TAKERS:
        with case(function):
            shown = inspect.signature(function).parameters
            for name, hint in get_type_hints(TaskOptions, include_extras=True).items():
                assert shown[name].default in (None, False)
                assert f"    {name}: {hint.__metadata__[0]}" in function.__doc__
            output = pydoc.render_doc(
                function,
                renderer=pydoc.plaintext,  # type: ignore[attr-defined]
            )
            assert "result_ttl: float | datetime.timedelta | None = None" in output
            assert "priority: 0 (most urgent) to 99" in output


def test_help_of_schedules_and_dead_letters_shows_what_they_take() -> None:
    assert "    priority: 0" in str(fairq.Client.schedule.__doc__)
    assert "    older_than: " in str(DeadLetters.replay_all.__doc__)
    assert inspect.isasyncgenfunction(DeadLetters.walk)


async def test_a_result_that_is_not_kept_is_not_awaited(ada: fairq.Client, served: Served) -> None:
    plain, other = await ada.enqueue_many("emails", [1, 2])
    with raises_for("result_ttl", NoResult):
        await plain.result()
    kept = await ada.enqueue("emails", 3, result_ttl=timedelta(minutes=1))
    with pytest.raises(fairq.NotYet):
        await kept.result(timeout=0)
    again = await ada.enqueue("emails", 3, id=kept.id)  # whether the first one's is kept is not known here
    with pytest.raises(fairq.NotYet):
        await again.result(timeout=0)
    await ada.cancel("emails", [other.id])
    await wait_state(other, "cancelled")
