"""Any JSON object as a server's frame: a client takes it in or ends the connection, whatever it had asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairq.errors import BadFrame
from fairq.model.tasks import Link, NewTask, Settlement
from fairq.wire.client_session import ClientSession
from fairq.wire.frames import SERVER_FRAMES, HeldLease, Push, PushedTask, Report
from fairq.wire.worker_session import WorkerSession

from .ends import WELCOME, End

LATER_S = 11.0  # after the deadlines of the calls, and before the connection is taken for dead
REFS = 9

NUMBERS = [-(2**63), -1, 0, 1, 2, 2**31, 2**64 - 1, -0.5, 1e308]
WORDS = ["", "q", "a", "b", "t/d", "ok", "stale", "cancelled", "refused", "unavailable", "bad_request", "\ud7ff"]
scalars = st.sampled_from([None, True, False, *NUMBERS, *WORDS])
junk = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=2)
)

PUSHED = {"id": "a", "lease": 1, "attempt": 1, "max_attempts": 5, "tenant": "t", "enqueued_at_ms": 1, "payload": None}
MORE = {"start_at_ms": 1, "expires_at_ms": 2, "wants_result": True, "name": "n", "webhook": "w", "trace": "t",
        "uncounted_attempts": 1}  # fmt: skip
ROW = {"id": "a", "state": "done", "result": 1}
BODIES: list[dict[str, Any]] = [
    {"outcomes": ["ok", "ok"]},
    {"outcomes": ["stale"]},
    {"outcomes": ["ok", "ok"], "refusals": {"t": {"code": "bad_request", "message": "m", "retry_in_ms": 1}}},
    {"leases": ["ok", "stale", "cancelled"]},
    {"tasks": [ROW]},
    {"is_idle": True},
]
FRAMES: list[dict[str, Any]] = [
    {**WELCOME, "role": "producer", "max_payload_bytes": 9, "tenant": None, "warning": "w"},
    {"type": "ended", "ref": 1, "tasks": [ROW]},
    {"type": "error", "code": "bad_request", "message": "m"},
    *({"type": "error", "code": code, "message": "m", "ref": 1, "field": "queue", "retry_in_ms": 1}
      for code in ("bad_request", "unavailable", "too_large", "forbidden", "draining")),
    *({"type": "reply", "ref": 1, "body": body} for body in BODIES),
    {"type": "push", "queue": "q", "lease_ms": 30_000, "tasks": [PUSHED, PUSHED], "run_timeout_ms": 1},
    {"type": "push", "queue": "q", "lease_ms": 30_000, "tasks": [PUSHED | MORE]},
    {"type": "stop", "queue": "q", "leases": [{"id": "b", "lease": 1}]},
    {"type": "drain"}, {"type": "dismiss"}, {"type": "ping"},
]  # fmt: skip


def _places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Go through all places of a frame in which a value stands."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places_in(value[key])


@st.composite
def frames(draw: st.DrawFn) -> Any:
    """Draw a frame with junk in some places, or something else."""
    frame = copy.deepcopy(draw(st.sampled_from(FRAMES)))
    if "ref" in frame:
        frame["ref"] = draw(st.integers(1, REFS))
    for _ in range(draw(st.integers(0, 2))):
        held, key = draw(st.sampled_from([*_places_in(frame)] or [([None], 0)]))
        if draw(st.booleans()):
            held[key] = draw(junk)
        else:
            del held[key]
    return frame


def test_all_frames_are_tried() -> None:
    assert {frame["type"] for frame in FRAMES} == {frame.type for frame in SERVER_FRAMES}
    assert PushedTask._fields == (*PUSHED, *MORE)


def client() -> End:
    return End(ClientSession()).connect()


def worker() -> End:
    """A worker with leases that it holds, reports and settles."""
    end = End(WorkerSession(worker="worker-1", queues=["q"], credit=9, started_at_ms=1)).connect()
    assert isinstance(end.session, WorkerSession)
    end.reply(end.only(), leases=[])
    end.hear({"type": "push", "queue": "q", "lease_ms": 30_000, "tasks": [PUSHED | {"id": id} for id in "abcd"]})
    end.session.settle("q", Settlement("ack", "a", 1, links=(Link("r", NewTask("l", b"1")),)))
    end.session.settle("q", Settlement("ack", "c", 1))
    end.session.report("q", Report("b", 1, 0.5, "half"))
    end.session.enqueue("q", [NewTask("t/d", b"1")], end.now + 5, HeldLease("q", "b", 1))
    return end


def ask(end: End) -> None:
    """Send calls of all kinds."""
    end.enqueue("a", "b")
    end.enqueue("c", queue="r")
    end.session.request("tasks", {"queue": "q", "ids": ["a"]}, end.now + 5)
    end.session.wait_task("q", "a", end.now + 5)
    end.session.wait_task("q", "b", end.now + 50)
    end.sent()


@pytest.mark.parametrize("make", [client, worker])
def test_any_object_of_a_server_is_taken_in_or_ends_the_connection(make: Callable[[], End]) -> None:
    @given(st.lists(frames() | junk, min_size=1, max_size=4))
    def hear(heard: list[Any]) -> None:
        end = make()
        ask(end)
        for frame in heard:
            try:
                taken = end.hear(frame)
            except BadFrame:
                end.disconnect()
                end.connect()
            else:
                if isinstance(taken, Push):
                    check_push(taken)
            end.sent()
        end.pass_time(LATER_S)
        end.sent()
        end.session.close()

    hear()


def check_push(push: Push) -> None:
    """Check that the values of a push are of their types: the worker relies on it."""
    assert (type(push.queue), type(push.lease_ms), type(push.run_timeout_ms)) == (str, int, int)
    hints = get_type_hints(PushedTask)
    for task in push.tasks:
        for name, value in task._asdict().items():
            assert name == "payload" or isinstance(value, hints[name]), (name, value)


@pytest.mark.parametrize("make", [client, worker])
@pytest.mark.parametrize("limit", ["max_batch", "max_message_bytes", "max_payload_bytes"])
def test_a_server_that_takes_next_to_nothing_is_no_endless_loop(make: Callable[[], End], limit: str) -> None:
    for value in (-1, 0, 1, 1_200):
        end = make()
        end.disconnect()
        end.connect(**{limit: value})
        for frame in end.sent():
            if frame["type"] == "attach":
                end.reply(frame, leases=["ok"] * len(frame["leases"]))
        ask(end)
        end.pass_time(LATER_S)
        end.sent()
