"""A client's waits for the ends of tasks: many share a request, and the server reports each end as it happens.

A producer has a line of waits for each tenant, and the lines take turns, so that no tenant takes all places. A request
waits for WAIT_MS at most; the waits that are left then go into another one. At its deadline a wait takes a last look,
in a request that does not wait, so that `NotYet` always comes from the server.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

from attrs import define, field

from fairq.errors import BadFrame, FairqError, NotYet, Retryable
from fairq.model.checks import MAX_BATCH, owner_of
from fairq.wire.calls import Call, Exchange
from fairq.wire.pauses import Key
from fairq.wire.terms import ANSWER_S, MAX_PRODUCER_WAITING, MAX_TENANT_WAITING, MAX_WAITING, WAIT_MS

FEEDS = 96  # of the server's places, left for batches and feeds
MAX_WAITED = MAX_WAITING - FEEDS  # ids for which the server waits at once


@define(eq=False)
class Wait(Call):
    """A call that waits for the end of a task; its result is the task's row of `wait_tasks`."""

    queue: str = ""
    id: str = ""
    is_last: bool = False  # it takes its last look
    take_last_look: Callable[[Wait], None] = lambda _: None

    def leave(self) -> None:
        """Wait no more; the server is not asked about the task again."""
        self.finish()

    def give_up(self, trouble: str) -> None:
        """Take a last look at the deadline; fail if that is not answered in time."""
        if self.is_last:
            super().give_up(trouble)
        else:
            self.is_last = True
            self.deadline += ANSWER_S
            self.take_last_look(self)


def _key(queue: str) -> Key:
    return "wait_tasks", queue


@define(eq=False)
class _WaitExchange(Exchange):
    pool: Waits
    queue: str
    is_last: bool
    waits: dict[str, list[Wait]] = field(factory=dict)  # for ends that are not reported yet, by task id

    @property
    def is_due(self) -> bool:
        """Only a last look is."""
        return self.is_last

    @property
    def key(self) -> Key:
        """All waits of a queue share a key."""
        return _key(self.queue)

    def time_left(self, now: float) -> int:
        """Return how long the server is to wait (ms): for the last of the deadlines."""
        if self.is_last:
            return 0
        left_s = max(wait.deadline for waits in self.waits.values() for wait in waits) - now
        return min(WAIT_MS, ceil(min(left_s, WAIT_MS) * 1000))

    def partly_answered(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        if not all(isinstance(row, dict) and isinstance(row.get("id"), str) for row in tasks):
            raise BadFrame("invalid frame from the server: each task must have an id")
        for row in tasks:
            for wait in self._take(row["id"]):
                wait.finish(row)

    def answered(self, body: dict[str, Any], now: float) -> None:
        tasks = body.get("tasks")
        if not isinstance(tasks, list):
            raise BadFrame("invalid reply: expected tasks")
        self.partly_answered(tasks)
        for wait in self._take_all():
            wait.under_way -= 1
            if self.is_last:
                wait.finish(error=NotYet(f"task {wait.id} has not ended", field="id"))
            self._put_back(wait)

    def refused(self, error: FairqError, now: float) -> None:
        if isinstance(error, Retryable):
            self.pool.back_off(error, now, self.key)
        for wait in self._take_all():
            if isinstance(error, Retryable):
                wait.refused(error)
                self._put_back(wait)
            else:
                wait.finish(error=error)

    def lost(self) -> None:
        for wait in self._take_all():
            wait.lost()
            self._put_back(wait)

    def _put_back(self, wait: Wait) -> None:
        if wait.is_last == self.is_last:  # else its last look was begun meanwhile
            self.pool.put(wait)

    def _take(self, id: str) -> Sequence[Wait]:
        waits = self.waits.pop(id, ())
        if waits and not self.is_last:
            self.pool.waited -= 1
            self.pool.waited_of -= Counter((owner_of(id),))  # drops tenants that wait no more
        return waits

    def _take_all(self) -> list[Wait]:
        return [wait for id in list(self.waits) for wait in self._take(id)]


@define(eq=False)
class Waits:
    """A client's waits that no request carries yet; `back_off(error, now, key)` delays new requests."""

    back_off: Callable[[FairqError, float, Key], None]
    is_paused: Callable[[Key], bool]
    most: int = MAX_WAITED  # that may be waited for at once, in all and of a tenant
    most_of_tenant: int = MAX_WAITED
    waited: int = field(default=0, init=False)  # ids for which the server waits
    waited_of: Counter[str] = field(factory=Counter, init=False)  # the same, by the tenants of full ids
    # By queue and whether it is the last look, and then by tenant.
    lines: defaultdict[tuple[str, bool], OrderedDict[str, deque[Wait]]] = field(
        factory=lambda: defaultdict(OrderedDict), init=False
    )

    def welcomed(self, *, is_producer: bool) -> None:
        """Set how many places the server has for such a client."""
        self.most, self.most_of_tenant = MAX_WAITED, MAX_WAITED
        if is_producer:
            self.most, self.most_of_tenant = MAX_PRODUCER_WAITING - FEEDS, MAX_TENANT_WAITING - FEEDS

    def put(self, wait: Wait) -> None:
        """Add a wait to those for the next request."""
        if not wait.is_done:
            self.lines[wait.queue, wait.is_last].setdefault(owner_of(wait.id), deque()).append(wait)

    def sweep(self) -> None:
        """Drop the waits that are done, or wait for their last look elsewhere."""
        for key, lines in list(self.lines.items()):
            for tenant, line in list(lines.items()):
                lines[tenant] = deque(wait for wait in line if not wait.is_done and wait.is_last == key[1])
                if not lines[tenant]:
                    del lines[tenant]
            if not lines:
                del self.lines[key]

    def gather(self, now: float, send: Callable[[dict[str, Any], Exchange], None]) -> None:
        """Put waits into requests, as many as the server takes; the queue that was served goes behind the others."""
        for is_last in (False, True):  # last looks after the others: waits that are past their deadline join them
            for queue in [queue for queue, last in self.lines if last == is_last and not self.is_paused(_key(queue))]:
                lines = self.lines[queue, is_last]
                while exchange := self._take(queue, is_last, lines, now):
                    send({"queue": queue, "ids": list(exchange.waits), "timeout_ms": exchange.time_left(now)}, exchange)
                    self.lines[queue, is_last] = self.lines.pop((queue, is_last))
                if not lines:
                    del self.lines[queue, is_last]

    def _take(
        self, queue: str, is_last: bool, lines: OrderedDict[str, deque[Wait]], now: float
    ) -> _WaitExchange | None:
        """Take waits off the tenants' lines for one request, each line in its order."""
        exchange = _WaitExchange(self, queue, is_last)
        most = MAX_BATCH if is_last else min(MAX_BATCH, self.most - self.waited)
        for _ in range(len(lines)):
            tenant, line = lines.popitem(last=False)
            known = len(exchange.waits)
            room = most if is_last else min(most, known + self.most_of_tenant - self.waited_of[tenant])
            self._take_line(exchange, line, room, now)
            if not is_last:
                self.waited_of[tenant] += len(exchange.waits) - known
            if line:
                lines[tenant] = line
            if len(exchange.waits) >= most:
                break
        if not is_last:
            self.waited += len(exchange.waits)
        return exchange if exchange.waits else None

    @staticmethod
    def _take_line(exchange: _WaitExchange, line: deque[Wait], room: int, now: float) -> None:
        """Take waits off a line while the request has fewer ids than `room`."""
        while line and len(exchange.waits) < room:
            wait = line.popleft()
            if wait.is_done or wait.is_last != exchange.is_last:
                continue
            if wait.deadline <= now and not exchange.is_last:
                wait.give_up("")
                continue
            exchange.waits.setdefault(wait.id, []).append(wait)
            wait.under_way += 1
