"""The load test's abuse: the documented bound, reports of what exceeds it, and abusers that do what they say."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from websockets.frames import Frame
from websockets.protocol import OPEN, Protocol, Side

from fairq.wire.codec import decode_client
from fairq.wire.messages import Enqueue
from fairq.wire.terms import MESSAGE_BYTES
from loadtest import abusers
from loadtest.abuse import Pair, Rounds, Victim, of_bound, row_of, summary, tables


def rounds(start: float, reply: float = 1.0) -> Rounds:
    """Make a round in which all tasks took so many ms."""
    return {"start": [start] * 10, "reply": [reply] * 10}


def test_the_bound_is_three_times_the_undisturbed_p99_or_60_ms() -> None:
    for undisturbed, abused, part in (
        (5, 60, 1), (5, 66, 1.1), (20, 60, 1), (40, 120, 1), (40, 180, 1.5), (40, 12, 0.1), (40, math.inf, math.inf),
    ):  # fmt: skip
        assert of_bound(undisturbed, abused) == pytest.approx(part), (undisturbed, abused)


def test_pairs_are_judged_by_their_median() -> None:
    one_bad = summary([[5.0], [50.0], [5.0]], [[6.0], [30.0], [900.0]])
    assert one_bad == {
        "undisturbed": {"p50": 5, "p99": 5}, "abused": {"p50": 30, "p99": 30}, "of_bound": 0.2,
    }  # fmt: skip
    assert summary([[5.0]] * 3, [[6.0], [90.0], [900.0]])["of_bound"] == 1.5


def test_a_row_is_within_if_all_its_figures_are() -> None:
    for name, abused, did, is_within in (
        ("pings", rounds(50, 50), {"frames": 1}, True),
        ("pings", rounds(61, 1), {"frames": 1}, False),
        ("pings", rounds(1, 61), {"frames": 1}, False),
        ("slow worker", rounds(1), {"acknowledged": 8}, True),
        ("slow worker", rounds(1), {"acknowledged": 7}, False),
        ("slow worker", rounds(1), dict[str, int](), False),
    ):
        row = row_of(name, [Pair(rounds(5), abused, Counter(did), 1 << 20)])
        assert row["is_within"] is is_within, (name, did)
        figures, deeds = tables({"rows": [row], "pairs": 1, "seconds": 1.0, "rate": 40.0})
        assert [line[-1] for line in deeds.rows] == ["yes" if is_within else "NO"]
        assert [line[-1] for line in figures.rows] == ["yes" if abused[kind][0] <= 60 else "NO" for kind in abused]


def test_tasks_that_are_lost_or_run_twice_are_named_and_undecided_ones_not() -> None:
    victim = Victim(None, None)  # type: ignore[arg-type]
    victim.sent, victim.undecided, victim.started = {"a", "b"}, {"c", "d"}, ["a", "a", "c"]
    verdict = victim.verdict()
    assert (verdict.lost, verdict.duplicated, verdict.strange) == (["b"], ["a"], [])


def texts_in(data: bytes) -> list[str]:
    """Read the messages in what a client sends."""
    protocol = Protocol(Side.SERVER, state=OPEN, max_size=None)
    protocol.receive_data(data)
    return [bytes(event.data).decode() for event in protocol.events_received() if isinstance(event, Frame)]


def test_frames_of_half_a_megabyte_are_requests_that_are_not_canonical_and_have_tasks_of_their_own() -> None:
    frames = abusers.half_megabytes("x")
    texts = texts_in(next(frames) + next(frames))
    requests = [decode_client(text) for text in texts]
    assert all(450 * 1024 < len(text) < 500 * 1024 and ": " in text and "\\u" in text for text in texts)
    assert all(isinstance(request, Enqueue) for request in requests)
    ids = [task.id for request in requests for task in request.tasks]
    assert len(ids) == len(set(ids)) > 500


def test_the_long_message_is_taken_as_a_request() -> None:
    text = abusers.long_message()
    assert 0.98 * MESSAGE_BYTES < len(text) <= MESSAGE_BYTES
    assert isinstance(decode_client(text), Enqueue)
