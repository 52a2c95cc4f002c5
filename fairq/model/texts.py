"""Times and durations as people read them, on terminals and pages."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def say_span(ms: int) -> str:
    """Write a duration in its two largest units, such as `2 h 5 min`."""
    parts: list[str] = []
    for size, unit in _UNITS:
        count, ms = divmod(max(0, ms), size)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def say_moment(at_ms: int) -> str:
    """Write a time in ms as UTC; empty for 0."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "seconds") if at_ms else ""
