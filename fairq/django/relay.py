"""Enqueues the tasks of the outbox, and deletes each one's row when the service has it.

The rows are locked meanwhile: several relays read different ones. One that is killed before it has deleted a
row leaves it to the next, which enqueues it under the same id: that is still one task, as long as the queue knows it.
"""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import groupby

from django.db import InterfaceError, OperationalError, close_old_connections, connections, transaction
from django.utils import timezone

from fairq.django.models import OutboxTask
from fairq.errors import Closed, Draining, FairqError, OutcomeUnknown, SettingsError, TooMany, Unauthorized, Unavailable
from fairq.log import Log
from fairq.sync import Client

log = Log("fairq.relay")

MOST_ROWS = 100  # of a read
LONGEST_WAIT_S = 300  # of a task that was refused

_AWAY = (Unavailable, OutcomeUnknown, Draining, TooMany)
_NOT_THE_TASKS = (*_AWAY, Unauthorized, SettingsError, Closed)


def relay(client: Client, using: str, interval_s: float) -> None:
    """Send what is due, again and again; what is away, the service or the database, is waited for.

    Raises: Unauthorized, SettingsError.
    """
    log.info("started", database=using)
    while True:
        read = 0
        try:
            read = send_due(client, using)
        except (*_AWAY, OperationalError, InterfaceError) as error:
            log.warning("nothing can be sent", error=f"{type(error).__name__}: {error}")
        close_old_connections()
        if read < MOST_ROWS:
            time.sleep(interval_s)


def send_due(client: Client, using: str) -> int:
    """Enqueue the tasks of up to MOST_ROWS rows; returns how many were read.

    The row of a task that is refused stays, says why, and is tried again later: it delays no other task.
    Raises: what is not for a task's sake; then no row has changed.
    """
    skip_locked = connections[using].features.has_select_for_update_skip_locked
    with transaction.atomic(using=using):
        due = OutboxTask.objects.using(using).select_for_update(skip_locked=skip_locked)
        rows = list(due.filter(send_at__lte=timezone.now()).order_by("send_at", "id")[:MOST_ROWS])
        refused: dict[OutboxTask, Exception] = {}
        for queue, some in groupby(sorted(rows, key=lambda row: str(row.queue)), key=lambda row: str(row.queue)):
            refused |= _send(client, queue, list(some))
        taken = [row.pk for row in rows if row not in refused]
        OutboxTask.objects.using(using).filter(pk__in=taken).delete()
        for row, error in refused.items():
            row.error, row.refusals = str(error)[:1_000], row.refusals + 1
            row.send_at = timezone.now() + timedelta(seconds=min(2**row.refusals, LONGEST_WAIT_S))
            row.save(using=using, update_fields=["error", "refusals", "send_at"])
            log.warning("task refused", task=row.task_id, queue=row.queue, refusals=row.refusals, error=row.error)
    return len(rows)


def _send(client: Client, queue: str, rows: list[OutboxTask]) -> dict[OutboxTask, Exception]:
    """Enqueue tasks in one call, or, if that is refused, one by one; returns those that were refused."""
    try:
        client.enqueue_tasks(queue, [row.task for row in rows])
        return {}
    except _NOT_THE_TASKS:
        raise
    except (FairqError, TypeError, ValueError) as error:
        if len(rows) == 1:
            return {rows[0]: error}
    refused: dict[OutboxTask, Exception] = {}
    for row in rows:
        refused |= _send(client, queue, [row])
    return refused
