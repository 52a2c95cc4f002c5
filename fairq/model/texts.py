"""Times and durations as people read them, on terminals and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairq.model.places import AwayPartition

_NAMED = 5  # partitions that a sentence names
_LAST_MS = 253_402_300_799_000  # the end of the year 9999: no datetime is later, and tasks may start later
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def say_ms(ms: float) -> str:
    """Write a waiting time in ms, or seconds, minutes or hours."""
    for size, unit in _UNITS[1:]:
        if ms >= size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms:.0f} ms"


def say_span(ms: int) -> str:
    """Write a duration in its two largest units, such as `2 h 5 min`."""
    parts: list[str] = []
    for size, unit in _UNITS:
        count, ms = divmod(max(0, ms), size)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def say_sharing(row: Mapping[str, Any]) -> str:
    """Say how many queues share a queue's slots, so that they are not added up; empty if it has them alone."""
    many = f"{row['shared']:,} " if row["shared"] < row["slots"] else ""
    return f"{many}shared by {row['shared_by']:,} queues" if row["shared"] else ""


def say_slots(row: Mapping[str, Any]) -> int | str:
    """Return a queue's slots; as a text if it shares them."""
    slots: int = row["slots"]
    return f"{slots:,}, {say_sharing(row)}" if row["shared"] else slots


def say_away(queue: str, away: Sequence[AwayPartition], done: str = "read") -> str:
    """Say which partitions of a queue do not answer, and so cannot be read or otherwise `done`.

    One may be named by several pages of a list.
    """
    away = [*{each.partition: each for each in away}.values()]
    names = [each.partition for each in away if each.partition]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    of = f"partition{'s' * (len(names) > 1)} {', '.join(names[:_NAMED])}{more} of {queue}" if names else queue
    primaries = ", ".join(dict.fromkeys(each.primary or "no primary" for each in away))
    return f"{of} cannot be {done}: the store at {primaries} does not answer"


def say_unlisted(servers: Sequence[str]) -> str:
    """Say of which servers the list of workers is missing."""
    return f"the workers at {', '.join(servers)} cannot be read: their part of the store does not answer"


def moment_of(at_ms: float) -> datetime:
    """Return a time in ms as UTC; the end of the year 9999 for later ones, which tenants may choose."""
    return datetime.fromtimestamp(min(at_ms, _LAST_MS) / 1000, UTC)


def say_moment(at_ms: int) -> str:
    """Write a time in ms as UTC; empty for 0."""
    return moment_of(at_ms).isoformat(" ", "seconds") if at_ms else ""
