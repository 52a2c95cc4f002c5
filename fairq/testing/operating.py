"""What an operator may ask of the service in memory: weights, limits and pauses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from attrs import define

from fairq.errors import BadRequest, Forbidden
from fairq.model.limits import LIMITS
from fairq.testing.caller import Body, MemoryCaller
from fairq.testing.memory import MemoryQueue


@define(eq=False)
class MemoryOperator(MemoryCaller):
    """The caller of an operator's client."""

    async def request(self, verb: str, body: Body, deadline: float) -> Any:
        """Carry out an operator's request."""
        if body.get("if_version"):
            raise Forbidden("the service in memory has no versions of what operators set", field="if_version")
        return await super().request(verb, body, deadline)

    def _verbs(self) -> dict[str, Callable[[MemoryQueue, Body], Awaitable[Body]]]:
        return {
            **super()._verbs(), "set_weight": self._set_weight, "set_limits": self._set_limits,
            "pause": partial(self._set_paused, True), "resume": partial(self._set_paused, False),
        }  # fmt: skip

    async def _set_weight(self, line: MemoryQueue, body: Body) -> Body:
        return self._changed(line.set_weight(self.memory.now(), body["tenant"], body["weight"]))

    async def _set_limits(self, line: MemoryQueue, body: Body) -> Body:
        tenant, limits = body.get("tenant") or "", LIMITS.check(body["limits"], "limits")
        if "guaranteed" in limits and not tenant:
            raise BadRequest("running tasks are guaranteed to one tenant, not to all", field="guaranteed")
        return self._changed(line.set_limits(self.memory.now(), tenant, limits))

    async def _set_paused(self, is_paused: bool, line: MemoryQueue, body: Body) -> Body:
        return self._changed(line.set_paused(self.memory.now(), body.get("tenant") or "", is_paused=is_paused))

    def _changed(self, previous: object) -> Body:
        self.memory.on_change()
        return {"previous": previous}
