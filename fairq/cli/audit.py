"""`fairq audit`: who changed what, when and from where."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import trio
from attrs import asdict
from cyclopts import Parameter

from fairq.cli.options import Json, Server, Span, run_with, seconds_of
from fairq.cli.output import print_json_line, print_rows, printable
from fairq.errors import BadRequest
from fairq.model.audit import UNKNOWN
from fairq.model.checks import MAX_BATCH
from fairq.model.texts import say_moment

if TYPE_CHECKING:
    from fairq.client.operator import OperatorClient
    from fairq.model.audit import AuditPage, Change

_EVERY_S = 1.0  # between two looks for new changes


def audit(
    *,
    queue: str = "",
    tenant: str = "",
    by: str = "",
    verb: str = "",
    since: Span | None = None,
    by_tenants: Annotated[bool, Parameter(negative=())] = False,
    count: int = 50,
    follow: Annotated[bool, Parameter(negative=())] = False,
    json: Json = False,
    server: Server | None = None,
) -> None:
    """Show operators' changes: time, token, address, change and previous value.

    The newest come first. Above them are unfinished changes: their server may have died. With --follow, each change
    is one line, and with --json one JSON document.

    Example: `fairq audit --queue emails --tenant acme --since 2h`

    Parameters
    ----------
    queue
        Only changes of this queue.
    tenant
        Only changes of this tenant.
    by
        Only changes by the token with this id (`fairq tokens list`).
    verb
        Only changes of this kind, such as set_weight.
    since
        How far back to look, such as 2h or 7d.
    by_tenants
        Show tenants' own changes, such as schedules.
    count
        Changes to show at most.
    follow
        Then print new changes as they finish or become unknown, until interrupted.
    """
    if count < 1:
        raise BadRequest("count must be at least 1", field="count")
    ago = seconds_of(since)
    since_ms = 0 if ago is None else max(0, round((time.time() - ago) * 1000))
    which: dict[str, Any] = {"queue": queue, "tenant": tenant, "token": by, "verb": verb, "since_ms": since_ms}
    which["by_tenants"] = by_tenants

    async def read(client: OperatorClient) -> tuple[list[Change], AuditPage]:
        page = first = await client.audit(**which, count=min(count, MAX_BATCH))
        found = page.changes
        while page.cursor and len(found) < count:
            page = await client.audit(**which, count=min(count - len(found), MAX_BATCH), cursor=page.cursor)
            found = found + page.changes
        return found, first

    async def work(client: OperatorClient) -> None:
        found, first = await read(client)
        if not follow:
            _show([*first.begun, *found], json)
            return
        page, changes, newest, shown = first, found[::-1], "", set[str]()
        while True:
            lost = [each for each in page.begun[::-1] if each.outcome == UNKNOWN and each.id not in shown]
            shown.update(each.id for each in lost)
            for change in [*lost, *changes]:
                _print(change, json)
            if page.newest == newest:
                await trio.sleep(_EVERY_S)
            newest = page.newest
            page = await client.audit(**which, count=MAX_BATCH, after=newest)
            changes = page.changes

    run_with(server, work)


def _show(changes: list[Change], as_json: bool) -> None:
    columns = {
        "at": "at", "who": "token", "address": "from", "verb": "change", "of": "of", "new": "to",
        "previous": "before", "outcome": "outcome",
    }  # fmt: skip
    rows = [asdict(change) if as_json else _row(change) for change in changes]
    print_rows("changes", columns, rows, empty="nothing was changed", rare=("new",), json=as_json)


def _row(change: Change) -> dict[str, Any]:
    who = " ".join(word for word in (change.label, change.token) if word)
    of = " ".join(word for word in (change.queue, change.tenant, change.target) if word)
    new = change.new if change.new is not None else change.result
    texts = {"new": _say(new), "previous": _say(change.previous)}
    return {**asdict(change), "at": say_moment(change.at_ms), "who": who or change.via, "of": of, **texts}


def _say(value: Any) -> str:
    """Write a value as people do: `weight 2.5`, `max_running 3, rate 10`."""
    if isinstance(value, dict):
        inner = next(iter(value.values())) if len(value) == 1 else None
        if isinstance(inner, dict):
            return _say(inner)
        return ", ".join(f"{name} {'unset' if it is None else _say(it)}" for name, it in value.items())
    if value is None or isinstance(value, str):
        return value or ""
    return orjson.dumps(value).decode()


def _print(change: Change, as_json: bool) -> None:
    if as_json:
        print_json_line(asdict(change))
    else:
        row = _row(change)
        shift = f"{row['previous']} -> {row['new']}" if row["previous"] else row["new"]
        words = (row["at"], row["who"], row["address"], row["verb"], row["of"], shift, row["outcome"])
        print(*(printable(word) for word in words if word), sep="  ", flush=True)
