"""What a caller may say of a task beside its payload: in seconds and datetimes here, in ms on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict

from fairq.errors import BadRequest
from fairq.model import MAX_ATTEMPTS, MAX_SPAN_MS, MAX_TIME_MS, MIN_EVERY_MS, NewTask, check_int


class TaskOptions(TypedDict, total=False):
    """Options of `enqueue`; None is as good as absent."""

    delay: float | None  # seconds from now before it may start
    start_at: datetime | float | None  # or when: aware, or seconds since the epoch
    expires_in: float | None  # seconds from now after which it shall not start any more
    expires_at: datetime | float | None
    max_attempts: int | None  # before it is a dead letter; None: as the queue is configured


def _ms(seconds: float | None, what: str, highest_ms: int = MAX_SPAN_MS) -> int:
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds * 1000 <= highest_ms:
        raise BadRequest(f"{what} must be 0 to {highest_ms // 1000} seconds, not {seconds!r:.80}", field=what)
    return round(seconds * 1000)


def _at_ms(moment: datetime | float | None, what: str) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise BadRequest(f"{what} must say its time zone", field=what)
        moment = moment.timestamp()
    return _ms(moment, what, MAX_TIME_MS)


def interval_ms(every: float | None) -> int:
    """Check the interval of a schedule, in seconds; 0 for none. Raises: BadRequest."""
    ms = _ms(every, "every")
    if every is not None and ms < MIN_EVERY_MS:
        raise BadRequest(f"every must be {MIN_EVERY_MS // 1000} second or more", field="every")
    return ms


def pack_options(options: TaskOptions) -> tuple[int, ...]:
    """Check options and put them into the order of NewTask's fields. Raises: BadRequest; TypeError for unknown ones."""
    if unknown := options.keys() - TaskOptions.__annotations__.keys():
        raise TypeError(f"enqueue has no option {min(unknown)!r}")
    attempts = options.get("max_attempts")
    values = (
        _ms(options.get("delay"), "delay"),
        _at_ms(options.get("start_at"), "start_at"),
        _ms(options.get("expires_in"), "expires_in"),
        _at_ms(options.get("expires_at"), "expires_at"),
        0 if attempts is None else check_int(attempts, "max_attempts", 1, MAX_ATTEMPTS),
    )
    try:
        NewTask("any", b"", *values).check()
    except BadRequest as error:  # in the words of our arguments
        raise BadRequest(error.message.replace("_ms", ""), field=(error.field or "").removesuffix("_ms")) from None
    return values
