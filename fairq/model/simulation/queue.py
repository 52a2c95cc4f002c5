"""The queue that is simulated: the exact model's fair pick (fairq/model/queue) in virtual time. Times are in ms."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from fairq.model.queue.limits import ALL_UNSET, UNSET
from fairq.model.queue.ready import Asked
from fairq.model.queue.records import Records
from fairq.model.simulation.setup import LIMITS, Setup
from fairq.model.tasks import DEFAULT_PRIORITY

_ASKED = Asked(DEFAULT_PRIORITY)


class Start(NamedTuple):
    """A task that begins: its tenant, when it came, and which attempt it is."""

    tenant: str
    came_at: float
    attempt: int


class SimulatedQueue(Records):
    """A queue of tasks that are only a tenant, a time and an attempt."""

    def __init__(self, setup: Setup, random: Random) -> None:
        super().__init__()
        self.origin = -1.0  # 0 would be a queue that has not begun
        self.slots, self.reserve, self.share = setup.slots, setup.reserve, int(setup.share != "time")
        for name, terms in setup.tenants.items():
            self.own[name] = ALL_UNSET | {limit: getattr(terms, limit) or UNSET for limit in LIMITS}
            self.touch(name).weight = round(terms.weight * 1000)
        self._random_values: Iterator[float] = iter(random.random, None)
        self._starts: dict[str, Start] = {}  # of the tasks that wait

    def arrive(self, start: Start, now: float) -> None:
        """Add a waiting task."""
        self.open(now)
        self.sequence += 1
        id = str(self.sequence)
        self._starts[id] = start
        self.touch(start.tenant).ready.put(id, _ASKED, self.sequence)
        self.close(now)

    def claim(self, limit: int, now: float) -> list[Start]:
        """Begin up to `limit` tasks, at least one unless none may start."""
        if not self.servable:
            return []
        self.open(now)
        self.kept_out = []
        picks = self.pick_round(limit, self._random_values)
        while not picks and not self.is_empty:  # entries of the wake list were dropped
            picks = self.pick_round(limit, self._random_values)
        self.close(now)
        return [self._starts.pop(pick.id) for pick in picks]

    def end(self, tenant: str, began_at: float, now: float) -> None:
        """End a lease."""
        self.open(now)
        self.charge_lease(self.touch(tenant), began_at - self.call_origin, now, is_worked=True)
        self.close(now)

    def let_in(self, tenant: str, now: float) -> None:
        """Let a tenant in that has tokens again."""
        self.open(now)
        self.unpark([tenant])
        self.close(now)
