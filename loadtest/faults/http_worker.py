"""A worker over HTTP: it sees the outcome of each of its settlements."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from random import Random
from typing import Any
from urllib.parse import urlsplit

import trio
from attrs import define, field

from loadtest.faults.history import History, Ran, Settled

QUEUE, COUNT, TIMEOUT_S = "http", 5, 8.0
LEASE_MS, LATE_PART = 2_000, 0.05
LATE_S = {1: 3.0, 2: 1.5}  # an attempt of a late task: the first loses its lease, and reports while the second works


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
    """Claims, works and settles, at the servers in turn; now and then too late. `working`: attempts under way."""

    urls: list[str]
    history: History
    seed: int
    working: int = field(default=0, init=False)
    _next: Iterator[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._next = itertools.cycle(self.urls)

    async def _ask(self, path: str, body: Any) -> tuple[Any, bool, float]:
        """Ask one server after the other until one answers; return that, if others may have done it too, and when."""
        for tries in itertools.count():
            asked_at = time.time()
            try:
                return await trio.to_thread.run_sync(_post, next(self._next), path, body), tries > 0, asked_at
            except (OSError, HTTPException, ValueError):
                await trio.sleep(0.1)
        raise AssertionError("the tries have no end")

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                body = {"count": COUNT, "wait": 1, "worker": "http"}
                claim, _, asked_at = await self._ask(f"/v1/queues/{QUEUE}/claims", body)
                self.working += len(claim["tasks"])
                for task in claim["tasks"]:
                    nursery.start_soon(self._work, task, asked_at + LEASE_MS / 1000)

    async def _work(self, task: dict[str, Any], leased_until: float) -> None:
        id, attempt = task["id"].partition("/")[2], task["attempt"]
        self.history.ran.append(Ran(id, attempt, "start", time.time(), leased_until))
        if Random(f"{self.seed} {id}").random() < LATE_PART:
            await trio.sleep(LATE_S.get(attempt, 0))
        ack = {"action": "ack", "id": task["id"], "lease": task["lease"]}
        sent_at, fault = time.time(), self.history.fault
        answer, is_repeated, _ = await self._ask("/v1/leases", {"queue": QUEUE, "settlements": [ack]})
        (outcome,) = answer["outcomes"]
        if outcome == "gone" and is_repeated:
            outcome = "ok"  # the first answer was lost
        self.history.settled.append(Settled(id, attempt, sent_at, outcome, fault))
        self.working -= 1
