"""Clocks of time zones, drawn most often near a moment at which they are changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

MINUTE_MS, DAY_MS = 60_000, 86_400_000
COPENHAGEN, NEW_YORK, LORD_HOWE = "Europe/Copenhagen", "America/New_York", "Australia/Lord_Howe"
CAIRO = "Africa/Cairo"  # skips midnight
ZONES = (
    "UTC", COPENHAGEN, NEW_YORK, LORD_HOWE, CAIRO, "Asia/Kathmandu", "Pacific/Auckland", "Pacific/Chatham",
    "America/Sao_Paulo", "America/St_Johns", "Asia/Beirut", "Africa/Casablanca", "Etc/GMT-14",
)  # fmt: skip
LOW, HIGH = (round(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) for year in (2015, 2035))


@cache
def changes(zone: str) -> Sequence[int]:
    """List the days with a change of a zone's clock between their start and end."""
    clock = ZoneInfo(zone)
    days = [(at, datetime.fromtimestamp(at / 1000, clock).utcoffset()) for at in range(LOW, HIGH, DAY_MS)]
    return [day for (day, before), (_, after) in pairwise(days) if before != after]


@st.composite
def clocks(draw: st.DrawFn) -> tuple[str, int]:
    """Draw a zone and a moment there, most often within days before the clock is changed."""
    zone = draw(st.sampled_from(ZONES))
    if draw(st.integers(0, 3)) and changes(zone):
        return zone, draw(st.sampled_from(changes(zone))) + draw(st.integers(-4 * DAY_MS, 2 * DAY_MS))
    return zone, draw(st.integers(LOW, HIGH))


def ms(text: str, zone: str = "UTC", fold: int = 0) -> int:
    """Read a moment on a clock of that zone."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp() * 1000)
