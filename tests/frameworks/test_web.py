"""What web applications enqueue is in the queue, once, and nothing of a transaction that was rolled back."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

import fairq
import fairq.sync

pytestmark = pytest.mark.deep("frameworks")  # they need more packages: the extra `frameworks`


def waiting(client: fairq.sync.Client) -> set[str]:
    """Name the tasks that wait."""
    return {task.id for task in client.peek("orders", 100)}


def test_fastapi_enqueues_in_its_event_loop(shop: fairq.sync.Client) -> None:
    from fastapi.testclient import TestClient

    from .fastapi_shop import app

    with TestClient(app) as http:
        answers = [http.post(f"/orders/fast-{number}") for number in (1, 2, 1)]
        assert [(answer.status_code, answer.json()["task"]) for answer in answers] == [
            (202, "fast-1"), (202, "fast-2"), (202, "fast-1"),
        ]  # fmt: skip
        assert http.get("/orders/fast-1").json() == {"state": "ready"}
    assert waiting(shop) >= {"fast-1", "fast-2"}


def test_flask_enqueues_from_its_threads(shop: fairq.sync.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from . import flask_shop

    with closing(flask_shop.queue):
        http = flask_shop.app.test_client()
        assert http.post("/orders/flask-1").json == {"task": "flask-1", "again": False}
        assert http.post("/orders/flask-1").json == {"task": "flask-1", "again": True}
        assert "flask-1" in waiting(shop)

        def refuse(*_: Any, **__: Any) -> None:
            raise fairq.QuotaExceeded("too many tasks wait", retry_in_ms=1500)

        monkeypatch.setattr(flask_shop, "queue", type("Full", (), {"enqueue": staticmethod(refuse)}))
        answer = http.post("/orders/flask-2")
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "2")
