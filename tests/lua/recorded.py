"""A fleet on the test clock whose history is kept as servers keep it; and what a simulation reads of it."""

from __future__ import annotations

import random
from collections import Counter

import redis
from attrs import frozen

from fairq.model.history import History
from fairq.model.limits import Limits
from fairq.model.operator_views import QueueRow
from fairq.model.queues import QueueSettings
from fairq.model.simulation.observed import Observed, observe
from fairq.model.tenants import TenantState
from fairq.server.engine.stats.history import summed
from fairq.store.records import pack_waits, unpack_slot

from .calls import Queue
from .fleet import Fleet, Length, Sender

FLUSH_MS = 10_000


@frozen
class Traffic:
    """A tenant of a scenario: its tasks come by chance, `every_ms` on average, so many at once, or all at a time."""

    length: Length
    every_ms: float
    at_once: int = 1
    weight: float = 1.0
    max_running: int = 0
    backlog: int = 0


@frozen
class Got:
    """What a tenant got: its part of the worker time, the p99 of its tasks' waiting times, how many started."""

    share: float
    p99_ms: float
    started: int


class RecordedFleet(Fleet):
    """A fleet that adds to the history every ten seconds, at no round times."""

    def __init__(self, client: redis.Redis, slots: int, traffic: dict[str, Traffic], seconds: int, seed: int) -> None:
        client.flushall()
        super().__init__(Queue(client), slots, seed)
        self.limits: dict[str, Limits] = {}
        self.enqueued, self.counted, self.waited = Counter[str](), Counter[str](), Counter[str]()
        for name, each in traffic.items():
            self.limits[name] = Limits(max_running=each.max_running)
            length = _same_again(name, each.length, seed)
            sender = self.tenant(name, length, each.backlog, weight=each.weight, max_running=each.max_running)
            at, source = 0.0, random.Random(f"{seed} {name}")
            while (at := at + source.expovariate(1 / each.every_ms)) < 1000 * seconds:
                self.arrive(round(at), sender, each.at_once)

    def enqueue(self, sender: Sender, count: int) -> None:
        self.enqueued[sender.name] += count
        super().enqueue(sender, count)

    def flush(self) -> None:
        """Add the counts to the history."""
        args: list[object] = []
        for name, sender in self.senders.items():
            waits = Counter((round(wait) ** 2).bit_length() for wait in sender.waits[self.waited[name] :])
            args += (name, self.enqueued.pop(name, 0), sender.started - self.counted[name], 0, pack_waits(waits))
            self.counted[name], self.waited[name] = sender.started, len(sender.waits)
        self.queue.call("add_history", 0, *args)

    def record(self, seconds: int) -> None:
        """Run for so long."""
        at = 3_700 - FLUSH_MS
        while (at := at + FLUSH_MS) < 1000 * seconds:
            self.run(at)
            self.flush()
        self.run(1000 * seconds)
        self.flush()

    def got(self) -> dict[str, Got]:
        """Tell what the tenants have got so far."""
        whole = sum(sender.held(self.now) for sender in self.senders.values())
        return {
            name: Got(sender.held(self.now) / whole, p99(sender.waits), sender.started)
            for name, sender in self.senders.items()
        }

    def history(self) -> History:
        """Read the history of the last hour."""
        found = [self.queue.call("history", 10, last, 240)[2:] for last in self._lasts()]
        slots = [unpack_slot(packed) for page in found for packed in page]
        return summed(slots, 10_000, self.queue.now, unit=1000.0)

    def _lasts(self) -> list[int]:
        last = self.queue.now // 10_000
        return [last - 240, last]

    def observed(self) -> Observed:
        """Tell a simulation what an operator knows."""
        state = self.queue.queue_state()
        ready, pending, leased = (int(state[name]) for name in ("ready", "pending", "leased"))
        row = QueueRow(
            "mail", ready, pending, 0, leased, 0, 0, 0, 0, 0, is_paused=False, is_closed=False, is_deleting=False,
            is_repairing=False, settings=QueueSettings(), workers=1, slots=self.slots, kept=0, idle=0,
        )  # fmt: skip
        states = {}
        for name, share in self.queue.tenants().items():
            states[name] = TenantState(
                name, share.weight / 1000, int(share.ready), int(share.pending), int(share.delayed), int(share.leased),
                0, int(share.done), share.delivered, share.entitled, False, False, False, True, False, 0,
            )  # fmt: skip
        return observe(row, self.history(), states, self.limits)


def _same_again(name: str, length: Length, seed: int) -> Length:
    """Have a task take as long whenever it starts: what else happens may differ."""
    return lambda number, _: length(number, random.Random(f"{seed} {name} {number}"))


def p99(waits: list[float]) -> float:
    """Return the waiting time that 99 of 100 did not exceed."""
    return sorted(waits)[-(-len(waits) * 99 // 100) - 1] if waits else 0.0
