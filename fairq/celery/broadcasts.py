"""Broadcasts: fairq has none. Of Celery's remote control, `revoke` cancels tasks that wait; all else is dropped."""

from __future__ import annotations

from typing import Any

from celery import current_app
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.serialization import loads

from fairq.celery import outcomes
from fairq.celery.clients import call
from fairq.celery.messages import Message, ids_of
from fairq.celery.tenants import tenant_of


def broadcast(info: Connection, exchange: str, message: Message) -> None:
    """Carry out a broadcast, as far as fairq can. Raises: OperationalError for a task, which no worker would get."""
    if message["headers"].get("task"):
        raise OperationalError(f"fairq has no broadcast: the exchange {exchange!r} needs another broker")
    body: Any = loads(message["body"], message["content-type"], message["content-encoding"])
    if isinstance(body, dict) and body.get("method") == "revoke":
        revoked = body["arguments"]["task_id"]
        for task_id in revoked if isinstance(revoked, list) else [revoked]:
            _revoke(info, task_id)


def _revoke(info: Connection, task_id: str) -> None:
    """Cancel a task in each queue that the app knows. Its result says so if it was waiting."""
    ids = ids_of(task_id, tenant_of({}, info.transport_options.get("tenant", "")))
    for queue in current_app.amqp.queues:
        if "ok" in call(info, lambda sender, queue=queue: sender.client.cancel(queue, ids)):  # type: ignore[misc]
            outcomes.cancelled(task_id)
