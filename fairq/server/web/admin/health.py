"""The check behind /readyz, for managers of containers: can this server do its work?"""

from __future__ import annotations

import time

import trio
from attrs import define, field, frozen

from fairq.errors import FairqError
from fairq.server.engine.app import App
from fairq.server.web.http.shared import Shared
from fairq.store import keys

ANSWER_S = 1.0  # for which the store may think
KEPT_S = 0.5  # how long a finding is reused: a hundred probes ask the store once


@frozen
class Finding:
    """Why the server is not ready (empty: it is), and how long the store took, in seconds."""

    troubles: tuple[str, ...]
    store_s: float


@define(eq=False)
class Health:
    """Checks one server, at most every KEPT_S."""

    app: App
    _findings: Shared[Finding] = field(factory=lambda: Shared(KEPT_S), init=False)

    async def look(self) -> Finding:
        """Return the finding of now, or of up to KEPT_S ago. It takes ANSWER_S at most."""
        return await self._findings.get("", self._look)

    async def _look(self) -> Finding:
        troubles, began = [], time.perf_counter()
        if self.app.is_draining:
            troubles.append("the server is stopping")
        try:
            with trio.fail_after(ANSWER_S):
                await self.app.store.connection.call("SET", keys.WRITTEN, self.app.name, "PX", "60000")
                await self.app.store.queues()
        except trio.TooSlowError:
            troubles.append(f"the store has not answered for {ANSWER_S:g} s")
        except FairqError as error:
            troubles.append(error.message)
        return Finding(tuple(troubles), time.perf_counter() - began)
