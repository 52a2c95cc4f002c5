"""The names of workers that operators have drained, for those that no connection tells."""

from __future__ import annotations

import trio
from attrs import define, field

from fairq.server.engine.net.auth import Identity

DRAINED_S = 60.0  # how long a name is remembered after its last request
MAX_DRAINED = 1_000


@define(eq=False)
class DrainedNames:
    """Names, each remembered until it has not asked for DRAINED_S."""

    _until: dict[tuple[Identity | None, str], float] = field(factory=dict, init=False)  # None: of any token

    def add(self, identity: Identity | None, name: str) -> None:
        """Remember a name; of too many the one that asked longest ago is forgotten."""
        self._until.pop((identity, name), None)
        while len(self._until) >= MAX_DRAINED:
            del self._until[next(iter(self._until))]
        self._until[identity, name] = trio.current_time() + DRAINED_S

    def asks(self, identity: Identity, name: str) -> bool:
        """Record a request of a worker; returns whether it is drained."""
        now = trio.current_time()
        is_drained = any(self._until.get((owner, name), now) > now for owner in (None, identity))
        if is_drained:
            self.add(identity, name)
        return is_drained
