"""Dead letters in the SDK: a tenant's own, or for operators everybody's.

A walk over them meets each letter once that was dead when it began, whatever is replayed or purged meanwhile; those
that are replayed along the way and die again are beyond its end.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypedDict, Unpack

import cattrs
import trio
from attrs import asdict, define, frozen

from fairq.client.options import to_ms
from fairq.errors import BadRequest
from fairq.model.checks import MAX_BATCH
from fairq.model.dead_letters import DeadFilter, DeadLetter, DeadPage
from fairq.model.tasks import Outcome

STEP_S = 0.1  # at a rate, letters are replayed in steps of so long


class DeadLetterFilter(TypedDict, total=False):
    """DeadLetterFilter dead letters: those that all of these hold for; None is as good as absent."""

    tenant: str | None  # for operators
    reason: str | None  # exhausted, rejected, expired or lease_lost
    error: str | None  # text that the error contains
    older_than: float | None  # seconds
    younger_than: float | None


@frozen
class Sweep:
    """How far a sweep has come. `gone`: others, or a try without an answer, were faster; `left`: to look at."""

    changed: int
    gone: int
    left: int


class Requests(Protocol):
    """What is needed of a client."""

    async def request(
        self, verb: str, body: dict[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]: ...


def pack_filter(which: DeadLetterFilter) -> dict[str, Any]:
    """Check a filter and spell it as the wire does. Raises: BadRequest; TypeError for unknown words."""
    if unknown := which.keys() - DeadLetterFilter.__annotations__.keys():
        raise TypeError(f"dead letters are not chosen by {min(unknown)!r}")
    chosen = DeadFilter(
        which.get("tenant"),
        which.get("reason"),
        which.get("error"),
        to_ms(which.get("older_than"), "older_than"),
        to_ms(which.get("younger_than"), "younger_than"),
    )
    try:
        chosen.check()
    except BadRequest as error:  # in the words of our arguments
        raise BadRequest(error.message.replace("_ms", ""), field=(error.field or "").removesuffix("_ms")) from None
    return {name: value for name, value in asdict(chosen).items() if value}


def check_rate(rate: float | None) -> float:
    """Return letters a second; None is as fast as it goes. Raises: BadRequest."""
    if rate is None:
        return math.inf
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise BadRequest(f"rate must be above 0 letters a second, not {rate!r:.80}", field="rate")
    return float(rate)


@define(eq=False)
class DeadLetters:
    """The dead letters of one queue. Every method raises what `Client.request` raises."""

    _client: Requests
    queue: str

    async def page(
        self, *, cursor: str = "", count: int = 100, brief: bool = False, **which: Unpack[DeadLetterFilter]
    ) -> DeadPage:
        """Read up to `count` letters that match, oldest first, from a cursor on; perhaps none before the end.

        `brief` leaves out payload, enqueueing and window.
        """
        body = {"queue": self.queue, "count": count, "brief": brief, **pack_filter(which)}
        if cursor:
            body["cursor"] = cursor
        found = await self._client.request("dead", body)
        letters = [cattrs.structure(row, DeadLetter) for row in found["dead"]]
        return DeadPage(letters, found["cursor"] or "", found["left"])

    async def pages(
        self, *, count: int = MAX_BATCH, brief: bool = False, **which: Unpack[DeadLetterFilter]
    ) -> AsyncGenerator[DeadPage, None]:
        """Walk over the letters that match, page by page."""
        cursor = ""
        while True:
            page = await self.page(cursor=cursor, count=count, brief=brief, **which)
            yield page
            cursor = page.cursor
            if not cursor:
                return

    async def walk(self, *, brief: bool = False, **which: Unpack[DeadLetterFilter]) -> AsyncGenerator[DeadLetter, None]:
        """Walk over the letters that match, oldest first."""
        async with aclosing(self.pages(brief=brief, **which)) as pages:
            async for page in pages:
                for letter in page.letters:
                    yield letter

    async def show(self, id: str) -> DeadLetter:
        """Read one letter, with its payload. Raises: NotFound."""
        body = await self._client.request("dead_letter", {"queue": self.queue, "id": id})
        return cattrs.structure(body["dead_letter"], DeadLetter)

    async def replay(self, ids: Sequence[str]) -> list[Outcome]:
        """Give letters a fresh set of attempts, at the end of their owners' own lists: `ok` or `gone` for each."""
        return await self._change("replay", ids)

    async def purge(self, ids: Sequence[str]) -> list[Outcome]:
        """Delete letters: `ok` or `gone` for each."""
        return await self._change("purge", ids)

    async def _change(self, verb: str, ids: Sequence[str]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for start in range(0, len(ids), MAX_BATCH):
            body = {"queue": self.queue, "ids": list(ids[start : start + MAX_BATCH])}
            outcomes += (await self._client.request(verb, body))["outcomes"]
        return outcomes

    def replay_all(
        self, *, rate: float | None = None, **which: Unpack[DeadLetterFilter]
    ) -> AsyncGenerator[Sweep, None]:
        """Replay all letters that match, at most `rate` a second; tells after each step how far it has come.

        They go to their owners' own lists, inside their shares: whoever has none waits no longer for it. Stopping
        half-way leaves the rest dead; starting again goes on with it.
        """
        return self._sweep("replay", check_rate(rate), which)

    def purge_all(self, **which: Unpack[DeadLetterFilter]) -> AsyncGenerator[Sweep, None]:
        """Delete all letters that match; tells after each step how far it has come."""
        return self._sweep("purge", math.inf, which)

    async def _sweep(self, verb: str, rate: float, which: DeadLetterFilter) -> AsyncGenerator[Sweep, None]:
        step = max(1, int(min(MAX_BATCH, rate * STEP_S)))
        done, next_at = Sweep(0, 0, 0), trio.current_time()
        async with aclosing(self.pages(brief=True, **which)) as pages:
            async for page in pages:
                ids = [letter.id for letter in page.letters]
                done = Sweep(done.changed, done.gone, len(ids) + page.left)
                yield done
                for start in range(0, len(ids), step):
                    some = ids[start : start + step]
                    await trio.sleep_until(next_at)
                    next_at = trio.current_time() + len(some) / rate
                    changed = (await self._change(verb, some)).count("ok")
                    done = Sweep(done.changed + changed, done.gone + len(some) - changed, done.left - len(some))
                    yield done
