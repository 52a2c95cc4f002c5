"""An operator's calls to the service in memory: weights, limits and pauses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from attrs import define

from fairq.errors import Forbidden
from fairq.model.limits import LIMITS
from fairq.model.refusals import guaranteed_to_all
from fairq.testing.caller import Body, MemoryCaller
from fairq.testing.memory import MemoryQueue


@define(eq=False)
class MemoryOperator(MemoryCaller):
    """The caller of an operator's client."""

    async def request(self, verb: str, body: Body, deadline: float) -> Any:
        """Carry out an operator's request."""
        if body.get("if_version"):
            raise Forbidden("the service in memory has no versions of settings", field="if_version")
        return await super().request(verb, body, deadline)

    def _verbs(self) -> dict[str, Callable[[MemoryQueue, Body], Awaitable[Body]]]:
        verbs = {"set_weight": self._set_weight, "set_limits": self._set_limits, "set_paused": self._set_paused}
        return {**super()._verbs(), **verbs}

    async def _set_weight(self, queue: MemoryQueue, body: Body) -> Body:
        return self._changed(queue.set_weight(self.memory.now(), body["tenant"], body["weight"]))

    async def _set_limits(self, queue: MemoryQueue, body: Body) -> Body:
        tenant, limits = body.get("tenant") or "", LIMITS.check(body["limits"], "limits")
        if "guaranteed" in limits and not tenant:
            raise guaranteed_to_all()
        return self._changed(queue.set_limits(self.memory.now(), tenant, limits))

    async def _set_paused(self, queue: MemoryQueue, body: Body) -> Body:
        tenant = body.get("tenant") or ""
        return self._changed(queue.set_paused(self.memory.now(), tenant, is_paused=body["paused"]))

    def _changed(self, previous: object) -> Body:
        self.memory.on_change()
        return {"previous": previous}
