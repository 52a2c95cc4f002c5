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
from fairq.model.checks import NAME_PATTERN


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
    """Cancel a task in each queue that the app knows. Its result says so if it was waiting.

    Raises: a refusal by one of the queues, such as one that the token may not use, unless another one has the task.
    """
    ids = ids_of(task_id, tenant_of({}, info.transport_options.get("tenant", "")))
    refusal, is_found = None, False
    for queue in filter(NAME_PATTERN.match, current_app.amqp.queues):  # Celery adds any name that a task was sent to
        try:
            found = call(info, lambda sender, queue=queue: sender.client.cancel(queue, ids))  # type: ignore[misc]
        except OperationalError as error:
            refusal = refusal or error
            continue
        if "ok" in found:
            outcomes.cancelled(task_id)
        is_found = is_found or set(found) != {"gone"}
    if refusal and not is_found:
        raise refusal
