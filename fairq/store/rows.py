"""Converts the replies of the library's verbs to the model's classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from fairq.model.batches import BatchState
from fairq.model.dead_letters import REASONS, DeadLetter
from fairq.model.events import Event
from fairq.model.limits import Limits
from fairq.model.queues import QueueSettings, QueueState, settings_from
from fairq.model.tasks import TaskState
from fairq.model.tenants import TenantState
from fairq.model.versions import weight_version
from fairq.model.waiting import CLOSED, PAUSED, RATE_LIMITED, REPAIRING
from fairq.model.webhooks import webhook_in
from fairq.store.records import unpack_record

COUNTS = ("ready", "pending", "delayed", "leased", "dead", "enqueued", "done", "expired", "cancelled")
FLAGS = ("is_paused", "is_closed", "is_deleting", "is_repairing")
_DELETING = 2  # a queue's stage: lua/operate/delete.lua


def queue_state(queue: str, reply: Sequence[bytes]) -> QueueState:
    """Read a queue's counts and settings as pairs."""
    values = {reply[i].decode(): int(float(reply[i + 1])) for i in range(0, len(reply), 2)}
    counts: dict[str, Any] = {name: values[name] for name in COUNTS}
    return QueueState(
        queue=queue,
        **counts,
        is_paused=bool(values["blocked"] & PAUSED),
        is_closed=bool(values["blocked"] & CLOSED),
        is_deleting=values["stage"] == _DELETING,
        is_repairing=bool(values["blocked"] & REPAIRING),
        settings=settings_from(values),
    )


def settings_of(reply: Sequence[Any]) -> QueueSettings:
    """Read all settings of a queue as pairs."""
    return settings_from({reply[i].decode(): reply[i + 1] for i in range(0, len(reply), 2)})


def limits_of(reply: Sequence[bytes]) -> Limits:
    """Read limits as pairs."""
    set_: dict[str, Any] = {}
    for name, value in zip(reply[::2], reply[1::2], strict=True):
        number = float(value)
        set_[name.decode()] = None if number < 0 else int(number) if number.is_integer() else number
    return Limits(**set_)


def tenant_state(tenant: str, values: Sequence[float], unit: float) -> TenantState:
    """Read a row of `tenants`; its shares are divided by `unit`."""
    weight, ready, pending, delayed, leased, dead, done, delivered, entitled, *rest = values
    eligible, blocked, limited, size = (int(value) for value in rest)
    return TenantState(
        tenant=tenant,
        weight=weight / 1000,
        ready=int(ready),
        pending=int(pending),
        delayed=int(delayed),
        leased=int(leased),
        dead=int(dead),
        done=int(done),
        delivered=delivered / unit,
        entitled=entitled / unit,
        is_paused=bool(blocked & PAUSED),
        is_closed=bool(blocked & CLOSED),
        is_rate_limited=bool(blocked & RATE_LIMITED),
        is_backlogged=bool(eligible),
        is_limited=bool(limited),
        stored_bytes=size,
        version=weight_version(weight / 1000),
    )


def tenant_states(reply: Sequence[bytes], unit: float) -> dict[str, TenantState]:
    """Read a reply of `tenants`, without its cursor."""
    rows = (row.decode().split(" ") for row in reply[1:])
    return {tenant: tenant_state(tenant, [float(value) for value in values], unit) for tenant, *values in rows}


def batch_state(id: str, row: Sequence[Any]) -> BatchState | None:
    """Read a row of `batches`; None for an unknown batch."""
    if not row:
        return None
    state, tenant, max_running, total, running, done, dead, cancelled, expired, created_at, completed_at = row
    counts = (max_running, total, running, done, dead, cancelled)
    moments = (int(float(created_at)), int(float(completed_at)))
    return BatchState(id, state.decode(), tenant.decode(), *counts, *moments, expired)


def event(row: Sequence[Any]) -> Event:
    """Read an event of a feed."""
    id, event, of, at_ms, attempt, detail = row
    kind, at, text = event.decode(), int(float(at_ms)), detail.decode(errors="replace")
    if kind != "batch_completed":
        return Event(id, kind, at, of.decode(), attempt=attempt, detail=text)
    done, dead, cancelled, expired = map(int, text.split())
    return Event(id, kind, at, batch=of.decode(), done=done, dead=dead, cancelled=cancelled, expired=expired)


def task_state(id: str, row: Sequence[Any]) -> TaskState:
    """Read a row of `tasks`; its last value, the lease's number, is not returned."""
    state, tenant, attempt, at_ms, detail, error, lost_leases, _ = row
    text = detail.decode()
    return TaskState(
        id=id,
        state=state.decode(),
        tenant=tenant.decode(),
        attempt=attempt,
        at_ms=int(float(at_ms)),
        worker=text if text not in REASONS else "",
        reason=text if text in REASONS else "",
        error=error.decode(errors="replace"),
        lost_leases=lost_leases,
    )


def dead_letter(row: Sequence[Any]) -> DeadLetter:
    """Read a dead letter, with or without its task record."""
    id, tenant, reason, attempts, died_at, error, record, traceback, lost_leases = row
    text, frames = (each.decode(errors="replace") for each in (error, traceback))
    letter = DeadLetter(
        id.decode(), tenant.decode(), reason.decode(), attempts, int(died_at), text, lost_leases, traceback=frames
    )
    if not record:
        return letter
    _, enqueued_at, start_at, expires_at, payload, name, *_ = unpack_record(record)
    return evolve(
        letter,
        enqueued_at_ms=enqueued_at,
        start_at_ms=start_at,
        expires_at_ms=expires_at,
        payload=payload,
        name=name,
        webhook=webhook_in(letter.id),
    )
