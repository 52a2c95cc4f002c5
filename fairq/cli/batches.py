"""`fairq batches`: list, show, cancel and watch batches."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attrs import asdict
from cyclopts import App, Parameter

from fairq.cli.confirm import Yes, agrees
from fairq.cli.meter import Pace, meter, say_counts
from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import columns_of, print_fields, print_json, print_json_line, print_rows
from fairq.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    from fairq.client.client import Client
    from fairq.model.batches import BatchState

batches = App(name="batches", help="List, show, cancel and watch batches. Tenants see their own, operators see all.")

_COLUMNS = columns_of(
    "id", "tenant", "state", "total", "waiting", "running", "done", "dead", "expired", "cancelled", "created_at_ms",
    created_at_ms="opened",
)  # fmt: skip
_RARE = ("dead", "expired", "cancelled")
State = Annotated[
    Literal["open", "closed", "complete"] | None,
    Parameter(help="Only batches in this state: open (tasks are added), closed (no more are), or complete."),
]
Tenant = Annotated[str | None, Parameter(help="Only batches of this tenant; for operator tokens.")]


def _row(state: BatchState) -> dict[str, Any]:
    return asdict(state) | {"waiting": state.waiting}


@batches.command(name="list")
def list_(
    queue: str,
    *,
    tenant: Tenant = None,
    state: State = None,
    limit: int = 100,
    json: Json = False,
    server: Server | None = None,
) -> None:
    """List the batches of a queue, complete ones for a day; operators see them as `<tenant>/<id>`.

    Partitions that do not answer are named; --json fails then.

    Example: `fairq batches list emails --tenant acme`

    Parameters
    ----------
    limit
        Batches to list at most, in no defined order.
    """
    if limit < 1:
        raise BadRequest("limit must be at least 1", field="limit")

    missing = ""

    async def work(client: Client) -> dict[str, BatchState]:
        nonlocal missing
        found: dict[str, BatchState] = {}  # one may come twice
        try:
            async with aclosing(client.batches(queue, tenant=tenant, state=state)) as states:
                async for each in states:
                    found[each.id] = each
                    if len(found) > limit:
                        break
        except Unavailable as error:
            if json or not found:
                raise
            missing = error.message
        return found

    states = list(run_with(server, work).values())
    rows = [_row(each) for each in sorted(states[:limit], key=lambda each: (each.created_at_ms, each.id))]
    empty = f"queue {queue} has no such batches"
    print_rows(f"batches of {queue}", _COLUMNS, rows, empty=empty, rare=_RARE, json=json)
    if len(states) > limit and not json:
        print("there are more: raise --limit or narrow the filter")
    if missing:
        print(missing)


@batches.command
def show(queue: str, id: str, *, json: Json = False, server: Server | None = None) -> None:
    """Show one batch: state, times, and how many of its tasks wait, run, are done, dead, expired and cancelled.

    Example: `fairq batches show emails acme/july`
    """
    row = _row(run_with(server, lambda client: client.batch(queue, id).state()))
    print_fields(f"batch {id} of {queue}", row, json=json)


@batches.command
def cancel(queue: str, id: str, *, yes: Yes = False, json: Json = False, server: Server | None = None) -> int:
    """Close a batch and cancel its tasks: waiting ones never run, running ones are stopped.

    Exits with 1 if it is already complete, or you do not answer yes.

    Example: `fairq batches cancel emails acme/july`
    """

    def ask() -> str:
        state = run_with(server, lambda client: client.batch(queue, id).state())
        return f"Cancel the {state.total - state.ended:,} tasks of batch {id} of {queue} that have not ended?"

    if not agrees(yes, "cancelling a batch", ask, "nothing was cancelled"):
        return 1
    previous = run_with(server, lambda client: client.batch(queue, id).cancel())
    outcome = "complete" if previous == "complete" else "cancelled"
    if json:
        print_json({"id": id, "outcome": outcome})
    else:
        print(f"{id}: {'complete already' if outcome == 'complete' else outcome}")
    return int(outcome == "complete")


@batches.command
def watch(queue: str, id: str, *, json: Json = False, server: Server | None = None) -> int:
    """Follow a batch until it is complete: one line that is redrawn; without a terminal, a line for each change.

    With --json, each line is one JSON document. Exits with 1 if any of its tasks failed.

    Example: `fairq batches watch emails acme/july`
    """

    def say(state: BatchState, left: str = "") -> None:
        if json:
            print_json_line(_row(state))
        else:
            print(f"{state.state}: {say_counts(state)}{left}", flush=True)

    async def work(client: Client) -> BatchState:
        pace, last, is_drawn = Pace(), None, sys.stdout.isatty() and sys.stderr.isatty() and not json
        with meter(f"{queue} {id}") as draw:
            async with aclosing(client.batch(queue, id).watch()) as states:
                async for state in states:
                    left = pace.left(state.ended, state.total)
                    if is_drawn:
                        draw(say_counts(state) + left, state.ended, state.total)
                    elif state != last and state.state != "complete":
                        say(state, left)
                    last = state
        say(state)
        return state

    state = run_with(server, work)
    return int(state.done < state.total)
