"""Enqueues tasks of a transaction: after it has been committed, or by a row that is committed with it."""

from __future__ import annotations

import time
from functools import cache, partial
from typing import Any, Unpack

from django.db import transaction

import fairq.sync
from fairq.client.bodies import new_id, new_tasks
from fairq.django.conf import setting
from fairq.model.checks import DEFAULT_PAYLOAD_BYTES
from fairq.model.option_tables import TaskOptions
from fairq.model.tasks import NewTask


@cache
def client() -> fairq.sync.Client:
    """Return the process's client, for FAIRQ's URL and TOKEN in the settings, or those of FAIRQ_URL and FAIRQ_TOKEN.

    It connects at its first call; threads share it, and a forked process connects anew.
    """
    return fairq.sync.open_client(setting("URL"), token=setting("TOKEN"))


def enqueue_on_commit(
    queue: str,
    payload: Any,
    *,
    id: str | None = None,
    tenant: str | None = None,
    using: str | None = None,
    **options: Unpack[TaskOptions],
) -> str:
    """Enqueue a task when the transaction has been committed; outside of one, at once. Returns the task's id.

    With the server away, that raises after the commit, and there is no task: see `enqueue_by_outbox`.
    Raises at once: BadRequest, TooLarge.
    """
    task = _checked(queue, payload, id, tenant, options)
    transaction.on_commit(partial(client().enqueue_tasks, queue, [task]), using=using)
    return task.id


def enqueue_by_outbox(
    queue: str,
    payload: Any,
    *,
    id: str | None = None,
    tenant: str | None = None,
    using: str | None = None,
    **options: Unpack[TaskOptions],
) -> str:
    """Write a task into the outbox, inside the transaction; `manage.py fairq_relay` enqueues it. Returns its id.

    Both are committed or neither, also with the server away. Times that are relative count from now.
    Raises: BadRequest, TooLarge.
    """
    from fairq.django.models import OutboxTask  # when all applications are loaded

    task = _from_now(_checked(queue, payload, id, tenant, options))
    OutboxTask.of(queue, task).save(using=using)
    return task.id


def _checked(queue: str, payload: Any, id: str | None, tenant: str | None, options: TaskOptions) -> NewTask:
    (task,) = new_tasks(queue, [payload], [id or new_id()], tenant, options, DEFAULT_PAYLOAD_BYTES)
    return task


def _from_now(task: NewTask) -> NewTask:
    """Return a task with absolute times: it may wait for the relay."""
    now_ms = time.time_ns() // 1_000_000
    if task.delay_ms:
        task = task._replace(delay_ms=0, start_at_ms=now_ms + task.delay_ms)
    if task.expires_in_ms:
        task = task._replace(expires_in_ms=None, expires_at_ms=now_ms + task.expires_in_ms)
    return task
