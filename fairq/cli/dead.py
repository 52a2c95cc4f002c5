"""`fairq dead`: tasks that failed for good."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import print_json, print_table
from fairq.errors import BadRequest
from fairq.model import MAX_BATCH

if TYPE_CHECKING:
    from fairq.client.client import Client

dead = App(name="dead", help="List, replay and purge dead letters.")

_COLUMNS = {name: name for name in ("id", "tenant", "reason", "attempts", "died", "error")}
All = Annotated[bool, Parameter(name="--all", negative=(), help="All dead letters (of --tenant, if given).")]


async def _letters(client: Client, queue: str, tenant: str | None) -> AsyncGenerator[list[dict[str, Any]], None]:
    offset = 0
    while True:
        body = {"queue": queue, "offset": offset, "count": MAX_BATCH}
        page = (await client.request("dead", body))["dead"]
        if not page:
            return
        yield [letter for letter in page if tenant in (None, letter["tenant"])]
        offset += len(page)


@dead.command(name="list")
def list_(
    queue: str, *, tenant: str | None = None, limit: int = 100, json: Json = False, server: Server | None = None
) -> None:
    """List the dead letters of a queue, oldest first."""

    async def work(client: Client) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        async with aclosing(_letters(client, queue, tenant)) as pages:
            async for page in pages:
                rows += page
                if len(rows) >= limit:
                    break
        return rows[:limit]

    rows = run_with(server or Server(), work)
    if json:
        print_json(rows)
        return
    for row in rows:
        row["died"] = datetime.fromtimestamp(row["died_at_ms"] / 1000, UTC).isoformat(" ", "seconds")
    print_table(f"dead letters of {queue}", _COLUMNS, rows, empty=f"queue {queue} has no dead letters")


def _on_letters(
    verb: str, queue: str, ids: tuple[str, ...], everything: bool, tenant: str | None, server: Server
) -> int:
    """Apply `replay` or `purge` to the letters named, or to all; returns how many it changed."""
    if bool(ids) == everything:
        raise BadRequest("name the ids, or say --all", field="ids")

    async def work(client: Client) -> int:
        chosen = list(ids)
        if everything:
            async for page in _letters(client, queue, tenant):
                chosen += [letter["id"] for letter in page]
        changed = 0
        for start in range(0, len(chosen), MAX_BATCH):
            body = {"queue": queue, "ids": chosen[start : start + MAX_BATCH]}
            changed += (await client.request(verb, body))["outcomes"].count("ok")
        return changed

    return run_with(server, work)


@dead.command
def replay(
    queue: str, *ids: str, everything: All = False, tenant: str | None = None, server: Server | None = None
) -> None:
    """Give dead letters a fresh set of attempts, inside their tenants' shares."""
    print(f"replayed: {_on_letters('replay', queue, ids, everything, tenant, server or Server())}")


@dead.command
def purge(
    queue: str, *ids: str, everything: All = False, tenant: str | None = None, server: Server | None = None
) -> None:
    """Delete dead letters for good."""
    print(f"purged: {_on_letters('purge', queue, ids, everything, tenant, server or Server())}")
