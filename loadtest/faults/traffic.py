"""The traffic under faults: tasks of all kinds, and what became of each call."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from random import Random
from typing import Any, Literal

import trio
from attrs import define, field

import fairq
from fairq.errors import BadRequest, Draining, FairqError, Repairing, StoreFull, TooMany, Unavailable
from loadtest.faults.app import QUEUE
from loadtest.faults.history import Enqueued, History
from loadtest.faults.http_worker import QUEUE as HTTP_QUEUE
from loadtest.processes import RunFailed

TENANTS = 3
SERVED_S = 120.0  # until a probe is done
_REFUSED = (Unavailable, Draining, TooMany, Repairing, StoreFull)  # nothing was done


@define(eq=False)
class Traffic:
    """What is sent while `is_over` is not set; `history` names the fault that went on, or was the last one."""

    draws: Random
    history: History
    rate: float  # tasks a second
    is_over: trio.Event = field(factory=trio.Event, init=False)
    _numbers: itertools.count[int] = field(factory=itertools.count, init=False)

    async def run(self, urls_of: Callable[[int], list[str]]) -> None:
        """Let all tenants send until it is over, and the last task of each is acknowledged or given up."""
        async with trio.open_nursery() as nursery:
            for n in range(TENANTS):
                nursery.start_soon(self._send, urls_of(n), f"t{n}")

    async def _send(self, urls: list[str], tenant: str) -> None:
        async with fairq.open_client(urls, token=f"dev-tenant:{tenant}") as client, trio.open_nursery() as nursery:
            while not self.is_over.is_set():
                nursery.start_soon(self._send_one, client, f"f{next(self._numbers)}")
                await trio.sleep(self.draws.expovariate(self.rate / TENANTS))

    async def _send_one(self, client: fairq.Client, id: str) -> None:
        """Enqueue a task; one in ten is given up when it fails, the others are sent again."""
        kind, sent_at, options = self.draws.random(), time.time(), dict[str, Any]()
        queue = HTTP_QUEUE if kind < 0.2 else QUEUE
        if kind < 0.4:
            options["delay"] = self.draws.uniform(0.1, 3)
        elif kind < 0.5:
            options["expires_in"] = self.draws.uniform(0.5, 6)
            options["delay"] = self.draws.uniform(0, 0.9 * options["expires_in"])  # else a server refuses it
        payload = {"ms": self.draws.uniform(1, 80), "fails": int(0.5 <= kind < 0.6)}
        start_at, gives_up, fault = sent_at + options.get("delay", 0.0), self.draws.random() < 0.1, self.history.fault
        outcome: Literal["ok", "refused", "unknown"]
        while True:
            try:
                await client.enqueue(queue, payload, id=id, timeout=5, **options)
            except BadRequest:
                raise
            except FairqError as error:
                if gives_up:
                    outcome = "refused" if isinstance(error, _REFUSED) else "unknown"
                    break
                await trio.sleep(0.1)
            else:
                outcome = "ok"
                break
        lasts = options.get("expires_in")
        expires = None if lasts is None else (sent_at + lasts, time.time() + lasts)
        self.history.enqueued.append(Enqueued(id, outcome, start_at, expires, fault))

    async def probe(self, client: fairq.Client) -> None:
        """Wait until a task that is enqueued now is done. Raises: RunFailed."""
        id = f"f{next(self._numbers)}"
        with trio.move_on_after(SERVED_S):
            while True:
                try:
                    task = await client.enqueue(QUEUE, {"ms": 0, "fails": 0}, id=id, timeout=5)
                    state = await task.state()
                except FairqError:
                    await trio.sleep(0.05)
                    continue
                if state.state == "done":
                    self.history.enqueued.append(Enqueued(id, "ok", fault=self.history.fault))
                    return
                await trio.sleep(0.02)
        raise RunFailed(f"a task that was enqueued after a fault was not done in {SERVED_S:g} s: {self.history.fault}")
