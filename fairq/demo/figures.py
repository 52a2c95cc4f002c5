"""Functions for the figures in the tables and the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def percentile(values: Iterable[float], percent: float) -> float | None:
    """Return the smallest value that `percent` % of the values do not exceed; None without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] if ordered else None


def fractions(rows: Sequence[Mapping[str, Any]], column: str) -> dict[str, float]:
    """Return each tenant's part of a column's sum."""
    total = sum(row[column] for row in rows)
    return {row["tenant"]: row[column] / total if total > 0 else 0.0 for row in rows}
