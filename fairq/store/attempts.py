"""The attempts that this server has seen: the running ones, and how the last ones ended. In memory; no I/O.

It costs a task two tuples. The MAX_QUEUES queues with the latest traffic are kept, each with its last MAX_ENDED
attempts and MAX_ERROR characters of their errors: at most 40 MiB in all. Each has at most MAX_RUNNING running attempts;
those that were extended least recently are left out. If another server settles a running attempt, its lease stays here
until it is over.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from attrs import define, field

from fairq.model.attempts import AttemptFilter, AttemptState
from fairq.model.queues import QueueSettings
from fairq.model.tasks import Action, Lease, Settlement, is_last_attempt, leased_at_ms

MAX_QUEUES, MAX_ENDED, MAX_RUNNING, MAX_ERROR = 50, 500, 10_000, 300
_GOES_ON = frozenset({"extend", "take"})
_OVER_S = 1.0  # beyond which a lease that was not extended is over


# A lease that was given out: its number, when it is over, attempt (0: another server gave it), max_attempts, name, and
# whether the task was cancelled. A plain tuple, as one is made for each task.
_Running = tuple[int, float, int, int, str, bool]


class Seen(NamedTuple):
    """An attempt: it runs, or has ended."""

    id: str
    lease: int
    state: AttemptState
    attempt: int
    name: str
    ran_ms: int
    error: str = ""


_Ended = tuple[str, int, AttemptState, int, str, float, str]  # as Seen, with the time of its end (ms)


@define(eq=False)
class _OfQueue:
    """The attempts at one queue's tasks; the running ones in the order of their last extension."""

    lasts_s: float = QueueSettings().lease_ms / 1000  # as the last claim or take-over has it
    offset_ms: float = field(factory=lambda: (time.time() - time.monotonic()) * 1000)  # of the store's clock from ours
    running: OrderedDict[str, _Running] = field(factory=OrderedDict)
    ended: deque[_Ended] = field(factory=lambda: deque(maxlen=MAX_ENDED))

    def run(self, leases: Mapping[str, _Running]) -> None:
        """Add leases that begin, or go on."""
        for id in self.running.keys() & leases:
            del self.running[id]
        self.running.update(leases)
        while len(self.running) > MAX_RUNNING:
            self.running.popitem(last=False)

    def drop_over(self, now: float) -> None:
        """Drop the leases that are over, up to the first that lasts."""
        while self.running and next(iter(self.running.values()))[1] < now:
            self.running.popitem(last=False)

    def take(self, id: str, lease: int) -> _Running | None:
        """Remove a lease that has ended, and return it if it is known."""
        found = self.running.get(id)
        if found is None or found[0] != lease:
            return None
        del self.running[id]
        return found


@define(eq=False)
class AttemptLog:
    """The attempts of all queues."""

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
        attempts, now = self._of(queue), time.monotonic()
        attempts.offset_ms, attempts.lasts_s = now_ms - now * 1000, lease_ms / 1000
        attempts.drop_over(now)
        over_at = now + attempts.lasts_s + _OVER_S
        attempts.run(
            {each.id: (each.lease, over_at, each.attempt, each.max_attempts, each.name, False) for each in leases}
        )

    def settled(self, queue: str, settlements: Sequence[Settlement], outcomes: Sequence[str]) -> None:
        """Note leases that end, or go on."""
        attempts, now = self._of(queue), time.monotonic()
        now_ms = attempts.offset_ms + now * 1000
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            action, id, lease = settlement.action, settlement.id, settlement.lease
            if not isinstance(lease, int):
                lease = _number(lease)
            known = attempts.take(id, lease)
            if action in _GOES_ON:
                word, *taken = outcome.split(" ")
                if taken:  # how often, and how long it lasts
                    attempts.lasts_s = int(taken[1]) / 1000
                if word in ("ok", "cancelled"):
                    terms = known[2:5] if known else (0, 0, "")
                    attempts.run({id: (lease, now + attempts.lasts_s + _OVER_S, *terms, word == "cancelled")})
            elif outcome == "ok" or (known and outcome == "gone"):  # gone: the first answer was lost
                state = "done" if action == "ack" else _state(action, known)
                attempt, name = (known[2], known[4]) if known else (0, "")
                attempts.ended.append((id, lease, state, attempt, name, now_ms, settlement.error[:MAX_ERROR]))

    def lost(self, queue: str, leases: Sequence[tuple[str, int, int]]) -> None:
        """End leases (id, number, attempt) that ran out."""
        attempts = self._of(queue)
        now_ms = attempts.offset_ms + time.monotonic() * 1000
        for id, lease, attempt in leases:
            known = attempts.take(id, lease)
            state: AttemptState = "cancelled" if known and known[5] else "lost"
            attempts.ended.append((id, lease, state, attempt, known[4] if known else "", now_ms, ""))

    def stopping(self, queue: str, id: str) -> None:
        """Note that a task was cancelled while it runs."""
        if (attempts := self._queues.get(queue)) and (running := attempts.running.get(id)):
            attempts.running[id] = (*running[:5], True)

    def forget(self, queue: str) -> None:
        """Forget a queue that was deleted."""
        self._queues.pop(queue, None)

    def running(self, queue: str, which: AttemptFilter, count: int) -> list[Seen]:
        """Return attempts that run and match, those that have run longest."""
        if (attempts := self._queues.get(queue)) is None:
            return []
        now = time.monotonic()
        now_ms = attempts.offset_ms + now * 1000
        found = (
            (lease, id, attempt, name)
            for id, (lease, over_at, attempt, _, name, _) in attempts.running.items()
            if over_at >= now and which.has("running", id, name)
        )
        return [
            Seen(id, lease, "running", attempt, name, _ran_ms(lease, now_ms))
            for lease, id, attempt, name in nsmallest(count, found)
        ]

    def ended(self, queue: str, which: AttemptFilter, count: int) -> list[Seen]:
        """Return attempts that have ended and match, those that ended last."""
        attempts = self._queues.get(queue)
        rows = reversed(attempts.ended) if attempts else iter(())
        found = (
            Seen(id, lease, state, attempt, name, _ran_ms(lease, ended_ms), error)
            for id, lease, state, attempt, name, ended_ms, error in rows
            if which.has(state, id, name, error)
        )
        return list(islice(found, count))


def _ran_ms(lease: int, now_ms: float) -> int:
    return max(0, round(now_ms - leased_at_ms(lease)))


def _number(lease: str) -> int:
    """Return a lease's number without the count of takeovers that may follow it (TaskCalls.give_back)."""
    return int(lease.partition("/")[0])


def _state(action: Action, known: _Running | None) -> AttemptState:
    """Return how an attempt has ended that was not acknowledged."""
    if known and known[5]:
        return "cancelled"
    if action == "reject":
        return "dead"
    if action == "nack":
        return "dead" if known and is_last_attempt(*known[2:4]) else "failed"
    return "released" if action == "release" else "lost"
