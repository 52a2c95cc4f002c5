"""References between the lines of a backup: the things that they define, each once, and those that they refer to.

They can be compared only at the end, and a backup may be larger than memory. So a thing is a hash of 64 bits: a line
takes 24 bytes for each thing that it defines, and as many for each that it refers to.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from attrs import define, field

from fairq.errors import BadRequest

_PAGES = 256  # looked at one after the other
_WORDS = 3  # of an entry

Key = tuple[object, ...]


class Fault(NamedTuple):
    """A fault of a line."""

    line: int
    error: BadRequest


def _pages() -> list[array[int]]:
    return [array("Q") for _ in range(_PAGES)]


def _hash(key: Key) -> int:
    return int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest())


@define(eq=False)
class Ledger:
    """Remembers the things that lines define, and those that they refer to."""

    _held: list[array[int]] = field(factory=_pages, init=False)  # thing, content, line
    _sought: list[array[int]] = field(factory=_pages, init=False)  # thing, kind of reference, line
    _kinds: dict[tuple[str, str], int] = field(factory=dict, init=False)

    def hold(self, key: Key, content: int, line: int) -> None:
        """Remember that a line defines a thing."""
        thing = _hash(key)
        self._held[thing % _PAGES].extend((thing, content, line))

    def seek(self, key: Key, field: str, line: int) -> None:
        """Remember that a field of a line refers to a thing; the thing's kind is the first word of its key."""
        thing = _hash(key)
        kind = self._kinds.setdefault((field, str(key[0])), len(self._kinds))
        self._sought[thing % _PAGES].extend((thing, kind, line))

    def faults(self) -> Iterator[Fault]:
        """Find lines that define a thing again with other content, or refer to one that is missing."""
        kinds = list(self._kinds)
        for page, sought in zip(self._held, self._sought, strict=True):
            contents = dict[int, int]()
            for at in range(0, len(page), _WORDS):
                thing, content, line = page[at : at + _WORDS]
                if contents.setdefault(thing, content) != content:
                    yield Fault(line, BadRequest("an earlier line has the same key, and other content", field="id"))
            for at in range(0, len(sought), _WORDS):
                thing, kind, line = sought[at : at + _WORDS]
                if thing not in contents:
                    name, what = kinds[kind]
                    yield Fault(line, BadRequest(f"{name} names a {what} that no line has", field=name))
