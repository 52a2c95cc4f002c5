"""A message of kombu as a task of fairq, and back: the message is the task's payload.

A task has the id of its Celery task. But Celery reuses ids: a running task sends its retry under its own id, the last
task of a chain that replaces another has the other's id, and a frozen signature may be sent twice. So a task that a
running task sends has a suffix: the number of a retry, or else a part of the message's delivery tag. Other tasks have
that suffix if their id is not new (`clients.enqueue`).
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from types import NoneType
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from celery import current_app, current_task

from fairq.celery.tenants import HEADER, tenant_of
from fairq.model.checks import bare_id, full_id
from fairq.model.tasks import DEFAULT_PRIORITY, MAX_NAME_BYTES, NewTask
from fairq.wire.frames import PushedTask

_FITTING_ID = re.compile(r"[A-Za-z0-9_-]{1,48}\Z")  # leaves room for a suffix
_URGENCY = 5  # of a step of Celery's priorities 1 to 9
_RETRIES = 100  # that a revocation covers

_TEXT, _NUMBER = (str, NoneType), (int, NoneType)
_HEADERS: dict[str, tuple[type, ...]] = {  # of Celery's messages, with the types that its worker takes for granted
    **dict.fromkeys(("lang", "task", "id", "shadow", "expires", "group", "root_id", "parent_id", "origin"), _TEXT),
    **dict.fromkeys(("argsrepr", "kwargsrepr"), _TEXT),
    **dict.fromkeys(("retries", "group_index", "replaced_task_nesting"), _NUMBER),
    "timelimit": (list, NoneType),
    "stamped_headers": (list, NoneType),
    "stamps": (dict, NoneType),
}

Message = dict[str, Any]


class NotAMessage(ValueError):
    """A task's payload that is no message of kombu."""


def to_task(message: Message, default_tenant: str) -> tuple[NewTask, str]:
    """Make the task of a message, and a spare id for it. Raises: ValueError for an eta that is no time."""
    headers, properties = message["headers"], message["properties"]
    name = str(headers.get("task") or "")
    id = _id_of(headers, properties["delivery_tag"])
    if tenant := tenant_of(headers, default_tenant):
        id = full_id(tenant, id)
    text = json.dumps(message, default=str, ensure_ascii=False, separators=(",", ":"))
    expires_at_ms = _ms_of(headers.get("expires"))
    task = NewTask(
        id,
        text.encode(errors="replace"),
        start_at_ms=_ms_of(headers.get("eta")) or 0,
        expires_at_ms=expires_at_ms,
        expires_in_ms=None if expires_at_ms else _whole(properties.get("expiration")),
        priority=_priority_of(properties.get("priority")),
        name=name if name.isprintable() and len(name.encode()) <= MAX_NAME_BYTES else "",
    )
    return task, f"{id}-{properties['delivery_tag'][:8]}"


def to_message(queue: str, task: PushedTask) -> Message:
    """Make the message of a task that a worker was given. Raises: NotAMessage."""
    message: Message = task.payload
    _check(message)
    headers = message["headers"]
    if "task" in headers:  # else kombu sent it without Celery
        headers[HEADER] = task.tenant
        headers["eta"] = None  # the task has waited; a worker would hold it while its own clock is behind
    properties = message["properties"]
    properties["delivery_tag"] = f"{queue} {task.id} {task.lease}"
    properties["delivery_info"]["redelivered"] = task.attempt > 1
    return message


def _check(message: Any) -> None:
    """Refuse what no kombu has sent: a tenant with a token of its own may enqueue any payload."""
    try:
        properties, headers = message["properties"], message["headers"]
        is_one = isinstance(message["body"], str) and isinstance(properties["delivery_info"], dict)
        is_one &= all(isinstance(headers.get(name), types) for name, types in _HEADERS.items())
        is_one &= all(isinstance(message.get(name), _TEXT) for name in ("content-type", "content-encoding"))
        is_one &= all(type(each) is str for each in headers.get("stamped_headers") or ())
        soft, hard = headers.get("timelimit") or (None, None)
        is_one &= isinstance(soft, (float, *_NUMBER)) and isinstance(hard, (float, *_NUMBER))
        if properties.get("body_encoding") == "base64":
            b64decode(message["body"], validate=True)
        elif properties.get("body_encoding"):
            is_one = False
    except (AttributeError, KeyError, TypeError, ValueError):
        is_one = False
    if not is_one:
        raise NotAMessage("the payload is no message of Celery")


def ids_of(task_id: str, tenant: str) -> list[str]:
    """Return the ids of the tasks that a Celery task may have: its first run, and its retries."""
    base = _base_of(task_id)
    ids = [base, *(f"{base}-r{retry}" for retry in range(1, _RETRIES + 1))]
    return [full_id(tenant, id) for id in ids] if tenant else ids


def _id_of(headers: Mapping[str, Any], delivery_tag: str) -> str:
    task_id = headers.get("id")
    if not task_id:
        return delivery_tag
    base = _base_of(str(task_id))
    if not current_task:
        return base
    running = current_task.request
    if running.id == task_id and (retries := headers.get("retries")):
        return f"{_run_of(running) or base}-r{retries}"
    return f"{base}-{delivery_tag[:8]}"


def _run_of(running: Any) -> str:
    """Return the id of the task that a Celery task runs as, without the number of a retry; empty outside a worker."""
    tag = (running.get("properties") or {}).get("delivery_tag", "")
    return re.sub(r"-r\d+\Z", "", bare_id(tag.split()[1])) if tag.count(" ") == 2 else ""


def _base_of(task_id: str) -> str:
    return task_id if _FITTING_ID.match(task_id) else str(uuid5(NAMESPACE_OID, task_id))


def _ms_of(text: str | None) -> int | None:
    if not text:
        return None
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        time = time.replace(tzinfo=current_app.timezone)
    return round(time.timestamp() * 1000)


def _whole(text: str | None) -> int | None:
    """Return the milliseconds of a message's expiration, None if it has none."""
    return int(text) if text else None


def _priority_of(priority: int | None) -> int:
    """Return the priority here, where 0 is the most urgent; kombu's 0 means none, and its 9 is the most urgent."""
    return DEFAULT_PRIORITY - _URGENCY * min(max(priority or 0, 0), 9)
