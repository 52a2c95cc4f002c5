"""A worker's settlements on their way to the server, and how refused ones are handled.

A settlement is repeated until the store has answered it. Those of a queue, or of a partition of it, keep their order in
a line of their own: while a primary of the store is away, the lines of the others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import orjson
from attrs import define

from fairq.errors import FairqError, Retryable
from fairq.model.checks import MAX_ERROR_CHARS, MAX_INLINE_BYTES
from fairq.model.places import queue_of
from fairq.model.tasks import Link, Settlement
from fairq.wire.calls import FATAL, Exchange, outcomes_of
from fairq.wire.enqueues import FRAME_BYTES, TASK_BYTES, Limits, encode_task
from fairq.wire.frames import HeldLease
from fairq.wire.pauses import Key
from fairq.wire.strict_json import MAX_COST, cost_of

if TYPE_CHECKING:
    from fairq.wire.worker_session import WorkerSession

LEASE_BYTES = 384  # of a lease or settlement without its error, and of the queues that an attach names
BYTES_PER_CHAR = 6  # at most, in JSON
_MORE = 4  # the fields after these may be long
_NO_MORE = Settlement("ack", "", 0)[_MORE:]
_more_of = itemgetter(slice(_MORE, None))
_AWAY_LEASES = 0.5  # how long links are tried again; when a task ends, two thirds of its lease or more are left
_LINK_COST = 64  # of a link, around its payload
_FRAME_COST = 20_000  # of a frame of settlements, without their results


def settle_key(line: str) -> Key:
    """Name the frames of a line."""
    return "settle", line


@define(eq=False)
class SettleExchange(Exchange):
    session: WorkerSession
    line: str
    settlements: list[Settlement]
    has_window = True

    @property
    def key(self) -> Key:
        """Each line waits by itself."""
        return settle_key(self.line)

    @property
    def queue(self) -> str:
        """Return the queue of the line."""
        return queue_of(self.line)

    def answered(self, body: dict[str, Any], now: float) -> None:
        outcomes, session = outcomes_of(body, "outcomes", len(self.settlements)), self.session
        session.unsettled -= len(outcomes)
        for key in session.alone and [(self.queue, each.id, each.lease) for each in self.settlements]:
            session.alone.pop(key, None)
        session.settled(self.queue, self.settlements, outcomes)
        if "stale" in outcomes:
            session.stale_settlements += [
                HeldLease(self.queue, settlement.id, settlement.lease)
                for settlement, outcome in zip(self.settlements, outcomes, strict=True)
                if outcome == "stale" and settlement.action != "release"
            ]

    def refused(self, error: FairqError, now: float) -> None:
        if isinstance(error, Retryable):
            self.session.back_off(error, now, self.key)
            self._try_later(error, now)
        elif error.code in FATAL:
            self.session.fatal = error
            self.lost()
        elif len(self.settlements) > 1:
            self._send_each_alone(now)
        elif self.settlements[0].links:
            self._fail_attempt(error)
        else:
            self._drop(error)

    def _send_each_alone(self, now: float) -> None:
        """Find out which of them is invalid."""
        self.session.alone |= {(self.queue, each.id, each.lease): now for each in self.settlements}
        self.lost()

    def _fail_attempt(self, error: FairqError) -> None:
        """Fail the attempt, since its follow-up tasks cannot be stored."""
        self.settlements = [failed(self.settlements[0], error)]
        self.lost()

    def _drop(self, error: FairqError) -> None:
        """Give up a settlement that is invalid."""
        (settlement,) = self.settlements
        self.session.unsettled -= 1
        self.session.alone.pop((self.queue, settlement.id, settlement.lease), None)
        self.session.dropped(self.queue, settlement, error)

    def _try_later(self, error: FairqError, now: float) -> None:
        """Try again. The queue of a link may have to wait; then other settlements do not wait for it.

        If that queue stays away, the attempt fails before its lease is over.
        """
        session, staying, leaving = self.session, list[Settlement](), list[Settlement]()
        for each in self.settlements:
            if all(link.queue == self.queue for link in each.links):
                staying.append(each)
                continue
            since = session.alone.setdefault((self.queue, each.id, each.lease), now)
            is_away = now >= since + session.shortest_s * _AWAY_LEASES
            leaving.append(failed(each, error) if is_away else each)
        self.settlements = staying
        self.lost()
        session.settlements[self.line].extend(leaving)

    def lost(self) -> None:
        self.session.settlements[self.line].extendleft(reversed(self.settlements))


def take_settlements(
    queue: str, waiting: deque[Settlement], alone: Collection[tuple[str, str, int]], limits: Limits
) -> list[Settlement]:
    """Take the settlements that fit into a frame, at least one; those `alone` share none."""
    batch: list[Settlement] = []
    room, cost = limits.message_bytes - FRAME_BYTES, MAX_COST - _FRAME_COST
    most = min(len(waiting), limits.batch, max(1, room // LEASE_BYTES))
    if not alone and {_NO_MORE}.issuperset(map(_more_of, islice(waiting, most))):
        return [waiting.popleft() for _ in range(most)]
    while waiting and len(batch) < limits.batch:
        head = waiting[0]
        if alone and (queue, head.id, head.lease) in alone:
            return batch or [waiting.popleft()]
        size = LEASE_BYTES
        if head[_MORE:] != _NO_MORE:
            size, spent = _measure(head)
            cost -= spent
            if not batch and size + BYTES_PER_CHAR * len(head.traceback) > room:
                waiting[0] = head._replace(traceback="")
            size += BYTES_PER_CHAR * len(waiting[0].traceback)
            if (size > room or cost < 0) and not batch:  # it fits in no message that the server accepts
                what = "links are" if head.links else "result is"
                why = f"the {what} too large for a message to the server"
                waiting[0] = Settlement("reject", head.id, head.lease, error=why)
                size = 2 * LEASE_BYTES
        room -= size
        if batch and (room < 0 or cost < 0):
            break
        batch.append(waiting.popleft())
    return batch


def _measure(settlement: Settlement) -> tuple[int, int]:
    """Return the size and cost of a settlement without its traceback."""
    size = LEASE_BYTES + BYTES_PER_CHAR * len(settlement.error) + len(settlement.result)
    cost = cost_of(settlement.result.decode()) if settlement.result else 0
    return size + _size_of(settlement.links), cost + _cost_of(settlement.links)


def failed(settlement: Settlement, error: FairqError) -> Settlement:
    """Return the failure of an attempt if its links cannot be stored."""
    why = f"the server refused its links: {error.message}"[:MAX_ERROR_CHARS]
    return Settlement("nack", settlement.id, settlement.lease, error=why)


def _size_of(links: Sequence[Link]) -> int:
    return sum(2 * TASK_BYTES + len(link.task.payload) for link in links)


def _cost_of(links: Sequence[Link]) -> int:
    payloads = (link.task.payload for link in links)
    return sum(_LINK_COST + cost_of(text.decode()) for text in payloads if len(text) <= MAX_INLINE_BYTES)


def encode_settlement(settlement: Settlement) -> dict[str, Any]:
    """Write a settlement as it stands in a frame."""
    action, id, lease, delay_ms, error, result, links, traceback = settlement
    body: dict[str, Any] = {"action": action, "id": id, "lease": lease}
    if delay_ms is not None:
        body["delay_ms"] = delay_ms
    if error:
        body["error"] = sendable(error)
    if result:
        body["result"] = orjson.Fragment(result)
    if links:
        body["links"] = [{"queue": link.queue, **encode_task(link.task)} for link in links]
    if traceback:
        body["traceback"] = sendable(traceback)
    return body


def sendable(text: str) -> str:
    """Replace lone surrogates, of file names that are not UTF-8 for one: no frame can hold them."""
    return text.encode(errors="replace").decode()
