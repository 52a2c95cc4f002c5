"""Batches: one request of many tasks, as its tenant sees it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Unpack

from attrs import field, frozen

from fairq.client import lazy
from fairq.client.option_signatures import lists_options
from fairq.client.tasks import EnqueuedTask
from fairq.errors import NotYet
from fairq.model.checks import bare_id, owner_of

if TYPE_CHECKING:
    from fairq.client.client import Client
    from fairq.client.requests import Body
    from fairq.model.batches import BatchState
    from fairq.model.option_tables import TaskOptions


@frozen
class Batch:
    """An open batch; tasks are added until it is closed. Every call may be repeated safely."""

    id: str
    queue: str
    _client: Client = field(repr=False, eq=False)

    @lists_options
    async def add(
        self, payload: Any, *, id: str | None = None, timeout: float | None = None, **options: Unpack[TaskOptions]
    ) -> EnqueuedTask:
        """Add one task, as `Client.enqueue` does. Raises: BatchClosed, NotFound, and what that raises."""
        ids = None if id is None else [id]
        return (await self.add_many([payload], ids=ids, timeout=timeout, **options))[0]

    @lists_options
    async def add_many(
        self,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        timeout: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> list[EnqueuedTask]:
        """Add many tasks, as `Client.enqueue_many` does."""
        options["batch"], tenant = bare_id(self.id), owner_of(self.id) or None  # the owner stands in a full id
        enqueue = self._client.enqueue_many
        return await enqueue(self.queue, payloads, ids=ids, tenant=tenant, timeout=timeout, **options)

    async def close(self, *, timeout: float | None = None) -> None:
        """Close the batch: it is complete when all its tasks have ended."""
        await self._client.request("close_batch", self._body, timeout=timeout)

    async def cancel(self, *, timeout: float | None = None) -> str:
        """Close the batch, cancel its waiting tasks and stop the running ones. Returns its previous state."""
        return str((await self._client.request("cancel_batch", self._body, timeout=timeout))["previous"])

    async def state(self, *, timeout: float | None = None) -> BatchState:
        """Read the batch's progress. Raises: NotFound, also a day after it was complete."""
        return _state_in(await self._client.request("batch", self._body, timeout=timeout))

    async def watch(self, *, every: float = 1.0, timeout: float | None = None) -> AsyncGenerator[BatchState, None]:
        """Yield the batch's progress: now, then every `every` seconds, and at last when it is complete.

        Goes on across reconnects. Raises: as `wait`.
        """
        wait_s = 0.0
        deadline = self._client._deadline(inf if timeout is None else timeout)
        while True:
            left_s = max(0.0, deadline - self._client._caller.now())
            reply = await self._client.request_until("batch", self._body, lambda _: True, left_s, wait_s)
            state = _state_in(reply)
            yield state
            if state.state == "complete":
                return
            if self._client._caller.now() >= deadline:
                raise await self._not_yet(reply, timeout)
            wait_s = every

    async def wait(self, *, timeout: float | None = None) -> BatchState:
        """Wait until the batch is complete, across reconnects.

        Raises: NotFound; NotYet after `timeout` seconds (None: never), which says what it waits for; Unavailable or
        OutcomeUnknown if the service could not be asked then.
        """
        reply = await self._client.request_until(
            "batch", self._body, lambda reply: bool(reply["batch"]["state"] == "complete"), timeout
        )
        state = _state_in(reply)
        if state.state != "complete":
            raise await self._not_yet(reply, timeout)
        return state

    @property
    def _body(self) -> Body:
        return {"queue": self.queue, "id": self.id}

    async def _not_yet(self, reply: Body, timeout: float | None) -> NotYet:
        """Say how far it is, and why its first task waits, unless it was waited for less than a second."""
        state, first = _state_in(reply), reply.get("waits_for")
        message = f"batch {self.id} is not complete: {state.ended:,} of {state.total:,} tasks have ended"
        if state.state == "open":
            message += "; it is open until `close` is called"
        if first and (reason := await self._client._why_it_waits(self.queue, first, timeout)):
            message += f"; task {first}: {reason}"
        return NotYet(message, field="batch")


def _state_in(reply: Body) -> BatchState:
    return lazy.bodies.structure(reply["batch"], lazy.batches.BatchState)
