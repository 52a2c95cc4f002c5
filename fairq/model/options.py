"""Checks the options that callers give (seconds, datetimes), and converts them to those of the wire (ms)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import orjson
from attrs import asdict

from fairq.errors import BadRequest
from fairq.model.cancelling import WaitingFilter
from fairq.model.checks import check_tenant, full_id
from fairq.model.dead_letters import DeadFilter
from fairq.model.option_tables import DeadLetterFilter, Seconds, TaskOptions
from fairq.model.rules import MOMENT, SOME_MOMENT, SOME_SPAN, SPAN, Rule, check_fields
from fairq.model.schedules import MIN_EVERY_MS
from fairq.model.tasks import OPTIONS, SCHEDULED, NewTask


def to_ms(seconds: Seconds, field: str, rule: Rule = SPAN) -> int:
    """Turn a caller's seconds into whole ms that the field's rule takes. Raises: BadRequest."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    low_ms, high_ms = rule.schema["minimum"], rule.schema["maximum"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not low_ms <= seconds * 1000 <= high_ms:
        bounds = f"{low_ms / 1000:g} to {high_ms // 1000} seconds"
        raise BadRequest(f"{field} must be {bounds}, not {seconds!r:.80}", field=field)
    return round(seconds * 1000)


def _at_ms(moment: datetime | float, field: str, rule: Rule = MOMENT) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise BadRequest(f"{field} must have a time zone", field=field)
        moment = moment.timestamp()
    elif not isinstance(moment, int | float):
        raise BadRequest(f"{field} must be a datetime, or seconds since the epoch, not {moment!r:.80}", field=field)
    return to_ms(moment, field, rule)


def pack_start(delay: Seconds | None, start_at: datetime | float | None) -> tuple[int, int]:
    """Read a start: delay_ms and start_at_ms; at most one may be given. Raises: BadRequest."""
    if delay is not None and start_at is not None:
        raise BadRequest("give delay or start_at, not both", field="start_at")
    return (
        0 if delay is None else to_ms(delay, "delay"),
        0 if start_at is None else _at_ms(start_at, "start_at"),
    )


@contextmanager
def _our_names() -> Iterator[None]:
    """Name the SDK's arguments in errors, in place of the wire's fields."""
    try:
        yield
    except BadRequest as error:
        raise BadRequest(error.message.replace("_ms", ""), field=(error.field or "").removesuffix("_ms")) from None


def full_ids(ids: Sequence[str], tenant: str | Sequence[str]) -> list[str]:
    """Return the full ids of a producer's tasks, all of one tenant or each of its own. Raises: BadRequest."""
    tenants = list(tenant) if isinstance(tenant, Iterable) and not isinstance(tenant, str) else [tenant] * len(ids)
    if len(tenants) != len(ids):
        raise BadRequest(f"{len(tenants)} tenants were given for {len(ids)} payloads", field="tenant")
    known = {each: check_tenant(each) for each in tenants}
    return [full_id(known[each], id) for each, id in zip(tenants, ids, strict=True)]


def pack_options(options: TaskOptions) -> tuple[Any, ...]:
    """Check options and put them into the order of NewTask's fields. Raises: BadRequest; TypeError for unknown ones."""
    if unknown := options.keys() - TaskOptions.__annotations__.keys():
        raise TypeError(f"enqueue has no option {min(unknown)!r}")
    if options.get("dedupe_payload") and options.get("dedupe_key"):
        raise BadRequest("give dedupe_key or dedupe_payload, not both", field="dedupe_key")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if given.pop("dedupe_payload", False):
        given["dedupe_key"] = "payload"  # the caller knows it
    values = tuple(_option(name, given, default) for name, default in OPTIONS.items())
    with _our_names():
        NewTask("any", b"", *values).check()
    return values


def hash_payload(payload: bytes) -> str:
    """Return a dedupe key that equal JSON values share."""
    canonical = orjson.dumps(orjson.loads(payload), option=orjson.OPT_SORT_KEYS)
    return f"sha256:{sha256(canonical).hexdigest()}"


def _option(field: str, given: Mapping[str, Any], default: Any) -> Any:
    """Return the value of NewTask's field, from the option of the same name without `_ms`.

    Where None is allowed it is not the same as 0: a deadline may be over when the caller computes it.
    """
    name = field.removesuffix("_ms")
    if name == field or name not in given:
        return given.get(name, default)
    if name.endswith("_at"):
        return _at_ms(given[name], name, MOMENT if default is not None else SOME_MOMENT)
    return to_ms(given[name], name, SPAN if default is not None else SOME_SPAN)


def check_in_time(outcomes: Sequence[str]) -> None:
    """Refuse tasks that the store did not accept because they had expired. Raises: BadRequest."""
    if "expired" in outcomes:
        raise BadRequest(
            "not enqueued: the task would expire before it may start; expires_after_start counts from the start",
            field="expires_at",
        )


def interval_ms(every: Seconds | None) -> int:
    """Check the interval of a schedule, in seconds; 0 for none. Raises: BadRequest."""
    if every is None:
        return 0
    ms = to_ms(every, "every")
    if ms < MIN_EVERY_MS:
        raise BadRequest(f"every must be {MIN_EVERY_MS // 1000} second or more", field="every")
    return ms


def scheduled_options(options: TaskOptions) -> dict[str, Any]:
    """Check the options of a schedule's tasks; returns fields of its frame. Raises: BadRequest; TypeError."""
    for name in ("delay", "start_at", "expires_at", "batch", "replace"):
        if options.get(name) is not None:
            raise BadRequest(f"the tasks of a schedule have no {name}", field=name)
    asked = dict(zip(OPTIONS, pack_options(options), strict=True))
    named = {"task_name": asked["name"]} if asked["name"] else {}
    return {name: asked[name] for name in SCHEDULED} | named


def pack_filter(which: DeadLetterFilter) -> dict[str, Any]:
    """Check a filter and spell it as the wire does. Raises: BadRequest; TypeError for unknown words."""
    if unknown := which.keys() - DeadLetterFilter.__annotations__.keys():
        raise TypeError(f"dead letters have no filter {min(unknown)!r}")
    older, younger = which.get("older_than") or 0, which.get("younger_than")
    chosen = DeadFilter(
        which.get("tenant"),
        which.get("reason"),
        which.get("error"),
        to_ms(older, "older_than"),
        None if younger is None else to_ms(younger, "younger_than", SOME_SPAN),
    )
    with _our_names():
        chosen.check()
    return {name: value for name, value in asdict(chosen).items() if value}


def pack_waiting_filter(older_than: Seconds | None, error: str | None) -> dict[str, Any]:
    """Check a filter of waiting tasks and spell it as the wire does. Raises: BadRequest."""
    chosen = WaitingFilter(to_ms(older_than or 0, "older_than"), error)
    with _our_names():
        check_fields(chosen)
    return {name: value for name, value in asdict(chosen).items() if value}
