"""How many requests and waits are under way, in all and for each tenant or token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from attrs import define, field

from fairq.errors import TooMany
from fairq.server.http.bounds import RETRY_MS


@define(eq=False)
class Places:
    """A number of places, of which no owner takes more than its part."""

    what: str
    most: int
    most_each: int
    taken: int = field(default=0, init=False)
    _owners: Counter[Hashable] = field(factory=Counter, init=False)

    @contextmanager
    def one(self, owner: Hashable, part: int = 1) -> Iterator[None]:
        """Take a place while the context lasts; `part`: how many owners this one stands for. Raises: TooMany."""
        if self.taken >= self.most:
            raise TooMany(f"too many requests: at most {self.most} {self.what} at this server", retry_in_ms=RETRY_MS)
        if self._owners[owner] >= self.most_each * part:
            message = f"too many requests: at most {self.most_each * part} {self.what} for this tenant or token"
            raise TooMany(message, retry_in_ms=RETRY_MS)
        self.taken += 1
        self._owners[owner] += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._owners[owner] -= 1
            if not self._owners[owner]:
                del self._owners[owner]
