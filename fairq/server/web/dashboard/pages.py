"""The pages, and what each of them asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import orjson
import trio
from attrs import frozen

from fairq.errors import FairqError, NotFound
from fairq.io.scopes import run_all
from fairq.model.attempts import STATES, Attempt
from fairq.model.audit import Change
from fairq.model.batches import BatchState
from fairq.model.checks import MAX_BATCH
from fairq.model.dead_letters import DeadLetter
from fairq.model.events import Event
from fairq.model.fairness import NOTHING, shares
from fairq.model.history import STEPS
from fairq.model.schedules import ScheduleState
from fairq.model.tasks import TaskState
from fairq.model.tenants import TenantState
from fairq.model.waiting import WAITED_FOR, Why
from fairq.model.webhooks import Webhook
from fairq.model.why_text import say_why
from fairq.model.workers import HeldTask, WorkerState
from fairq.server.web.dashboard.actions import FILTERS, find_letters
from fairq.server.web.dashboard.shares import choose_queue, fairness
from fairq.server.web.dashboard.simulation import form, simulation
from fairq.server.web.dashboard.system import audit, system, tokens
from fairq.server.web.dashboard.view import Context, Page, View, rows_of
from fairq.server.web.dashboard.writing import as_json, size, sought
from fairq.store.overview import StoredTask, due, stored_task
from fairq.store.routes import NO_ANSWER, Away
from fairq.wire import messages as wire

_ROWS = 100
Row = Mapping[str, Any]

_TENANTS = 200
_RATED, _TENANTS_ASKED = 30, 8  # queues with rates; tenants of each that are asked for the longest wait
_SEARCHED, _SEARCH_S = 50, 5.0  # queues that are searched, the busiest ones, and for how long
_CHANGES = 20  # of the audit, searched for the operator that paused something
_PAYLOAD_CHARS = 20_000  # of a payload that a page shows
_HOURS = 24


@frozen
class Rates:
    """A queue in the last minute: what came and was done a second, which part of attempts failed, the longest wait."""

    enqueued: float
    done: float
    failed_part: float | None
    oldest_ms: int | None


async def queues(view: View) -> Context:
    """All queues, and the rates of the busiest ones."""
    rows = await view.queues()
    rates: dict[str, Rates] = {}

    async def read(row: Row) -> None:
        rates[row["queue"]] = await _rates(view, row)

    known = [row for row in rows if row["version"]]  # of the others no partition answers
    await run_all(*(partial(read, row) for row in _busiest(known, _RATED)), stops_at_failure=True)
    return {"rows": rows, "rates": rates, "asked": _TENANTS_ASKED}


async def _rates(view: View, row: Row) -> Rates:
    step_s, store, away = STEPS["1h"][0], view.app.store, Away()
    page = await store.history(row["queue"], step_s, -1, 60 // step_s + 1, away=away)
    newest = page.now_ms // 1000 // step_s
    whole = [slot for slot in page.slots if slot.number < newest]
    started, failed = (
        sum(getattr(each, name) for slot in whole for each in slot.rows) for name in ("started", "failed")
    )
    return Rates(
        sum(slot.enqueued for slot in whole) / 60,
        sum(slot.done for slot in whole) / 60,
        failed / started if started else None,
        await store.oldest_wait_ms(row["queue"], _TENANTS_ASKED, away=away) if row["ready"] else None,
    )


async def _paused_by(view: View, queue: str, tenant: str | None = None) -> Change | None:
    """Return who paused a queue or a tenant, as far as the audit has it."""
    page = await view.ask(wire.Audit(0, verb=wire.SetPaused.type, queue=queue, tenant=tenant, count=_CHANGES))
    changes = rows_of(Change, page["changes"])
    return next((each for each in changes if each.outcome == "ok" and each.tenant == (tenant or "")), None)


async def queue(view: View) -> Context:
    """One queue: its counts, settings, limits, who takes its tasks, its webhooks."""
    row = await view.queue_row()
    held = await view.ask(wire.Limits(0, view.queue))
    webhooks = rows_of(Webhook, (await view.ask(wire.Webhooks(0, view.queue)))["webhooks"])
    paused_by = await _paused_by(view, view.queue) if row["is_paused"] else None
    hours = held["opening_hours"]
    return {"row": row, "limits": held["limits"], "hours": hours, "webhooks": webhooks, "paused_by": paused_by}


async def tenants(view: View) -> Context:
    """The tenants of a queue that were served last, or those with a text in their names."""
    row, queues = await choose_queue(view)
    if row is None:
        return {"row": None, "queues": queues, "rows": [], "total": 0, "text": "", "is_whole": True}
    queue, text = row["queue"], view.query.get("text", "").strip()[:128]
    if text:
        names, is_whole = await view.site.finder.find(queue, text, _TENANTS)
        found = await view.app.store.tenants(queue, names) if names else []
        total = len(found)
    else:
        watched = await view.site.recent.look(queue)
        found, total, is_whole = list(watched.tenants), watched.total, len(watched.tenants) >= watched.total
    order = view.query.get("sort", "ready")
    keys: dict[str, Any] = {"tenant": lambda each: each.tenant, "weight": lambda each: -each.weight}
    for name in ("ready", "leased", "delayed", "pending", "dead", "done"):
        keys[name] = lambda each, name=name: (-getattr(each, name), each.tenant)
    rows = sorted(found, key=keys.get(order, keys["ready"]))
    return {"row": row, "queues": queues, "rows": rows, "total": total, "text": text, "is_whole": is_whole}


async def tenant(view: View) -> Context:
    """One tenant in one queue: its share, limits, waiting times, next tasks, last dead letters."""
    name = view.params.get("tenant") or view.query.get("tenant", "")
    rows = (await view.ask(wire.Tenants(0, view.queue, name)))["tenants"]
    if not rows:
        raise NotFound(f"queue {view.queue} has no tenant {name!r:.80}", field="tenant")
    held = await view.ask(wire.Limits(0, view.queue, name))
    watched = await view.site.recent.look(view.queue)
    queue_row = await view.queue_row()
    is_paused = queue_row["is_paused"] or rows[0]["is_paused"]
    return {
        "name": name,
        "causes": WAITED_FOR,
        "queue_row": queue_row,
        "row": rows[0],
        "paused_by": is_paused and await _paused_by(view, view.queue, None if queue_row["is_paused"] else name),
        "elsewhere": await _queues_of(view, name),
        "searched": _SEARCHED,
        "share": shares(watched.service()).get(name, NOTHING),
        "is_sampled": len(watched.tenants) >= watched.total or any(each.tenant == name for each in watched.tenants),
        "held": held,
        "report": (await view.ask(wire.TenantReport(0, view.queue, name)))["report"],
        "next": await view.app.store.peek(view.queue, name, 10, brief=True),
        "dead": rows_of(DeadLetter, (await view.ask(wire.Dead(0, view.queue, name, count=10, brief=True)))["dead"]),
    }


async def _queues_of(view: View, tenant: str) -> list[tuple[str, TenantState]]:
    """Return the other queues in which a tenant has something, of the busiest ones, and its state there."""
    names = [row["queue"] for row in _busiest(await view.queues(), _SEARCHED) if row["queue"] != view.queue]
    found: dict[str, Sequence[TenantState]] = {}

    async def read(name: str) -> None:
        with suppress(*NO_ANSWER):  # its partition there is away
            found[name] = await view.app.store.tenants(name, [tenant])

    await run_all(*(partial(read, name) for name in names), stops_at_failure=True)  # one round trip
    return [(name, found[name][0]) for name in names if found.get(name)]


def _busiest(rows: Sequence[Row], count: int) -> Sequence[Row]:
    readable = (row for row in rows if not row["is_unavailable"])
    return sorted(readable, key=lambda row: (-row["ready"] - row["leased"], -row["enqueued"]))[:count]


async def task(view: View) -> Context:
    """One task: where it is, why it waits, what its attempts came to."""
    id = view.params.get("id") or view.query.get("id", "")
    state = rows_of(TaskState, (await view.ask(wire.Tasks(0, view.queue, [id])))["tasks"])[0]
    if state.state == "unknown":
        raise NotFound(f"queue {view.queue} has no task {id!r:.80}: it may have ended a while ago", field="id")
    why: list[str] = []
    dead_letter, stored = None, None
    if state.state not in ("done", "cancelled"):
        stored = await stored_task(view.app.store, view.queue, state.id)
    if state.state in ("ready", "pending", "delayed", "leased"):
        explained = rows_of(Why, [await view.ask(wire.Why(0, view.queue, id))])[0]
        why = [] if explained.state == "leased" and not explained.silent else list(say_why(explained))
    if state.reason:
        dead_letter = await view.app.store.dead_letter(view.queue, state.id, brief=True)
    found = {"id": id, "state": state, "why": why, "dead_letter": dead_letter, "stored": stored}
    return found | {"payload": stored and _payload_text(stored), "events": await _events_of(view, id)}


def _payload_text(stored: StoredTask) -> str:
    """Write the beginning of a payload for people."""
    if stored.size > _PAYLOAD_CHARS:
        return stored.payload[:_PAYLOAD_CHARS].decode(errors="replace") + f" … ({size(stored.size)} in all)"
    return as_json(orjson.loads(stored.payload), indent=True)


async def _events_of(view: View, id: str) -> Sequence[Event]:
    """Return what the newest events of a tenant's feed say of one task, oldest first."""
    tenant = id.partition("/")[0]
    try:
        newest = (await view.ask(wire.Events(0, view.queue, 0, 1, tenant=tenant)))["newest"]
        page = await view.ask(wire.Events(0, view.queue, max(0, newest - MAX_BATCH), MAX_BATCH, tenant=tenant))
    except FairqError:  # a feed that has lost its beginning, or none
        return []
    return rows_of(Event, (event for event in page["events"] if event.get("task") in (id, id.partition("/")[2])))


async def delayed(view: View) -> Context:
    """The delayed tasks: the tenants with the first starts, and how many start in which hour."""
    row, queues = await choose_queue(view)
    if row is None:
        return {"row": None, "queues": queues, "rows": [], "hours": [], "now_ms": 0}
    now_ms, rows, hours = await due(view.app.store, row["queue"], 20, _HOURS)
    return {"row": row, "queues": queues, "rows": rows, "hours": hours, "now_ms": now_ms}


async def schedules(view: View) -> Context:
    """The schedules of a queue, by tenant and name."""
    row, queues = await choose_queue(view)
    rows: list[ScheduleState] = []
    offset = int(text) if (text := view.query.get("offset", "0")).isdecimal() and len(text) < 10 else 0
    if row:
        page = await view.ask(wire.Schedules(0, row["queue"], None, None, offset, _ROWS))
        rows = rows_of(ScheduleState, page["schedules"])
    return {"row": row, "queues": queues, "rows": rows, "offset": offset, "many": _ROWS}


async def batches(view: View) -> Context:
    """The batches of a queue."""
    row, queues = await choose_queue(view)
    page: dict[str, Any] = {"batches": [], "cursor": None}
    if row:
        state = view.query.get("state") or None
        cursor = view.query.get("cursor") or None
        page = await view.ask(wire.Batches(0, row["queue"], None, None, state, cursor, _ROWS))
    return {"row": row, "queues": queues, "rows": rows_of(BatchState, page["batches"]), "cursor": page["cursor"]}


async def workers(view: View) -> Context:
    """The workers of all servers."""
    body = await view.ask(wire.Workers(0))
    rows = sorted(rows_of(WorkerState, body["workers"]), key=lambda each: (each.worker, each.server))
    return {"rows": rows, "queues": await view.queues(), "unanswered": body["unanswered"]}


async def worker(view: View) -> Context:
    """The workers of one name, and the tasks that they run."""
    name = view.params["worker"]
    body = await view.ask(wire.WorkerTasks(0, name, _ROWS))
    found, tasks = rows_of(WorkerState, body["workers"]), rows_of(HeldTask, body["tasks"])
    return {"name": name, "workers": found, "tasks": tasks, "unanswered": body["unanswered"]}


async def attempts(view: View) -> Context:
    """The attempts at a queue's tasks that run, and the last that ended."""
    row, queues = await choose_queue(view)
    which = {each: view.query.get(each, "").strip() or None for each in ("state", "tenant", "name", "error")}
    found: dict[str, Any] = {"running": [], "ended": [], "unanswered": []}
    if row:
        found = await view.ask(wire.Attempts(0, row["queue"], **which, count=_ROWS))
    shown = {name: rows_of(Attempt, found[name]) for name in ("running", "ended")}
    return {
        "row": row, "queues": queues, "which": which, "states": STATES, "unanswered": found["unanswered"], **shown
    }  # fmt: skip


async def dead(view: View) -> Context:
    """Dead letters, oldest first, and how many of the first ones have the same tenant and error."""
    row, queues = await choose_queue(view)
    which = {each: view.query.get(each) or None for each in FILTERS}
    page: dict[str, Any] = {"dead": [], "cursor": None, "left": 0}
    cursor = view.query.get("cursor") or None
    if row:
        page = await find_letters(view, row["queue"], which, MAX_BATCH, cursor)
    rows = rows_of(DeadLetter, page["dead"])
    groups = Counter((each.tenant, each.reason, each.error) for each in rows)
    is_known = not cursor and not (page["cursor"] and (which["reason"] or which["error"]))
    many = len(rows) + page["left"] if is_known else None
    shown = {"rows": rows, "many": many, "cursor": page["cursor"], "left": page["left"]}
    return {"row": row, "queues": queues, "which": which, "groups": groups.most_common(12), **shown}


@frozen
class Found:
    """The results of a search in one queue."""

    queue: str
    task: TaskState | None
    tenants: Sequence[str]
    dead: Sequence[DeadLetter]


async def search(view: View) -> Context:
    """Search results: a task by its id, tenants by a part of the name, dead letters by a part of the error."""
    text, found = view.query.get("text", "").strip()[:200], list[Found]()
    names = [view.queue] if view.queue else [row["queue"] for row in _busiest(await view.queues(), _SEARCHED)]
    is_whole = False
    with trio.move_on_after(_SEARCH_S):
        are_away = False
        for queue in names if text else []:
            try:
                one = await _search_in(view, queue, text)
            except NO_ANSWER:
                are_away = True
                continue
            found += [one] if one.task or one.tenants or one.dead else []
        is_whole = not are_away
    return {"text": text, "found": found, "is_whole": is_whole and len(names) < _SEARCHED}


async def _search_in(view: View, queue: str, text: str) -> Found:
    task = None
    if "/" in text:
        with suppress(FairqError):  # else no task can be called so
            state = rows_of(TaskState, (await view.ask(wire.Tasks(0, queue, [text])))["tasks"])[0]
            task = state if state.state != "unknown" else None
    tenants, _ = await view.site.finder.find(queue, text[:128], 50)
    which = {"tenant": None, "reason": None, "error": sought(text)}
    return Found(queue, task, tenants, rows_of(DeadLetter, (await find_letters(view, queue, which, 50))["dead"]))


PAGES: Sequence[Page] = (
    Page("/", "fairness.html", "Fairness", fairness),
    Page("/queues", "queues.html", "Queues", queues),
    Page("/queues/{queue}", "queue.html", "Queues", queue),
    Page("/tenants", "tenants.html", "Tenants", tenants),
    Page("/queues/{queue}/tenants/{tenant}", "tenant.html", "Tenants", tenant),
    Page("/queues/{queue}/tasks/{id:path}", "task.html", "Tenants", task),
    Page("/queues/{queue}/tenant", "tenant.html", "Tenants", tenant),  # with names that a path cannot have: . and ..
    Page("/queues/{queue}/task", "task.html", "Tenants", task),
    Page("/delayed", "delayed.html", "Delayed", delayed),
    Page("/schedules", "schedules.html", "Schedules", schedules),
    Page("/batches", "batches.html", "Batches", batches),
    Page("/workers", "workers.html", "Workers", workers),
    Page("/workers/{worker}", "worker.html", "Workers", worker),
    Page("/attempts", "attempts.html", "Attempts", attempts),
    Page("/dead", "dead.html", "Dead letters", dead),
    Page("/simulate", "simulate.html", "Simulate", form, is_live=False, gather_slowly=simulation),
    Page("/audit", "audit.html", "Audit", audit),
    Page("/tokens", "tokens.html", "Tokens", tokens),
    Page("/system", "system.html", "System", system),
    Page("/search", "search.html", "", search, is_live=False),
)
