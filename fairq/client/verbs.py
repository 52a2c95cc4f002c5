"""What each call of the SDK asks, and how its reply is read: arguments to verb and body, reply to result.

Nothing here waits or knows of connections, so that every runtime shares it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import orjson
import uuid_utils
from attrs import frozen

from fairq.errors import BadRequest, NoResult, TaskFailed, TooLarge
from fairq.model.batches import RUNNING, BatchPage, BatchStage, BatchState
from fairq.model.checks import (
    DEFAULT_PAYLOAD_BYTES,
    MAX_BATCH,
    MAX_INLINE_BYTES,
    check_flag,
    check_known_batch,
    check_name,
    check_task_id,
    check_tenant,
)
from fairq.model.dead_letters import DeadLetter, DeadPage
from fairq.model.events import EVENT_ID, Event, EventPage
from fairq.model.option_tables import DeadLetterFilter, Seconds, TaskOptions, UnnamedTaskOptions
from fairq.model.options import (
    full_ids,
    hash_payload,
    interval_ms,
    pack_filter,
    pack_options,
    pack_start,
    pack_waiting_filter,
    scheduled_options,
)
from fairq.model.purges import Purge
from fairq.model.rules import COUNT
from fairq.model.schedules import ScheduleState, check_schedule_name
from fairq.model.tasks import NewTask, Outcome, TaskState, WaitingTask
from fairq.model.versions import VERSION
from fairq.model.waiting import Why
from fairq.wire.decode import structure as structure

T = TypeVar("T")
Body = dict[str, Any]


@frozen
class Ask(Generic[T]):
    """A request: its verb, its body, and how its reply is read."""

    verb: str
    body: Body
    read: Callable[[Body], T]


def nothing(_: Body) -> None:
    """Read a reply that says nothing more than that it was done."""
    return None


def read_list(kind: type[T], name: str) -> Callable[[Body], list[T]]:
    """Make a reader of a list of rows."""
    return lambda reply: [structure(row, kind) for row in reply[name]]


def _read_outcomes(reply: Body) -> list[str]:
    return list(reply["outcomes"])


def was(reply: Body) -> bool:
    """Read what held until now."""
    return bool(reply["previous"])


def _has_nan(value: Any) -> bool:
    """Tell whether a value that orjson can write has a float that it writes as null."""
    try:
        json.dumps(value, allow_nan=False, default=_fields_of)
    except ValueError:
        return True
    return False


def _fields_of(value: Any) -> Any:
    """Return what a dataclass holds; None for the other values that only orjson knows, which hold no float."""
    return {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else None


def encode_payload(value: Any, field: str = "payload", max_bytes: int = DEFAULT_PAYLOAD_BYTES) -> bytes:
    """Write a payload, or a result, as JSON. Raises: BadRequest if it is not JSON, TooLarge."""
    try:
        text = orjson.dumps([[[[value]]]])[4:-4]  # a frame holds it as deep, and may be no deeper than orjson writes
    except (TypeError, orjson.JSONEncodeError) as error:
        raise BadRequest(f"the {field} is not JSON: {error}", field=field) from None
    if b"null" in text and _has_nan(value):
        raise BadRequest(f"the {field} is not JSON: it has a number that is NaN or infinite", field=field)
    if len(text) > max_bytes:
        raise TooLarge(f"the {field} has {len(text)} bytes; the limit is {max_bytes}", field=field)
    return text


def target(queue: str, tenant: str | None) -> Body:
    """Name a queue, and a tenant if there is one."""
    body: Body = {"queue": check_name(queue, "queue")}
    return body if tenant is None else body | {"tenant": check_tenant(tenant)}


def based_on(if_version: str | None) -> Body:
    """Make a change only if this is still the version."""
    return {} if if_version is None else {"if_version": VERSION.check(if_version, "if_version")}


# --- tasks


def new_id() -> str:
    """Make an id: a UUID of version 7."""
    return str(uuid_utils.uuid7())


def new_tasks(
    queue: str,
    payloads: Iterable[Any],
    ids: Sequence[str] | None,
    tenant: str | Sequence[str] | None,
    options: TaskOptions,
    max_bytes: int,
) -> list[NewTask]:
    """Make tasks that share their options. Raises: BadRequest, TooLarge; TypeError for unknown options."""
    check_name(queue, "queue")
    values = pack_options(options) if options else ()
    texts = [encode_payload(payload, max_bytes=max_bytes) for payload in payloads]
    if ids is None:
        ids = [new_id() for _ in texts]
    elif len(ids) != len(texts):
        raise BadRequest(f"{len(ids)} ids were given for {len(texts)} payloads", field="ids")
    else:
        for id in ids:
            check_task_id(id)
    if tenant is not None:
        ids = full_ids(ids, tenant)
    made = [NewTask(id, text, *values) for id, text in zip(ids, texts, strict=True)]
    if options.get("dedupe_payload"):
        made = [task._replace(dedupe_key=hash_payload(task.payload)) for task in made]
    return made


def tasks(queue: str, ids: Sequence[str]) -> Ask[list[TaskState]]:
    """Ask what is known of tasks."""
    return Ask("tasks", {"queue": queue, "ids": list(ids)}, read_list(TaskState, "tasks"))


def cancel(queue: str, ids: Sequence[str]) -> Ask[list[str]]:
    """Cancel tasks."""
    return Ask("cancel", {"queue": queue, "ids": list(ids)}, _read_outcomes)


def cancel_all(
    queue: str, tenant: str | None, older_than: Seconds | None, error: str | None, dry_run: bool, cursor: str
) -> Ask[Purge]:
    """Cancel waiting tasks of a tenant that match, from a cursor on."""
    body = target(queue, tenant) | pack_waiting_filter(older_than, error)
    if check_flag(dry_run, "dry_run"):
        body["dry_run"] = True
    if cursor:
        body["cursor"] = cursor
    return Ask("cancel_all", body, lambda reply: Purge(**{**reply, "cursor": reply["cursor"] or ""}))


def reschedule(
    queue: str, ids: Sequence[str], delay: Seconds | None, start_at: datetime | float | None
) -> Ask[list[str]]:
    """Give waiting tasks another start."""
    delay_ms, start_at_ms = pack_start(delay, start_at)
    body = {"queue": queue, "ids": list(ids), "delay_ms": delay_ms, "start_at_ms": start_at_ms}
    return Ask("reschedule", body, _read_outcomes)


def peek(queue: str, count: int, tenant: str | None) -> Ask[list[WaitingTask]]:
    """Read the next tasks of a tenant."""
    body: Body = {"queue": queue, "count": count}
    if tenant is not None:
        body["tenant"] = tenant
    return Ask("peek", body, lambda reply: [WaitingTask(**row) for row in reply["tasks"]])


def why(queue: str, id: str) -> Ask[Why]:
    """Ask why a task waits."""
    return Ask("why", {"queue": queue, "id": id}, lambda reply: Why(**reply))


def result_of(row: Body) -> Any:
    """Return a task's result. Raises: NoResult, TaskFailed, which say why there is none."""
    if "result" in row:
        return row["result"]
    if row["state"] in ("done", "unknown"):
        raise NoResult(f"no result of task {row['id']} is kept", field="id")
    reason = ": ".join(filter(None, (row["state"], row.get("reason", ""), row.get("error", ""))))
    raise TaskFailed(f"task {row['id']} has no result; {reason}", field="id")


# --- batches and events


def open_batch(queue: str, id: str, max_running: int, callbacks: Mapping[str, Any], events: bool) -> Ask[None]:
    """Open a batch."""
    body = {
        "queue": check_name(queue, "queue"),
        "id": check_known_batch(id),
        "max_running": RUNNING.check(max_running, "max_running"),
    }
    body |= {name: orjson.Fragment(encode_payload(it)) for name, it in callbacks.items() if it is not None}
    if check_flag(events, "events"):
        body["events"] = True
    return Ask("open_batch", body, nothing)


def close_batch(queue: str, id: str) -> Ask[None]:
    """Close a batch."""
    return Ask("close_batch", {"queue": queue, "id": id}, nothing)


def cancel_batch(queue: str, id: str) -> Ask[str]:
    """Close a batch and cancel its tasks; reads its previous state."""
    return Ask("cancel_batch", {"queue": queue, "id": id}, lambda reply: str(reply["previous"]))


def batch(queue: str, id: str) -> Ask[BatchState]:
    """Ask how far a batch is."""
    return Ask("batch", {"queue": queue, "id": id}, lambda reply: structure(reply["batch"], BatchState))


def named_batches(queue: str, ids: Sequence[str]) -> Ask[list[BatchState]]:
    """Ask how far batches are; unknown ones are left out."""
    return Ask("batches", {"queue": queue, "ids": list(ids)}, read_list(BatchState, "batches"))


def batches(queue: str, tenant: str | None, state: BatchStage | None, cursor: str, count: int) -> Ask[BatchPage]:
    """Read a page of batches."""
    body = target(queue, tenant) | {"count": COUNT.check(count, "count")}
    body |= {name: text for name, text in (("state", state), ("cursor", cursor)) if text}
    read = read_list(BatchState, "batches")
    return Ask("batches", body, lambda reply: BatchPage(read(reply), reply["cursor"] or ""))


def events(queue: str, after: int, tenant: str | None, count: int | None = None) -> Ask[EventPage]:
    """Read a tenant's events after one of them."""
    body = target(queue, tenant) | {"after": EVENT_ID.check(after, "after")}
    if count is not None:
        body["count"] = COUNT.check(count, "count")
    return Ask(
        "events",
        body,
        lambda reply: EventPage(reply["oldest"], reply["newest"], [structure(row, Event) for row in reply["events"]]),
    )


# --- dead letters


def dead(queue: str, cursor: str, count: int, brief: bool, which: DeadLetterFilter) -> Ask[DeadPage]:
    """Read a page of dead letters."""
    body = {"queue": queue, "count": count, "brief": brief, **pack_filter(which)}
    if cursor:
        body["cursor"] = cursor
    return Ask(
        "dead",
        body,
        lambda reply: DeadPage(
            [structure(row, DeadLetter) for row in reply["dead"]], reply["cursor"] or "", reply["left"]
        ),
    )


def dead_letter(queue: str, id: str) -> Ask[DeadLetter]:
    """Read one dead letter."""
    body = {"queue": queue, "id": id}
    return Ask("dead_letter", body, lambda reply: structure(reply["dead_letter"], DeadLetter))


def replay(queue: str, ids: Sequence[str]) -> Ask[list[Outcome]]:
    """Give dead letters a fresh set of attempts."""
    return Ask("replay", {"queue": queue, "ids": list(ids)}, lambda reply: list(reply["outcomes"]))


def purge(queue: str, ids: Sequence[str]) -> Ask[list[Outcome]]:
    """Delete dead letters."""
    return Ask("purge", {"queue": queue, "ids": list(ids)}, lambda reply: list(reply["outcomes"]))


# --- schedules


def _schedule_body(queue: str, name: str | None, tenant: str | None) -> Body:
    body = target(queue, tenant)
    return body if name is None else body | {"name": check_schedule_name(name)}


def schedule(
    queue: str,
    name: str,
    payload: Any,
    cron: str | None,
    zone: str | None,
    every: Seconds | None,
    misfire: str,
    tenant: str | None,
    options: UnnamedTaskOptions,
) -> Ask[list[datetime]]:
    """Create or change a schedule; reads its next fires."""
    text, asked = encode_payload(payload, max_bytes=MAX_INLINE_BYTES), scheduled_options(options)
    if options.get("dedupe_payload"):
        asked["dedupe_key"] = hash_payload(text)
    body = _schedule_body(queue, name, tenant) | {
        "payload": orjson.Fragment(text),
        "cron": cron or "",
        "zone": zone or "",
        "every_ms": interval_ms(every),
        "misfire": misfire,
        **asked,
    }
    return Ask("schedule", body, lambda reply: [datetime.fromtimestamp(ms / 1000, UTC) for ms in reply["fires_at_ms"]])


def unschedule(queue: str, name: str, tenant: str | None) -> Ask[bool]:
    """Delete a schedule."""
    return Ask("unschedule", _schedule_body(queue, name, tenant), was)


def pause_schedule(queue: str, name: str, tenant: str | None) -> Ask[bool]:
    """Pause a schedule."""
    return Ask("pause_schedule", _schedule_body(queue, name, tenant), was)


def resume_schedule(queue: str, name: str, tenant: str | None) -> Ask[bool]:
    """Resume a schedule."""
    return Ask("resume_schedule", _schedule_body(queue, name, tenant), was)


def schedules(queue: str, name: str | None, tenant: str | None, offset: int = 0) -> Ask[list[ScheduleState]]:
    """Read a page of schedules, or one by its name."""
    body = _schedule_body(queue, name, tenant)
    if name is None:
        body |= {"offset": offset, "count": MAX_BATCH}
    return Ask("schedules", body, lambda reply: [ScheduleState(**row) for row in reply["schedules"]])
