"""When schedules fire: compared with a clock on the wall, minute by minute, through gaps, overlaps and leap days."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairq.errors import BadRequest
from fairq.model.cron import check_timing, next_fire, next_fires
from fairq.model.schedules import MAX_CRON_CHARS, Timing
from fairq.model.zones import zones
from tests.store.cases import case, raises_for
from tests.zone_clocks import CAIRO, COPENHAGEN, DAY_MS, HIGH, LOW, MINUTE_MS, NEW_YORK, clocks, ms


def cron(text: str, zone: str = "UTC") -> Timing:
    """Read an expression."""
    return check_timing(text, zone, 0)


def shown(timing: Timing, after: str, count: int, fold: int = 0) -> list[str]:
    """List fires after a moment as the clock of the zone shows them."""
    zone = timing.zone
    fires = next_fires(timing, ms(after, zone, fold), 0, count)
    return [datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).strftime("%m-%d %H:%M%z") for at in fires]


@pytest.mark.parametrize(
    ("expression", "zone", "after", "fires"),
    [
        ("30 2 * * *", COPENHAGEN, "2026-03-28T12:00", ["03-29 03:00+0200", "03-30 02:30+0200"]),
        ("0,30 2 * * *", COPENHAGEN, "2026-03-28T12:00", ["03-29 03:00+0200", "03-30 02:00+0200"]),
        ("30 2 * * *", COPENHAGEN, "2026-10-24T12:00", ["10-25 02:30+0200", "10-26 02:30+0100"]),
        ("30 2 * * *", NEW_YORK, "2026-03-07T12:00", ["03-08 03:00-0400", "03-09 02:30-0400"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31T12:00", ["11-01 01:30-0400", "11-02 01:30-0500"]),
        ("30 0 * * *", CAIRO, "2026-04-23T12:00", ["04-24 01:00+0300", "04-25 00:30+0300"]),
        ("0 3 * * *", COPENHAGEN, "2026-03-28T12:00", ["03-29 03:00+0200", "03-30 03:00+0200"]),
        ("*/30 * * * *", COPENHAGEN, "2026-03-29T01:00", ["03-29 01:30+0100", "03-29 03:00+0200"]),
        ("0 * * * *", COPENHAGEN, "2026-10-25T01:30", ["10-25 02:00+0200", "10-25 02:00+0100", "10-25 03:00+0100"]),
        ("0 0 29 2 *", "UTC", "2096-03-01T00:00", ["02-29 00:00+0000"]),
        ("0 0 31 * *", "UTC", "2026-01-31T00:00", ["03-31 00:00+0000", "05-31 00:00+0000"]),
        ("0 0 L 2 *", "UTC", "2027-01-01T00:00", ["02-28 00:00+0000", "02-29 00:00+0000"]),
        ("0 9 * * MON#2", COPENHAGEN, "2026-11-01T00:00", ["11-09 09:00+0100", "12-14 09:00+0100"]),
        ("0 0 1 * MON", "UTC", "2026-11-21T00:00", ["11-23 00:00+0000", "11-30 00:00+0000", "12-01 00:00+0000"]),
    ],
)
def test_an_expression_fires_when_the_clock_of_its_zone_says_so(
    expression: str, zone: str, after: str, fires: list[str]
) -> None:
    assert shown(cron(expression, zone), after, len(fires)) == fires


def test_asked_during_a_repeated_hour_a_daily_fire_comes_on_the_next_day() -> None:
    """The time comes again, for the clock on the wall; the day's fire is over."""
    for minute in ("00", "29", "30", "31", "59"):
        fires = shown(cron("30 2 * * *", COPENHAGEN), f"2026-10-25T02:{minute}", 1, fold=1)
        assert fires == ["10-26 02:30+0100"], minute


FIELDS = st.tuples(
    st.sampled_from(["*", "*/15", "0", "7", "30", "0,30", "10-12"]),
    st.sampled_from(["*", "*/6", "0", "1", "2", "3", "0-3", "23"]),
    st.sampled_from(["*", "1", "28", "29", "L", "*/10"]),
    st.sampled_from(["*", "*", "3", "10,11", "2", "4"]),
    st.sampled_from(["*", "*", "SUN", "MON-FRI", "1,3"]),
)


@cache
def holds(field: str, value: int, lowest: int = 0) -> bool:
    """Tell whether a field names a value."""
    first, _, step = {"SUN": "0", "MON-FRI": "1-5"}.get(field, field).partition("/")
    if first == "*":
        return (value - lowest) % int(step or 1) == 0
    ranges = [part.partition("-") for part in first.split(",")]
    return any(int(low) <= value <= int(high or low) for low, _, high in ranges)


def is_on(fields: tuple[str, ...], moment: datetime) -> bool:
    """Tell whether a clock that shows this is one that the expression names: a second reading, by ranges alone."""
    minute, hour, day, month, weekday = fields
    is_last = (moment + timedelta(days=1)).day == 1
    by_day = is_last if day == "L" else holds(day, moment.day, 1)
    by_weekday = holds(weekday, moment.isoweekday() % 7)
    either = by_day and by_weekday if day[0] == "*" or weekday[0] == "*" else by_day or by_weekday
    return holds(minute, moment.minute) and holds(hour, moment.hour) and holds(month, moment.month, 1) and either


@settings(max_examples=25)
@given(fields=FIELDS, clock=clocks())
@example(("*/15", "2", "*", "*", "*"), (COPENHAGEN, ms("2026-10-24T22:00")))
@example(("30", "2", "*", "3", "SUN"), (COPENHAGEN, ms("2026-03-28T22:00")))
@example(("*", "*/6", "*", "*", "SUN"), ("America/Sao_Paulo", 1_445_126_400_000))
@example(("*", "1", "*", "*", "SUN"), ("America/Sao_Paulo", 1_445_126_400_000))
@example(("*/15", "2", "*", "*", "*"), ("Australia/Lord_Howe", 1_428_105_600_000))
@example(("0", "*", "*", "*", "*"), (CAIRO, ms("2026-04-23T12:00")))
@example(("30", "*", "L", "10,11", "*"), (CAIRO, ms("2026-10-29T12:00")))
def test_fires_are_the_minutes_that_the_clock_on_the_wall_shows(
    fields: tuple[str, ...], clock: tuple[str, int]
) -> None:
    """Two days, minute by minute. A daily time fires once a day: if the clock skips it, when the gap ends."""
    zone, after_ms = clock
    timing = cron(" ".join(fields), zone)
    end_ms = after_ms + 2 * DAY_MS
    fires = []
    at = after_ms
    while (at := next_fire(timing, at, 0)) <= end_ms:
        fires.append(at)
    follows_the_wall = fields[0][0] == "*" or fields[1][0] == "*"
    minutes = range(after_ms // MINUTE_MS * MINUTE_MS + MINUTE_MS, end_ms + 1, MINUTE_MS)
    expected = []
    for minute in minutes:
        moment = datetime.fromtimestamp(minute / 1000, ZoneInfo(zone))
        if is_on(fields, moment.replace(tzinfo=None)) and (follows_the_wall or not moment.fold):
            expected.append(minute)
    if follows_the_wall:
        assert fires == expected
        return
    extra = set(fires) - set(expected)
    assert set(expected) <= set(fires)
    for at in extra:  # only where a gap ends, and only for a time inside the gap
        here = datetime.fromtimestamp(at / 1000, ZoneInfo(zone))
        before = datetime.fromtimestamp(at / 1000 - 60, ZoneInfo(zone))
        gap = here.replace(tzinfo=None) - before.replace(tzinfo=None) - timedelta(minutes=1)
        skipped = [here.replace(tzinfo=None) - timedelta(minutes=n) for n in range(1, gap // timedelta(minutes=1) + 1)]
        assert any(is_on(fields, moment) for moment in skipped)


@settings(max_examples=40)
@given(fields=FIELDS, clock=clocks())
@example(fields=("*", "*", "*", "*", "*"), clock=("Europe/Copenhagen", 1_427_587_199_999))
def test_the_next_fire_is_later_and_the_first_of_all_that_are(fields: tuple[str, ...], clock: tuple[str, int]) -> None:
    """Servers that ask later, but before the fire, get the same answer: so servers with different delays agree."""
    zone, after_ms = clock
    timing = cron(" ".join(fields), zone)
    fires = next_fires(timing, after_ms, 0, 4)
    for earlier, later in pairwise([after_ms, *fires]):
        assert earlier < later
        for asked in (earlier, min(earlier + 1, later - 1), (earlier + later) // 2, later - 1):
            assert next_fire(timing, asked, 0) == later


@given(every_ms=st.integers(1000, 10**9), grid_ms=st.integers(LOW, HIGH), ahead_ms=st.integers(-(10**10), 10**10))
def test_an_interval_keeps_to_its_grid(every_ms: int, grid_ms: int, ahead_ms: int) -> None:
    timing, after_ms = check_timing("", "", every_ms), grid_ms + ahead_ms
    at = next_fire(timing, after_ms, grid_ms)
    assert (at - grid_ms) % every_ms == 0
    assert 0 < at - after_ms <= every_ms


@given(st.text(alphabet="0123456789*/,-#LWMONSUJA? \n²", min_size=1, max_size=30) | st.text(max_size=40))
@example("5L/2 * * * *")
@example("* * * * 5#1/2")
@example("* * 1,L * 1,5L/2")
@example("* * * * 5L/2")
@example("0 0 L/2 * *")
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    with suppress(BadRequest):
        assert next_fire(cron(text), LOW, 0) > LOW


def test_an_expression_that_never_fires_is_refused() -> None:
    for text in ("0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 */31 * MON#2", "0 0 1-6 * */7#2"):
        with case(text), raises_for("cron"):
            next_fire(cron(text), LOW, 0)


def test_an_expression_may_be_a_name() -> None:
    assert check_timing("@daily", "", 0) == check_timing("0 0 * * *", "", 0)
    assert check_timing(" @weekly ", "", 0) == check_timing("0 0 * * 0", "", 0)


REFUSED = [
    (("", "", 0), "every_ms"), (("* * * * *", "", 1000), "cron"), (("", "", 999), "every_ms"),
    (("", "UTC", 1000), "zone"), (("* * * *", "", 0), "cron"), (("* * * * * *", "", 0), "cron"),
    (("@reboot", "", 0), "cron"), (("* * * * *", "Mars/Olympus", 0), "zone"), (("* * * * *", "right/UTC", 0), "zone"),
    (("* * * * *", "/etc/localtime", 0), "zone"), (("* * * * *", "Europe", 0), "zone"),
    ((" " * MAX_CRON_CHARS + "* * * * *", "", 0), "cron"), (("60 * * * *", "", 0), "cron"),
    (("*/0 * * * *", "", 0), "cron"), (("5-1 * * * *", "", 0), "cron"), (("* 24 * * *", "", 0), "cron"),
    (("* * 0 * *", "", 0), "cron"), (("* * * 13 *", "", 0), "cron"), (("* * * * 8", "", 0), "cron"),
    (("* * * * MON#6", "", 0), "cron"), (("1.5 * * * *", "", 0), "cron"), (("-1 * * * *", "", 0), "cron"),
]  # fmt: skip


def test_a_timing_that_is_none_is_refused_by_the_field_at_fault() -> None:
    for timing, field in REFUSED:
        with case(timing), raises_for(field):
            check_timing(*timing)


def test_every_zone_that_is_named_can_be_used() -> None:
    assert {"UTC", COPENHAGEN, "Etc/GMT+5"} <= zones()
    for zone in zones():
        assert next_fire(cron("0 3 * * *", zone), LOW, 0) > LOW
