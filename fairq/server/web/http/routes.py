"""The table of paths: each row is a method, a path and the frame that a request becomes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairq.errors import BadRequest, NotFound
from fairq.server.web.http.call import Call, answer
from fairq.server.web.http.events import events
from fairq.server.web.http.fields import names_of
from fairq.server.web.http.leases import (
    ClaimTasks,
    EndLeases,
    EnqueueFromLease,
    ReadBatchResults,
    batch_results,
    claim,
    end,
    enqueue_from,
)
from fairq.server.web.http.tasks import cancel, enqueue, open_batch, show
from fairq.wire import messages as wire

QUEUE = "/v1/queues/{queue}"
_ETAG = re.compile(r'(?:W/)?"([^"]*)"\Z')
Endpoint = Callable[[Request], Any]


class Row(NamedTuple):
    """One method of one path. `id`s may hold a slash: those of producers name their tenant.

    `part`: the field of the reply that is the answer, or of a list in it the one row. `endpoint`: what answers, if a
    request is not just its frame.
    """

    method: str
    path: str
    frame: type[Any]
    summary: str
    status: int = 200
    part: str = ""
    endpoint: Endpoint | None = None

    @property
    def has_body(self) -> bool:
        """True if the frame's fields come in a body, not in the query."""
        return self.method in ("POST", "PUT", "PATCH")

    async def ask(self, call: Call, given: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a request; returns what its answer is made of. Raises: FairqError, Gone."""
        body = await call.ask(self.frame, given)
        found: Any = body[self.part] if self.part else body
        if found == []:
            name = self.path.rpartition("{")[2].rstrip("}")
            raise NotFound(f"there is no {name} {given[name]}", field=name)
        row: dict[str, Any] = found[0] if type(found) is list else found
        return row

    def status_of(self, body: Mapping[str, Any]) -> int:
        """Return the status of an answer that is no problem."""
        return 201 if body.get("outcome") == "created" else self.status


ROWS = (
    Row("POST", f"{QUEUE}/tasks", wire.Enqueue, "Enqueue one task, or many", 201, endpoint=enqueue),
    Row("GET", f"{QUEUE}/tasks", wire.Tasks, "Read the states of tasks"),
    Row("GET", f"{QUEUE}/tasks/{{id}}", wire.WaitTasks, "Read a task's state, now or at its end, and its result",
        endpoint=show),
    Row("DELETE", f"{QUEUE}/tasks/{{id}}", wire.Cancel, "Cancel a task", endpoint=cancel),
    Row("POST", f"{QUEUE}/tasks/cancel", wire.Cancel, "Cancel tasks"),
    Row("POST", f"{QUEUE}/tasks/cancel-all", wire.CancelAll, "Cancel waiting tasks that match"),
    Row("POST", f"{QUEUE}/tasks/reschedule", wire.Reschedule, "Change when waiting tasks start"),
    Row("GET", f"{QUEUE}/next", wire.Peek, "Show the next tasks, with their payloads"),
    Row("GET", f"{QUEUE}/why/{{id}}", wire.Why, "Tell why a task waits"),
    Row("GET", f"{QUEUE}/report", wire.TenantReport, "Tell what the tenant's tasks waited for, and its share",
        part="report"),
    Row("GET", f"{QUEUE}/limits", wire.Limits, "Read the tenant's limits and opening hours"),
    Row("POST", f"{QUEUE}/batches", wire.OpenBatch, "Open a batch", 201, endpoint=open_batch),
    Row("GET", f"{QUEUE}/batches", wire.Batches, "List batches"),
    Row("GET", f"{QUEUE}/batches/{{id}}", wire.Batch, "Read the state of a batch, now or when it is complete",
        part="batch"),
    Row("POST", f"{QUEUE}/batches/{{id}}/close", wire.CloseBatch, "Add no more tasks to a batch"),
    Row("DELETE", f"{QUEUE}/batches/{{id}}", wire.CancelBatch, "Close a batch and cancel its tasks"),
    Row("GET", f"{QUEUE}/events", wire.Events, "Follow the tenant's events, as server-sent events or page by page",
        endpoint=events),
    Row("PUT", f"{QUEUE}/schedules/{{name}}", wire.Schedule, "Create or change a schedule"),
    Row("GET", f"{QUEUE}/schedules", wire.Schedules, "List schedules"),
    Row("GET", f"{QUEUE}/schedules/{{name}}", wire.Schedules, "Read a schedule and its task", part="schedules"),
    Row("DELETE", f"{QUEUE}/schedules/{{name}}", wire.Unschedule, "Delete a schedule"),
    Row("PUT", f"{QUEUE}/schedules/{{name}}/paused", wire.SetSchedulePaused,
        "Stop a schedule from firing, or let it fire again"),
    Row("GET", f"{QUEUE}/dead", wire.Dead, "List dead letters"),
    Row("GET", f"{QUEUE}/dead/{{id}}", wire.DeadLetter, "Read a dead letter", part="dead_letter"),
    Row("POST", f"{QUEUE}/dead/replay", wire.Replay, "Give dead letters a fresh set of attempts"),
    Row("POST", f"{QUEUE}/dead/purge", wire.Purge, "Delete dead letters"),
    Row("POST", f"{QUEUE}/claims", ClaimTasks, "Claim tasks, now or when there are any", endpoint=claim),
    Row("POST", "/v1/leases", EndLeases, "Acknowledge, fail, reject, release or extend leased tasks",
        endpoint=end),
    Row("POST", "/v1/leases/tasks", EnqueueFromLease, "Enqueue tasks for the tenant of a leased task", 201,
        endpoint=enqueue_from),
    Row("POST", "/v1/leases/results", ReadBatchResults, "Read what a batch's tasks returned, for its callback task",
        endpoint=batch_results),
)  # fmt: skip


class _Id(StringConvertor):
    """An id in a path: a tenant's bare id, or a producer's with its tenant and a slash."""

    regex = "[^/]+(?:/[^/]+)?"


register_url_convertor("id", _Id())


def _plain(row: Row) -> Endpoint:
    """Make the endpoint of a plain row: the request becomes its frame, and the answer is the reply's body.

    The version of an answer is its ETag; a change with `If-Match` is made only if that is still the version, else it is
    answered 412.
    """
    frame: Any = row.frame
    has_version = "if_version" in names_of(frame)

    async def endpoint(request: Request) -> Response:
        call = Call.of(request)
        given = call.given(row.frame, request, row.has_body)
        if has_version:
            given |= _if_match(request, given)
        body = await row.ask(call, given)
        headers = {"ETag": f'"{body["version"]}"'} if "version" in body else {}
        return answer(body, row.status_of(body), headers)

    return endpoint


def _if_match(request: Request, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the version that the header If-Match names. Raises: BadRequest."""
    header = request.headers.get("if-match")
    if header is None or header.strip() == "*":
        return {}
    if not (found := _ETAG.match(header.strip())):
        raise BadRequest(f"If-Match must be one version in quotes, or *, not {header!r:.80}", field="if_version")
    if given.get("if_version") not in (None, found[1]):
        raise BadRequest("If-Match and if_version differ", field="if_version")
    return {"if_version": found[1]}


def routes_of(rows: Iterable[Row]) -> list[Route]:
    """Make routes from rows."""
    return [
        Route(row.path.replace("{id}", "{id:id}"), row.endpoint or _plain(row), methods=[row.method]) for row in rows
    ]
