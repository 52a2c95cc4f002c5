"""Heartbeats of both ends: a ping when idle, the end when nothing is received."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from fairq.wire.client_session import ClientSession
from fairq.wire.server_session import ServerSession
from fairq.wire.terms import HEARTBEAT_S, TIMEOUT_S, Role

from .ends import WELCOME


def client() -> ClientSession:
    session = ClientSession(heartbeat_jitter=0.0)
    session.connected(0.0)
    session.receive(json.dumps({**WELCOME, "role": "tenant"}), 0.0)
    return session


Either = ClientSession | ServerSession
SESSIONS: dict[str, Callable[[], Either]] = {
    "client": client,
    "server": lambda: ServerSession(role=Role.TENANT, heartbeat_jitter=0.0),
}


@pytest.fixture(params=SESSIONS)
def session(request: pytest.FixtureRequest) -> Either:
    return SESSIONS[request.param]()


def test_a_ping_leaves_after_a_beat_of_saying_nothing(session: Either) -> None:
    assert session.deadline() == HEARTBEAT_S
    session.expire(HEARTBEAT_S - 0.01)
    assert session.outgoing(HEARTBEAT_S - 0.01) == []
    session.expire(HEARTBEAT_S)
    assert session.outgoing(HEARTBEAT_S) == ['{"type":"ping"}']
    assert session.deadline() == 2 * HEARTBEAT_S


def test_heartbeats_that_began_together_drift_apart_and_none_is_late() -> None:
    deadlines = [ServerSession(role=Role.TENANT).deadline() for _ in range(100)]
    assert len(set(deadlines)) > 90
    assert all(0.75 * HEARTBEAT_S <= deadline <= HEARTBEAT_S for deadline in deadlines)


def test_an_end_that_sends_needs_no_ping(session: Either) -> None:
    session.send("credit", {"ref": 1, "credit": 1})
    session.outgoing(7.0)
    session.expire(HEARTBEAT_S)
    assert session.outgoing(HEARTBEAT_S) == []
    assert session.deadline() == 7.0 + HEARTBEAT_S


def test_silence_is_noticed_and_any_frame_breaks_it(session: Either) -> None:
    for now in (HEARTBEAT_S, 2 * HEARTBEAT_S):
        session.expire(now)
        session.outgoing(now)
    assert session.deadline() == TIMEOUT_S
    session.receive('{"type":"ping"}', 20.0)
    session.expire(TIMEOUT_S)
    assert not session.is_timed_out
    session.expire(20.0 + TIMEOUT_S)
    assert session.is_timed_out


def test_pings_are_not_answered(session: Either) -> None:
    assert session.receive('{"type":"ping"}', 1.0) is None
    assert session.outgoing(1.0) == []


def test_a_client_without_a_connection_has_no_heartbeat() -> None:
    session = client()
    session.disconnected(5.0)
    assert session.deadline() == float("inf")
    session.expire(1_000.0)
    assert not session.is_timed_out
