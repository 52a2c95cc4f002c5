"""Limits the concurrent requests to each host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from attrs import define, field


@define(eq=False)
class HostLimits:
    """One limit per host, first come, first served; hosts without requests are forgotten."""

    limit: int
    _hosts: dict[str, trio.CapacityLimiter] = field(factory=dict, init=False)

    @asynccontextmanager
    async def slot(self, host: str) -> AsyncIterator[None]:
        """Wait for one of the host's slots, and hold it while the context lasts."""
        limiter = self._hosts.setdefault(host, trio.CapacityLimiter(self.limit))
        try:
            async with limiter:
                yield
        finally:
            if not limiter.borrowed_tokens and not limiter.statistics().tasks_waiting:
                self._hosts.pop(host, None)

    def __len__(self) -> int:
        """Return how many hosts are in use."""
        return len(self._hosts)
