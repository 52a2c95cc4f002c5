"""Enqueueing and asking for tasks over HTTP, and opening batches for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import uuid_utils
from attrs import evolve
from starlette.requests import Request
from starlette.responses import Response

from fairq.errors import BadRequest, FairqError, NotFound, from_code
from fairq.model.checks import check_task_id, check_tenant
from fairq.model.options import check_in_time
from fairq.model.outcomes import read_sent, sent_in
from fairq.model.tasks import TRACE, NewTask
from fairq.server.web.http.bodies import JSON, NDJSON, read_lines
from fairq.server.web.http.call import Call, answer, one_of
from fairq.server.web.http.fields import make_enqueue, make_request, make_task, read_query
from fairq.server.web.http.problems import Problem
from fairq.wire import messages as wire
from fairq.wire.calls import REFUSED


def _id_of(request: Request) -> str | None:
    """Return the id that the header `Idempotency-Key` gives, if any. Raises: BadRequest."""
    key = request.headers.get("idempotency-key")
    return None if key is None else check_task_id(key, "Idempotency-Key")


def _read(call: Call, request: Request) -> tuple[list[Any], str | None, bool]:
    """Read the tasks of a body, the tenant that is given for all, and whether it is one task alone."""
    query = read_query(wire.Enqueue, request.query_params.multi_items())
    tenant = query.pop("tenant", None)
    if extra := sorted(query):
        raise BadRequest(f"unknown field {extra[0]!r:.80}", field=extra[0][:80])
    if call.media_type == NDJSON:
        return call.caller.read(lambda body: list(read_lines(body)), call.body), tenant, False
    if call.media_type != JSON:
        raise Problem("wrong_type", f"send {JSON} or {NDJSON}, not {call.media_type!r:.80}")
    body = call.object()
    if "tasks" not in body:
        return [body], tenant, True
    if extra := sorted(body.keys() - {"tasks", "tenant"}):
        raise BadRequest(f"unknown field {extra[0]!r:.80} beside tasks", field=extra[0][:80])
    if body.get("tenant") is not None and tenant is not None:
        raise BadRequest("tenant is given twice", field="tenant")
    return body["tasks"], tenant if body.get("tenant") is None else body["tenant"], False


def _traced(request: Request, tasks: Sequence[NewTask]) -> list[NewTask]:
    """Give tasks the trace of the request; a wrong one is passed over, as W3C asks."""
    try:
        trace = TRACE.check(request.headers.get("traceparent", ""), "traceparent")
    except BadRequest:
        trace = ""
    return [task._replace(trace=trace) for task in tasks] if trace else list(tasks)


async def enqueue(request: Request) -> Response:
    """Enqueue one task, or many."""
    call, queue, key = Call.of(request), request.path_params["queue"], _id_of(request)
    values, tenant, is_alone = _read(call, request)
    if tenant is not None:
        check_tenant(tenant)
    if not is_alone and key is not None:
        raise BadRequest(
            "Idempotency-Key is the id of a single task: give each task an id of its own", field="Idempotency-Key"
        )
    if is_alone and key is not None and values[0].get("id") not in (None, key):
        raise BadRequest("id and Idempotency-Key differ", field="Idempotency-Key")
    max_bytes = call.caller.session.max_payload_bytes
    if not is_alone:
        frame = make_enqueue(queue, values, max_bytes, tenant)
        frame = evolve(frame, tasks=_traced(request, frame.tasks))
        return _answer_many(frame, await call.caller.ask(frame))
    task, own = make_task(values[0], max_bytes, key)
    if own is not None and tenant is not None:
        raise BadRequest("tenant is given twice", field="tenant")
    frame = wire.Enqueue(0, queue, _traced(request, [task]), tenant)
    return _answer_one(frame, await call.caller.ask(frame))


def row_of_sent(id: str, outcome: str) -> dict[str, Any]:
    """Describe what became of a task: `id` is that of the task that has its dedupe key, if another has it."""
    word, holder, state = read_sent(outcome)
    return {"id": holder or id, "outcome": word} | ({"duplicate_of_state": state} if state else {})


def _rows(frame: wire.Enqueue, body: dict[str, Any]) -> list[dict[str, Any]]:
    before = f"{frame.tenant}/" if frame.tenant else ""
    return [row_of_sent(before + task.id, outcome) for task, outcome in zip(frame.tasks, sent_in(body), strict=True)]


def _refusal(row: dict[str, Any]) -> FairqError:
    return from_code(row["code"], row["message"], row.get("field"), row.get("retry_in_ms"))


def _answer_one(frame: wire.Enqueue, body: dict[str, Any]) -> Response:
    (row,) = _rows(frame, body)
    check_in_time([row["outcome"]])
    if row["outcome"] == REFUSED:
        raise _refusal(next(iter(body["refusals"].values())))
    where = {"Location": f"/v1/queues/{frame.queue}/tasks/{quote(row['id'])}"}
    return answer(row, 201 if row["outcome"] == "ok" else 200, where)


def _answer_many(frame: wire.Enqueue, body: dict[str, Any]) -> Response:
    rows = _rows(frame, body)
    refusals = body.get("refusals", {})
    if refusals and all(row["outcome"] == REFUSED for row in rows):
        raise _refusal(next(iter(refusals.values())))
    reply = {"tasks": rows} | ({"refusals": refusals} if refusals else {})
    return answer(reply, 207 if refusals else 201)


async def open_batch(request: Request) -> Response:
    """Open a batch; without an id it gets one."""
    call = Call.of(request)
    given = {"id": str(uuid_utils.uuid7())} | call.given(wire.OpenBatch, request, has_body=True)
    asked = make_request(wire.OpenBatch, given)
    body = await call.caller.ask(asked)
    return answer({"id": asked.id, **body}, 201 if body["outcome"] == "ok" else 200)


async def show(request: Request) -> Response:
    """Return the state of a task, now or when it has ended, and its result."""
    call = Call.of(request)
    given = call.given(wire.Batch, request, has_body=False)
    ids = [given.pop("id")]
    with one_of("ids", "id"):
        waited = await call.ask(wire.WaitTasks, {**given, "ids": ids})
        given.pop("wait", None)
        state = (await call.ask(wire.Tasks, {**given, "ids": ids}))["tasks"][0]
    for ended in waited["tasks"]:
        state = {**state, **ended} if state["state"] != "unknown" or "result" in ended else state
    if state["state"] == "unknown":
        raise NotFound(f"task {ids[0]} is unknown: it never existed, or ended long ago", field="id")
    return answer({**state, "id": request.path_params["id"]} if "tenant" not in given else state)


async def cancel(request: Request) -> Response:
    """Cancel a task."""
    call = Call.of(request)
    given = call.given(wire.Batch, request, has_body=False)
    given["ids"] = [given.pop("id")]
    with one_of("ids", "id"):
        body = await call.ask(wire.Cancel, given)
    return answer({"id": request.path_params["id"], "outcome": body["outcomes"][0]})
