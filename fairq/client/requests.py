"""Sends a client's requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, isnan
from typing import TYPE_CHECKING, Any

from attrs import define, field

from fairq.client import lazy
from fairq.errors import BadRequest, FairqError, NotYet, Retryable, Unavailable
from fairq.model.checks import check_any_id, check_name, check_tenant
from fairq.wire.terms import ANSWER_S, WAIT_MS

if TYPE_CHECKING:
    from fairq.client.caller import Caller
    from fairq.model.places import AwayPartition

DEFAULT_TIMEOUT = 20.0  # under the 30 s of gunicorn, and the minute for which the store remembers ids of ended tasks

PAGE_IDS = 250  # in a request: the longest ids fit into the shortest message that a server may allow
_LONG_WAIT_S = 1.0  # a wait of this length is explained; a shorter one is one look of many
_WHY_TIMEOUT_S = 1.0  # of the request for the explanation

Body = dict[str, Any]


def named(queue: str, tenant: str | None = None) -> Body:
    """Name a queue, and a tenant if there is one."""
    body: Body = {"queue": check_name(queue, "queue")}
    return body if tenant is None else body | {"tenant": check_tenant(tenant)}


def away_in(page: Body) -> list[AwayPartition]:
    """Return the partitions whose rows are missing from a page of a list, since they do not answer."""
    return lazy.bodies.rows(lazy.places.AwayPartition, page.get("away", []))


def check_whole(queue: str, away: Sequence[AwayPartition], done: str = "read") -> None:
    """Refuse to pass off an answer without some partitions as whole. Raises: Unavailable."""
    if away:
        raise Unavailable(lazy.texts.say_away(queue, away, done))


@define(eq=False)
class Requests:
    """Sends requests, and repeats those that wait for longer than one request."""

    _caller: Caller = field(repr=False)
    timeout: float = DEFAULT_TIMEOUT

    def _deadline(self, timeout: float | None) -> float:
        seconds = self.timeout if timeout is None else timeout
        if isnan(seconds):
            raise BadRequest("timeout must be a number of seconds, not nan", field="timeout")
        return self._caller.now() + seconds

    async def request(self, verb: str, body: Body | None = None, *, timeout: float | None = None) -> Body:
        """Send any request of PROTOCOL.md and return the reply's body."""
        call = self._caller.request(verb, body or {}, self._deadline(timeout))
        result: Body = await self._caller.wait(call)
        return result

    async def request_until(
        self,
        verb: str,
        body: Body,
        is_enough: Callable[[Body], bool],
        timeout: float | None = None,
        wait_s: float = WAIT_MS / 1000,
    ) -> Body:
        """Repeat a request that waits for something to happen until its reply is enough, or for `timeout` seconds.

        Each request waits for up to `wait_s` seconds. Returns the last reply. Raises: what the last request raises.
        """
        deadline = self._deadline(inf if timeout is None else timeout)
        while True:
            this_s = max(0.0, min(wait_s, deadline - self._caller.now()))
            try:
                reply = await self.request(verb, body | {"timeout_ms": round(this_s * 1000)}, timeout=this_s + ANSWER_S)
            except FairqError as error:
                if not isinstance(error, Retryable) or self._caller.now() >= deadline:
                    raise
                continue
            if is_enough(reply) or self._caller.now() >= deadline:
                return reply

    async def ask_of_each(
        self, verb: str, queue: str, ids: Iterable[str], part: str, *, timeout: float | None = None, **how: Any
    ) -> list[Any]:
        """Send requests about any number of ids, a page in each; returns the rows of that part of the replies.

        Not atomic: on an error the pages before it have been carried out.
        """
        body, ids, deadline, rows = named(queue) | how, list(ids), self._deadline(timeout), list[Any]()
        for start in range(0, len(ids), PAGE_IDS):
            page = {**body, "ids": ids[start : start + PAGE_IDS]}
            rows += (await self.request(verb, page, timeout=deadline - self._caller.now()))[part]
        return rows

    async def wait_task(self, queue: str, id: str, timeout: float | None) -> Body:
        """Wait until a task has ended, across reconnects; returns its row of `wait_tasks`.

        Raises: NotYet, which says why it waits, unless it was waited for less than a second.
        """
        deadline = self._deadline(inf if timeout is None else timeout)
        call = self._caller.wait_task(check_name(queue, "queue"), check_any_id(id), deadline)
        try:
            row: Body = await self._caller.wait(call)
        except NotYet as error:
            if reason := await self._why_it_waits(queue, id, timeout):
                raise NotYet(f"{error.message}: {reason}", field=error.field) from None
            raise
        return row

    async def _why_it_waits(self, queue: str, id: str, timeout: float | None) -> str:
        """Say why a task waits; empty if it does not, the server does not say, or it was waited for so shortly."""
        if timeout is None or timeout < _LONG_WAIT_S:
            return ""
        try:
            reply = await self.request("why", {"queue": queue, "id": id}, timeout=_WHY_TIMEOUT_S)
        except FairqError:
            return ""
        return lazy.why_text.say_causes(lazy.bodies.structure(reply, lazy.waiting.Why))
