"""Questions of one server to all others, and their answers.

Only a worker's server knows which leases the worker holds; it is not stored, so it costs a lease nothing. A server that
needs to know asks the others, over the channel of messages about workers. It waits, at most ANSWER_S, for the servers
with a list of workers in the store: a server that was killed or stopped does not answer. While the primary that has
these lists is away, it waits for those that have sent their slots in the last minute. Messages may be lost, so a
missing answer is not a "no".

| kind | asked | each server's answer |
|---|---|---|
| HOLDERS | [queue, id, lease number], ... | [queue, id, lease number, worker], ... of those that its workers hold |
| WORKER | name, count, queues or null | its workers of that name: [fields of WorkerState after `server`], ...; |
| | | and their leases: [queue, id, lease number, attached_at_ms of the worker], ... |
| DRAIN | name, the least time since it attached (s) | how many workers it has dismissed |
| ATTEMPTS | queue, fields of AttemptFilter, count | attempts that run, and that ended: [fields of Seen, worker], ... |
| QUEUES | queue, ... | those that its workers take tasks of |
| LAGS | queue | by how much worker time it has each partition behind its part: {place: s} |
| WAITS | queue, tenants | of each tenant, what its last starts had waited for: [[ms of each cause], ...], ... |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson
import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError, Retryable
from fairq.server.engine.net.server_slots import ServerSlots
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

ANSWER_S = 0.5  # how long a question waits for answers
HOLDERS, WORKER, DRAIN, ATTEMPTS = "holders", "worker", "drain", "attempts"
QUEUES, LAGS, WAITS = "queues", "lags", "waits_of"


class Answers(NamedTuple):
    """The answers of servers, this one included, and the servers that did not answer."""

    by_server: dict[str, Any]
    unanswered: set[str]


@define(eq=False)
class _Question:
    """A question under way: the servers that are waited for, how many answers at least, and the answers so far."""

    awaited: set[str]
    is_enough: Callable[[Any], bool]
    least: float = 0
    answers: dict[str, Any] = field(factory=dict)
    is_over: trio.Event = field(factory=trio.Event)

    def add(self, server: str, answer: Any) -> None:
        """Add an answer; the question is over when all are there, or this one is enough.

        A question that came twice is answered twice: the first answer is the one that did it.
        """
        self.answers.setdefault(server, answer)
        if self.is_enough(answer):
            self.is_over.set()
        self.check()

    def check(self) -> None:
        """End the question if all answers are there."""
        if self.awaited <= self.answers.keys() and len(self.answers) >= self.least:
            self.is_over.set()


@define(eq=False)
class Questions:
    """Asks and answers for one server; `answers` has a function for each kind, which answers without waiting."""

    server: str
    store: Store
    nursery: trio.Nursery
    elsewhere: ServerSlots
    answers: dict[str, Callable[[Any], Any]] = field(factory=dict, init=False)
    _count: int = field(default=0, init=False)
    _under_way: dict[int, _Question] = field(factory=dict, init=False)

    async def ask(
        self, kind: str, asked: Any, is_enough: Callable[[Any], bool] = lambda _: False, *, of_all: bool = False
    ) -> Answers:
        """Ask all servers, until those with workers have answered or an answer `is_enough`. Raises: FairqError.

        `of_all`: those without workers are waited for, too: as many as the store's node has sent the question to.
        """
        try:
            awaited = await self.store.workers.servers()
        except Retryable:  # the channel needs no primary
            awaited = self.elsewhere.servers()
        self._count += 1
        number = self._count
        question = self._under_way[number] = _Question(awaited, is_enough, float("inf") if of_all else 0)
        try:
            question.add(self.server, own := self._answer(kind, asked))
            if not is_enough(own):  # servers that have not written their list yet get the question too
                words = orjson.dumps({"server": self.server, "question": [number, kind, asked]})
                heard = await self.store.workers.tell(words)
                if of_all:
                    question.least = heard
                    question.check()
                with trio.move_on_after(ANSWER_S):
                    await question.is_over.wait()
        finally:
            del self._under_way[number]
        return Answers(question.answers, awaited - question.answers.keys())

    def _answer(self, kind: str, asked: Any) -> Any:
        """Answer for the workers of this server; None if the kind is unknown."""
        return self.answers[kind](asked) if kind in self.answers else None

    def on_question(self, asker: str, number: int, kind: str, asked: Any) -> None:
        """Answer another server."""
        self.nursery.start_soon(self.tell, {"answer": [asker, number, self._answer(kind, asked)]})

    async def tell(self, said: Mapping[str, Any]) -> None:
        """Send a message to the other servers; it may be lost."""
        try:
            await self.store.workers.tell(orjson.dumps({"server": self.server, **said}))
        except FairqError as error:
            log.debug("cannot tell other servers", error=error.message)

    def on_answer(self, server: str, asker: str, number: int, answer: Any) -> None:
        """Take in the answer of another server, if it is for a question of this one."""
        question = self._under_way.get(number) if asker == self.server else None
        if question is not None and answer is not None:
            question.add(server, answer)
