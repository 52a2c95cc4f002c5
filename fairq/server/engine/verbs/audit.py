"""The audit: every change by an operator is recorded before it is carried out, and again when it has ended.

So each leaves a trace. If its server died, could not reach the store any more, or its operator left, it is shown as
begun, and after minutes with an unknown outcome. A change that cannot be recorded is not carried out. Changes by
tenants and producers are recorded afterwards, unless they were refused or changed nothing, at a rate for each tenant:
their audit helps to explain, and is not a guarantee. Payloads, secrets and tokens are never recorded: only the fields
in RECORDED are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import orjson
import structlog
import trio
from attrs import asdict, fields

from fairq.errors import FairqError, OutcomeUnknown, Unavailable
from fairq.model.audit import AuditFilter, Draft, cut
from fairq.model.tasks import OPTIONS
from fairq.model.webhooks import webhook_id
from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.net.origin import ORIGIN, Origin
from fairq.server.engine.verbs.request_scope import Body
from fairq.store import keys
from fairq.wire import messages as wire
from fairq.wire.terms import Role
from fairq.wire.verbs import CHANGES, SETTINGS

log = structlog.get_logger("fairq.server")

# The fields of changing frames that are recorded as new; those that name its target are recorded as that. Options of
# tasks that are text are a tenant's own: they are not recorded.
RECORDED = frozenset({
    "weight", "limits", "settings", "opening_hours", "purge", "older_than_ms", "error", "number", "cron", "zone",
    "every_ms", "misfire", "has_fan_out", "paused", "role", "queues", "label",
    *(name for name, default in OPTIONS.items() if not isinstance(default, str)),
})  # fmt: skip
TARGETS = ("name", "id", "ids", "worker", "url")
_RESULTS = ("outcome", "outcomes", "cancelled", "workers", "contents", "tasks", "tenants", "fires_at_ms")
_NAME_BYTES = 128  # of a queue and a tenant: they may not have been checked yet


def is_noted(connection: Connection, request: Any) -> bool:
    """True if a request goes into the audit."""
    kind, role = type(request), connection.identity.role
    changes = CHANGES if role is Role.OPERATOR else SETTINGS
    return kind in changes and not getattr(request, "dry_run", False)


async def handle_noted(app: App, connection: Connection, request: Any, verb: Callable[..., Awaitable[Body]]) -> Body:
    """Carry out a change that goes into the audit. Raises: FairqError."""
    draft = _draft(connection, request)
    if connection.identity.role is not Role.OPERATOR:
        body = await verb(app, connection, request)
        if body.get("outcome") != "same" and _may_note(connection, draft.tenant):
            await _end(app, b"", draft, {"outcome": "ok", **_result_of(request, body)})
        return body
    try:
        id = await app.store.audit.begin(draft)
    except OutcomeUnknown:
        raise Unavailable("the change could not be noted in the audit: it was not carried out") from None
    try:
        body = await verb(app, connection, request)
    except Exception as error:
        await _end(app, id, draft, {"outcome": error.code if isinstance(error, FairqError) else FairqError.code})
        raise
    await _end(app, id, draft, {"outcome": "ok", **_result_of(request, body)})
    return body


def _may_note(connection: Connection, tenant: str) -> bool:
    now, usage, load = trio.current_time(), connection.usage, connection.tenant_load
    rate = usage.changes if usage else load.changes.of(tenant, now) if load else None
    return rate is None or rate.take_one(now)


def _draft(connection: Connection, request: Any) -> Draft:
    new = {
        each.name: value
        for each in fields(type(request))
        if each.name in RECORDED and (value := getattr(request, each.name)) not in (None, each.default)
    }
    change = {"target": _target(request), **({"new": _small(new)} if new else {})}
    tenant = getattr(request, "tenant", None) or connection.identity.tenant
    return _draft_of(connection, request.type, getattr(request, "queue", None) or "", tenant, change)


def _draft_of(connection: Connection, verb: str, queue: str, tenant: str, change: Body) -> Draft:
    identity = connection.identity
    origin = ORIGIN.get() or Origin(connection.remote, "websocket")
    rest = {
        "label": identity.label,
        "role": identity.role.value,
        "address": cut(origin.address, _NAME_BYTES),
        "via": origin.via,
        **change,
    }
    names = cut(queue, _NAME_BYTES), cut(tenant, _NAME_BYTES)
    return Draft(identity.token_id, verb, *names, orjson.dumps(rest))


async def note(app: App, connection: Connection, verb: str, queue: str, tenant: str, target: str, ended: Body) -> None:
    """Note a change that was made for a tenant, and is not the request itself."""
    draft = _draft_of(connection, verb, queue, tenant, {"target": target})
    await _end(app, b"", draft, {"outcome": "ok", **ended})


def _target(request: Any) -> str:
    """Name what a request changes; of a webhook's URL, which may hold a secret, only the host."""
    if hasattr(request, "url"):
        return cut(f"{webhook_id(request.url, request.name)} at {_host(request.url)}")
    for name in TARGETS:
        if value := getattr(request, name, None):
            return cut(value if isinstance(value, str) else f"{len(value)}: {', '.join(value)}")
    return ""


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _small(value: Any) -> Any:
    """Return a value if its JSON is short, else the beginning of that."""
    text = orjson.dumps(value).decode()
    shown = cut(text)
    return value if shown == text else shown


def _result_of(request: Any, body: Body) -> Body:
    """Return the previous value, of limits and settings only the changed ones, and the result of the change."""
    previous = body.get("previous")
    if isinstance(previous, dict):
        changed = getattr(request, "limits", None) or request.settings
        previous = {name: value for name, value in previous.items() if name in changed}
    ended: Body = {} if previous is None else {"previous": _small(previous)}
    result = {name: body[name] for name in _RESULTS if body.get(name) not in (None, "ok")}
    if "outcomes" in result:
        result["outcomes"] = Counter(result["outcomes"])
    return {**ended, "result": _small(result)} if result else ended


async def _end(app: App, id: bytes, draft: Draft, ended: Body) -> None:
    """Note how a change (no id: a tenant's) ended, in the store and the log; if the store is away, it stays begun."""
    shown = {"queue": draft.queue, "tenant": draft.tenant, **orjson.loads(draft.rest), **ended}
    log.info("audit", token=draft.token, verb=draft.verb, **{name: value for name, value in shown.items() if value})
    try:
        await app.store.audit.end(id, draft, orjson.dumps(ended))
    except FairqError as error:
        log.warning("the end of a change could not be noted", verb=draft.verb, reason=error.message)


async def audit(app: App, connection: Connection, request: wire.Audit) -> Body:
    """Read changes; a token limited to some queues reads only changes to these."""
    named = (request.token or "", request.verb or "", request.queue or "", request.tenant or "")
    which = AuditFilter(*named, request.since_ms, connection.identity.queues)
    prefix = keys.TENANTS_AUDIT if request.by_tenants else keys.AUDIT
    page = await app.store.audit.page(prefix, which, request.cursor or "", request.after or "", request.count)
    return asdict(page)
