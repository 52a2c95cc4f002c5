"""When a tenant or a queue is open by the clock: pure functions of a text and a moment.

The text has spans, divided by commas, then a time zone: `mon-fri 12:00-15:00, sat,sun 22:00-06:00 Europe/Copenhagen`.
It is open while the local time is inside a span. A span that begins or ends at a time that the clock skips does so when
the gap ends. A time that the clock repeats is inside, or outside, both times.

A span that passes midnight belongs to the day on which it opens. Without days it applies to every day. Either all spans
name days or none does, so that a span for weekdays is not opened on Sundays by mistake. The default zone is UTC.
"""

from __future__ import annotations

import re
from collections.abc import Set
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from fairq.errors import BadRequest
from fairq.model.rules import Rule, text
from fairq.model.zones import DAY, change, offset, zones

MAX_SPANS = 32  # of one text
MAX_OPENING_HOURS_CHARS = 1_000

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES = 24 * 60
_WEEK_MINUTES = len(_DAYS) * _DAY_MINUTES
_BLANKS = re.compile(r"\s*([,-])\s*|\s+")
_SPAN = re.compile(r"(?:([a-z][a-z,-]*) )?(\d{1,2}:\d\d)-(\d{1,2}:\d\d)(?![^ ,])", re.ASCII | re.IGNORECASE)


class _Span(NamedTuple):
    """Times in minutes from the midnight with which its days begin; `closes` is the later."""

    days: Set[int]
    opens: int
    closes: int


def check_opening_hours(text: object) -> str:
    """Return the text in its normal form. Raises: BadRequest, also for one that is open all week: it never changes."""
    spans, zone = _read(text)
    _week(spans)
    return f"{', '.join(map(_write, spans))} {zone}"


def next_change(text: str, now_ms: int) -> tuple[bool, int]:
    """Return whether it is open, and the next moment after now at which that changes. Raises: BadRequest."""
    spans, name = _read(text)
    week, zone = _week(spans), ZoneInfo(name)
    moment = datetime.fromtimestamp(now_ms / 1000, UTC).replace(microsecond=0)
    is_open = _shows(week, zone, moment)
    while _shows(week, zone, moment) == is_open:
        moment = _next(week, zone, moment)
    return is_open, round(moment.timestamp() * 1000)


def _next(week: bytes, zone: ZoneInfo, moment: datetime) -> datetime:
    """Return when it changes, or an earlier moment to look again: when the clock is changed, or in a day."""
    minute = _minute(zone, moment)
    minutes = (week + week).index(1 - week[minute], minute) - minute
    ends = moment + timedelta(minutes=minutes, seconds=-moment.astimezone(zone).second)
    ends = min(ends, moment + DAY)
    return ends if offset(zone, ends) == offset(zone, moment) else change(zone, moment, ends)


def _shows(week: bytes, zone: ZoneInfo, moment: datetime) -> bool:
    return bool(week[_minute(zone, moment)])


def _minute(zone: ZoneInfo, moment: datetime) -> int:
    """Return which minute of the week the clock on the wall shows."""
    wall = moment.astimezone(zone)
    return wall.weekday() * _DAY_MINUTES + wall.hour * 60 + wall.minute


def _week(spans: list[_Span]) -> bytes:
    """Return a 1 for each minute of the week that is open, from Monday on, else a 0. Raises: BadRequest if all are."""
    minutes = bytearray(3 * _WEEK_MINUTES)
    for span in spans:
        for day in span.days:
            for begin in (day * _DAY_MINUTES, (day + len(_DAYS)) * _DAY_MINUTES):  # a Sunday may end in the next week
                minutes[begin + span.opens : begin + span.closes] = b"\1" * (span.closes - span.opens)
    week = bytes(minutes[_WEEK_MINUTES : 2 * _WEEK_MINUTES])
    if all(week):
        raise _bad("without opening hours it is open all week: leave them out")
    return week


def _read(text: object) -> tuple[list[_Span], str]:
    """Return spans and zone. Raises: BadRequest."""
    if not isinstance(text, str) or len(text) > MAX_OPENING_HOURS_CHARS:
        raise _bad(f"they must be text of at most {MAX_OPENING_HOURS_CHARS} characters")
    text = _BLANKS.sub(lambda match: match[1] or " ", text.strip())
    found: list[tuple[str | None, _Span]] = []
    at = 0
    while True:
        match = _SPAN.match(text, at)
        if not match:
            raise _bad(f"{text[at:]!r:.40} does not begin with a span, such as mon-fri 12:00-15:00")
        found.append((match[1], _span(*match.groups())))
        at = match.end() + 1
        if text[match.end() : at] != ",":
            break
    if len(found) > MAX_SPANS:
        raise _bad(f"{len(found)} spans are too many; {MAX_SPANS} are the limit")
    if len({days is None for days, _ in found}) > 1:
        raise _bad("some spans name days and some do not; say mon-sun for every day")
    zone = text[at:] or "UTC"
    if zone not in zones():
        raise _bad(f"unknown time zone {zone!r:.80}; one stands after the last span, and commas between spans")
    return [span for _, span in found], zone


def _span(days: str | None, begin: str, end: str) -> _Span:
    opens, closes = _time(begin), _time(end)
    if opens == _DAY_MINUTES:
        raise _bad("a span may not begin at 24:00; use 00:00 of the next day")
    if opens == closes:
        raise _bad(f"{begin}-{end} ends when it begins; a whole day is 00:00-24:00")
    return _Span(_days(days or "mon-sun"), opens, closes if closes > opens else closes + _DAY_MINUTES)


def _time(text: str) -> int:
    hour, minute = map(int, text.split(":"))
    if minute > 59 or hour * 60 + minute > _DAY_MINUTES:
        raise _bad(f"{text!r} is not a time of day from 00:00 to 24:00")
    return hour * 60 + minute


def _days(text: str) -> Set[int]:
    """Read a list of days and ranges; a range may pass Sunday."""
    days: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = part.partition("-")
        if first not in _DAYS or (dash and last not in _DAYS):
            raise _bad(f"{part!r:.40} is not a day or a range of days; days are {', '.join(_DAYS)}")
        begin = _DAYS.index(first)
        count = (_DAYS.index(last) - begin) % len(_DAYS) if dash else 0
        days |= {(begin + n) % len(_DAYS) for n in range(count + 1)}
    return days


def _write(span: _Span) -> str:
    """Write a span in its canonical form: days in as few ranges as possible."""
    week = len(_DAYS)
    parts = []
    for day in [day for day in range(week) if day in span.days and (day - 1) % week not in span.days] or [0]:
        count = next((n for n in range(1, week) if (day + n) % week not in span.days), week)
        last = (day + count - 1) % week
        parts.append(_DAYS[day] if last == day else f"{_DAYS[day]}-{_DAYS[last]}")
    ends = span.closes if span.closes <= _DAY_MINUTES else span.closes - _DAY_MINUTES
    return f"{','.join(parts)} {_clock(span.opens)}-{_clock(ends)}"


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _bad(message: str) -> BadRequest:
    return BadRequest(f"opening_hours: {message}", field="opening_hours")


OPENING_HOURS = Rule(  # empty: always open
    lambda value, _: value and check_opening_hours(value), text(0, MAX_OPENING_HOURS_CHARS).schema
)
