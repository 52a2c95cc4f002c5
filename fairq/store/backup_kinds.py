"""The kinds of lines of a backup (fairq/store/backup_lines.py): their fields, and the rules between these."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from attrs import fields

from fairq.errors import BadRequest, FairqError, TooLarge
from fairq.model.audit import PLACE
from fairq.model.checks import MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES, matching, owner_of
from fairq.model.events import MAX_DETAIL_BYTES
from fairq.model.history import STEPS
from fairq.model.places import is_partition
from fairq.model.rules import TENANT, one_of, whole
from fairq.model.schedules import SCHEDULE_NAME
from fairq.model.tasks import DEDUPE_KEY, MAX_RESULT_BYTES, NewTask
from fairq.model.token_rules import TOKEN_ID
from fairq.store.audit import Entry
from fairq.store.backup_ledger import Key
from fairq.store.backup_rules import (
    BATCH_ID,
    COUNT,
    LIMITS,
    MOMENT,
    OF_TENANT,
    OPTIONS,
    REQUIRED,
    TAG,
    TASK_ID,
    Check,
    LineField,
    check_object,
    data,
    fields_of,
    inside,
    json_text,
    moment_or_never,
)
from fairq.store.dumping import IS_LARGE, STREAMS
from fairq.store.partitions import MAX_PARTITIONS, place_in, places_of, siblings
from fairq.store.records import named_options
from fairq.tokens import TokenRecord
from fairq.wire import strict_json

Line = dict[str, Any]

_HAS_OPTIONS = 1  # of a task's features
_LEASED = (0, 3)  # states of a run
_RINGS = dict(STEPS.values())  # step of an interval -> how many intervals are kept
_ENTRY = ("token", "verb", "queue", "tenant", "change")  # and "ended" if it has
_EVENT = ("event", "id", "at", "attempt", "detail")
_TOKEN = {each.name for each in fields(TokenRecord)}


class Kind(NamedTuple):
    """A kind of line.

    `check` checks the rules between its fields. `things` returns what only this line may define, `seeks` what it refers
    to, by field. `tenant` returns the field that names the line's tenant, and the tenant: empty if it is of the whole
    queue.
    """

    fields: list[LineField]
    check: Callable[[Line], object] = lambda line: None
    things: Callable[[Line], list[Key]] = lambda line: []
    seeks: Callable[[Line], list[tuple[str, Key]]] = lambda line: []
    max_payload: int = 0  # bytes; 0: it has none
    is_of_queue: bool = True
    tenant: Callable[[Line], tuple[str, str]] = lambda line: ("", "")


def _bad(field: str, what: str) -> BadRequest:
    return BadRequest(f"{field} {what}", field=field)


def _own(**checks: Check) -> list[LineField]:
    """Return fields that a line must have."""
    return [LineField(name, REQUIRED, check, name) for name, check in checks.items()]


def _part(record: str, label: str) -> Check:
    """Return the check of a record in a field of its own."""
    inner = fields_of(record, f"{label}.")
    return lambda value, field: check_object(value, inner, field)


def _optional(name: str, check: Check) -> LineField:
    return LineField(name, None, check, name)


def _made(value: Any, field: str) -> None:
    at, _, maker = value.partition(" ") if isinstance(value, str) else ("", "", "")
    if not re.fullmatch(r"[0-9]{1,16} ", f"{at} ") or " " not in value:
        raise _bad(field, f"must be a time, a space and a tenant or nothing, not {value!r:.80}")
    OF_TENANT(maker, field)


def _token(value: Any, field: str) -> None:
    if type(value) is not dict:
        raise _bad(field, "must be an object")
    if missing := [name for name in ("id", "role", "hash") if name not in value]:
        raise _bad(f"{field}.{missing[0]}", "is missing")
    record = TokenRecord(**{name: each for name, each in value.items() if name in _TOKEN})  # others are a later build's
    with inside(field):
        record.check()
    for name in ("created_at_ms", "expires_at_ms"):
        MOMENT(getattr(record, name), f"{field}.{name}")


def _check_token(line: Line) -> None:
    if line["value"].get("id") != line["id"]:
        raise _bad("value.id", "must be the id of its line")


def _check_audit(line: Line) -> None:
    found: dict[str, str] = line["fields"]
    if type(found) is not dict or not all(isinstance(value, str) for value in found.values()):
        raise _bad("fields", "must be an object of texts")
    if not found:
        return
    if missing := [name for name in _ENTRY if name not in found]:
        raise _bad(f"fields.{missing[0]}", "is missing")
    try:
        Entry(line["id"], found).change()
    except (ValueError, TypeError) as error:
        raise _bad("fields", f"must be a change: {error}") from None
    if line["stream"] == "tenants":
        TENANT.check(found["tenant"], "fields.tenant")


def _check_tenant(line: Line) -> None:
    if line["details"]["tag"] != line["tag"]:
        raise _bad("details.tag", "must be the tag of its line")


def _schedule_id(value: Any, field: str) -> None:
    """Check `<tenant>/<name>` of a schedule."""
    tenant, _, name = value.partition("/") if isinstance(value, str) else ("", "", value)
    TENANT.check(tenant, field)
    SCHEDULE_NAME.check(name, field)


def _unique_id(value: Any, field: str) -> None:
    """Check `<tenant>:<key>`."""
    tenant, _, key = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not key:
        raise _bad(field, f"must be <tenant>:<key>, not {value!r:.80}")
    TENANT.check(tenant, field)
    DEDUPE_KEY.check(key, field)


def check_payload(payload: bytes | None, most: int) -> None:
    """Check a payload as the protocol does: a long one is stored unread. Raises: BadRequest, TooLarge."""
    if not payload:
        raise _bad("payload", "is missing" if payload is None else "must not be empty")
    if len(payload) > most:
        raise TooLarge(f"payload has {len(payload)} bytes; the limit is {most}", field="payload")
    if len(payload) <= MAX_INLINE_BYTES:
        try:
            strict_json.read(payload.decode())
        except (FairqError, ValueError) as error:
            raise _bad("payload", f"must be JSON: {error}") from None


def _check_task(line: Line) -> None:
    features, tenant = line.get("features", 0), line.get("tenant", "")
    if owner_of(line["id"]) != tenant:
        raise _bad("tenant", f"must be the tenant of the id, not {tenant!r:.80}")
    if ("options" in line) != bool(features & _HAS_OPTIONS):
        raise _bad("options", "must be there if, and only if, features say so")
    if (batch := line.get("options", {}).get("batch")) and owner_of(batch) != tenant:
        raise _bad("options.batch", "must be a batch of the tenant")
    run, death = line.get("run"), line.get("death")
    if run is not None and run.get("features", 0) != features:
        raise _bad("run.features", "must be the features of the task")
    if death and death["tenant"] != tenant:
        raise _bad("death.tenant", "must be the tenant of the task")
    places = [bool(death), "delayed_until" in line, run is not None and run.get("state", 0) in _LEASED]
    if sum(places) > 1:
        raise _bad("run.state" if places[2] else "delayed_until", "does not fit: a task is in one place")
    if death and run is not None:
        raise _bad("run", "does not fit: a dead letter has none")


def _task_seeks(line: Line) -> list[tuple[str, Key]]:
    queue, tenant = line["queue"], line["tenant"]
    found: list[tuple[str, Key]] = [("tenant", ("tenant", queue, tenant))]
    if "run" in line:
        found.append(("run.tag", ("tag", queue, line["run"].get("tag", 0), tenant)))
    return found


def _check_template(line: Line) -> None:
    options = line.get("options")
    if options is None:
        return
    NewTask("any", b"", **named_options(options)).check()


def _check_kept(line: Line) -> None:
    (TASK_ID if line["of"] == "r" else DEDUPE_KEY.check)(line["id"], "id")


def _check_event(line: Line) -> None:
    found = line["fields"]
    if type(found) is not dict:
        raise _bad("fields", "must be an object")
    if not found:
        return
    if tuple(found) != _EVENT:
        raise _bad("fields", f"must be {', '.join(_EVENT)}, or none")
    event, id, at, attempt, detail = found.values()
    _KIND_OF_EVENT(event, "fields.event")
    (BATCH_ID if event == "batch_completed" else TASK_ID)(id, "fields.id")
    for name, value in (("at", at), ("attempt", attempt)):
        _DIGITS(value, f"fields.{name}")
    data(MAX_DETAIL_BYTES)(detail, "fields.detail")
    if event == "batch_completed":
        _COUNTS(detail, "fields.detail")


def _check_slot(line: Line) -> None:
    if line["id"] != str(line.get("number", 0) % _RINGS[line["step"]]):
        raise _bad("id", "must be the place of its number in the ring of its step")


def _step(value: Any, field: str) -> None:
    if type(value) is not int or value not in _RINGS:
        raise _bad(field, f"must be one of {', '.join(map(str, _RINGS))}, not {value!r:.80}")


def _rows(value: Any, field: str) -> None:
    if type(value) is not list or len(value) > _MAX_ROWS:
        raise _bad(field, f"must be a list of at most {_MAX_ROWS} rows")
    for row in value:
        check_object(row, _ROW, field)


def _check_limits(line: Line) -> None:
    if not line["id"] and line["limits"].get("guaranteed"):
        raise _bad("limits.guaranteed", "cannot be set for all tenants")


def _check_batch(line: Line) -> None:
    if owner_of(line["id"]) != line["tenant"]:
        raise _bad("tenant", "must be the tenant of the id")


def _check_batch_result(line: Line) -> None:
    if owner_of(line["id"]) != owner_of(line["batch"]):
        raise _bad("id", "must be of the tenant of the batch")


def check_home(kind: Kind, line: Line) -> None:
    """Check that a line stands in the partition where its tenant lives. Raises: BadRequest."""
    place = line.get("queue", "")
    if is_partition(place):
        name, tenant = kind.tenant(line)
        if tenant and place_in(siblings(place), tenant) != place:
            raise _bad(name, "is of a tenant that lives in another partition of its queue")


def _owned(line: Line) -> tuple[str, str]:
    return "id", owner_of(line["id"])


def _named(line: Line) -> tuple[str, str]:
    return "id", line["id"].partition("/")[0]


def _by_tenant(line: Line) -> tuple[str, str]:
    return "tenant", line["tenant"]


def _by_id(name: str) -> Callable[[Line], list[Key]]:
    return lambda line: [(name, line["queue"], line["id"])]


def _to(name: str) -> Callable[[Line], list[tuple[str, Key]]]:
    return lambda line: [("id", (name, line["queue"], line["id"]))]


def _of_named(line: Line) -> list[tuple[str, Key]]:
    return [("id", ("tenant", line["queue"], line["id"]))] if line["id"] else []


def _to_tenant(line: Line) -> list[tuple[str, Key]]:
    return [("tenant", ("tenant", line["queue"], line["tenant"]))]


def _places(line: Line) -> list[Key]:
    """Return the places of a queue with partitions; so it has no state of its own."""
    places = places_of(line["queue"], line["count"])
    return [("layout", line["queue"]), *(("place", place) for place in places)]


def _layout(line: Line) -> list[Key]:
    state = ("state", line["queue"])
    return [state] if is_partition(line["queue"]) else [state, ("layout", line["queue"])]


def _to_place(line: Line) -> list[tuple[str, Key]]:
    return [("queue", ("place", line["queue"]))] if is_partition(line["queue"]) else []


def _held_by(line: Line) -> list[tuple[str, Key]]:
    return [] if line["until"] else [("value", ("task", line["queue"], line["value"]))]


_MAX_ROWS = 21 * MAX_PARTITIONS  # tenants of an interval, and all others; of a queue that had partitions
_ROW = fields_of("SLOT_ROW", "rows.")
_DIGITS = matching(re.compile(r"[0-9]{1,16}\Z"), "a number in digits")
_COUNTS = matching(re.compile(r"[0-9]{1,16}( [0-9]{1,16}){3}\Z"), "four counts")
_KIND_OF_EVENT = one_of("failed", "done", "dead", "expired", "cancelled", "batch_completed").check
_FEED_ID = matching(re.compile(r"0-[1-9][0-9]{0,15}\Z"), "0-<n>, counted from 1")
_HOOK_ID = matching(re.compile(r"[0-9a-f]{8}\Z"), "eight hexadecimal digits")


def _anything(value: Any, field: str) -> object:
    return value


KINDS: dict[str, Kind] = {
    "queue": Kind(_own(made=_made), things=lambda line: [("queue", line["queue"])]),
    "partitions": Kind(
        _own(count=whole(2, MAX_PARTITIONS).check), things=_places,
        seeks=lambda line: [("queue", ("queue", line["queue"]))],
    ),
    "token": Kind(
        _own(id=TOKEN_ID.check, value=_token), _check_token, lambda line: [("token", line["id"])], is_of_queue=False
    ),
    "token_use": Kind(
        _own(id=TOKEN_ID.check, value=MOMENT), things=lambda line: [("token_use", line["id"])],
        seeks=lambda line: [("id", ("token", line["id"]))], is_of_queue=False,
    ),
    "audit": Kind(
        _own(stream=one_of(*STREAMS.values()).check, id=PLACE.check, fields=_anything), _check_audit, is_of_queue=False
    ),
    "state": Kind(fields_of("QUEUE"), things=_layout, seeks=_to_place),
    "tenant": Kind(
        _own(tag=TAG, account=_part("ACCOUNT", "account"), details=_part("DETAILS", "details")), _check_tenant,
        lambda line: [
            ("account", line["queue"], line["tag"]), ("tenant", line["queue"], line["account"]["name"]),
            ("tag", line["queue"], line["tag"], line["account"]["name"]),
        ],
        tenant=lambda line: ("account.name", line["account"]["name"]),
    ),
    "limits": Kind(_own(id=OF_TENANT, limits=LIMITS), _check_limits, _by_id("limits"), _of_named, tenant=_named),
    "opening_hours": Kind(
        [*_own(id=OF_TENANT), *fields_of("HOURS")], things=_by_id("opening_hours"), seeks=_of_named, tenant=_named
    ),
    "webhook": Kind([*_own(id=_HOOK_ID), *fields_of("WEBHOOK")], things=_by_id("webhook")),
    "batch": Kind(
        [*_own(id=BATCH_ID), *fields_of("BATCH")], _check_batch, _by_id("batch"), _to_tenant, tenant=_owned
    ),
    "task": Kind(
        [
            *_own(id=TASK_ID), *fields_of("HEADER"), _optional("options", OPTIONS),
            _optional("run", _part("RUN", "run")), _optional("death", _part("DEATH", "death")),
            _optional("delayed_until", MOMENT),
        ],
        _check_task,
        lambda line: [
            ("task", line["queue"], line["id"]),
            *([("payload", line["queue"], line["id"])] if line.get("features", 0) & IS_LARGE else []),
        ],
        _task_seeks, max_payload=MAX_PAYLOAD_BYTES, tenant=_owned,
    ),
    "done": Kind([*_own(id=TASK_ID), *fields_of("MARK")], things=_by_id("task"), tenant=_owned),
    "callback": Kind(_own(id=TASK_ID), things=_by_id("payload"), max_payload=MAX_PAYLOAD_BYTES, tenant=_owned),
    "schedule": Kind(
        [*_own(tenant=TENANT.check, id=SCHEDULE_NAME.check), *fields_of("SCHEDULE")],
        things=lambda line: [("schedule", line["queue"], f"{line['tenant']}/{line['id']}")],
        seeks=lambda line: [
            *_to_tenant(line), *(
                ("id", (what, line["queue"], f"{line['tenant']}/{line['id']}")) for what in ("template", "fire")
            ),
        ],
        tenant=_by_tenant,
    ),
    "template": Kind(
        [*_own(id=_schedule_id), *fields_of("TEMPLATE")], _check_template,
        _by_id("template"), _to("schedule"), max_payload=MAX_PAYLOAD_BYTES, tenant=_named,
    ),
    "opening_change": Kind(
        _own(id=OF_TENANT, at=MOMENT), things=_by_id("change"), seeks=_to("opening_hours"), tenant=_named
    ),
    "fire": Kind(
        _own(id=_schedule_id, at=moment_or_never), things=_by_id("fire"), seeks=_to("schedule"), tenant=_named
    ),
    "declared": Kind(_own(id=_schedule_id, at=MOMENT), things=_by_id("declared"), seeks=_to("schedule"), tenant=_named),
    "cancelling": Kind(_own(id=BATCH_ID, at=MOMENT), things=_by_id("cancelling"), seeks=_to("batch"), tenant=_owned),
    "result": Kind(
        _own(id=TASK_ID, until=MOMENT, value=json_text(MAX_RESULT_BYTES)), things=_by_id("result"), tenant=_owned
    ),
    "unique": Kind(
        _own(id=_unique_id, until=MOMENT, value=TASK_ID), things=_by_id("unique"), seeks=_held_by,
        tenant=lambda line: ("id", line["id"].partition(":")[0]),
    ),
    "kept": Kind(
        _own(of=one_of("r", "k").check, tag=TAG, bytes=TAG, id=_anything, until=MOMENT), _check_kept,
        lambda line: [("kept", line["queue"], line["of"], line["tag"], line["bytes"], line["id"])],
        lambda line: [("tag", ("account", line["queue"], line["tag"]))],
    ),
    "batch_result": Kind(
        _own(batch=BATCH_ID, id=TASK_ID, until=COUNT, order=COUNT), _check_batch_result,
        lambda line: [("batch_result", line["queue"], line["batch"], line["until"], line["id"])],
        lambda line: [("batch", ("batch", line["queue"], line["batch"]))],
        tenant=lambda line: ("batch", owner_of(line["batch"])),
    ),
    "event": Kind(
        _own(tenant=TENANT.check, id=_FEED_ID, fields=_anything), _check_event, seeks=_to_tenant, tenant=_by_tenant
    ),
    "slot": Kind(
        [*_own(id=_DIGITS, step=_step, rows=_rows), *fields_of("SLOT")], _check_slot,
        lambda line: [("slot", line["queue"], line["step"], line["id"])],
    ),
}  # fmt: skip
