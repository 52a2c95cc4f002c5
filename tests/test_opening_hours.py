"""When hours are open: compared with a clock on the wall, minute by minute, through gaps and overlaps."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fairq.errors import BadRequest
from fairq.model.opening_hours import MAX_OPENING_HOURS_CHARS, MAX_SPANS, check_opening_hours, next_change
from fairq.model.zones import zones
from tests.store.cases import case, raises_for
from tests.zone_clocks import CAIRO, COPENHAGEN, DAY_MS, LORD_HOWE, LOW, MINUTE_MS, clocks, ms

DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


Ranges = tuple[tuple[int, int], ...]


@cache
def days_of(ranges: Ranges) -> set[int]:
    """Count through each range, around the week."""
    days = set()
    for first, last in ranges or [(0, 6)]:
        days |= {day % 7 for day in range(first, last + 1 if first <= last else last + 8)}
    return days


class Span(NamedTuple):
    """A span as people mean it: ranges of days, and two times of day in minutes."""

    ranges: Ranges
    opens: int
    closes: int

    def holds(self, wall: datetime) -> bool:
        """Tell whether a clock that shows this is inside: a second reading, day by day."""
        days, today, minute = days_of(self.ranges), wall.weekday(), wall.hour * 60 + wall.minute
        if self.opens < self.closes:
            return today in days and self.opens <= minute < self.closes
        began = today in days and minute >= self.opens
        return began or ((today - 1) % 7 in days and minute < self.closes)


DAY = st.integers(0, 6)
MINUTE = st.sampled_from([0, 1, 60, 90, 105, 119, 120, 121, 135, 150, 165, 179, 180, 1380, 1439]) | st.integers(0, 1439)
NAMED = st.lists(st.tuples(DAY, DAY), min_size=1, max_size=3).map(tuple)


def spans_on(ranges: st.SearchStrategy[Ranges]) -> st.SearchStrategy[list[Span]]:
    """Draw spans on these days."""
    span = st.builds(Span, ranges, MINUTE, MINUTE | st.just(1440)).filter(lambda each: each.opens != each.closes)
    return st.lists(span, min_size=1, max_size=4)


SPANS = spans_on(NAMED) | spans_on(st.just(()))


def written(spans: list[Span], zone: str) -> str:
    """Write spans as people might."""
    texts = []
    for span in spans:
        days = ",".join(DAYS[first] if first == last else f"{DAYS[first]}-{DAYS[last]}" for first, last in span.ranges)
        opens, closes = (f"{minute // 60}:{minute % 60:02}" for minute in (span.opens, span.closes))
        texts.append(f"{days} {opens}-{closes}".strip())
    return f"{', '.join(texts)} {zone}"


def changes_until(text: str, now_ms: int, end_ms: int) -> list[int]:
    """List all changes up to a moment; at each the state is the other one."""
    found = []
    is_open, at = next_change(text, now_ms)
    while at <= end_ms:
        found.append(at)
        was_open = is_open
        is_open, at = next_change(text, at)
        assert is_open is not was_open
    return found


@settings(max_examples=10)
@given(spans=SPANS, clock=clocks())
@example([Span(((0, 6),), 22 * 60, 150)], (COPENHAGEN, 1_792_800_000_000))
@example([Span((), 150, 1440), Span((), 0, 120)], (COPENHAGEN, 1_774_569_600_000))
@example([Span(((4, 4),), 0, 60)], (CAIRO, 1_776_902_400_000))
@example([Span((), 105, 120)], (LORD_HOWE, 1_775_174_400_000))
@example([Span((), 120, 135)], (LORD_HOWE, 1_790_899_200_000))
@example([Span(((6, 6),), 1380, 60)], ("UTC", LOW))
def test_windows_are_open_in_the_minutes_that_the_clock_on_the_wall_shows(
    spans: list[Span], clock: tuple[str, int]
) -> None:
    """Nine days, minute by minute."""
    zone, now_ms = clock
    wall = ZoneInfo(zone)
    minutes = range(now_ms // MINUTE_MS * MINUTE_MS, now_ms + 9 * DAY_MS, MINUTE_MS)
    moments = [datetime.fromtimestamp(minute // 1000, wall) for minute in minutes]
    states = [any(span.holds(moment) for span in spans) for moment in moments]
    text = written(spans, zone)
    try:
        is_open, _ = next_change(text, now_ms)
    except BadRequest:
        assert all(states)
        return
    assert is_open == states[0]
    expected = [
        minute for minute, (before, after) in zip(minutes[1:], pairwise(states), strict=True) if before != after
    ]
    assert changes_until(text, now_ms, minutes[-1]) == expected


@settings(max_examples=40)
@given(spans=SPANS, clock=clocks())
def test_the_next_turn_is_the_first_that_comes_and_the_normal_form_means_the_same(
    spans: list[Span], clock: tuple[str, int]
) -> None:
    """Servers that ask later, but before the change, get the same answer: so servers with different delays agree."""
    zone, now_ms = clock
    text = written(spans, zone)
    try:
        is_open, at = next_change(text, now_ms)
    except BadRequest:
        assume(False)
    assert at > now_ms
    for asked in (now_ms + 1, (now_ms + at) // 2, at - 1):
        if asked < at:
            assert next_change(text, asked) == (is_open, at)
    normal = check_opening_hours(text)
    assert next_change(normal, now_ms) == (is_open, at)
    assert check_opening_hours(normal) == normal
    assert check_opening_hours(normal.replace(", ", " ,  ").replace("-", " - ", 1).replace("mon", "MON")) == normal


@given(st.text(alphabet="monfristu0123459:-, \n²UTC", max_size=40) | st.text(max_size=40))
@example("sun-mon 0:00-24:00")
@example("mon-fri 9:00-12:00,")
def test_any_text_has_a_normal_form_or_is_refused(text: str) -> None:
    with suppress(BadRequest):
        assert next_change(check_opening_hours(text), LOW)[1] > LOW


def test_a_text_is_kept_in_its_normal_form() -> None:
    for text, normal in (
        ("mon-fri 12:00-15:00, sat 10:00-12:00 Europe/Copenhagen",) * 2,
        ("9:00-17:00", "mon-sun 09:00-17:00 UTC"),
        ("  MON ,tue,Wed\t9:00 - 17:00 ,fri 1:00-2:00  Etc/GMT-5 ", "mon-wed 09:00-17:00, fri 01:00-02:00 Etc/GMT-5"),
        ("sun,sat,mon,mon 22:00-6:00", "sat-mon 22:00-06:00 UTC"),
        ("fri-mon,wed 22:00-0:00", "wed,fri-mon 22:00-24:00 UTC"),
        ("tue-mon 00:00-23:59", "mon-sun 00:00-23:59 UTC"),
        ("mon-mon 23:59-24:00", "mon 23:59-24:00 UTC"),
    ):
        assert check_opening_hours(text) == normal


def test_the_longest_text_that_there_can_be_is_not_too_long_in_its_normal_form() -> None:
    text = ",".join(["mon,wed,fri-sat 1:00-9:00"] * MAX_SPANS) + " " + max(zones(), key=len)
    normal = check_opening_hours(text)
    assert len(text) < len(normal) <= MAX_OPENING_HOURS_CHARS
    assert check_opening_hours(normal) == normal


@pytest.mark.parametrize(
    ("text", "after", "shown"),
    [
        ("mon-fri 12:00-15:00 Europe/Copenhagen", "2026-03-27T14:00", ["Fri 15:00+0100", "Mon 12:00+0200"]),
        ("mon-fri 12:00-15:00 America/New_York", "2026-10-30T15:00", ["Mon 12:00-0500", "Mon 15:00-0500"]),
        # the clock skips 02:00-03:00: what begins there begins late, what ends there ends late, what is in there is not
        ("02:30-05:00 Europe/Copenhagen", "2026-03-28T12:00", ["Sun 03:00+0200", "Sun 05:00+0200", "Mon 02:30+0200"]),
        ("01:00-02:30 Europe/Copenhagen", "2026-03-28T12:00", ["Sun 01:00+0100", "Sun 03:00+0200", "Mon 01:00+0200"]),
        ("02:00-03:00 America/New_York", "2026-03-07T12:00", ["Mon 02:00-0400", "Mon 03:00-0400"]),
        ("01:00-04:00 America/New_York", "2026-03-07T12:00", ["Sun 01:00-0500", "Sun 04:00-0400"]),
        ("02:15-04:00 Australia/Lord_Howe", "2026-10-03T12:00", ["Sun 02:30+1100", "Sun 04:00+1100"]),
        ("fri 00:00-01:00 Africa/Cairo", "2026-04-23T12:00", ["Fri 00:00+0300", "Fri 01:00+0300"]),
        ("thu 22:00-00:30 Africa/Cairo", "2026-04-23T12:00", ["Thu 22:00+0200", "Fri 01:00+0300"]),
        ("fri 10:00-12:00 Pacific/Apia", "2011-12-29T12:00", ["Fri 10:00+1400", "Fri 12:00+1400"]),
        ("thu 22:00-06:00 Pacific/Apia", "2011-12-29T12:00", ["Thu 22:00-1000", "Sat 00:00+1400"]),
        # the clock repeats 02:00-03:00: what is in there is twice
        ("01:00-04:00 Europe/Copenhagen", "2026-10-24T12:00", ["Sun 01:00+0200", "Sun 04:00+0100"]),
        ("02:15-02:45 Europe/Copenhagen", "2026-10-25T00:00",
         ["Sun 02:15+0200", "Sun 02:45+0200", "Sun 02:15+0100", "Sun 02:45+0100", "Mon 02:15+0100"]),
        ("02:30-04:00 Europe/Copenhagen", "2026-10-25T00:00",
         ["Sun 02:30+0200", "Sun 02:00+0100", "Sun 02:30+0100", "Sun 04:00+0100"]),
        ("00:30-01:30 America/New_York", "2026-11-01T00:00",
         ["Sun 00:30-0400", "Sun 01:30-0400", "Sun 01:00-0500", "Sun 01:30-0500"]),
        ("01:45-02:15 Australia/Lord_Howe", "2026-04-05T00:00", ["Sun 01:45+1100", "Sun 01:30+1030", "Sun 01:45+1030"]),
        ("mon-fri 09:00-17:00 Asia/Kathmandu", "2026-01-02T00:00", ["Fri 09:00+0545", "Fri 17:00+0545"]),
        ("sat 22:00-06:00 Pacific/Chatham", "2026-04-04T12:00", ["Sat 22:00+1345", "Sun 06:00+1245"]),
        # one that is changed back within a week
        ("sat 23:10-23:50 America/Boa_Vista", "2000-10-07T23:55",
         ["Sat 23:10-0300", "Sat 23:50-0300", "Sat 23:10-0400", "Sat 23:50-0400"]),
        # spans that touch or overlap are one, over midnight and from Sunday to Monday too
        ("mon 22:00-24:00, tue 00:00-06:00, tue 05:00-08:00", "2026-01-05T00:00", ["Mon 22:00+0000", "Tue 08:00+0000"]),
        ("sun 20:00-24:00, mon 00:00-02:00", "2026-01-04T00:00", ["Sun 20:00+0000", "Mon 02:00+0000"]),
        ("sun 22:00-06:00", "2026-01-05T01:00", ["Mon 06:00+0000", "Sun 22:00+0000"]),
        ("mon-sat 00:00-24:00, sun 00:00-23:59", "2026-01-05T01:00", ["Sun 23:59+0000", "Mon 00:00+0000"]),
    ],
)  # fmt: skip
def test_windows_open_and_close_when_the_clock_of_their_zone_says_so(text: str, after: str, shown: list[str]) -> None:
    zone = check_opening_hours(text).rpartition(" ")[2]
    at, found = ms(after, zone), []
    for _ in shown:
        _, at = next_change(text, at)
        found.append(datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).strftime("%a %H:%M%z"))
    assert found == shown


def test_a_turn_is_over_when_it_has_come() -> None:
    """To the millisecond."""
    begin, end = ms("2026-01-05T12:00", "UTC"), ms("2026-01-05T15:00", "UTC")
    for late in (0, 1, 999, 1000, 59_999):
        assert next_change("12:00-15:00", begin - 1 - late) == (False, begin)
        assert next_change("12:00-15:00", begin + late) == (True, end)
        assert next_change("12:00-15:00", end + late) == (False, begin + DAY_MS)


REFUSED: list[tuple[object, str]] = [
    (None, "must be text"), (["mon"], "must be text"),
    ("9:00-17:00" + " " * MAX_OPENING_HOURS_CHARS, "at most 1000 characters"),
    (",".join(["9:00-17:00"] * (MAX_SPANS + 1)), "33 spans are too many"),
    ("", "'' does not begin with a span"), ("UTC", "'UTC' does not begin"), ("mon-fri", "'mon-fri' does not begin"),
    ("9-17", "'9-17' does not begin"), ("9:0-17:00", "does not begin"), ("009:00-17:00", "does not begin"),
    ("9:00–17:00", "does not begin"), ("9:00-17:00:30", "does not begin"), ("٩:٠٠-17:00", "does not begin"),
    ("9:00-17:00,", "'' does not begin"), ("9:00-12:00, Europe/Copenhagen", "'Europe/Copenhagen' does not begin"),
    ("9:00-12:00UTC", "does not begin"), ("mon9:00-12:00", "does not begin"), ("mon tue 9:00-12:00", "not begin"),
    ("25:00-26:00", "'25:00' is not a time of day"), ("9:00-24:01", "'24:01' is not a time"),
    ("9:60-12:00", "'9:60' is not a time"), ("24:00-6:00", "a span may not begin at 24:00"),
    ("9:00-09:00", "ends when it begins"), ("0:00-0:00", "a whole day is 00:00-24:00"),
    ("monday 9:00-12:00", "'monday' is not a day"), ("mon-xyz 9:00-12:00", "'mon-xyz' is not a day"),
    ("mon-,tue 9:00-12:00", "'mon-' is not a day"), ("mon-tue-wed 9:00-12:00", "'mon-tue-wed' is not a day"),
    ("mon,,tue 9:00-12:00", "'' is not a day"), ("ſun 9:00-12:00", "does not begin"),
    ("9:00-12:00 Mars/Olympus", "unknown time zone 'Mars/Olympus'"), ("9:00-12:00 utc", "unknown time zone 'utc'"),
    ("9:00-12:00 /etc/localtime", "unknown time zone"), ("9:00-12:00 Europe", "unknown time zone"),
    ("mon 9:00-12:00 13:00-15:00", "commas between spans"),
    ("mon 9:00-12:00 UTC, tue 9:00-12:00 UTC", "one stands after the last span"),
    ("mon-fri 9:00-12:00, 13:00-17:00", "some spans name days and some do not"),
    ("0:00-24:00", "open all week"), ("12:00-13:00, 13:00-12:00", "open all week"),
    ("mon-sat 22:00-22:01, mon-sun 6:00-5:00, sun-tue 4:00-7:00, wed-sat 5:00-6:00", "open all week"),
]  # fmt: skip


def test_an_invalid_text_is_refused_with_the_reason() -> None:
    for text, words in REFUSED:
        with case(text), raises_for("opening_hours") as caught:
            check_opening_hours(text)
        assert words in caught.value.message, text
        assert len(caught.value.message) < 200, text


def test_every_zone_that_is_named_can_be_used() -> None:
    for zone in zones():
        is_open, at = next_change(f"2:00-3:00 {zone}", LOW)
        assert at - LOW <= DAY_MS
        assert next_change(f"2:00-3:00 {zone}", at)[0] is not is_open
