"""Working over HTTP: claims hand out tasks under leases, and settlements end them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from attrs import field, frozen
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairq.errors import BadRequest
from fairq.model.outcomes import sent_in
from fairq.model.rules import FULL_ID, LEASE, QUEUE, WORKER, check_fields, whole
from fairq.model.tasks import Lease, NewTask, Settlement
from fairq.model.tenants import SCAN
from fairq.server.web.http.bodies import Gone
from fairq.server.web.http.bounds import MAX_CLAIM
from fairq.server.web.http.call import Call, answer, one_of
from fairq.server.web.http.fields import make_enqueue_from, make_request
from fairq.server.web.http.tasks import row_of_sent
from fairq.server.web.http.workers import Claim, HttpWorker, Workers, fitting
from fairq.wire import messages as wire
from fairq.wire.frames import HeldLease
from fairq.wire.server_session import describe

DEFAULT_WORKER = "http"


@frozen
class ClaimTasks:
    """Claim up to `count` tasks of a queue; wait at most `timeout_ms` for one."""

    ref: int
    queue: Annotated[str, QUEUE]
    worker: Annotated[str, WORKER] = DEFAULT_WORKER
    count: Annotated[int, whole(1, MAX_CLAIM)] = 1
    timeout_ms: Annotated[int, wire.WAIT] = 0


@frozen
class EndLeases:
    """End or extend leases of a queue's tasks."""

    ref: int
    queue: Annotated[str, QUEUE]
    settlements: list[Settlement] = field(factory=list)
    worker: Annotated[str, WORKER] = DEFAULT_WORKER


@frozen
class EnqueueFromLease:
    """Store tasks of a leased task's tenant, which its handler enqueues."""

    ref: int
    lease: HeldLease
    queue: Annotated[str, QUEUE]
    tasks: list[NewTask]
    worker: Annotated[str, WORKER] = DEFAULT_WORKER


@frozen
class ReadBatchResults:
    """Read the results of a batch's tasks page by page, for a leased callback task."""

    ref: int
    queue: Annotated[str, QUEUE]
    id: Annotated[str, FULL_ID]
    lease: Annotated[int, LEASE]
    cursor: Annotated[str | None, SCAN] = None
    worker: Annotated[str, WORKER] = DEFAULT_WORKER


class Handed(Response):
    """The answer to a claim; if it cannot be sent, its tasks are given back."""

    def __init__(self, plain: Response, call: Call, worker: HttpWorker, queue: str, leases: Sequence[Lease]) -> None:
        super().__init__(plain.body, plain.status_code, dict(plain.headers))
        self._call, self._worker, self._queue, self._leases = call, worker, queue, leases

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        is_sent = False
        try:
            await super().__call__(scope, receive, send)
            is_sent = not (self._call.stream.is_broken or self._call.inbox.is_gone)
        finally:
            if self._leases and not is_sent:
                self._worker.return_soon(self._queue, self._leases)


def _take_name(given: dict[str, Any]) -> str:
    """Take the worker's name out of what a request gives. Raises: BadRequest."""
    name = given.pop("worker", None)
    name = DEFAULT_WORKER if name is None else name
    if not isinstance(name, str):
        raise BadRequest("worker must be text", field="worker")
    return str(WORKER.check(name, "worker"))


def _workers(request: Request) -> Workers:
    workers: Workers = request.app.state.workers
    return workers


async def claim(request: Request) -> Response:
    """Claim tasks, now or when there are any."""
    call, workers = Call.of(request), _workers(request)
    asked = make_request(ClaimTasks, call.given(ClaimTasks, request, has_body=True))
    check_fields(asked)
    worker = await workers.find(call.caller, asked.worker, asked.queue, claims=True)
    found: Claim | None = None
    with worker.in_use():
        try:
            async with call.waiting():
                found = await worker.claim(asked.queue, asked.count, asked.timeout_ms / 1000)
        except Gone:
            if found and found.leases:
                worker.return_soon(asked.queue, found.leases)
            raise
        leases, others = fitting(found)
        if others:
            worker.return_soon(asked.queue, others)
        times = {"lease_ms": found.lease_ms, "run_timeout_ms": found.run_timeout_ms}
        body = {**times, "tasks": [describe(each) for each in leases]}
        return Handed(answer(body), call, worker, asked.queue, leases)


async def end(request: Request) -> Response:
    """End or extend leases."""
    call, workers = Call.of(request), _workers(request)
    given = call.given(EndLeases, request, has_body=True)
    name = _take_name(given)
    settle = make_request(wire.Settle, given, call.caller.session.max_payload_bytes)
    worker = await workers.find(call.caller, name, settle.queue)
    with worker.in_use():
        body = await worker.ask(settle)
        worker.settled(settle.queue, settle.settlements, body["outcomes"])
        return answer(body)


async def enqueue_from(request: Request) -> Response:
    """Enqueue tasks for the tenant of a leased task."""
    call, workers = Call.of(request), _workers(request)
    given = call.given(EnqueueFromLease, request, has_body=True)
    name = _take_name(given)
    with one_of("leases", "lease"):
        frame = make_enqueue_from(given, call.caller.session.max_payload_bytes)
        worker = await workers.find(call.caller, name, QUEUE.check(frame.leases[0].queue, "lease"))
        with worker.in_use():
            outcomes = sent_in(await worker.ask(frame))
    return answer(
        {"tasks": [row_of_sent(task.id, sent) for task, sent in zip(frame.tasks, outcomes, strict=True)]}, 201
    )


async def batch_results(request: Request) -> Response:
    """Read a page of the results of a batch, for a leased callback task."""
    call, workers = Call.of(request), _workers(request)
    given = call.given(ReadBatchResults, request, has_body=True)
    name = _take_name(given)
    frame = make_request(wire.BatchResults, given)
    worker = await workers.find(call.caller, name, frame.queue)
    with worker.in_use():
        return answer(await worker.ask(frame))
