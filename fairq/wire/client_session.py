"""The client's end of a connection, across reconnects: calls, their deadlines, and what is sent again.

Every call is idempotent on ids that its caller chose, so a call without an answer is simply sent again on the next
connection. Concurrent enqueues are coalesced: while WINDOW frames are under way, tasks gather and leave together.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from attrs import define, field

from fairq.errors import Closed, FairqError, OutcomeUnknown, Unavailable, from_code
from fairq.model import MAX_BATCH, NewTask
from fairq.wire.codec import decode_server
from fairq.wire.messages import MAX_MESSAGE_BYTES, Drain, Enqueue, Error, Push, Reply, Welcome
from fairq.wire.session import Session

WINDOW = 2
RETRYABLE = frozenset({"unavailable", "unknown", "too_many", "draining"})
RECONNECT_BASE_S, RECONNECT_CAP_S = 0.1, 5.0


@define(eq=False)
class Call:
    """Something asked of the server; `wake` is called when it is done."""

    deadline: float
    wake: Callable[[], None] = lambda: None
    is_done: bool = False
    result: Any = None
    error: FairqError | None = None
    last_refusal: FairqError | None = None
    was_sent: bool = False
    missing: int = 0  # outcomes still to come

    def __lt__(self, other: Call) -> bool:
        return self.deadline < other.deadline

    def finish(self, result: Any = None, error: FairqError | None = None) -> None:
        """Settle the call, once."""
        if not self.is_done:
            self.is_done, self.result, self.error = True, result, error
            self.wake()

    def give_up(self) -> None:
        """Fail at the deadline with what is known: was it ever sent, and why was it refused?"""
        if self.last_refusal:
            self.finish(error=self.last_refusal)
        elif self.was_sent:
            self.finish(error=OutcomeUnknown("no answer in time; it may have been done"))
        else:
            self.finish(error=Unavailable("no connection to the server in time; nothing was done"))


class Exchange:
    """One frame under way, and what its answer means."""

    def answered(self, body: dict[str, Any], now: float) -> None:
        """Take the reply."""
        raise AssertionError

    def refused(self, error: FairqError, now: float) -> None:
        """Take a refusal."""
        raise AssertionError

    def lost(self) -> None:
        """The connection went away without an answer: ask again on the next."""
        raise AssertionError


@define(eq=False)
class _RequestExchange(Exchange):
    session: ClientSession
    kind: str
    body: Mapping[str, Any]
    call: Call

    def answered(self, body: dict[str, Any], now: float) -> None:
        self.call.finish(body)

    def refused(self, error: FairqError, now: float) -> None:
        if error.code in RETRYABLE:
            self.call.last_refusal = error
            self.session.back_off(now)
            self.lost()
        else:
            self.call.finish(error=error)

    def lost(self) -> None:
        self.session.requests.appendleft(self)


@define(eq=False)
class _Chunk:
    """Tasks of one enqueue call that wait to be sent: tasks[start:stop]."""

    call: Call
    queue: str
    tasks: Sequence[NewTask]
    start: int
    stop: int
    is_alone: bool = False


@define(eq=False)
class _EnqueueExchange(Exchange):
    session: ClientSession
    chunks: list[_Chunk]

    def answered(self, body: dict[str, Any], now: float) -> None:
        outcomes, at = body["outcomes"], 0
        for chunk in self.chunks:
            size = chunk.stop - chunk.start
            chunk.call.result[chunk.start : chunk.stop] = outcomes[at : at + size]
            at += size
            chunk.call.missing -= size
            if not chunk.call.missing:
                chunk.call.finish(chunk.call.result)

    def refused(self, error: FairqError, now: float) -> None:
        if error.code in RETRYABLE:
            for chunk in self.chunks:
                chunk.call.last_refusal = error
            self.session.back_off(now)
            self.lost()
        elif len(self.chunks) == 1:
            self.chunks[0].call.finish(error=error)
        else:  # one of the calls is at fault; each is sent again by itself to find out which
            for chunk in self.chunks:
                chunk.is_alone = True
            self.lost()

    def lost(self) -> None:
        self.session.chunks.extendleft(reversed(self.chunks))


def _encode_task(task: NewTask) -> dict[str, Any]:
    body: dict[str, Any] = {"id": task.id, "payload": orjson.Fragment(task.payload)}
    for name in ("delay_ms", "start_at_ms", "expires_in_ms", "expires_at_ms", "max_attempts"):
        if value := getattr(task, name):
            body[name] = value
    return body


@define(eq=False)
class ClientSession(Session):
    """A client's conversation with whichever server it is connected to.

    The driver calls `connected` and `disconnected`, and connects again at `reconnect_at`. `jitter` gives numbers in
    [0, 1).
    """

    jitter: Callable[[], float] = random.random
    is_open: bool = False
    is_draining: bool = False
    reconnect_at: float = 0.0
    max_batch: int = MAX_BATCH
    max_message_bytes: int = MAX_MESSAGE_BYTES
    server_warning: str | None = None
    requests: deque[_RequestExchange] = field(factory=deque, init=False)
    chunks: deque[_Chunk] = field(factory=deque, init=False)
    calls: list[Call] = field(factory=list, init=False)  # a heap by deadline; done ones leave when they come up
    _failures: int = field(default=0, init=False)
    _refusals: int = field(default=0, init=False)
    _resume_at: float | None = field(default=None, init=False)  # frames are held back until then
    _next_ref: int = field(default=1, init=False)
    _under_way: dict[int, Exchange] = field(factory=dict, init=False)
    _enqueues_under_way: int = field(default=0, init=False)
    fatal: FairqError | None = field(default=None, init=False)

    def connected(self, now: float) -> None:
        """A connection stands; the server speaks first."""
        self.heard_at = self.spoke_at = now
        self.is_silent = self.is_draining = False

    def disconnected(self, now: float) -> None:
        """The connection is gone, or could not be made: what had no answer will be sent again on the next."""
        self.is_open = False
        self._outbox.clear()
        exchanges, self._under_way = self._under_way, {}
        self._enqueues_under_way = 0
        for exchange in reversed(exchanges.values()):
            exchange.lost()
        delay = min(RECONNECT_CAP_S, RECONNECT_BASE_S * 2**self._failures) * self.jitter()
        self.reconnect_at = now if self.is_draining and not self._failures else now + delay
        self._failures = min(self._failures + 1, 16)

    def back_off(self, now: float) -> None:
        """Hold new frames back for a while: the server said that it cannot serve just now."""
        self._refusals = min(self._refusals + 1, 8)
        self._resume_at = now + 0.05 * 2**self._refusals * (0.5 + self.jitter() / 2)

    def close(self) -> None:
        """Fail all that still waits."""
        for call in self.calls:
            call.finish(error=Closed("the client was closed"))
        self.calls.clear()

    def request(self, kind: str, body: Mapping[str, Any], deadline: float) -> Call:
        """Ask something; the call's result is the reply's body."""
        call = self._new_call(deadline)
        self.requests.append(_RequestExchange(self, kind, body, call))
        return call

    def enqueue(self, queue: str, tasks: Sequence[NewTask], deadline: float) -> Call:
        """Enqueue tasks, in frames shared with other calls; the call's result is one outcome per task."""
        call = self._new_call(deadline)
        call.result, call.missing = [None] * len(tasks), len(tasks)
        self.chunks.append(_Chunk(call, queue, tasks, 0, len(tasks)))
        return call

    def _new_call(self, deadline: float) -> Call:
        call = Call(deadline)
        heapq.heappush(self.calls, call)
        return call

    def receive(self, text: str, now: float) -> Any | None:
        """Take in one text; returns a frame that is the driver's business (a push), or None."""
        self.heard_at = now
        frame = decode_server(text)
        match frame:
            case Reply(ref=ref, body=body):
                self._refusals = 0
                self._take(ref).answered(body, now)
            case Error(ref=None):
                self.fatal = from_code(frame.code, frame.message, frame.field)
            case Error(ref=int(ref)):
                self._take(ref).refused(from_code(frame.code, frame.message, frame.field), now)
            case Welcome():
                self.is_open, self._failures = True, 0
                self.max_batch, self.max_message_bytes = frame.max_batch, frame.max_message_bytes
                self.server_warning = frame.warning
                self.opened(now)
            case Drain():
                self.is_draining = True
                self.drained(now)
            case Push():
                return frame
        return None

    def opened(self, now: float) -> None:
        """Hook: the server has welcomed us."""

    def drained(self, now: float) -> None:
        """Hook: the server is about to stop."""

    def _take(self, ref: int) -> Exchange:
        exchange = self._under_way.pop(ref, None) or Exchange()
        if isinstance(exchange, _EnqueueExchange):
            self._enqueues_under_way -= 1
        return exchange

    def start(self, kind: str, body: Mapping[str, Any], exchange: Exchange) -> None:
        """Send a frame that expects an answer."""
        ref, self._next_ref = self._next_ref, self._next_ref + 1
        self._under_way[ref] = exchange
        self.send(kind, {"ref": ref, **body})

    def outgoing(self, now: float) -> list[str]:
        """Hand out the frames to send, in order; gathers what waits into frames."""
        if self._resume_at is not None and now >= self._resume_at:
            self._resume_at = None
        if self.is_open and self._resume_at is None:
            self.gather(now)
        return super().outgoing(now)

    def gather(self, now: float) -> None:
        """Turn what waits into frames, as far as the window allows."""
        while self.requests:
            exchange = self.requests.popleft()
            if not exchange.call.is_done:
                exchange.call.was_sent = True
                self.start(exchange.kind, exchange.body, exchange)
        while self.chunks and self._enqueues_under_way < WINDOW:
            chunks = self._gather_chunks()
            if chunks:
                self._enqueues_under_way += 1
                tasks = [_encode_task(t) for chunk in chunks for t in chunk.tasks[chunk.start : chunk.stop]]
                self.start(Enqueue.type, {"queue": chunks[0].queue, "tasks": tasks}, _EnqueueExchange(self, chunks))

    def _gather_chunks(self) -> list[_Chunk]:
        """Take chunks of one queue off the line, up to a batch's count and a message's bytes; splits the last."""
        gathered: list[_Chunk] = []
        count, room = self.max_batch, self.max_message_bytes - 1024
        skipped: list[_Chunk] = []
        while self.chunks and count > 0 and room > 0:
            chunk = self.chunks.popleft()
            if chunk.call.is_done:
                continue
            if gathered and (chunk.queue != gathered[0].queue or chunk.is_alone or gathered[0].is_alone):
                skipped.append(chunk)
                if len(skipped) >= 100:
                    break
                continue
            stop = chunk.start
            while stop < chunk.stop and count > 0 and room > 0:
                size = len(chunk.tasks[stop].payload) + 256
                if size > room and (gathered or stop > chunk.start):
                    room = 0
                    break
                room, count, stop = room - size, count - 1, stop + 1
            if stop > chunk.start:
                chunk.call.was_sent = True
                gathered.append(_Chunk(chunk.call, chunk.queue, chunk.tasks, chunk.start, stop, chunk.is_alone))
            if stop < chunk.stop:
                chunk.start = stop
                self.chunks.appendleft(chunk)
        self.chunks.extendleft(reversed(skipped))
        return gathered

    def deadline(self) -> float:
        """Return when `expire` or `outgoing` has something to do."""
        while self.calls and self.calls[0].is_done:
            heapq.heappop(self.calls)
        earliest = self.calls[0].deadline if self.calls else float("inf")
        if self.is_open:
            earliest = min(earliest, super().deadline(), self._resume_at or earliest)
        return earliest

    def expire(self, now: float) -> None:
        """Do what is due by now."""
        if self.is_open:
            super().expire(now)
        while self.calls and (self.calls[0].is_done or self.calls[0].deadline <= now):
            heapq.heappop(self.calls).give_up()
