"""Counts requests, waits and bytes of bodies under way, in all and for each tenant or token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from attrs import define, field

from fairq.errors import TooMany
from fairq.server.web.http import bounds


@define(eq=False)
class Bound:
    """A bound on what is under way: requests, waits or bytes; no owner takes more than its part."""

    what: str
    most: int
    most_each: int
    most_of_token: int
    taken: int = field(default=0, init=False)
    _owners: Counter[Hashable] = field(factory=Counter, init=False)

    @contextmanager
    def one(self, owner: Hashable, *, is_token: bool = False) -> Iterator[None]:
        """Count one while the context lasts; `is_token`: the owner is a token of many users. Raises: TooMany."""
        with self.some(owner, is_token=is_token) as take:
            take(1)
            yield

    @contextmanager
    def some(self, owner: Hashable, *, is_token: bool = False) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts more, or raises TooMany; the end of the context takes all of it back."""
        most, own = self.most_of_token if is_token else self.most_each, 0

        def take(more: int) -> None:
            nonlocal own
            for taken, limit, of_whom in (
                (self.taken, self.most, "at this server"), (self._owners[owner], most, "for this tenant or token"),
            ):  # fmt: skip
                if taken + more > limit:
                    message = f"too many requests: at most {limit} {self.what} {of_whom}"
                    raise TooMany(message, retry_in_ms=bounds.RETRY_MS)
            own += more
            self._add(owner, more)

        try:
            yield take
        finally:
            self._add(owner, -own)

    def _add(self, owner: Hashable, more: int) -> None:
        self.taken += more
        self._owners[owner] += more
        if not self._owners[owner]:
            del self._owners[owner]


def bound(what: str, name: str) -> Bound:
    """Make the bound that bounds.py has under a name: in all, of a tenant, of a token of many users."""
    return Bound(what, *(getattr(bounds, f"MAX_{part}{name}") for part in ("", "TENANT_", "TOKEN_")))
