"""When a client takes its server for gone: servers that are frozen, late or slow, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
from attrs import define, field

from fairq.wire.suspicion import BESIDE_S, BYTES_PER_S, LEAVE_S, PROBE_S, SPREAD_S, WAIT_S, Ask, Suspicion

LATE_S = 5.0
SPREAD = pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])


@define(eq=False)
class Line:
    """A client and its server: a ping that is sent at `t` is answered at `answers_at(t)`."""

    suspicion: Suspicion
    answers_at: Callable[[float], float]
    asks: list[Ask] = field(factory=list)  # which the server's store never answers
    waits: bool = False
    pings: list[float] = field(factory=list)
    suspect_at: float = inf
    gone_at: float = inf

    def run(self, until: float) -> None:
        """Look whenever a look is due."""
        suspicion, coming = self.suspicion, list[float]()
        for ask in self.asks:
            suspicion.sent(ask.sent_at, is_due=ask.is_due)
        while (now := min(suspicion.due_at, *coming, until)) < until:
            if now in coming:
                coming.remove(now)
                suspicion.heard_at = now
                continue
            sent = [ask for ask in self.asks if ask.sent_at <= now]
            if suspicion.look(now, sent, waits=self.waits):
                self.pings.append(now)
                coming.append(self.answers_at(now))
            self.suspect_at = min(self.suspect_at, now if suspicion.is_suspect else inf)
            self.gone_at = min(self.gone_at, now if suspicion.is_gone else inf)


def line(answers_at: Callable[[float], float], jitter: float = 0.5, *asks: Ask, waits: bool = False) -> Line:
    """A line on which the server was heard just before 0."""
    suspicion = Suspicion(jitter)
    suspicion.begin(-0.001)
    return Line(suspicion, answers_at, list(asks), waits)


def never(_: float) -> float:
    return inf


@SPREAD
def test_a_frozen_server_is_pinged_then_suspect_then_gone_within_six_seconds(jitter: float) -> None:
    frozen = line(never, jitter, Ask(0.0, 100, is_due=True))
    frozen.run(60)
    assert frozen.pings == [PROBE_S]
    assert BESIDE_S <= frozen.suspect_at - PROBE_S <= 2 * BESIDE_S
    assert frozen.gone_at - PROBE_S >= LEAVE_S
    assert frozen.gone_at <= 5.8


@SPREAD
def test_a_server_that_freezes_amid_an_unanswered_call_is_gone_within_six_seconds(jitter: float) -> None:
    frozen = line(lambda at: at if at < 10 else inf, jitter, Ask(-1.0, 100, is_due=True))
    frozen.run(60)
    assert len(frozen.pings) > 10 / PROBE_S / 2, "until then it says that it is there"
    assert 10 + LEAVE_S <= frozen.gone_at <= 10 + 5.8


@SPREAD
@pytest.mark.parametrize("waits", [True, False])
def test_a_server_that_answers_five_seconds_late_is_never_gone(waits: bool, jitter: float) -> None:
    late = line(lambda at: at + LATE_S, jitter, Ask(0.0, 100, is_due=not waits), waits=waits)
    late.run(600)
    assert len(late.pings) > 50
    assert late.gone_at == inf


@SPREAD
def test_a_server_that_stands_still_for_five_seconds_at_a_time_is_never_gone(jitter: float) -> None:
    """As with a blocked event loop: what came meanwhile is answered at the end."""
    blocked = line(lambda at: at if at % 6 < 1 else at - at % 6 + 6, jitter, Ask(0.0, 100, is_due=True))
    blocked.run(600)
    assert blocked.gone_at == inf


@pytest.mark.parametrize("what", ["a long poll", "a push"])
def test_who_waits_for_something_asks_now_and_then_whether_the_server_is_there(what: str) -> None:
    asks = [Ask(0.0, 100, is_due=False)] if what == "a long poll" else []
    idle = line(lambda at: at if at < 30 else inf, 0.5, *asks, waits=not asks)
    idle.run(100)
    assert len(idle.pings) == pytest.approx(30 / WAIT_S, abs=1.5)
    assert 30 + LEAVE_S <= idle.gone_at <= 30 + WAIT_S + LEAVE_S + SPREAD_S


def test_who_asks_for_nothing_sends_no_pings() -> None:
    idle = line(never)
    idle.run(600)
    assert (idle.pings, idle.gone_at) == ([], inf)


def test_long_requests_have_their_time() -> None:
    """The ping stands behind them."""
    uploading = line(never, 0.0, Ask(0.0, 10 * BYTES_PER_S, is_due=True))
    uploading.run(60)
    assert uploading.suspect_at == PROBE_S + BESIDE_S + 10
    assert uploading.gone_at == PROBE_S + LEAVE_S + 10


@pytest.mark.parametrize("stood_s", [2.0, 5.0, 3_600.0])
def test_for_as_long_as_the_client_stood_still_the_server_was_not_silent(stood_s: float) -> None:
    suspicion, asks = Suspicion(0.0), [Ask(0.0, 100, is_due=True)]
    suspicion.begin(-0.001)
    suspicion.look(suspicion.due_at, asks, waits=False)
    now = suspicion.due_at + stood_s
    suspicion.look(now, asks, waits=False)
    assert not suspicion.is_gone
    assert now < suspicion.due_at <= now + BESIDE_S, "what has come meanwhile is read first"
    suspicion.heard_at = now + 0.001
    suspicion.look(suspicion.due_at, [], waits=False)
    assert not suspicion.is_suspect


def test_a_connection_begins_without_the_suspicion_of_the_last() -> None:
    frozen = line(never, 0.0, Ask(0.0, 100, is_due=True))
    frozen.run(60)
    frozen.suspicion.begin(60.0)
    assert not frozen.suspicion.is_suspect
    assert not frozen.suspicion.is_gone
    frozen.suspicion.end()
    assert frozen.suspicion.due_at == inf
