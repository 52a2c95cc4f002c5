"""`fairq top`: queues and their top tenants as they are now, drawn again every other second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from attrs import define, field
from cyclopts import Parameter

from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import fit_columns, make_console, make_table, print_json
from fairq.cli.watch import watch
from fairq.client.bodies import rows
from fairq.errors import NotFound, Unavailable
from fairq.model.tenants import TenantState
from fairq.model.texts import say_away, say_ms, say_slots
from fairq.model.why_text import say_silence

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairq.client.operator import OperatorClient
    from fairq.model.history import History
    from fairq.model.operator_views import QueueRow

EVERY_S = 2.0
QUEUES, TENANTS, TENANTS_OF_ONE = 8, 5, 10  # in a picture: queues, tenants of each of the first, or of one queue
_DETAILED = 3  # queues that are shown with their tenants
_RATE_S, _SHARE_S = 60, 300  # periods of rates, and of shares and waiting times
_QUIET = "no tenant has any tasks yet"
_LOOKED = 500  # tenants that are searched for tasks that the history has not counted yet
_RARE = ("pending", "delayed", "notes")  # columns that are left out where no row has anything
Once = Annotated[bool, Parameter(negative=(), help="Print it once and exit, as without a terminal.")]

_OF_QUEUE = {
    "queue": "queue", "ready": "ready", "pending": "pending", "delayed": "delayed", "running": "running",
    "slots": "slots", "enqueued_per_s": "in/s",
    "started_per_s": "started/s", "done_per_s": "done/s", "failed_per_s": "failed/s", "p50_ms": "wait p50",
    "p99_ms": "wait p99", "dead": "dead", "notes": "note",
}  # fmt: skip
_OF_TENANT = {
    "queue": "queue", "tenant": "tenant", "weight": "weight", "ready": "ready", "pending": "pending",
    "delayed": "delayed", "running": "running", "started_per_s": "started/s", "delivered_part": "delivered",
    "contested_part": "contested", "entitled_part": "due", "free_part": "free", "p99_ms": "wait p99",
    "next_waits_ms": "next waits", "notes": "note",
}  # fmt: skip
_SHARES = ("delivered_part", "contested_part", "entitled_part", "free_part", "p99_ms")  # of a tenant's history
_FIRST_TO_GO = (  # in a narrow terminal
    "p50_ms", "next_waits_ms", "failed_per_s", "done_per_s", "slots", "weight", "dead", "notes", "enqueued_per_s",
    "delayed", "pending", "running", "p99_ms", "started_per_s", "free_part", "entitled_part", "contested_part", "ready",
)  # fmt: skip


def top(*, queue: str | None = None, once: Once = False, json: Json = False, server: Server | None = None) -> None:
    """Show queues and their top tenants: rates, waiting times, shares.

    Delivered is a tenant's part of all service. What it got while tenants waited is contested: compare it with its due.
    What nobody waited for is free.

    Rates cover the last minute, shares and waiting times the last five, at all servers, which add their counts every
    ten seconds. Of the tenants that they leave out, those with the most tasks are shown.

    Example: `fairq top --queue emails`

    Parameters
    ----------
    queue
        Show this queue only, with more of its tenants.
    """
    page = Page(queue)
    if json:
        print_json(run_with(server, page.read))
    else:
        watch(server, page.draw, every_s=EVERY_S, once=once)


@define
class Page:
    """The data of each picture: of the busiest queues, or of one queue."""

    queue: str | None = None
    _next_at: dict[tuple[str, str], tuple[int, int]] = field(factory=dict, init=False)

    async def draw(self, client: OperatorClient, _: int = 0) -> RenderableType:
        """Read the present state, and draw it as two tables."""
        from rich.console import Group

        found = await self.read(client)
        width = make_console().width
        empty = "there are no queues yet; the first enqueue makes one"
        queues = draw_table("queues", _OF_QUEUE, found["queues"], width, empty)
        tenants = draw_table("tenants", _OF_TENANT, found["tenants"], width, _QUIET)
        more = found["more"] and f"{found['more']:,} more queues: --queue shows one"
        return Group(queues, *found["away"], *([more] if more else []), "", tenants)

    async def read(self, client: OperatorClient) -> dict[str, Any]:
        """Read the rows of queues and tenants."""
        queues = await client.queues(self.queue)
        if self.queue is not None and not queues:
            raise NotFound(f"there is no queue {self.queue}", field="queue")
        queues.sort(key=lambda row: (-(row.leased + _waiting(row)), row.queue))
        found: dict[str, Any] = {"queues": [], "tenants": [], "more": max(0, len(queues) - QUEUES)}
        found["away"] = [say_away(row.queue, row.away) for row in queues if row.away]
        for place, row in enumerate(queues[:QUEUES]):
            if row.is_unavailable:
                found["queues"].append(dict.fromkeys(_OF_QUEUE) | {"queue": row.queue, "notes": "unavailable"})
                continue
            history = await client.history(row.queue)
            found["queues"].append(_queue_row(row, history))
            if place < _DETAILED and row.made_at_ms:  # else only workers have named it
                found["tenants"] += await self._tenants(client, row, history)
        return found

    async def _tenants(self, client: OperatorClient, row: QueueRow, history: History) -> list[dict[str, Any]]:
        since = history.now_ms - _SHARE_S * 1000
        recent = await client.history(row.queue, since_ms=max(0, since))
        recently = {each.tenant: each for each in recent.tenants if each.tenant}
        found = []
        for state in await _states(client, row.queue, list(recently), TENANTS_OF_ONE if self.queue else TENANTS):
            each = recently.get(state.tenant)
            found.append({
                "queue": row.queue, "tenant": state.tenant, "weight": state.weight, **_counts(state),
                "started_per_s": _rate(recent, each.started if each else []),
                **{name: getattr(each.totals, name) if each else None for name in _SHARES},
                "next_waits_ms": await self._next_waits(client, row.queue, state.tenant, state.ready, recent.now_ms),
                "notes": _notes(state, ("paused", "closed", "rate_limited")),
            })  # fmt: skip
        return found

    async def _next_waits(self, client: OperatorClient, queue: str, tenant: str, ready: int, now_ms: int) -> int | None:
        """Return how long a tenant's next task has waited; asked every ten seconds, as it comes with its payload."""
        if not ready:
            return None
        asked_ms, since_ms = self._next_at.get((queue, tenant), (0, 0))
        if now_ms - asked_ms > 10_000:
            ids = [task.id for task in await client.peek(queue, 1, tenant=tenant)]
            states = await client.tasks(queue, ids) if ids else []
            since_ms = sum(each.at_ms for each in states if each.state == "ready")
            if len(self._next_at) > 10 * QUEUES * TENANTS:
                self._next_at.clear()
            self._next_at[queue, tenant] = now_ms, since_ms
        return max(0, now_ms - since_ms) if since_ms else None


async def _states(client: OperatorClient, queue: str, names: Sequence[str], most: int) -> list[TenantState]:
    """Return the tenants that the history names, then others that have, or had, tasks."""
    found = list[TenantState]()
    for name in names[:most]:
        with suppress(Unavailable):  # its partition is away
            found += await client.tenants(queue, tenant=name)  # none if it was deleted
    if len(found) < most:
        page = await client.request("tenants", {"queue": queue, "count": _LOOKED})
        others = [each for each in rows(TenantState, page["tenants"]) if each.tenant not in names]
        busy = [each for each in others if each.leased or each.done or _waiting(each)]
        busy.sort(key=lambda each: (-(each.leased + _waiting(each)), -each.done, each.tenant))
        found += busy[: most - len(found)]
    return found


def _counts(row: Any) -> dict[str, int]:
    return {"ready": row.ready, "pending": row.pending, "delayed": row.delayed, "running": row.leased}


def _waiting(row: Any) -> int:
    return int(row.ready + row.pending + row.delayed)


def _queue_row(row: QueueRow, history: History) -> dict[str, Any]:
    recent = [at >= history.now_ms - _SHARE_S * 1000 for at in history.times_ms]
    p50, p99 = ([each for each, is_recent in zip(of, recent, strict=True) if is_recent and each is not None]
                for of in (history.queue.p50_ms, history.queue.p99_ms))  # fmt: skip
    rates = {f"{name}_per_s": _rate(history, getattr(history.queue, name)) for name in _RATES}
    return {
        "queue": row.queue, **_counts(row), **rates,
        "slots": row.slots, "shared": row.shared, "shared_by": row.shared_by,
        "p50_ms": sorted(p50)[len(p50) // 2] if p50 else None, "p99_ms": max(p99, default=None), "dead": row.dead,
        "notes": ", ".join(filter(None, [_notes(row, ("paused", "closed", "repairing")),
                                         "no workers" if row.takers == "none" else "",
                                         *map(say_silence, row.silent)])),
    }  # fmt: skip


_RATES = ("enqueued", "started", "done", "failed")


def _notes(row: Any, flags: Sequence[str]) -> str:
    return ", ".join(flag.replace("_", " ") for flag in flags if getattr(row, f"is_{flag}"))


def _rate(history: History, counts: Sequence[int]) -> float:
    """Return how many a second there were in the last minute: in whole intervals, if there are any."""
    step_s = history.step_ms // 1000
    whole = counts[:-1][-(_RATE_S // step_s) :]
    return round(sum(whole or counts) / (step_s * max(1, len(whole or counts))), 2)


def draw_table(
    title: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], width: int, empty: str
) -> RenderableType:
    """Draw as many columns of a table as fit."""
    said = [_said(row) for row in rows]
    left = {key: each for key, each in columns.items() if key not in _RARE or any(row[key] for row in rows)}
    return make_table(title, fit_columns(left, said, width, _FIRST_TO_GO), said, empty=empty)


def _said(row: Mapping[str, Any]) -> dict[str, Any]:
    """Write waiting times and slots for people."""
    said = {key: say_ms(value) if key.endswith("_ms") and value is not None else value for key, value in row.items()}
    return said | {"slots": say_slots(row)} if row.get("shared") else said
