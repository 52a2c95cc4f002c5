"""Batches: one request of many tasks, as its tenant sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from attrs import field, frozen

from fairq.client.options import TaskOptions
from fairq.errors import NotYet
from fairq.model.batches import BatchState

if TYPE_CHECKING:
    from fairq.client.client import Client, EnqueuedTask


@frozen
class Batch:
    """An open batch; tasks are added until it is closed. Every call may be repeated safely."""

    id: str
    queue: str
    _client: Client = field(repr=False, eq=False)

    async def add(
        self, payload: Any, *, id: str | None = None, timeout: float | None = None, **options: Unpack[TaskOptions]
    ) -> EnqueuedTask:
        """Add one task, as `Client.enqueue` does. Raises: BatchClosed, NotFound, and what that raises."""
        options["batch"] = self.id
        return await self._client.enqueue(self.queue, payload, id=id, timeout=timeout, **options)

    async def add_many(
        self,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        timeout: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> list[EnqueuedTask]:
        """Add many tasks, as `Client.enqueue_many` does."""
        options["batch"] = self.id
        return await self._client.enqueue_many(self.queue, payloads, ids=ids, timeout=timeout, **options)

    async def close(self, *, timeout: float | None = None) -> None:
        """Add no more: when all its tasks have ended, the batch is complete."""
        await self._ask("close_batch", timeout)

    async def cancel(self, *, timeout: float | None = None) -> None:
        """Close the batch and cancel its tasks; those that run are told to stop."""
        await self._ask("cancel_batch", timeout)

    async def state(self, *, timeout: float | None = None) -> BatchState:
        """Ask how far the batch is. Raises: NotFound, also a day after it was complete."""
        return BatchState(**(await self._ask("batch", timeout))["batch"])

    async def wait(self, *, timeout: float | None = None) -> BatchState:
        """Wait until the batch is complete, across reconnects.

        Raises: NotFound, NotYet after `timeout` seconds (None: never); Unavailable or OutcomeUnknown if the service
        could not be asked then.
        """
        reply = await self._client.ask_until(
            "batch", self._body(), timeout, lambda reply: bool(reply["batch"]["state"] == "complete")
        )
        if reply is None:
            raise NotYet(f"batch {self.id} is not complete", field="batch")
        return BatchState(**reply["batch"])

    async def _ask(self, verb: str, timeout: float | None) -> dict[str, Any]:
        return await self._client.request(verb, self._body(), timeout=timeout)

    def _body(self) -> dict[str, Any]:
        return {"queue": self.queue, "id": self.id}
