"""Dead letters in the SDK: a tenant's own, or for operators those of all tenants.

A walk meets each dead letter that was there when it began once, even if others are replayed or purged meanwhile;
those that are replayed along the way and die again are beyond its end.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Unpack

from attrs import define

from fairq.client import lazy
from fairq.client.option_signatures import lists_options
from fairq.client.requests import PAGE_IDS, away_in, check_whole
from fairq.errors import BadRequest
from fairq.model.checks import MAX_BATCH

if TYPE_CHECKING:
    from fairq.client.requests import Requests
    from fairq.model.dead_letters import DeadLetter, DeadPage, Sweep
    from fairq.model.option_tables import DeadLetterFilter
    from fairq.model.places import AwayPartition
    from fairq.model.tasks import Outcome

STEP_S = 0.1  # the length of a step of a replay with a rate


def check_rate(rate: float | None) -> float:
    """Return the dead letters per second; None means as fast as possible. Raises: BadRequest."""
    if rate is None:
        return math.inf
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise BadRequest(f"rate must be above 0 dead letters a second, not {rate!r:.80}", field="rate")
    return float(rate)


@define(eq=False)
class DeadLetters:
    """The dead letters of one queue. Every method raises what `Client.request` raises."""

    _client: Requests
    queue: str

    @lists_options
    async def page(
        self, *, cursor: str = "", count: int = 100, brief: bool = False, **which: Unpack[DeadLetterFilter]
    ) -> DeadPage:
        """Read up to `count` dead letters that match, oldest first, from a cursor on; any but the last may be empty.

        `brief` leaves out payload, enqueueing and window.
        """
        body = {"queue": self.queue, "count": count, "brief": brief, **lazy.options.pack_filter(which)}
        reply = await self._client.request("dead", body | ({"cursor": cursor} if cursor else {}))
        letters = lazy.bodies.rows(lazy.dead_letters.DeadLetter, reply["dead"])
        return lazy.dead_letters.DeadPage(letters, reply["cursor"] or "", reply["left"], away_in(reply))

    @lists_options
    async def pages(
        self, *, count: int = MAX_BATCH, brief: bool = False, **which: Unpack[DeadLetterFilter]
    ) -> AsyncGenerator[DeadPage, None]:
        """Walk over the dead letters that match, page by page; a page names the partitions that do not answer."""
        cursor = ""
        while True:
            page = await self.page(cursor=cursor, count=count, brief=brief, **which)
            yield page
            cursor = page.cursor
            if not cursor:
                return

    @lists_options
    async def walk(self, *, brief: bool = False, **which: Unpack[DeadLetterFilter]) -> AsyncGenerator[DeadLetter, None]:
        """Walk over the dead letters that match, oldest first.

        Raises: Unavailable at the end if some cannot be read, since their partition does not answer.
        """
        away: list[AwayPartition] = []
        async with aclosing(self.pages(brief=brief, **which)) as pages:
            async for page in pages:
                for letter in page.letters:
                    yield letter
                away += page.away
        check_whole(self.queue, away)

    async def show(self, id: str) -> DeadLetter:
        """Read one dead letter, with its payload. Raises: NotFound."""
        reply = await self._client.request("dead_letter", {"queue": self.queue, "id": id})
        return lazy.bodies.structure(reply["dead_letter"], lazy.dead_letters.DeadLetter)

    async def replay(self, ids: Sequence[str]) -> list[Outcome]:
        """Give dead letters a fresh set of attempts, at the end of their owners' own lists.

        For each: `ok`; `batch_gone`: likewise, but its batch is no longer known, so it counts for none; or `gone`.
        """
        return await self._change("replay", ids)

    async def purge(self, ids: Sequence[str]) -> list[Outcome]:
        """Delete dead letters: `ok` or `gone` for each."""
        return await self._change("purge", ids)

    async def _change(self, verb: str, ids: Sequence[str]) -> list[Outcome]:
        return await self._client.ask_of_each(verb, self.queue, ids, "outcomes")

    @lists_options
    def replay_all(
        self, *, rate: float | None = None, **which: Unpack[DeadLetterFilter]
    ) -> AsyncGenerator[Sweep, None]:
        """Replay all dead letters that match, at most `rate` a second; yields the progress after each step.

        They go to their tenants' own lists, inside their shares, so other tenants do not wait longer. Stopping half-way
        leaves the rest dead; starting again goes on with it. Raises: Unavailable at the end if a partition did not
        answer.
        """
        return self._sweep("replay", check_rate(rate), which)

    @lists_options
    def purge_all(self, **which: Unpack[DeadLetterFilter]) -> AsyncGenerator[Sweep, None]:
        """Delete all dead letters that match; yields the progress after each step.

        Raises: Unavailable at the end if a partition did not answer.
        """
        return self._sweep("purge", math.inf, which)

    async def _sweep(self, verb: str, rate: float, which: DeadLetterFilter) -> AsyncGenerator[Sweep, None]:
        step = max(1, int(min(PAGE_IDS, rate * STEP_S)))
        sweep = lazy.dead_letters.Sweep
        done, next_at = sweep(0, 0, 0), self._client._caller.now()
        away: list[AwayPartition] = []
        async with aclosing(self.pages(brief=True, **which)) as pages:
            async for page in pages:
                away += page.away
                ids = [letter.id for letter in page.letters]
                done = sweep(done.changed, done.gone, len(ids) + page.left, done.batch_gone)
                yield done
                for start in range(0, len(ids), step):
                    some = ids[start : start + step]
                    await self._client._caller.sleep_until(next_at)
                    next_at = self._client._caller.now() + len(some) / rate
                    outcomes = await self._change(verb, some)
                    gone, batch_gone = outcomes.count("gone"), done.batch_gone + outcomes.count("batch_gone")
                    changed = done.changed + len(some) - gone
                    done = sweep(changed, done.gone + gone, done.left - len(some), batch_gone)
                    yield done
        check_whole(self.queue, away)
