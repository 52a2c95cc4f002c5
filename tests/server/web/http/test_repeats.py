"""Every call that changes something, repeated: the second one changes nothing and says so."""

from __future__ import annotations

from typing import Any

import pytest

from fairq.errors import TooMany
from fairq.server.web.http.traffic import Bound

from .harness import Client, check

Q = "/v1/queues/q"
DAILY = {"payload": 1, "every": 3600}

# method, path, body -> status and answer, then those of the repeated request
CALLS: list[tuple[str, str, Any, tuple[int, Any], tuple[int, Any]]] = [
    ("POST", "/tasks", {"payload": 1, "id": "t"}, (201, {"id": "t", "outcome": "ok"}),
     (200, {"id": "t", "outcome": "duplicate", "duplicate_of_state": "ready"})),
    ("POST", "/tasks/reschedule", {"ids": ["t"], "delay": 600}, (200, {"outcomes": ["ok"]}),
     (200, {"outcomes": ["ok"]})),
    ("DELETE", "/tasks/t", None, (200, {"id": "t", "outcome": "ok"}), (200, {"id": "t", "outcome": "gone"})),
    ("POST", "/tasks/cancel", {"ids": ["t"]}, (200, {"outcomes": ["gone"]}), (200, {"outcomes": ["gone"]})),
    ("POST", "/batches", {"id": "b"}, (201, {"id": "b", "outcome": "ok"}), (200, {"id": "b", "outcome": "duplicate"})),
    ("POST", "/batches/b/close", None, (200, {"previous": "open"}), (200, {"previous": "complete"})),
    ("DELETE", "/batches/b", None, (200, {"previous": "complete"}), (200, {"previous": "complete"})),
    ("PUT", "/schedules/s", DAILY, (201, "created"), (200, "same")),
    ("PUT", "/schedules/s/paused", {"paused": True}, (200, {"previous": False}), (200, {"previous": True})),
    ("PUT", "/schedules/s/paused", {"paused": False}, (200, {"previous": True}), (200, {"previous": False})),
    ("DELETE", "/schedules/s", None, (200, {"previous": True}), (200, {"previous": False})),
]  # fmt: skip


async def test_repeated_calls_change_nothing_more(ada: Client) -> None:
    for method, path, body, *expected in CALLS:
        for status, found in expected:
            answer = check(
                await ada.request(method, Q + path, json=body) if body else await ada.request(method, Q + path), status
            )
            assert (answer["outcome"] if isinstance(found, str) else answer) == found, (method, path)


async def test_dead_letters_are_replayed_and_purged_once(ada: Client, worker: Client) -> None:
    for id in ("a", "b"):
        check(await ada.post(f"{Q}/tasks", json={"payload": 1, "id": id}), 201)
    tasks = check(await worker.post(f"{Q}/claims", json={"count": 2, "wait": 20}))["tasks"]
    ended = [{"action": "reject", "id": task["id"], "lease": task["lease"]} for task in tasks]
    for outcome in ("ok", "gone"):
        answer = check(await worker.post("/v1/leases", json={"queue": "q", "settlements": ended}))
        assert answer == {"outcomes": [outcome] * 2}
    for path, id in (("replay", "a"), ("purge", "b")):
        for outcome in ("ok", "gone"):
            assert check(await ada.post(f"{Q}/dead/{path}", json={"ids": [id]})) == {"outcomes": [outcome]}


def test_no_owner_takes_more_than_its_part_of_the_places() -> None:
    bound = Bound("requests", 4, 2, 3)
    with bound.one("ada"), bound.one("ada"):
        with pytest.raises(TooMany, match="at most 2 requests for this tenant"), bound.one("ada"):
            pass
        with bound.some("token", is_token=True) as take:
            take(1)
            with pytest.raises(TooMany, match="at most 4 requests at this server"):
                take(2)
            take(1)
            with pytest.raises(TooMany):
                bound.one("bob").__enter__()
    assert bound.taken == 0
    with bound.one("ada"):
        pass
