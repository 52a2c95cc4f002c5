"""The heart that both ends have: a ping when nothing was said, the end when nothing was heard."""

from __future__ import annotations

import json

import pytest

from fairq.wire.client_session import ClientSession
from fairq.wire.messages import BEAT_S, SILENCE_S, Role
from fairq.wire.server_session import ServerSession
from fairq.wire.session import Session

from .ends import WELCOME


def client() -> ClientSession:
    session = ClientSession(haste=0.0)
    session.connected(0.0)
    session.receive(json.dumps({**WELCOME, "role": "tenant"}), 0.0)
    return session


SESSIONS = {"client": client, "server": lambda: ServerSession(role=Role.TENANT, haste=0.0)}


@pytest.fixture(params=SESSIONS)
def session(request: pytest.FixtureRequest) -> Session:
    return SESSIONS[request.param]()


def test_a_ping_leaves_after_a_beat_of_saying_nothing(session: Session) -> None:
    assert session.deadline() == BEAT_S
    session.expire(BEAT_S - 0.01)
    assert session.outgoing(BEAT_S - 0.01) == []
    session.expire(BEAT_S)
    assert session.outgoing(BEAT_S) == ['{"type":"ping"}']
    assert session.deadline() == 2 * BEAT_S


def test_hearts_that_began_together_drift_apart_and_none_is_late() -> None:
    beats = [ServerSession(role=Role.TENANT).deadline() for _ in range(100)]
    assert len(set(beats)) > 90
    assert all(0.75 * BEAT_S <= beat <= BEAT_S for beat in beats)


def test_whoever_speaks_needs_no_ping(session: Session) -> None:
    session.send("credit", {"ref": 1, "credit": 1})
    session.outgoing(7.0)
    session.expire(BEAT_S)
    assert session.outgoing(BEAT_S) == []
    assert session.deadline() == 7.0 + BEAT_S


def test_silence_is_noticed_and_any_frame_breaks_it(session: Session) -> None:
    for now in (BEAT_S, 2 * BEAT_S):
        session.expire(now)
        session.outgoing(now)
    assert session.deadline() == SILENCE_S
    session.receive('{"type":"ping"}', 20.0)
    session.expire(SILENCE_S)
    assert not session.is_silent
    session.expire(20.0 + SILENCE_S)
    assert session.is_silent


def test_pings_are_not_answered(session: Session) -> None:
    assert session.receive('{"type":"ping"}', 1.0) is None
    assert session.outgoing(1.0) == []


def test_a_server_that_never_welcomes_is_given_up() -> None:
    session = ClientSession()
    session.connected(0.0)
    while session.deadline() < SILENCE_S:
        now = session.deadline()
        session.expire(now)
        session.outgoing(now)
    session.expire(SILENCE_S)
    assert session.is_silent


def test_a_client_without_a_connection_has_no_heart() -> None:
    session = client()
    session.disconnected(5.0)
    assert session.deadline() == float("inf")
    session.expire(1_000.0)
    assert not session.is_silent
