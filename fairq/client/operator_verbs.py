"""What operators' calls ask that are made in more than one place, and how their replies are read."""

from __future__ import annotations

from fairq.client.verbs import Ask, read_list, target
from fairq.model.checks import check_name
from fairq.model.operating import QueueRow
from fairq.model.tenants import TenantPage, TenantState
from fairq.model.webhooks import Webhook


def webhooks(queue: str) -> Ask[list[Webhook]]:
    """List the webhooks of a queue."""
    return Ask("webhooks", {"queue": check_name(queue, "queue")}, read_list(Webhook, "webhooks"))


def queues(queue: str | None = None) -> Ask[list[QueueRow]]:
    """List all queues, or one."""
    body = {} if queue is None else target(queue, None)
    return Ask("queues", body, read_list(QueueRow, "queues"))


def tenants(queue: str, tenant: str | None = None, cursor: str = "") -> Ask[TenantPage]:
    """Read a page of the tenants of a queue, or one tenant."""
    body, read = target(queue, tenant) | ({"cursor": cursor} if cursor else {}), read_list(TenantState, "tenants")
    return Ask("tenants", body, lambda reply: TenantPage(read(reply), reply.get("cursor") or ""))
