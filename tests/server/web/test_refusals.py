"""What the verbs refuse is refused over HTTP, with the status of its code and the field as HTTP calls it.

The requests follow from the table of the websocket's refusals (tests/server/refusals.py): the fields of a frame are
said as a path, a query and a body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from fairq.errors import FairqError
from fairq.model.rules import check_fields, rules_of
from fairq.server.web.admin.routes import ROWS as OF_OPERATORS
from fairq.server.web.http.fields import NOT_HERE, make_request, name_of, read_query
from fairq.server.web.http.leases import EndLeases, EnqueueFromLease, ReadBatchResults
from fairq.server.web.http.problems import STATUS, body_of
from fairq.server.web.http.routes import ROWS as OF_OTHERS
from fairq.server.web.http.routes import Row as Route
from fairq.wire import messages as wire
from fairq.wire.terms import Role
from fairq.wire.verbs import VERBS
from tests.server.refusals import GOOD, RULES, Row, good, rows_of
from tests.server.test_refusals import TOKENS, malformed, open_world, quiet_server

from .http.harness import base_of, serving

__all__ = ["quiet_server"]

FRAMES = {EndLeases: wire.Settle, EnqueueFromLease: wire.EnqueueFrom, ReadBatchResults: wire.BatchResults}
OPERATORS = {Role.OPERATOR, Role.VIEWER}
ONE_OF = {"ids": "id", "leases": "lease"}  # where HTTP has one of what a frame has many of
NO_FAULT = {  # frame, code and field of what is taken, or refused for another reason
    (EndLeases, "too_large", "payload"),  # the body has room for it
    (EnqueueFromLease, "not_found", "batch"),  # the lease is looked at first, and is another worker's
    (EnqueueFromLease, "batch_closed", "batch"),
}


class Said(NamedTuple):
    """A request over HTTP."""

    path: str
    in_path: dict[str, str]
    given: dict[str, Any]  # in the body, or in the query


class NotSayable(Exception):
    """HTTP cannot say it, or it is no fault there."""


def named(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Call fields as HTTP does, with times in seconds."""
    found = {}
    for field, value in fields.items():
        if field in ("tasks", "settlements", "links") and isinstance(value, list):
            value = [named(each) if isinstance(each, dict) else each for each in value]
        elif name_of(field) != field and type(value) is float:
            raise NotSayable  # seconds have fractions
        elif name_of(field) != field and type(value) is int:
            value = value / 1000
        found[name_of(field)] = value
    return found


def as_texts(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Spell a query."""
    found = []
    for name, value in given.items():
        values = value if isinstance(value, list) else [value]
        kinds: Any = str if isinstance(value, list) else str | int | float
        if not values or not all(isinstance(each, kinds) for each in values):
            raise NotSayable
        found += [(name, str(each).lower() if isinstance(each, bool) else str(each)) for each in values]
    return found


def say(route: Route, body: Mapping[str, Any]) -> Said:
    """Say a frame's body over HTTP. Raises: NotSayable."""
    given = named({field: value for field, value in body.items() if field not in NOT_HERE and value is not None})
    if "{id}" in route.path and isinstance(given.get("ids"), list):
        if len(given["ids"]) != 1:
            raise NotSayable
        (given["id"],) = given.pop("ids")
    if route.frame is EnqueueFromLease:  # all its tasks are of one lease
        many = given.pop("leases", None)
        if not isinstance(many, list) or len(many) != len(GOOD["enqueue_from"]["leases"]):
            raise NotSayable
        given["lease"] = many[-1]
    in_path, path = {}, route.path
    for name in re.findall(r"{(\w+)}", path):
        value = in_path[name] = given.pop(name, "")
        if not isinstance(value, str) or "" in value.split("/") or value.count("/") > (name == "id"):
            raise NotSayable
        path = path.replace(f"{{{name}}}", quote(value))
    if not route.has_body:
        as_texts(given)
    return Said(path, in_path, given)


def refusal_when_read(route: Route, said: Said) -> dict[str, Any] | None:
    """Return the answer to a request that is refused when it is read, before any verb sees it."""
    if route.endpoint:
        return None
    try:
        given = json.loads(json.dumps(said.given)) if route.has_body else read_query(route.frame, as_texts(said.given))
        check_fields(make_request(route.frame, {**said.in_path, **given}))
    except FairqError as error:
        return body_of(error)
    return None


def expected(route: Route, row: Row, said: Said) -> tuple[int, str, str]:
    """Return the status, code and field of a refusal. Raises: NotSayable if over HTTP it is no fault."""
    code, field, given = row.code, ONE_OF.get(row.field, row.field), {**said.in_path, **said.given}
    if (route.frame, code, field) in NO_FAULT:
        raise NotSayable
    if route.frame is EndLeases and field == "queue" and given.get("queue") == "other":
        raise NotSayable  # the worker is attached to it now
    if field == "id" and any(isinstance(each, dict) and each.get("id") is None for each in given.get("tasks", ())):
        raise NotSayable  # a task without an id gets one
    if route.frame is wire.Enqueue and "tasks" not in given:
        raise NotSayable  # it is one task
    if field == "tenant" and given.get("tenant") == "":
        code = "bad_request"  # before it is asked who may name tenants
    return STATUS[code], code, name_of(field if field in given else row.field)


def rows_for(route: Route) -> Iterator[Row]:
    """Yield what a path refuses, as frames."""
    own: Any = route.frame
    frame: Any = FRAMES.get(own, own)
    is_of_operators = route in OF_OPERATORS
    if frame in VERBS:
        role = Role.OPERATOR if is_of_operators else min(VERBS[frame].roles - OPERATORS, key=str)
        rows = [row for rule in RULES if frame.type in rule.verbs for row in rows_of(rule) if row.verb == frame.type]
        rows += malformed(frame.type, role) if route.has_body else []
        yield from (row for row in rows if row.field != "ref" and (row.role in OPERATORS) == is_of_operators)
    if own not in VERBS:  # it has fields that only HTTP has
        body = good(frame.type, Role.WORKER) if frame in VERBS else {"queue": "q"}
        for name, rule in rules_of(own).items():
            if frame not in VERBS or name not in rules_of(frame):
                values = (*rule.bad, {})
                yield from (Row("", Role.WORKER, {**body, name: value}, "bad_request", name) for value in values)


async def test_what_breaks_a_rule_is_refused_and_changes_nothing(server_store: str) -> None:
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(server_store, admin_port=0))
        world = await stack.enter_async_context(open_world(served, server_store))
        assert served.admin is not None
        clients = {}
        for role in Role:
            base = f"http://{served.admin.host}:{served.admin.port}" if role in OPERATORS else base_of(served)
            token = {"Authorization": f"Bearer {TOKENS[role]}"}
            client = httpx.AsyncClient(base_url=base, headers=token, timeout=60, verify=False)
            clients[role] = await stack.enter_async_context(client)
        before = world.contents()
        checked = 0
        for route in (*OF_OPERATORS, *OF_OTHERS):
            for row in rows_for(route):
                try:
                    said = say(route, {name: world.spell(value) for name, value in world.spell(row.body).items()})
                    wanted = expected(route, row, said)
                except NotSayable:
                    continue
                answer = refusal_when_read(route, said)
                if answer is None:
                    sent = {"json": said.given} if route.has_body else {"params": as_texts(said.given)}
                    response = await clients[row.role].request(route.method, said.path, **sent)
                    answer = {**response.json(), "status": response.status_code}
                found = answer["status"], answer.get("code"), answer.get("field")
                assert found == wanted, f"{route.method} {route.path}: {row!r:.250} ... {answer}"
                checked += 1
        assert world.contents() == before
        assert checked > 2000
