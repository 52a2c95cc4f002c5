"""What callers may write for payloads and times, and what is refused at once."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import trio

import fairq
from fairq.client.verbs import encode_payload
from fairq.errors import BadRequest, NoResult
from fairq.model.options import pack_options, to_ms
from fairq.server.run import Served

from .harness import wait_state


@dataclasses.dataclass
class Sums:
    """Rows of numbers."""

    rows: list[float | None]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("value", [NAN, INF, -INF, {"a": [None, {"b": NAN}]}, Sums([1.0, INF]), [Sums([NAN])]])
def test_a_number_that_json_has_not_is_refused_where_it_stood_as_null(value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        encode_payload(value)
    assert caught.value.field == "payload"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"), ([None, 1.5], "[null,1.5]"), ("null", '"null"'), (Sums([None, 0.5]), '{"rows":[null,0.5]}'),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC), "of": None}, '{"at":"2026-01-02T00:00:00+00:00","of":null}'),
        ([UUID(int=1), None], '["00000000-0000-0000-0000-000000000001",null]'),
    ],
)  # fmt: skip
def test_null_is_taken(value: Any, text: str) -> None:
    assert encode_payload(value).decode() == text


@pytest.mark.parametrize(("span", "ms"), [(timedelta(minutes=5), 300_000), (1.5, 1500), (timedelta(0), 0), (None, 0)])
def test_a_span_is_seconds_or_a_timedelta(span: Any, ms: int) -> None:
    assert to_ms(span, "delay") == ms
    assert pack_options({"delay": span}) == pack_options({"delay": ms / 1000})
    if span is not None:
        assert fairq.Retry(delay=span).delay_ms == fairq.Postpone(delay=span).delay_ms == ms


@pytest.mark.parametrize("span", [timedelta(seconds=-1), timedelta(days=401), -1, NAN, "5m", True])
def test_a_span_that_is_none_is_refused(span: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        to_ms(span, "delay")
    assert caught.value.field == "delay"


async def test_a_result_that_is_not_kept_is_not_awaited(ada: fairq.Client, served: Served) -> None:
    with trio.fail_after(30):
        plain, other = await ada.enqueue_many("emails", [1, 2])
        with pytest.raises(NoResult) as caught:
            await plain.result()
        assert caught.value.field == "result_ttl"
        kept = await ada.enqueue("emails", 3, result_ttl=timedelta(minutes=1))
        with pytest.raises(fairq.NotYet):
            await kept.result(timeout=0)
        again = await ada.enqueue("emails", 3, id=kept.id)  # whether the first one's is kept is not known here
        with pytest.raises(fairq.NotYet):
            await again.result(timeout=0)
        await ada.cancel("emails", [other.id])
        await wait_state(other, "cancelled")
