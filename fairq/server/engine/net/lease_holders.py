"""Finds the workers that hold leases, at whichever server they are attached.

Leases of this server's workers are looked up here. Other servers are asked in rounds: what is looked for during a round
waits for the next. A round begins ROUND_S after the last one at the earliest, and has at most LEASES_PER_ROUND leases;
the names of further ones are left out. So tenants that read in a loop cause few messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.model.workers import LeaseKey
from fairq.server.engine.dispatch.worker_account import TaskKey
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.net.questions import HOLDERS, Questions

log = structlog.get_logger("fairq.server")

LEASES_PER_ROUND = 5_000
ROUND_S = 0.1


@define(eq=False)
class _Round:
    """Leases that are asked for together, and the names of workers that were found."""

    leases: set[LeaseKey] = field(factory=set)
    found: dict[LeaseKey, str] = field(factory=dict)
    is_over: trio.Event = field(factory=trio.Event)


@define(eq=False)
class LeaseHolders:
    """The workers that hold leases; `owners` are the connections of this server with leases on their accounts."""

    owners: dict[TaskKey, Connection]
    questions: Questions
    nursery: trio.Nursery
    _next: _Round = field(factory=_Round, init=False)
    _is_asking: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.questions.answers[HOLDERS] = self.here

    def here(self, leases: Iterable[Any]) -> list[tuple[str, str, int, str]]:
        """Name the workers of this server that hold some of these leases."""
        found = []
        for queue, id, lease in leases:
            owner = self.owners.get((queue, id))
            if owner is not None and owner.account.has((queue, id), lease):
                found.append((queue, id, lease, owner.name))
        return found

    async def names(self, leases: Iterable[LeaseKey]) -> dict[LeaseKey, str]:
        """Name the workers that hold leases; workers of servers that do not answer are left out."""
        wanted = set(leases)
        found = {LeaseKey(queue, id, lease): worker for queue, id, lease, worker in self.here(wanted)}
        if missing := wanted - found.keys():
            found |= await self._asked(missing)
        return found

    async def _asked(self, leases: set[LeaseKey]) -> dict[LeaseKey, str]:
        round_ = self._next
        if len(round_.leases) + len(leases) > LEASES_PER_ROUND:
            return {}
        round_.leases |= leases
        if not self._is_asking:
            self._is_asking = True
            self.nursery.start_soon(self._ask_rounds)
        await round_.is_over.wait()
        return {each: round_.found[each] for each in leases if each in round_.found}

    async def _ask_rounds(self) -> None:
        while self._next.leases:
            round_, self._next = self._next, _Round()
            next_at = trio.current_time() + ROUND_S
            try:
                await self._ask(round_)
            except FairqError as error:
                log.debug("cannot ask which workers hold leases", error=error.message)
            except Exception:  # such as an answer that no server of this version gives
                log.exception("asking which workers hold leases failed")
            round_.is_over.set()
            await trio.sleep_until(next_at)
        self._is_asking = False

    async def _ask(self, round_: _Round) -> None:
        def is_enough(rows: Any) -> bool:
            round_.found |= {LeaseKey(queue, id, lease): worker for queue, id, lease, worker in rows}
            return round_.leases <= round_.found.keys()

        await self.questions.ask(HOLDERS, list(map(list, round_.leases)), is_enough)
