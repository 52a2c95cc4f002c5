"""The load test's abuse: the bound is the one that is told, and what is beyond it is told; abusers do what they say."""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from websockets.frames import Frame
from websockets.protocol import OPEN, Protocol, Side

import loadtest.__main__ as program
from fairq.wire.codec import decode_client
from fairq.wire.messages import Enqueue
from fairq.wire.terms import MESSAGE_BYTES
from loadtest import abuse, abusers
from loadtest.abuse import (
    FLOOD_WAITS,
    SAME_PRODUCER,
    Abuse,
    Pair,
    Rounds,
    Sizes,
    Victim,
    of_bound,
    row_of,
    summary,
    tables,
)
from loadtest.processes import RunFailed
from loadtest.report import Progress
from loadtest.scenarios import SCENARIOS, Scenario


def rounds(start: float, reply: float = 1.0) -> Rounds:
    """Make a round in which all tasks took so many ms."""
    return {"start": [start] * 10, "reply": [reply] * 10}


def test_the_bound_is_three_times_the_undisturbed_p99_or_60_ms() -> None:
    for undisturbed, abused, part in (
        (5, 60, 1), (5, 66, 1.1), (20, 60, 1), (40, 120, 1), (40, 180, 1.5), (40, 12, 0.1), (40, math.inf, math.inf),
    ):  # fmt: skip
        assert of_bound(undisturbed, abused) == pytest.approx(part), (undisturbed, abused)


def test_what_was_never_measured_is_not_within() -> None:
    assert of_bound(5, math.nan) == of_bound(math.nan, 5) == math.inf
    assert not row_of("pings", [Pair(rounds(5), {"start": [], "reply": [1.0]})])["is_within"]


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


async def test_a_row_that_is_not_within_does_not_fail_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = row_of("pings", [Pair(rounds(5), rounds(500))])

    async def run(*_: object, **__: object) -> dict[str, Any]:
        return {"rows": [row], "pairs": 1, "seconds": 1.0, "rate": 40.0, "verdicts": {}}

    monkeypatch.setattr(program, "SCENARIOS", {"abuse": Scenario(run, SCENARIOS["abuse"].tables)})
    assert await program.main(program.arguments_of(["abuse"])) == 0
    assert "NO" in capsys.readouterr().out


def test_an_abuser_is_not_started_with_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["pings"], ["nonsense", "ws://x", "1"], ["pings", "ws://x", "soon"]):
        with pytest.raises(SystemExit, match=r"^2$"):
            abusers.main(argv)
        assert "ready" not in capsys.readouterr().out


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


@pytest.mark.deep("fairness")
async def test_a_pair_is_measured_beside_a_real_abuser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abuse, "ROWS", ("slow worker", "queue names", SAME_PRODUCER))
    scenario = Abuse(tmp_path, "everysec", Sizes(seconds=0.2, pairs=1, limit=60.0), Progress())
    with trio.fail_after(120):
        await scenario.run()
    slow, names, inside = scenario.rows
    assert slow["did"]["acknowledged"] == 8
    assert set(slow["figures"]) == {"start", "reply"}
    assert set(names["figures"]) == {"start", "reply", "late"}
    assert set(inside["figures"]) == {"start", "reply"}
    assert inside["did"]["waits"] == FLOOD_WAITS
    assert all(math.isfinite(told["abused"]["p99"]) for row in scenario.rows for told in row["figures"].values())
    assert all(verdict.is_clean and verdict.expected for verdict in scenario.verdicts.values())
    assert not os.listdir(tmp_path)


@pytest.mark.deep("fairness")
async def test_an_abuser_that_cannot_run_fails_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abuse, "ROWS", ("nonsense",))
    scenario = Abuse(tmp_path, "everysec", Sizes(seconds=0.1, pairs=1, limit=60.0), Progress())
    with trio.fail_after(120), pytest.raises(RunFailed, match="nonsense"):
        await scenario.run()
