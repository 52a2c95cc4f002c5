"""A worker over HTTP: it sees the outcome of each of its settlements."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import trio
from attrs import define, field

from loadtest.faults.history import History, Ran, Settled

QUEUE, COUNT, TIMEOUT_S = "http", 5, 8.0


def _post(url: str, path: str, body: Any) -> Any:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    try:
        headers = {"Authorization": "Bearer dev-worker", "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise HTTPException(f"{answer.status}: {text[:200]!r}")
        return json.loads(text)
    finally:
        connection.close()


@define(eq=False)
class HttpWorker:
    """Claims, works and settles, at the servers in turn."""

    urls: list[str]
    history: History
    _next: Iterator[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._next = itertools.cycle(self.urls)

    async def _ask(self, path: str, body: Any) -> Any:
        """Ask the next server that answers; None if none does."""
        for _ in self.urls:
            url = next(self._next)
            try:
                return await trio.to_thread.run_sync(_post, url, path, body)
            except (OSError, HTTPException, ValueError):
                continue
        return None

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            claim = await self._ask(f"/v1/queues/{QUEUE}/claims", {"count": COUNT, "wait": 1, "worker": "http"})
            if claim is None:
                await trio.sleep(0.2)
                continue
            for task in claim["tasks"]:
                await self._work(task)

    async def _work(self, task: dict[str, Any]) -> None:
        id, attempt = task["id"].partition("/")[2], task["attempt"]
        self.history.ran.append(Ran(id, attempt, "start", time.time()))
        ack = {"action": "ack", "id": task["id"], "lease": task["lease"]}
        sent_at, fault, is_repeated = time.time(), self.history.fault, False
        while (answer := await self._ask("/v1/leases", {"queue": QUEUE, "settlements": [ack]})) is None:
            is_repeated = True
            await trio.sleep(0.2)
        (outcome,) = answer["outcomes"]
        if outcome == "gone" and is_repeated:
            outcome = "ok"  # the first answer was lost
        self.history.settled.append(Settled(id, attempt, sent_at, outcome, fault))
