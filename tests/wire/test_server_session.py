"""The server's end alone: welcome, the grid of roles and states, answers and pushes."""

from __future__ import annotations

import json
from typing import Any

from fairq.errors import BadRequest, TooMany
from fairq.model.checks import DEFAULT_PAYLOAD_BYTES
from fairq.model.tasks import Lease
from fairq.wire.codec import decode_client
from fairq.wire.server_session import ServerSession
from fairq.wire.terms import MESSAGE_BYTES, Role, State
from fairq.wire.verbs import VERBS
from tests.frames import read_frame
from tests.store.cases import case

from .test_codec import GOOD, frame


def sent(session: ServerSession) -> list[dict[str, Any]]:
    """Return the frames that leave now."""
    return [json.loads(text) for text in session.outgoing(1.0)]


def leases(*ids: str, payload: bytes = b"{}", start_at_ms: int = 0, expires_at_ms: int = 0) -> list[Lease]:
    """Make leases as a claim brings them."""
    return [Lease(id, 70, 1, 5, "acme", 10, start_at_ms, expires_at_ms, payload) for id in ids]


def worker() -> ServerSession:
    return ServerSession(role=Role.WORKER, state=State.ATTACHED)


def test_the_grid_decides_who_may_send_what_when() -> None:
    for role in Role:
        for state in State:
            for kind in VERBS:
                with case(role, state, kind):
                    session = ServerSession(role=role, state=state)
                    request = session.receive(frame(kind.type), 1.0)
                    _, roles, states = VERBS[kind]
                    refusals = sent(session)
                    if role in roles and state in states:
                        assert refusals == []
                        assert request == (None if kind.type == "ping" else decode_client(frame(kind.type)))
                        continue
                    assert request is None
                    [refusal] = refusals
                    expected = (
                        "forbidden" if role not in roles else "draining" if state is State.DRAINING else "bad_request"
                    )
                    assert (refusal["code"], refusal.get("ref")) == (expected, GOOD[kind.type].get("ref"))


def test_what_cannot_be_read_is_answered_with_what_is_known_of_it() -> None:
    session = ServerSession(role=Role.OPERATOR)
    assert session.receive("hello", 1.0) is None
    assert session.receive('{"type":"dance","ref":7}', 2.0) is None
    first, second = sent(session)
    assert (first["code"], "ref" in first) == ("bad_frame", False)
    assert (second["code"], second["ref"], second["field"]) == ("unknown_verb", 7, "type")
    assert session.last_received_at == 2.0


def test_answers_leave_in_order_with_their_refs() -> None:
    session = ServerSession()
    session.reply(2, {"outcomes": ["ok"]})
    session.refuse(1, BadRequest("no", field="queue"))
    session.refuse(None, TooMany("wait"))
    assert sent(session) == [
        {"type": "reply", "ref": 2, "body": {"outcomes": ["ok"]}},
        {"type": "error", "code": "bad_request", "message": "no", "ref": 1, "field": "queue"},
        {"type": "error", "code": "too_many", "message": "wait"},
    ]
    assert sent(session) == []


def test_a_push_tells_all_of_a_lease_and_leaves_out_what_is_not_set() -> None:
    session = worker()
    session.push("q", 1000, leases("a", payload=b'{"x":1}') + leases("b", start_at_ms=11, expires_at_ms=12), 0, -3)
    [push] = sent(session)
    common = {"lease": 70, "attempt": 1, "max_attempts": 5, "tenant": "acme", "enqueued_at_ms": 10}
    assert push == {
        "type": "push",
        "queue": "q",
        "lease_ms": 1000,
        "attached_ms": -3,
        "tasks": [
            {"id": "a", **common, "payload": {"x": 1}},
            {"id": "b", **common, "payload": {}, "start_at_ms": 11, "expires_at_ms": 12},
        ],
    }


def test_draining_is_said_once_and_ends_the_pushes() -> None:
    session = worker()
    session.drain()
    session.drain()
    assert sent(session) == [{"type": "drain"}]
    assert session.receive(frame("settle"), 1.0) is not None


def test_pushes_of_long_payloads_are_split_so_that_clients_can_take_them() -> None:
    session = worker()
    longest = b'"' + b"x" * (DEFAULT_PAYLOAD_BYTES - 2) + b'"'
    session.push("q", 1000, leases(*"abcdefg", payload=longest))
    texts = session.outgoing(1.0)
    assert all(len(text) <= MESSAGE_BYTES for text in texts)
    assert [task["id"] for text in texts for task in read_frame(text)["tasks"]] == list("abcdefg")
    assert len(texts) == 7
