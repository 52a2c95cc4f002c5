"""The workers of other servers and their slots for each queue, by their reports of the last seconds."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import trio
from attrs import define, field

from fairq.server.engine.net.silent_workers import Silence

_FORGET_S = 60.0  # after which the slots of a server that has sent nothing are forgotten


class PoolSize(NamedTuple):
    """How many workers of a server have the same queues (a pool), and their slots together."""

    queues: Sequence[str]
    workers: int
    slots: int


@define(eq=False)
class Offer:
    """The workers of a queue, at all servers; how many slots they share with other queues, and all these queues."""

    workers: int = 0
    shared: int = 0
    shared_by: set[str] = field(factory=set)


def offers_of(pools: Iterable[PoolSize]) -> dict[str, Offer]:
    """Return what pools of workers offer to each of their queues."""
    found: dict[str, Offer] = {}
    for queues, workers, slots in pools:
        for queue in queues:
            offer = found.setdefault(queue, Offer())
            offer.workers += workers
            if len(queues) > 1:
                offer.shared += slots
                offer.shared_by.update(queues)
    return found


class _Report(NamedTuple):
    """A server's last report, and when it came."""

    at: float
    slots: dict[str, list[float]]
    pools: Sequence[PoolSize]
    silent: Sequence[Silence]


@define(eq=False)
class ServerSlots:
    """Slots by server and queue: whole, and divided among each worker's queues (those of draining workers left out)."""

    _reports: dict[str, _Report] = field(factory=dict, init=False)

    def hear(self, server: str, slots: dict[str, list[float]], more: Mapping[str, Any]) -> bool:
        """Store a server's report: its slots, whole and divided, by queue; returns whether the server was unknown.

        `more` has its pools, as `groups`, and its `silent` workers.
        """
        now = trio.current_time()
        self._reports = {name: each for name, each in self._reports.items() if each.at > now - _FORGET_S}
        is_new = server not in self._reports
        pools, silent = more.get("groups", ()), more.get("silent", ())
        self._reports[server] = _Report(
            now, slots, [PoolSize(*each) for each in pools], [Silence(*each) for each in silent]
        )
        return is_new

    def servers(self) -> set[str]:
        """Name all other servers."""
        return set(self._recent())

    def silent(self) -> Iterator[tuple[str, Silence]]:
        """Yield the silent workers of all other servers, each with its server."""
        for server, report in self._recent().items():
            yield from ((server, each) for each in report.silent)

    def pools(self) -> Iterator[PoolSize]:
        """Yield the pools of workers of all other servers."""
        for report in self._recent().values():
            yield from report.pools

    def whole(self, queue: str) -> int:
        """Count the slots of all other servers for a queue."""
        return int(sum(whole for whole, _ in self._of(queue).values()))

    def divided(self, queue: str) -> float:
        """Count them divided, without those of draining workers."""
        return sum(divided for _, divided in self._of(queue).values())

    def queues(self) -> set[str]:
        """Name the queues that workers of other servers take tasks of."""
        return {queue for report in self._recent().values() for queue, (_, has) in report.slots.items() if has}

    def choose(self, queue: str, slots: int) -> str:
        """Choose a server with this many slots of workers for a queue, busy or free; empty if none is known."""
        able = {name: whole for name, (whole, _) in self._of(queue).items() if whole >= max(1, slots)}
        return random.choices(list(able), list(able.values()))[0] if able else ""

    def _of(self, queue: str) -> dict[str, list[float]]:
        """Return the slots for a queue, whole and divided, by server."""
        if not self._reports:  # asked for each claim
            return {}
        return {name: report.slots[queue] for name, report in self._recent().items() if queue in report.slots}

    def _recent(self) -> dict[str, _Report]:
        """Return the reports of all servers that are not outdated."""
        since = trio.current_time() - _FORGET_S
        return {name: report for name, report in self._reports.items() if report.at > since}
