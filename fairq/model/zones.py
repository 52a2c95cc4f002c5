"""Time zones: their names, and when their local time changes."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from zoneinfo import ZoneInfo

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


@cache
def zones() -> frozenset[str]:
    """Name all time zones: the same ones on every machine, whatever else lies among its zone files."""
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split())


def offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    """Return how far local time is ahead of UTC."""
    ahead = moment.astimezone(zone).utcoffset()
    assert ahead is not None
    return ahead


def change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Find the second in which the clock is changed, between two moments that differ in their offsets.

    (They are at most a day apart: no zone changes its clock twice in so short a time.)
    """
    new = offset(zone, after)
    while after - before > SECOND:
        middle = (before + (after - before) / 2).replace(microsecond=0)
        before, after = (before, middle) if offset(zone, middle) == new else (middle, after)
    return after
