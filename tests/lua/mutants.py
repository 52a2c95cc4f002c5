"""Planted bugs, as mutants.diff has them. Each is put into the library's text, and a random walk must find it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from .walks import Place

FILE = Path(__file__).with_name("mutants.diff")


class Mutant(NamedTuple):
    """A planted bug."""

    name: str
    text: str
    instead: str
    place: Place | None

    @property
    def change(self) -> tuple[str, str]:
        return self.text, self.instead


def read_mutants() -> list[Mutant]:
    """Read the table."""
    mutants: list[Mutant] = []
    lines = (line for line in FILE.read_text().splitlines() if line[0] != "#")
    for sign, rows in groupby(lines, lambda line: line[0] if line[0] in "-+" else ""):
        text = "\n".join(row[len(sign) :] for row in rows)
        if sign == "-":
            mutants[-1] = mutants[-1]._replace(text=text)
        elif sign == "+":
            mutants[-1] = mutants[-1]._replace(instead=text)
        else:
            name, _, place = text.partition(" @ ")
            kind, *numbers = place.split() or [""]
            mutants.append(Mutant(name, "", "", Place(kind, *map(int, numbers)) if kind else None))
    return mutants


def write_places(places: Mapping[str, Place]) -> None:
    """Write where each is found, as far as it is."""
    lines = []
    for line in FILE.read_text().splitlines():
        name = line.partition(" @ ")[0]
        lines.append(f"{name} @ {' '.join(map(str, places[name]))}" if name in places else name)
    new = FILE.with_suffix(".new")
    new.write_text("\n".join(lines) + "\n")
    new.replace(FILE)


MUTANTS = read_mutants()
