"""Finds the known name that a mistyped name may stand for."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

MAX_COMPARED = 100  # names that begin or end alike: some 2 ms
_ALIKE = 2  # letters at one end must be equal; of a short name one


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name nearest to one; empty if none is near. At most MAX_COMPARED are compared."""
    n = _ALIKE if len(name) > 3 else 1
    alike = (each for each in known if each[:n] == name[:n] or each[-n:] == name[-n:])
    return next(iter(get_close_matches(name, islice(alike, MAX_COMPARED), n=1)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that offers the nearest known name; empty if none is near."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""
