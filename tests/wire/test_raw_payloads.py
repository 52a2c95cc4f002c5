"""Payloads beside their frames: what goes there, what is refused, and that it comes out as it went in."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairq.errors import BadFrame, FairqError
from fairq.model.checks import DEFAULT_PAYLOAD_BYTES, MAX_INLINE_BYTES
from fairq.model.tasks import Lease, NewTask
from fairq.wire import messages as wire
from fairq.wire import terms
from fairq.wire.codec import decode_client
from fairq.wire.decode import decode_server
from fairq.wire.raw_payloads import Unreadable
from fairq.wire.server_session import ServerSession
from fairq.wire.strict_json import MAX_DEPTH
from tests.frames import read_frame, write_frame
from tests.store.cases import case

from .ends import End

LONG = b'"' + b"x" * MAX_INLINE_BYTES + b'"'
payloads = st.sampled_from([b"1", b'"' + b"x" * (MAX_INLINE_BYTES - 2) + b'"', LONG, b"[" + b"0," * 50_000 + b"0]"])


def enqueue(*sizes: Any, ref: int = 1) -> bytes:
    """The text of an enqueue whose tasks have these `payload_bytes`."""
    tasks = [{"id": f"t{n}", "payload_bytes": size} for n, size in enumerate(sizes)]
    return orjson.dumps({"type": "enqueue", "ref": ref, "queue": "q", "tasks": tasks})


def refusal(message: str | bytes) -> FairqError:
    with pytest.raises(FairqError) as caught:
        decode_client(message)
    return caught.value


@given(st.lists(payloads, min_size=1, max_size=6))
def test_tasks_arrive_as_they_were_sent(texts: list[bytes]) -> None:
    end = End().connect(max_message_bytes=16 << 20)
    tasks = [NewTask(f"t{n}", text) for n, text in enumerate(texts)]
    end.session.enqueue("q", tasks, end.now + 9)
    arrived: list[NewTask] = []
    while messages := end.session.outgoing(end.now):
        for message in messages:
            frame = decode_client(message)
            arrived += frame.tasks
            end.reply({"ref": frame.ref}, outcomes=["ok"] * len(frame.tasks))
    assert arrived == tasks


@given(st.lists(payloads, min_size=1, max_size=6))
def test_pushes_arrive_as_they_were_sent(texts: list[bytes]) -> None:
    server = ServerSession(role=terms.Role.WORKER)
    server.push("q", 1_000, [Lease(f"t/{n}", 7, 1, 5, "t", 1, 0, 0, text) for n, text in enumerate(texts)])
    tasks = [task for message in server.outgoing(0.0) for task in decode_server(message).tasks]
    assert [task.payload for task in tasks] == [orjson.loads(text) for text in texts]


def test_what_others_write_and_read_is_the_same() -> None:
    tasks: list[dict[str, Any]] = [
        {"id": "a", "payload": "x" * 70_000},
        {"id": "b", "payload": 1},
        {"id": "c", "payload": [0] * 50_000},
    ]
    message = write_frame({"type": "enqueue", "ref": 1, "queue": "q", "tasks": tasks})
    assert [orjson.loads(task.payload) for task in decode_client(message).tasks] == [task["payload"] for task in tasks]
    end = End().connect()
    end.enqueue("a", payload=LONG)
    [sent] = end.session.outgoing(end.now)
    assert read_frame(sent)["tasks"] == [{"id": "a", "payload": "x" * MAX_INLINE_BYTES}]


PLAIN = b'{"type":"enqueue","ref":1,"queue":"q","tasks":[{"id":"a","payload":1}]}'
TWICE = b'{"type":"enqueue","ref":1,"queue":"q","tasks":[{"id":"a","payload":1,"payload_bytes":70000}]}'
SETTLE = b'{"type":"settle","ref":1,"queue":"q","settlements":[]}'
INLINE = MAX_INLINE_BYTES
BINARY = {
    "nothing": (b"", "bad_frame", None),
    "no line feed": (b'{"type":"ping"}', "bad_frame", None),
    "not UTF-8": (b"\xff\n", "bad_frame", None),
    "no JSON": (b"{\n", "bad_frame", None),
    "a frame without payloads": (PLAIN + b"\nx", "bad_frame", None),
    "too few bytes": (enqueue(70_000) + b"\n" + b"x" * 69_999, "bad_frame", None),
    "too many bytes": (enqueue(70_000) + b"\n" + b"x" * 70_001, "bad_frame", None),
    "one of two": (enqueue(70_000, 70_000) + b"\n" + b"x" * 70_000, "bad_frame", None),
    "short enough for the frame": (enqueue(INLINE) + b"\n" + b"x" * INLINE, "bad_request", "payload_bytes"),
    "negative": (enqueue(-1) + b"\n", "bad_request", "payload_bytes"),
    "not a number": (enqueue("70000") + b"\n" + b"x" * 70_000, "bad_request", "payload_bytes"),
    "true": (enqueue(True) + b"\nx", "bad_request", "payload_bytes"),
    "too long": (enqueue(1 + DEFAULT_PAYLOAD_BYTES) + b"\nx" + b"x" * DEFAULT_PAYLOAD_BYTES, "too_large", "payload"),
    "enormous": (enqueue(1 << 52) + b"\n" + b"x", "too_large", "payload"),
    "of another frame": (SETTLE + b"\n" + b"x" * 70_000, "bad_frame", None),
    "twice": (TWICE + b"\n" + b"x" * 70_000, "bad_request", "payload_bytes"),
}  # fmt: skip


def test_a_binary_message_that_breaks_a_rule_is_refused() -> None:
    for name, (message, code, field) in BINARY.items():
        with case(name):
            error = refusal(message)
            assert (error.code, error.field) == (code, field)
            assert error.ref == (1 if b'"ref":1' in message else None)


def test_the_length_of_a_payload_says_nothing_in_a_text_message() -> None:
    error = refusal(enqueue(70_000).decode())
    assert (error.code, error.field) == ("bad_request", "payload")
    error = refusal('{"type":"enqueue","ref":1,"queue":"q","tasks":[{"id":"a","payload":' + LONG.decode() + "}]}")
    assert (error.code, error.field) == ("too_large", "payload")


def test_a_frame_without_payloads_may_be_binary() -> None:
    assert decode_client(b'{"type":"tasks","ref":1,"queue":"q","ids":["a"]}\n') == wire.Tasks(1, "q", ["a"])


def push(*sizes: int) -> bytes:
    """The text of a push whose tasks have these `payload_bytes`."""
    task = {"id": "t/a", "lease": 70, "attempt": 1, "max_attempts": 5, "tenant": "t", "enqueued_at_ms": 1}
    tasks = [{**task, "payload_bytes": size} for size in sizes]
    return orjson.dumps({"type": "push", "queue": "q", "lease_ms": 5, "tasks": tasks})


def test_a_payload_that_is_no_json_spoils_no_other() -> None:
    good = b'"' + b"x" * 69_998 + b'"'
    frame = decode_server(push(70_000, 70_000) + b"\n" + b"{" * 70_000 + good)
    bad, fine = (task.payload for task in frame.tasks)
    assert isinstance(bad, Unreadable)
    assert fine == "x" * 69_998
    reply = orjson.dumps({"type": "reply", "ref": 1, "body": {"dead_letter": {"id": "a", "payload_bytes": 70_000}}})
    shown = decode_server(reply + b"\n" + b"{" * 69_999 + b"\xff").body["dead_letter"]
    assert shown == {"id": "a", "payload": "{" * 69_999 + "�"}


def test_a_push_that_ends_too_early_is_no_frame() -> None:
    for rest in [b"", b"x" * 69_999]:
        with case(rest), pytest.raises(BadFrame):
            decode_server(push(70_000) + b"\n" + rest)


@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_payload_nested_more_deeply_than_inside_a_frame_is_not_read(pair: tuple[bytes, bytes]) -> None:
    def nested(levels: int) -> bytes:
        return pair[0] * levels + LONG + pair[1] * levels

    def pushed(payload: bytes) -> Any:
        return decode_server(push(len(payload)) + b"\n" + payload).tasks[0].payload

    inside = MAX_DEPTH - 3
    assert orjson.dumps(pushed(nested(inside))) == nested(inside)
    for levels in inside + 1, 900, 5_000:
        assert isinstance(pushed(nested(levels)), Unreadable)
    reply = {"type": "reply", "ref": 1, "body": {"tasks": [{"id": "a", "payload_bytes": len(nested(900))}]}}
    [shown] = decode_server(orjson.dumps(reply) + b"\n" + nested(900)).body["tasks"]
    assert shown["payload"] == nested(900).decode()
