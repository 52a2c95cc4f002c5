"""How many requests and waits are under way, in all and for each tenant or token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from attrs import define, field

from fairq.errors import TooMany
from fairq.server.web.http.bounds import RETRY_MS


@define(eq=False)
class Places:
    """A number of places, of which no owner takes more than its part."""

    what: str
    most: int
    most_each: int
    most_of_token: int
    taken: int = field(default=0, init=False)
    _owners: Counter[Hashable] = field(factory=Counter, init=False)

    @contextmanager
    def one(self, owner: Hashable, *, is_token: bool = False) -> Iterator[None]:
        """Take a place while the context lasts; `is_token`: the owner is a token of many users. Raises: TooMany."""
        most = self.most_of_token if is_token else self.most_each
        if self.taken >= self.most:
            raise TooMany(f"too many requests: at most {self.most} {self.what} at this server", retry_in_ms=RETRY_MS)
        if self._owners[owner] >= most:
            message = f"too many requests: at most {most} {self.what} for this tenant or token"
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
