"""The attempts that this server sees go by: those that run, and how the last ones ended. In memory; no I/O.

It costs a task two small objects. Of MAX_QUEUES queues, those with the latest traffic, each has the last MAX_ENDED
attempts that ended, with MAX_ERROR characters of their errors: at most 40 MiB in all. Each has at most MAX_RUNNING
running ones; those that were extended least recently are left out. The lease of a running one that is settled at
another server stays here until its time is over.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from attrs import define, field

from fairq.model.attempts import AttemptFilter, AttemptState
from fairq.model.tasks import Action, Lease, Settlement, is_last_attempt, leased_at_ms

MAX_QUEUES, MAX_ENDED, MAX_RUNNING, MAX_ERROR = 50, 500, 10_000, 300
_OVER_S = 1.0  # beyond which a lease that was not extended is over


@define(eq=False)
class _Running:
    """A lease that was given out; `attempt` 0: by another server."""

    lease: int
    over_at: float
    attempt: int = 0
    max_attempts: int = 0
    name: str = ""
    is_stopping: bool = False  # the task was cancelled


class Seen(NamedTuple):
    """An attempt: it runs, or has ended."""

    id: str
    lease: int
    state: AttemptState
    attempt: int
    name: str
    ran_ms: int
    error: str = ""


@define(eq=False)
class _OfQueue:
    """The attempts at one queue's tasks; the running ones in the order of their last extension."""

    lasts_s: float = 0.0
    offset_ms: float = field(factory=lambda: (time.time() - time.monotonic()) * 1000)  # of the store's clock from ours
    running: OrderedDict[str, _Running] = field(factory=OrderedDict)
    ended: deque[Seen] = field(factory=lambda: deque(maxlen=MAX_ENDED))

    def run(self, id: str, running: _Running) -> None:
        """Note that a lease begins, or goes on."""
        self.running[id] = running
        self.running.move_to_end(id)
        if len(self.running) > MAX_RUNNING:
            self.running.popitem(last=False)

    def drop_over(self, now: float) -> None:
        """Drop the leases whose time is over, up to the first that lasts."""
        while self.running and next(iter(self.running.values())).over_at < now:
            self.running.popitem(last=False)

    def take(self, id: str, lease: int) -> _Running | None:
        """Remove a lease that has ended, and return it if it is known."""
        found = self.running.get(id)
        if found is None or found.lease != lease:
            return None
        del self.running[id]
        return found


@define(eq=False)
class AttemptLog:
    """The attempts at all queues' tasks."""

    _queues: OrderedDict[str, _OfQueue] = field(factory=OrderedDict, init=False)

    def _of(self, queue: str) -> _OfQueue:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = _OfQueue()
            if len(self._queues) > MAX_QUEUES:
                self._queues.popitem(last=False)
        else:
            self._queues.move_to_end(queue)
        return found

    def claimed(self, queue: str, now_ms: int, lease_ms: int, leases: Sequence[Lease]) -> None:
        """Note leases that begin."""
        of, now = self._of(queue), time.monotonic()
        of.offset_ms, of.lasts_s = now_ms - now * 1000, lease_ms / 1000
        of.drop_over(now)
        over_at = now + of.lasts_s + _OVER_S
        for lease in leases:
            of.run(lease.id, _Running(lease.lease, over_at, lease.attempt, lease.max_attempts, lease.name))

    def settled(self, queue: str, settlements: Sequence[Settlement], outcomes: Sequence[str]) -> None:
        """Note leases that end, or go on."""
        of, now = self._of(queue), time.monotonic()
        now_ms = of.offset_ms + now * 1000
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            action, id, lease = settlement.action, settlement.id, _number(settlement.lease)
            known = of.take(id, lease)
            if action in ("extend", "take"):
                word = outcome.partition(" ")[0]
                if word in ("ok", "cancelled"):
                    known = known or _Running(lease, 0.0)
                    known.over_at, known.is_stopping = now + of.lasts_s + _OVER_S, word == "cancelled"
                    of.run(id, known)
            elif outcome == "ok" or (known and outcome == "gone"):  # gone: the first answer was lost
                state = _state(action, known)
                attempt, name = (known.attempt, known.name) if known else (0, "")
                ran_ms = max(0, round(now_ms - leased_at_ms(lease)))
                of.ended.append(Seen(id, lease, state, attempt, name, ran_ms, settlement.error[:MAX_ERROR]))

    def lost(self, queue: str, told: Sequence[tuple[str, int, int]]) -> None:
        """Note leases (id, number, attempt) whose time was over."""
        of = self._of(queue)
        now_ms = of.offset_ms + time.monotonic() * 1000
        for id, lease, attempt in told:
            known = of.take(id, lease)
            state: AttemptState = "cancelled" if known and known.is_stopping else "lost"
            ran_ms = max(0, round(now_ms - leased_at_ms(lease)))
            of.ended.append(Seen(id, lease, state, attempt, known.name if known else "", ran_ms))

    def stopping(self, queue: str, id: str) -> None:
        """Note that a task was cancelled while it runs."""
        if (of := self._queues.get(queue)) and (running := of.running.get(id)):
            running.is_stopping = True

    def forget(self, queue: str) -> None:
        """Forget a queue that was deleted."""
        self._queues.pop(queue, None)

    def running(self, queue: str, which: AttemptFilter, count: int) -> list[Seen]:
        """Return attempts that run and match, those that have run longest."""
        if (of := self._queues.get(queue)) is None:
            return []
        now = time.monotonic()
        now_ms = of.offset_ms + now * 1000
        found = (
            (each.lease, id, each)
            for id, each in of.running.items()
            if each.over_at >= now and which.has("running", id, each.name)
        )
        return [
            Seen(id, lease, "running", each.attempt, each.name, max(0, round(now_ms - leased_at_ms(lease))))
            for lease, id, each in nsmallest(count, found, key=lambda row: row[:2])
        ]

    def ended(self, queue: str, which: AttemptFilter, count: int) -> list[Seen]:
        """Return attempts that have ended and match, those that ended last."""
        of = self._queues.get(queue)
        rows = reversed(of.ended) if of else iter(())
        return list(islice((each for each in rows if which.has(each.state, each.id, each.name, each.error)), count))


def _number(lease: int | str) -> int:
    """Return a lease's number, which may have behind it how often it was taken over (TaskCalls.give_back)."""
    return lease if isinstance(lease, int) else int(lease.partition("/")[0])


def _state(action: Action, known: _Running | None) -> AttemptState:
    """Return how an attempt has ended."""
    if action == "ack":
        return "done"
    if known and known.is_stopping:
        return "cancelled"
    if action == "reject":
        return "dead"
    if action == "nack":
        return "dead" if known and is_last_attempt(known.attempt, known.max_attempts) else "failed"
    return "lost" if action == "reap" else "released"
