"""The changes that operators may make from a page: each is a dialog that states the effect, and one frame or several.

A dialog's address names its subject; its form sends the same names back with the values of its fields. Work on many
tasks goes on for WORK_S, then says how much is left: pressing again goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import trio
from attrs import asdict

from fairq.errors import BadRequest, NotFound
from fairq.model.checks import MAX_SPAN_MS, MAX_WEIGHT, MIN_WEIGHT
from fairq.model.limits import BOUNDS, Limits
from fairq.model.queues import SETTING_RANGES, SHARES
from fairq.server.web.dashboard.dialogs import Action, Field, Form, as_number, form_of, one
from fairq.server.web.dashboard.view import Context, View
from fairq.server.web.dashboard.writing import count, number, typed
from fairq.server.web.http.fields import make_request, names_of
from fairq.tokens import hash_token, make_token
from fairq.wire import messages as wire
from fairq.wire.terms import Role

WORK_S = 4.0
_DAY_MS = 86_400_000
_PAGE, _MAX_COUNTED = 500, 10_000  # dead letters at a time, and of a filter for its dialog
LOOK_S = 2.0  # for which dead letters are looked for

ROLES = [each.value for each in Role]
FILTERS = ("tenant", "reason", "error")  # of dead letters


def _target(view: View) -> tuple[str, str]:
    """Return the queue and the tenant (empty: the whole queue) of a dialog."""
    return view.query.get("queue", ""), view.query.get("tenant", "")


def _named(form: Form) -> tuple[str, str | None]:
    return one(form, "queue"), one(form, "tenant") or None


def _version(form: Form) -> str | None:
    """Return the version that the dialog showed: the change is refused if it is no longer the current one."""
    return one(form, "if_version") or None


def _whom(queue: str, tenant: str | None) -> str:
    return f"tenant {tenant} in queue {queue}" if tenant else f"queue {queue}"


async def _ask_weight(view: View) -> Context:
    queue, tenant = _target(view)
    rows = (await view.ask(wire.Tenants(0, queue, tenant)))["tenants"]
    weight, version = (rows[0]["weight"], rows[0]["version"]) if rows else (1, "")
    share = "A tenant with weight 2 is given twice the share of one with weight 1, while both have tasks that wait"
    note = "0.001 to 10,000" if rows else f"0.001 to 10,000; {tenant} is not known here yet"
    field = Field("weight", "Weight", note, value=typed(weight))
    return form_of(f"{share} ({_whom(queue, tenant)}).", field, queue=queue, tenant=tenant, if_version=version)


async def _set_weight(view: View, form: Form) -> str:
    queue, tenant, weight = one(form, "queue"), one(form, "tenant"), as_number(form, "weight", float)
    if weight is None:
        raise BadRequest("weight is missing", field="weight")
    body = await view.ask(wire.SetWeight(0, queue, tenant, weight, _version(form)))
    return f"Weight of {tenant}: {number(body['previous'])} → {number(weight)}"


def _plain(
    frame: Any, name: str, title: str, button: str, effect: str, done: str, *, is_dangerous: bool = False, **more: Any
) -> Action:
    """Make the action that is one frame, of what its dialog's address names and of `more`.

    `effect` and `done` are texts with what is named.
    """
    own = names_of(frame).keys()
    fields = [each for each in ("queue", "tenant", "name", "id") if each in own or f"{each}s" in own]

    async def describe(view: View) -> Context:
        named = {each: view.query.get(each, "") for each in fields}
        return form_of(effect.format(**named, whom=_whom(*_target(view))), **named)

    async def handle(view: View, form: Form) -> str:
        named = {each: one(form, each) for each in fields}
        given: dict[str, Any] = {each: value or None for each, value in named.items()} | more
        if "ids" in own:
            given["ids"] = [given.pop("id")]
        body = await view.ask(make_request(frame, given))
        if (outcome := body.get("outcomes", ["ok"])[0]) not in ("ok", "batch_gone"):
            return f"{named['id']}: {outcome}, nothing was changed"
        whom = _whom(*_named(form))
        return done.format(**named, Whom=whom[0].upper() + whom[1:])

    return Action(name, title, button, describe, handle, is_dangerous)


async def _ask_limits(view: View) -> Context:
    queue, tenant = _target(view)
    body = await view.ask(wire.Limits(0, queue, tenant or None))
    now = body["limits"]
    fields = [
        Field(name, name, note, value="" if now[name] is None else typed(now[name]))
        for name, note in BOUNDS.items()
        if tenant or name != "guaranteed"
    ]
    text = (
        f"Limits of {_whom(queue, tenant)} alone. Empty: as for all tenants; 0: no limit."
        if tenant
        else f"Limits of all tenants of {_whom(queue, None)} that have none of their own. 0: no limit."
    )
    return form_of(text, *fields, queue=queue, tenant=tenant, if_version=body["version"])


async def _set_limits(view: View, form: Form) -> str:
    queue, tenant = _named(form)
    given = {name: as_number(form, name, float if name == "rate" else int) for name in asdict(Limits()) if name in form}
    if tenant is None:
        given = {name: value or 0 for name, value in given.items()}
    await view.ask(wire.SetLimits(0, queue, given, tenant, _version(form)))
    return f"Limits of {_whom(queue, tenant)} are set"


async def _ask_hours(view: View) -> Context:
    queue, tenant = _target(view)
    body = await view.ask(wire.Limits(0, queue, tenant or None))
    text = next((each["text"] for each in body["opening_hours"] if each["of"] == ("tenant" if tenant else "queue")), "")
    note = "such as mon-fri 08:00-18:00 Europe/Berlin; empty: always open"
    field = Field("opening_hours", "Opening hours", note, "text", text)
    effect = f"Tasks start only within opening hours; running ones are not stopped ({_whom(queue, tenant)})."
    return form_of(effect, field, queue=queue, tenant=tenant, if_version=body["hours_version"])


async def _set_hours(view: View, form: Form) -> str:
    queue, tenant = _named(form)
    body = await view.ask(wire.SetOpeningHours(0, queue, one(form, "opening_hours"), tenant, _version(form)))
    return f"Opening hours of {_whom(queue, tenant)}: {body['opening_hours'] or 'always open'}"


async def _ask_settings(view: View) -> Context:
    queue, _ = _target(view)
    row = await view.queue_row()
    now = row["settings"]
    share = Field("share", "share", "what is divided: workers' time, or tasks", "select", now["share"], SHARES)
    fields = [
        Field(name, name, f"{low:,} to {high:,}", value=now[name]) for name, (low, high) in SETTING_RANGES.items()
    ]
    weight = f"among the queues of its workers: {MIN_WEIGHT} to {MAX_WEIGHT:,g}"
    fields.append(Field("queue_weight", "queue_weight", weight, value=now["queue_weight"]))
    text = f"What holds for all tasks of {_whom(queue, None)}."
    return form_of(text, share, *fields, queue=queue, if_version=row["version"])


async def _set_settings(view: View, form: Form) -> str:
    queue = one(form, "queue")
    row = (await view.ask(wire.Queues(0, queue)))["queues"]
    if not row:
        raise NotFound(f"there is no queue {queue!r:.80}", field="queue")
    now, changes = row[0]["settings"], dict[str, Any]()
    for name in (*SETTING_RANGES, "queue_weight"):
        value = as_number(form, name, float if name == "queue_weight" else int)
        if value is not None and value != now[name]:
            changes[name] = value
    if (share := one(form, "share")) and share != now["share"]:
        changes["share"] = share
    if not changes:
        return "Nothing was changed"
    await view.ask(wire.Configure(0, queue, changes, _version(form)))
    return f"Queue {queue}: " + ", ".join(f"{name} {now[name]} → {value}" for name, value in changes.items())


def letters_of(queue: str, which: Mapping[str, str | None], many: int, cursor: str | None = None) -> wire.Dead:
    return wire.Dead(0, queue, which["tenant"], which["reason"], which["error"], cursor=cursor, count=many, brief=True)


async def find_letters(
    view: View, queue: str, which: Mapping[str, str | None], many: int, cursor: str | None = None
) -> dict[str, Any]:
    """Return dead letters that match, up to `many` or as many as LOOK_S finds: one page looks at few of a long list."""
    found, until = list[Any](), trio.current_time() + LOOK_S
    while True:
        page = await view.ask(letters_of(queue, which, min(_PAGE, many - len(found)), cursor))
        found, cursor = [*found, *page["dead"]], page["cursor"]
        if not cursor or len(found) >= many or trio.current_time() > until:
            return {"dead": found, "cursor": cursor, "left": page["left"] if cursor else 0}


async def _say_many(view: View, which: Mapping[str, str | None]) -> str:
    """Say how many dead letters match; with a filter, the rest of a page has yet to be looked at."""
    is_filtered = which["reason"] or which["error"]
    page = await find_letters(view, view.queue, which, _MAX_COUNTED if is_filtered else 1)
    many = len(page["dead"]) + (0 if is_filtered else page["left"])
    return f"at least {count(many)}" if is_filtered and page["cursor"] else count(many)


def _of_letters(frame: Any, name: str, button: str, done: str, danger: bool) -> Action:
    """Make the action on dead letters: the chosen ones, or all matches of the page's filter."""

    async def describe(view: View) -> Context:
        which = {each: view.query.get(each) or None for each in FILTERS}
        ids = view.query.get("ids", "").splitlines()
        if ids:
            many = f"{count(len(ids))} chosen dead letter{'s' * (len(ids) != 1)}"
            return form_of(f"{button} {many} of queue {view.queue}.", queue=view.queue, ids="\n".join(ids))
        many = await _say_many(view, which)
        said = ", ".join(f"{each} {value!r}" for each, value in which.items() if value) or "all of them"
        return form_of(f"{button} {many} dead letters of queue {view.queue}: {said}.", queue=view.queue, **which)

    async def handle(view: View, form: Form) -> str:
        queue, ids = one(form, "queue"), one(form, "ids").splitlines()
        if ids:
            outcomes = (await view.ask(frame(0, queue, ids[:_PAGE])))["outcomes"]
            return f"{count(len(outcomes) - outcomes.count('gone'))} of {count(len(ids))} dead letters {done}"
        which = {name: form.get(name, [""])[0] or None for name in FILTERS}  # as it was counted: with its spaces
        changed, left, until = 0, 1, trio.current_time() + WORK_S
        cursor: str | None = None
        while left and trio.current_time() < until:
            page = await view.ask(letters_of(queue, which, _PAGE, cursor))
            found = [letter["id"] for letter in page["dead"]]
            if found:
                outcomes = (await view.ask(frame(0, queue, found)))["outcomes"]
                changed += len(outcomes) - outcomes.count("gone")
            cursor, left = page["cursor"], page["left"] if page["cursor"] else 0
        more = f"; {count(left)} are left: do it again to go on" if left else ""
        return f"{count(changed)} dead letters {done}{more}"

    return Action(name, f"{button} dead letters", button, describe, handle, danger)


async def _ask_drain(view: View) -> Context:
    worker = view.query.get("worker", "")
    body = await view.ask(wire.WorkerTasks(0, worker, 1))
    held = sum(each["held"] for each in body["workers"])
    text = f"Worker {worker} is given no more tasks; it finishes the {count(held)} that it runs, and then leaves."
    return form_of(text, worker=worker)


async def _drain(view: View, form: Form) -> str:
    body = await view.ask(wire.DrainWorker(0, worker := one(form, "worker")))
    many = body["workers"]
    return f"{count(many)} workers named {worker} are draining" if many != 1 else f"1 worker named {worker} is draining"


async def _ask_purge(view: View) -> Context:
    queue, tenant = _target(view)
    if tenant:
        rows = (await view.ask(wire.Tenants(0, queue, tenant)))["tenants"]
        waiting = sum(rows[0][each] for each in ("ready", "pending", "delayed")) if rows else 0
    else:
        row = await view.queue_row()
        waiting = sum(row[each] for each in ("ready", "pending", "delayed"))
    text = f"Cancel the {count(waiting)} tasks that wait in {_whom(queue, tenant)}. Running ones go on."
    return form_of(text, queue=queue, tenant=tenant)


async def _purge(view: View, form: Form) -> str:
    queue, tenant = _named(form)
    cursor, cancelled, until = None, 0, trio.current_time() + WORK_S
    while True:
        body = await view.ask(wire.CancelAll(0, queue, tenant, cursor=cursor))
        cancelled, cursor = cancelled + body["cancelled"], body["cursor"]
        if not cursor or trio.current_time() > until:
            break
    more = "; some are left: do it again to go on" if cursor else ""
    return f"{count(cancelled)} tasks of {_whom(queue, tenant)} were cancelled{more}"


async def _ask_token(view: View) -> Context:
    return form_of(
        "The token is shown once, and stored only as a hash.",
        Field("role", "Role", "", "select", "tenant", ROLES),
        Field("tenant", "Tenant", "a tenant's name; of a producer a pattern; else empty", "text"),
        Field("queues", "Queues", "names with commas between; empty: all", "text"),
        Field("label", "Label", "its purpose, shown in the audit", "text"),
        Field("days", "Expires after", "days; empty: never"),
    )


async def _create_token(view: View, form: Form) -> str:
    role = one(form, "role")
    if role not in ROLES:
        raise BadRequest(f"role must be one of {', '.join(ROLES)}", field="role")
    id, token = make_token(Role(role))
    queues = [each.strip() for each in one(form, "queues").split(",") if each.strip()] or None
    tenant, label, days = one(form, "tenant") or None, one(form, "label"), as_number(form, "days", float)
    expires_in_ms = None if days is None else _ms_of_days(days)
    await view.ask(wire.CreateToken(0, id, role, hash_token(token), tenant, queues, label, expires_in_ms))
    return f"Keep this token, it is not shown again: {token}"


def _ms_of_days(days: float) -> int:
    """Return days as ms. Raises: BadRequest."""
    if not 1 <= days * _DAY_MS <= MAX_SPAN_MS:
        raise BadRequest(f"days must be more than 0, and at most {MAX_SPAN_MS // _DAY_MS}", field="days")
    return round(days * _DAY_MS)


ACTIONS: Sequence[Action] = (
    Action("weight", "Weight", "Set", _ask_weight, _set_weight),
    _plain(wire.SetPaused, "pause", "Pause", "Pause",
           "No more tasks are started; running ones go on ({whom}).", "{Whom} is paused", paused=True),
    _plain(wire.SetPaused, "resume", "Resume", "Resume", "Tasks are started again ({whom}).", "{Whom} is resumed",
           paused=False),
    Action("limits", "Limits", "Set", _ask_limits, _set_limits),
    Action("hours", "Opening hours", "Set", _ask_hours, _set_hours),
    Action("settings", "Settings of the queue", "Set", _ask_settings, _set_settings),
    _plain(wire.Cancel, "cancel", "Cancel a task", "Cancel it",
           "It never starts; if it runs, its worker is asked to stop ({id}).", "{id} is cancelled", is_dangerous=True),
    _plain(wire.Replay, "replay-one", "Replay", "Replay it",
           "It waits again, with all its attempts ({id}).", "{id} is replayed"),
    _plain(wire.Purge, "purge-one", "Delete a dead letter", "Delete it", "It is gone for good ({id}).",
           "{id} is deleted", is_dangerous=True),
    _of_letters(wire.Replay, "replay", "Replay", "replayed", False),
    _of_letters(wire.Purge, "purge-dead", "Delete", "deleted", True),
    Action("drain", "Drain a worker", "Drain", _ask_drain, _drain),
    Action("purge", "Cancel what waits", "Cancel them", _ask_purge, _purge, True),
    _plain(wire.SetSchedulePaused, "pause-schedule", "Pause a schedule", "Pause",
           "It does not fire ({tenant}/{name} in queue {queue}).", "Schedule {name} is paused", paused=True),
    _plain(wire.SetSchedulePaused, "resume-schedule", "Resume a schedule", "Resume",
           "It fires again ({tenant}/{name} in queue {queue}).", "Schedule {name} is resumed", paused=False),
    _plain(wire.Unschedule, "unschedule", "Delete a schedule", "Delete it",
           "It never fires again ({tenant}/{name} in queue {queue}).", "Schedule {name} is deleted", is_dangerous=True),
    _plain(wire.CancelBatch, "cancel-batch", "Cancel a batch", "Cancel it",
           "Cancel what still waits of batch {id}; running ones are asked to stop.", "Batch {id} is being cancelled",
           is_dangerous=True),
    Action("create-token", "New token", "Create", _ask_token, _create_token),
    _plain(wire.RevokeToken, "revoke-token", "Revoke a token", "Revoke",
           "Token {id} is refused from now on, and its connections are closed.", "Token {id} is revoked",
           is_dangerous=True),
)  # fmt: skip
