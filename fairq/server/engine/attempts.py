"""The attempts that run and the last that ended, at all servers.

Each server knows those of its own workers (fairq/store/attempts.py), in memory: what a server saw is gone when it
stops. The store says which running ones are still leased: some have ended at another server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest, nsmallest
from typing import Any

from attrs import astuple, define, evolve

from fairq.model.attempts import Attempt, AttemptFilter, Attempts
from fairq.model.checks import owner_of
from fairq.model.tasks import leased_at_ms
from fairq.server.engine.leases import Leases
from fairq.server.engine.net.questions import ATTEMPTS, Questions
from fairq.store.store import Store


@define(eq=False)
class AttemptSearch:
    """Finds attempts that match, at all servers."""

    store: Store
    questions: Questions
    leases: Leases

    def __attrs_post_init__(self) -> None:
        self.questions.answers[ATTEMPTS] = lambda asked: self.here(*asked)

    def here(self, queue: str, which: Iterable[Any], count: int) -> list[Any]:
        """Return up to `count` attempts of this server that run, and as many that ended."""
        filter_, log = AttemptFilter(*which), self.store.attempts
        running = []
        for each in log.running(queue, filter_, count):
            holder = self.leases.holder((queue, each.id), each.lease)
            running.append([*each, holder.name if holder else ""])
        return [running, [[*each, ""] for each in log.ended(queue, filter_, count)]]

    async def find(self, queue: str, which: AttemptFilter, count: int) -> Attempts:
        """Return up to `count` attempts that run, the oldest first, and as many that ended, the newest first."""
        answers, unanswered = await self.questions.ask(ATTEMPTS, [queue, astuple(which), count], of_all=True)
        running: dict[tuple[str, int], Attempt] = {}
        ended = []
        for server, (some, others) in answers.items():
            for row in some:
                found, key = _attempt(server, row), (row[0], row[1])  # id and lease
                running[key] = _joined(running[key], found) if key in running else found
            ended += [_attempt(server, row) for row in others]
        first = nsmallest(count, running, key=lambda key: (key[1], key[0]))
        ids = list(dict.fromkeys(id for id, _ in first))
        rows = await self.store.tasks_and_leases(queue, ids) if ids else []
        states = {(state.id, lease): state for state, lease in rows}  # lease 0: it runs no longer
        return Attempts(
            [evolve(running[key], attempt=states[key].attempt) for key in first if key in states],
            nlargest(count, ended, key=lambda each: each.leased_at_ms + each.ran_ms),  # equals: as their server tells
            sorted(unanswered),
        )


def _attempt(server: str, row: Sequence[Any]) -> Attempt:
    """Read a row of an answer."""
    id, lease, state, attempt, name, ran_ms, error, worker = row
    return Attempt(id, state, owner_of(id), leased_at_ms(lease), ran_ms, server, attempt, name, worker, error)


def _joined(one: Attempt, other: Attempt) -> Attempt:
    """Join what two servers know of a lease that went from one to the other."""
    held, before = (one, other) if one.worker else (other, one)
    return evolve(held, name=held.name or before.name)
