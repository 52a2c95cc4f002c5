"""The client's end of a connection, across reconnects: calls, their deadlines, and resending.

Every call is idempotent on ids that are fixed before it is first sent, so a call without an answer is sent again on the
next connection.

A *window* limits how many frames of a type are under way. Two rules keep one primary of the store that is away from
filling it:

- After a refusal, frames of that queue go outside the window: one at a time, and of all queues MAX_APART.
- A server needs seconds to notice that a primary is away. Until then, frames that have no answer after LATE_S leave the
  window. Their tasks still count for their own queue.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import inf
from typing import Any

from attrs import define, field

from fairq.errors import BadFrame, BadRequest, Closed, Draining, FairqError, Retryable, TooLarge, TooMany, from_code
from fairq.model.checks import owner_of
from fairq.model.tasks import NewTask
from fairq.wire.calls import Call, Exchange
from fairq.wire.decode import decode_server
from fairq.wire.enqueues import SEND_WINDOW, Chunk, EnqueueExchange, Enqueues, Limits
from fairq.wire.frames import Dismiss, Drain, Ended, Error, HeldLease, Push, Reply, Stop, Welcome
from fairq.wire.pauses import Key, Pauses
from fairq.wire.raw_payloads import Message, size_of, split, to_message
from fairq.wire.session import Session
from fairq.wire.strict_json import check_cost
from fairq.wire.suspicion import PROBE_S, Ask, Suspicion
from fairq.wire.terms import Role
from fairq.wire.waits import Wait, Waits

MAX_APART = 32
LATE_S = 0.1
RECONNECT_BASE_S, RECONNECT_CAP_S = 0.1, 5.0
SWEEP_CALLS = 100  # done calls are dropped after this many new calls, plus as many as wait
_Counted = type[Exchange] | Key | None  # where a frame under way counts: a window, the late ones of a key; None: apart
_OF_SERVER = frozenset({Draining.code, TooMany.code})  # refusals that concern every queue


@define(eq=False)
class _RequestExchange(Exchange):
    session: ClientSession
    kind: str
    body: Mapping[str, Any]
    call: Call
    number: int  # requests keep their order
    refusals: int = 0

    @property
    def is_due(self) -> bool:
        """A request with a time-out waits for something."""
        return not self.body.get("timeout_ms")

    @property
    def key(self) -> Key:
        """All requests of a queue share a key, and so do those of none."""
        queue = self.body.get("queue")
        return "request", queue if isinstance(queue, str) else ""

    def answered(self, body: dict[str, Any], now: float) -> None:
        self.call.finish(body)

    def refused(self, error: FairqError, now: float) -> None:
        if error.code == TooMany.code and self.session.is_producer:
            self.call.refused(error)
            self.refusals += 1
            self.session.put_off(self, now + self.session.pause_s(self.refusals, error.retry_in_ms))
        elif isinstance(error, Retryable):
            self.call.refused(error)
            self.session.back_off(error, now, self.key)
            self.session.ask(self)
        else:
            self.call.finish(error=error)

    def lost(self) -> None:
        self.call.lost()
        self.session.ask(self)


@define(eq=False)
class ClientSession(Session):
    """A client's session, across connections to any of the servers.

    The driver calls `connected` and `disconnected`, and connects again at `reconnect_at`. `jitter` gives numbers in
    [0, 1).
    """

    jitter: Callable[[], float] = random.random
    is_connected: bool = False
    is_open: bool = False  # the server's `welcome` was received
    is_draining: bool = False
    reconnect_at: float = 0.0
    is_producer: bool = False  # as far as a server has said
    trouble: str = ""  # why the last attempt to connect failed, if it did; set by the driver
    fatal: FairqError | None = field(default=None, init=False)
    requests: list[tuple[int, _RequestExchange]] = field(factory=list, init=False)  # a heap by number
    enqueues: Enqueues = field(init=False)
    waits: Waits = field(init=False)
    suspicion: Suspicion = field(init=False)
    pauses: Pauses = field(init=False)  # of some frames
    under_way: dict[_Counted, int] = field(factory=dict, init=False)  # how many frames; none: no entry
    _calls: list[tuple[float, int, Call]] = field(factory=list, init=False)  # a heap by deadline; may hold done calls
    _calls_to_sweep: int = field(default=SWEEP_CALLS, init=False)  # new calls until done ones are dropped
    _number: Callable[[], int] = field(factory=lambda: count(1).__next__, init=False)
    _failures: int = field(default=0, init=False)
    _opened_at: float = field(default=0.0, init=False)
    _refusals: int = field(default=0, init=False)
    _resume_at: float | None = field(default=None, init=False)  # all frames are held back until then
    # The frames under way, by ref: each with where it counts, when it was sent, and its size.
    _exchanges: dict[int, tuple[Exchange, Sequence[_Counted], float, int]] = field(factory=dict, init=False)
    _in_window: dict[int, None] = field(factory=dict, init=False)  # those that count in a window, the oldest first
    _is_full: bool = field(default=False, init=False)  # frames wait for such a window, or did
    _later: list[tuple[float, int, _RequestExchange]] = field(factory=list, init=False)  # a heap

    def __attrs_post_init__(self) -> None:
        self.suspicion = Suspicion(self.jitter())
        self.pauses = Pauses(self.pause_s)
        self.enqueues = Enqueues(self.back_off)
        self.waits = Waits(self.back_off, self.is_paused)

    def connected(self, now: float) -> None:
        """Note that a connection is established; the server sends the first frame."""
        self.last_received_at = self.last_sent_at = now
        self.is_connected, self.is_draining, self.trouble = True, False, ""
        self.suspicion.begin(now)

    def disconnected(self, now: float) -> None:
        """Note that the connection ended or failed; frames without an answer will be sent again on the next.

        The wait grows with every failure, with full jitter, up to `max_reconnect_s`; a connection that lasted
        RECONNECT_CAP_S resets it.
        """
        if self.is_open and now - self._opened_at >= RECONNECT_CAP_S:
            self._failures = 0
        delay = min(self.max_reconnect_s, RECONNECT_BASE_S * 2**self._failures) * self.jitter()
        self.reconnect_at = now if self.is_draining and not self._failures else now + delay
        self._failures = min(self._failures + 1, 16)
        self.is_connected = self.is_open = self.is_timed_out = False
        self.suspicion.end()
        self._outbox, self.outgoing_bytes = [], 0
        lost, self._exchanges = self._exchanges, {}
        self.under_way.clear()
        self._in_window.clear()
        for exchange, *_ in reversed(lost.values()):
            exchange.lost()

    def suspect(self, now: float) -> bool:
        """Find out whether the server may be gone, at `suspicion.due_at`; returns whether to send a ping."""
        asks = [Ask(sent_at, size, exchange.is_due) for exchange, _, sent_at, size in self._exchanges.values()]
        if not self.is_open:
            asks.append(Ask(-inf, 0, is_due=True))  # the `welcome`
        return self.suspicion.look(now, asks, waits=self.is_given_tasks)

    @property
    def is_given_tasks(self) -> bool:
        """True if the server may send frames that are not answers."""
        return False

    @property
    def obstacle(self) -> str:
        """Why calls get no answer now, if that is known: there is no connection, or the server refuses one for now."""
        if not self.is_open:
            return self.trouble or "no welcome"
        refusals = (call.last_refusal for *_, call in self._calls if not call.is_done and call.last_refusal)
        return next((refusal.message for refusal in refusals), "")

    @property
    def max_reconnect_s(self) -> float:
        """The longest wait before it connects again."""
        return RECONNECT_CAP_S

    def back_off(self, error: FairqError, now: float, key: Key | None = None) -> None:
        """Delay new frames: those of `key` if its queue cannot be served now; all frames if the server cannot."""
        if key is None or error.code in _OF_SERVER:
            self._refusals += 1
            self._resume_at = now + self.pause_s(self._refusals, error.retry_in_ms)
        else:
            self.pauses.begin(key, now, error.retry_in_ms)

    def is_paused(self, key: Key) -> bool:
        """True if frames of this kind and queue are held back."""
        return self.pauses.until(key) is not None

    def pause_s(self, refusals: int, retry_in_ms: int | None) -> float:
        """Return how long to wait after some refusals in a row; `retry_in_ms` is the last one's."""
        asked_s = min((retry_in_ms or 0) / 1000, RECONNECT_CAP_S)
        return max(0.05 * 2.0 ** min(refusals, 5), 2 * asked_s) * (0.5 + self.jitter() / 2)

    def ask(self, exchange: _RequestExchange) -> None:
        """Let a request wait for its frame; those that were made before it go first, also if they are sent again."""
        heapq.heappush(self.requests, (exchange.number, exchange))

    def put_off(self, exchange: _RequestExchange, until: float) -> None:
        """Send a request later, and others first: its queue, or one tenant of a producer, has to wait."""
        heapq.heappush(self._later, (until, exchange.number, exchange))

    def close(self) -> None:
        """Fail all waiting calls and all later ones."""
        self.fatal = self.fatal or Closed("the client was closed")
        for _, _, call in self._calls:
            call.finish(error=self.fatal)
        self._calls.clear()

    def request(self, kind: str, body: Mapping[str, Any], deadline: float) -> Call:
        """Send a request; the call's result is the reply's body."""
        call = self._remember(Call(deadline))
        if not call.is_done:
            self.ask(_RequestExchange(self, kind, body, call, self._number()))
        return call

    def enqueue(self, queue: str, tasks: Sequence[NewTask], deadline: float, lease: HeldLease | None = None) -> Call:
        """Enqueue at least one task, in frames shared with other calls; the call's result is one outcome per task.

        A producer's tasks have full ids, all of one tenant. `lease`: the lease of the handler that enqueues them.
        """
        call = self._remember(Call(deadline, result=[None] * len(tasks), tasks=tasks, missing=len(tasks)))
        if not call.is_done:
            tenant = owner_of(lease.id if lease else tasks[0].id)
            kind = "enqueue_from" if lease else "enqueue"
            self.enqueues.put(kind, queue, Chunk(call, tasks, 0, len(tasks), tenant, lease))
        return call

    def wait_task(self, queue: str, id: str, deadline: float) -> Call:
        """Wait for a task's end, with others in one request; the call's result is its row of `wait_tasks`."""
        wait = Wait(deadline, queue=queue, id=id, take_last_look=self.waits.put)
        self._remember(wait)
        self.waits.put(wait)
        return wait

    def _remember(self, call: Call) -> Call:
        self._calls_to_sweep -= 1
        if self._calls_to_sweep <= 0:
            self._sweep()
            self._calls_to_sweep = SWEEP_CALLS + len(self._calls)
        if self.fatal:
            call.finish(error=self.fatal)
        heapq.heappush(self._calls, (call.deadline, self._number(), call))
        return call

    def _sweep(self) -> None:
        """Drop done calls and their unsent tasks: while no server can be reached, nothing else does."""
        self._calls = [each for each in self._calls if not each[2].is_done]
        heapq.heapify(self._calls)
        self._later = [each for each in self._later if not each[2].call.is_done]
        heapq.heapify(self._later)
        self.requests = [each for each in self.requests if not each[1].call.is_done]
        heapq.heapify(self.requests)
        self.enqueues.sweep()
        self.waits.sweep()

    def receive(self, message: Message, now: float) -> Any | None:
        """Process one message; returns a frame for the driver (Push, Stop, Dismiss), or None. Raises: BadFrame."""
        self.last_received_at = self.suspicion.heard_at = now
        frame = decode_server(message)
        match frame:
            case Reply(ref=ref, body=body):
                exchange = self._find(ref)
                exchange.answered(body, now)
                self._refusals = 0
                if self.pauses.has_any:
                    self.pauses.served(exchange.key)
                self._forget(ref)
            case Ended(ref=ref, tasks=tasks):
                self._find(ref).partly_answered(tasks)
            case Error(ref=None):
                self.fatal = from_code(frame.code, frame.message, frame.field)
            case Error(ref=int(ref)):
                self._find(ref).refused(from_code(frame.code, frame.message, frame.field, frame.retry_in_ms), now)
                self._forget(ref)
            case Welcome():
                self.is_open, self._opened_at = True, now
                self.enqueues.limits = Limits(max(1, frame.max_batch), frame.max_message_bytes, frame.max_payload_bytes)
                self.is_producer = frame.role == Role.PRODUCER.value
                self.waits.welcomed(is_producer=self.is_producer)
                self.opened(now)
            case Drain():
                self.is_draining = True
            case Push() | Stop() | Dismiss():
                return frame
        return None

    def opened(self, now: float) -> None:
        """Hook, called after the server's `welcome`."""

    def _find(self, ref: int) -> Exchange:
        if ref not in self._exchanges:
            raise BadFrame(f"invalid reply: no request under way has ref {ref}")
        return self._exchanges[ref][0]

    def _forget(self, ref: int) -> None:
        self._in_window.pop(ref, None)
        for place in self._exchanges.pop(ref)[1]:
            if left := self.under_way.pop(place) - 1:
                self.under_way[place] = left

    def has_room(self, kind: type[Exchange], key: Key, window: int) -> bool:
        """True if a frame of this type and key may be sent now; one that was refused goes apart."""
        if self.pauses.has_any:
            if self.is_paused(key):
                return False
            if self.pauses.refusals(key):
                return key not in self.under_way and self.under_way.get(None, 0) < MAX_APART
        is_full = self.under_way.get(kind, 0) >= window
        self._is_full = self._is_full or is_full
        return not is_full

    def _late_at(self) -> float:
        """Return when the oldest frame in a window is late."""
        return self._exchanges[next(iter(self._in_window))][2] + LATE_S if self._in_window else inf

    def _take_late_out(self, now: float) -> None:
        """Take frames that have no answer for LATE_S out of their windows."""
        while self._late_at() <= now:
            ref = next(iter(self._in_window))
            del self._in_window[ref]
            exchange, (window,), sent_at, size = self._exchanges[ref]
            self._exchanges[ref] = exchange, (exchange.key,), sent_at, size
            if left := self.under_way.pop(window) - 1:
                self.under_way[window] = left
            self.under_way[exchange.key] = self.under_way.get(exchange.key, 0) + 1

    def start(self, kind: str, body: Mapping[str, Any], exchange: Exchange, now: float) -> None:
        """Send a frame that expects an answer; if the server would refuse it, fail the exchange instead."""
        ref, limit = self._number(), self.enqueues.limits.message_bytes
        try:
            message = to_message({"type": kind, "ref": ref, **body})
            if size_of(message, limit) > limit:
                raise TooLarge(f"the {kind} request is too large: a message has at most {limit} bytes")
            check_cost(message if isinstance(message, str) else split(message)[0])
        except TooLarge as error:
            exchange.unsent(error, now)
            return
        except (TypeError, ValueError) as error:  # one caller's invalid value must not end another's call
            exchange.refused(BadRequest(f"the {kind} request is not JSON: {error}"), now)
            return
        is_apart = self.pauses.has_any and exchange.has_window and self.pauses.refusals(exchange.key) > 0
        places: Sequence[_Counted] = (exchange.key, None) if is_apart else (type(exchange),)
        if exchange.has_window and not is_apart:
            self._in_window[ref] = None
        self._exchanges[ref] = exchange, places, now, len(message)
        if now + PROBE_S < self.suspicion.due_at:
            self.suspicion.sent(now, is_due=exchange.is_due)
        for place in places:
            self.under_way[place] = self.under_way.get(place, 0) + 1
        self.put(message)

    @property
    def has_outgoing(self) -> bool:
        """True if frames wait to be sent, or calls wait for a frame."""
        return bool(self._outbox or self.requests or self.enqueues.lines or self.waits.lines)

    def outgoing(self, now: float) -> list[Message]:
        """Return the frames to send, in order; puts waiting requests and tasks into frames."""
        if self._resume_at is not None and now >= self._resume_at:
            self._resume_at = None
        if self.pauses.has_any:
            self.pauses.end(now)
        while self._later and self._later[0][0] <= now:
            self.ask(heapq.heappop(self._later)[2])
        if self.is_open and self._resume_at is None:
            self._is_full = False
            self.gather(now)
            if self._is_full and self._late_at() <= now:
                self._take_late_out(now)
                self.gather(now)
        return super().outgoing(now)

    def gather(self, now: float) -> None:
        """Put requests, waits and tasks into frames, as far as the send window allows."""
        while self.requests:
            exchange = heapq.heappop(self.requests)[1]
            if (until := self.pauses.until(exchange.key)) is not None:
                self.put_off(exchange, until)
            elif not exchange.call.is_done:
                exchange.call.under_way += 1
                self.start(exchange.kind, exchange.body, exchange, now)
        if self.waits.lines:
            self.waits.gather(now, lambda body, exchange: self.start("wait_tasks", body, exchange, now))
        if self.enqueues.lines:
            self.enqueues.gather(self._next_lines, self.start, now)

    def _next_lines(self) -> Key | None:
        """Return the tasks to send next; a server that drains still serves handlers of the leases it knows."""
        if self.under_way.get(EnqueueExchange, 0) >= SEND_WINDOW and not self.pauses.has_any:
            self._is_full = True
            return None
        for key in self.enqueues.lines:
            # Late frames count for their own queue still: a producer may have any number of tasks for it.
            window = SEND_WINDOW - self.under_way.get(key, 0)
            if (key[0] == "enqueue_from" or not self.is_draining) and self.has_room(EnqueueExchange, key, window):
                return key
        return None

    def deadline(self) -> float:
        """Return when `expire` or `outgoing` has something to do."""
        while self._calls and self._calls[0][2].is_done:
            heapq.heappop(self._calls)
        earliest = self._calls[0][0] if self._calls else inf
        if self.is_connected:
            earliest = min(earliest, super().deadline())
        if self.is_open and self._resume_at is not None:
            earliest = min(earliest, self._resume_at)
        if self.is_open and self.pauses.has_any:
            earliest = min(earliest, self.pauses.deadline())
        if self.is_open and self._later:
            earliest = min(earliest, self._later[0][0])
        return min(earliest, self._late_at()) if self._is_full else earliest

    def expire(self, now: float) -> None:
        """Do what is due: heartbeat, time-out, and calls past their deadline."""
        if self.is_connected:
            super().expire(now)
        while self._calls and (self._calls[0][2].is_done or self._calls[0][0] <= now):
            call = heapq.heappop(self._calls)[2]
            if not call.is_done and call.deadline <= now:
                call.give_up(self.trouble or ("the server does not answer" if self.is_open else ""))
            if not call.is_done:  # it has a later deadline by now
                heapq.heappush(self._calls, (call.deadline, self._number(), call))
