"""What each call of an operator asks, and how its reply is read; those of clients are in verbs.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairq.client.verbs import Ask, Body, nothing, read_list, target, was
from fairq.model.audit import AuditFilter, AuditPage
from fairq.model.checks import check_flag, check_name, check_weight
from fairq.model.history import History, check_period, check_tenants
from fairq.model.limits import Limits
from fairq.model.operating import Deletion, HeldLimits, QueueRow, TokenRow
from fairq.model.queues import Repair
from fairq.model.tenants import TenantPage, TenantState
from fairq.model.versions import check_version
from fairq.model.waiting import Report
from fairq.model.webhooks import Webhook, check_secrets, check_url, check_webhook_name
from fairq.model.workers import WorkerState, WorkerTasks
from fairq.tokens import TokenRecord
from fairq.wire.decode import structure

# --- webhooks


def _webhook_body(queue: str, url: str, name: str) -> Body:
    body: Body = {"queue": check_name(queue, "queue"), "url": check_url(url)}
    return body | {"name": name} if check_webhook_name(name) else body


def add_webhook(queue: str, url: str, name: str, fan_out: bool, secrets: Sequence[str]) -> Ask[str]:
    """Register or change a webhook; reads `created`, `changed` or `same`."""
    body = _webhook_body(queue, url, name)
    body |= {"has_fan_out": check_flag(fan_out, "fan_out"), "secrets": check_secrets(list(secrets))}
    return Ask("add_webhook", body, lambda reply: str(reply["outcome"]))


def remove_webhook(queue: str, url: str, name: str) -> Ask[bool]:
    """Forget a webhook."""
    return Ask("remove_webhook", _webhook_body(queue, url, name), was)


def pause_webhook(queue: str, url: str, name: str) -> Ask[bool]:
    """Pause a webhook."""
    return Ask("pause_webhook", _webhook_body(queue, url, name), was)


def resume_webhook(queue: str, url: str, name: str) -> Ask[bool]:
    """Resume a webhook."""
    return Ask("resume_webhook", _webhook_body(queue, url, name), was)


def webhooks(queue: str) -> Ask[list[Webhook]]:
    """List the webhooks of a queue."""
    return Ask("webhooks", {"queue": check_name(queue, "queue")}, read_list(Webhook, "webhooks"))


# --- queues, tenants, workers, tokens


def queues(queue: str | None = None) -> Ask[list[QueueRow]]:
    """List all queues, or one."""
    body = {} if queue is None else target(queue, None)
    return Ask("queues", body, read_list(QueueRow, "queues"))


def _based_on(if_version: str | None) -> Body:
    return {} if check_version(if_version) == "" else {"if_version": if_version}


def configure(queue: str, settings: Mapping[str, Any], if_version: str | None) -> Ask[None]:
    """Change settings of a queue."""
    return Ask("configure", {"queue": queue, "settings": dict(settings), **_based_on(if_version)}, nothing)


def delete_queue(queue: str, purge: bool) -> Ask[Deletion]:
    """Delete a queue, or go on with that."""
    return Ask("delete_queue", {"queue": queue, "purge": purge}, lambda reply: structure(reply, Deletion))


def repair(queue: str, number: int | None) -> Ask[Repair]:
    """Begin to repair a queue, or go on with that."""
    body: Body = {"queue": queue}
    if number is not None:
        body["number"] = number
    return Ask("repair", body, lambda reply: Repair(**reply))


def tenants(queue: str, tenant: str | None = None, cursor: str = "") -> Ask[TenantPage]:
    """Read a page of the tenants of a queue, or one tenant."""
    body, read = target(queue, tenant) | ({"cursor": cursor} if cursor else {}), read_list(TenantState, "tenants")
    return Ask("tenants", body, lambda reply: TenantPage(read(reply), reply.get("cursor") or ""))


def drop_tenant(queue: str, tenant: str) -> Ask[bool]:
    """Delete a tenant that has nothing; reads whether there was one."""
    return Ask("drop_tenant", target(queue, tenant), lambda reply: bool(reply["outcome"] == "ok"))


def set_weight(queue: str, tenant: str, weight: float, if_version: str | None) -> Ask[float]:
    """Give a tenant a weight; reads the one before."""
    body = {"queue": queue, "tenant": tenant, "weight": check_weight(weight), **_based_on(if_version)}
    return Ask("set_weight", body, lambda reply: float(reply["previous"]))


def set_limits(
    queue: str, tenant: str | None, limits: Mapping[str, float | None], if_version: str | None
) -> Ask[Limits]:
    """Bound a tenant, or all; reads the limits before."""
    body = {"queue": queue, "tenant": tenant, "limits": dict(limits), **_based_on(if_version)}
    return Ask("set_limits", body, lambda reply: Limits(**reply["previous"]))


def limits(queue: str, tenant: str | None) -> Ask[HeldLimits]:
    """Read the limits and opening hours of a tenant, or those for all."""
    return Ask("limits", {"queue": queue, "tenant": tenant}, lambda reply: structure(reply, HeldLimits))


def set_opening_hours(queue: str, tenant: str | None, text: str, if_version: str | None) -> Ask[str]:
    """Say when a tenant, or the whole queue, is open; reads the text before."""
    body = {"queue": queue, "tenant": tenant, "opening_hours": text, **_based_on(if_version)}
    return Ask("set_opening_hours", body, lambda reply: str(reply["previous"]))


def pause(queue: str, tenant: str | None) -> Ask[bool]:
    """Hold back a tenant, or the whole queue."""
    return Ask("pause", target(queue, tenant), was)


def resume(queue: str, tenant: str | None) -> Ask[bool]:
    """Undo `pause`."""
    return Ask("resume", target(queue, tenant), was)


def report(queue: str, tenant: str) -> Ask[Report]:
    """Read what a tenant's tasks waited for."""
    return Ask("report", target(queue, tenant), lambda reply: structure(reply["report"], Report))


def history(queue: str, period: str, tenants: Sequence[str] | None, since_ms: int) -> Ask[History]:
    """Read what happened in a queue over a period."""
    body: Body = {"queue": check_name(queue, "queue"), "period": check_period(period), "since_ms": since_ms}
    if tenants is not None:
        body["tenants"] = check_tenants(list(tenants))
    return Ask("history", body, lambda reply: structure(reply, History))


def workers() -> Ask[list[WorkerState]]:
    """List the workers of all servers."""
    return Ask("workers", {}, lambda reply: [WorkerState(**row) for row in reply["workers"]])


def worker_tasks(worker: str, count: int) -> Ask[WorkerTasks]:
    """Ask for the workers of a name and the tasks that they hold."""
    return Ask("worker_tasks", {"worker": worker, "count": count}, lambda reply: structure(reply, WorkerTasks))


def drain_worker(worker: str) -> Ask[int]:
    """Drain the workers of a name; reads how many there are."""
    return Ask("drain_worker", {"worker": worker}, lambda reply: int(reply["workers"]))


def create_token(record: TokenRecord, expires_in_ms: int) -> Ask[None]:
    """Register a token by its hash."""
    body: Body = {"id": record.id, "role": record.role, "hash": record.hash}
    if record.tenant:
        body["tenant"] = record.tenant
    if record.queues:
        body["queues"] = record.queues
    if record.label:
        body["label"] = record.label
    if expires_in_ms:
        body["expires_in_ms"] = expires_in_ms
    return Ask("create_token", body, nothing)


def list_tokens() -> Ask[list[TokenRow]]:
    """List tokens, without their hashes."""
    return Ask("list_tokens", {}, read_list(TokenRow, "tokens"))


def revoke_token(id: str) -> Ask[None]:
    """Delete a token and close the connections that use it."""
    return Ask("revoke_token", {"id": id}, nothing)


def audit(which: AuditFilter, by_tenants: bool, cursor: str, after: str, count: int) -> Ask[AuditPage]:
    """Read changes by operators, or by tenants."""
    which.check()
    body: Body = {name: value for name in ("token", "verb", "queue", "tenant") if (value := getattr(which, name))}
    body |= {"since_ms": which.since_ms, "by_tenants": by_tenants, "count": count}
    body |= {name: value for name, value in (("cursor", cursor), ("after", after)) if value}
    return Ask("audit", body, lambda reply: structure(reply, AuditPage))
