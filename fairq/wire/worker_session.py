"""A worker's end of a connection: credit, held leases and their renewal, settlements until they are answered.

Leases outlive connections. After a reconnect the worker sends the leases it still holds. A lease that another worker
has meanwhile is reported as lost, so that its handler can be cancelled.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from attrs import define, field

from fairq.errors import FairqError, Retryable
from fairq.model.places import place_of, queue_of
from fairq.model.tasks import MAX_PROGRESS_CHARS, Settlement
from fairq.wire.calls import Exchange, outcomes_of
from fairq.wire.client_session import RECONNECT_BASE_S, ClientSession
from fairq.wire.enqueues import FRAME_BYTES, SEND_WINDOW
from fairq.wire.frames import HeldLease, Push, Report, Stop
from fairq.wire.held_leases import NOW, STALL_S, ServerClock, Start, Terms, Watch
from fairq.wire.raw_payloads import Message
from fairq.wire.settlements import (
    BYTES_PER_CHAR,
    LEASE_BYTES,
    SettleExchange,
    encode_settlement,
    sendable,
    settle_key,
    take_settlements,
)

_RENEWALS_PER_LEASE = 3
_PREFETCH_WINDOW = 16  # SEND_WINDOW of settlements for a worker that holds more than it has begun
_RETRY_RENEWAL_S = 1.0
_RECONNECTS_PER_LEASE = 10  # at least
_REPORT_S = 1.0  # between reports of progress


def _ignore(*_: Any) -> None:
    pass


_Held = tuple[int, Terms]  # with its number


@define(eq=False)
class _AttachExchange(Exchange):
    session: WorkerSession
    leases: list[HeldLease]
    sent_at: float

    def answered(self, body: dict[str, Any], now: float) -> None:
        outcomes = outcomes_of(body, "leases", len(self.leases))
        self.session.is_attached, self.session.due_at = True, now
        self.session.clock.attached(self.sent_at)
        for lease, outcome in zip(self.leases, outcomes, strict=True):
            self.session.renewed(lease, outcome, self.sent_at)

    def refused(self, error: FairqError, now: float) -> None:
        self.session.must_attach = self.session.refused(error, now)


@define(eq=False)
class _CreditExchange(Exchange):
    session: WorkerSession

    def refused(self, error: FairqError, now: float) -> None:
        if self.session.refused(error, now):
            self.session.sent_credit = None


@define(eq=False)
class _ExtendExchange(Exchange):
    session: WorkerSession
    leases: list[HeldLease]
    sent_at: float

    def answered(self, body: dict[str, Any], now: float) -> None:
        outcomes = outcomes_of(body, "outcomes", len(self.leases))
        if type(attached_ms := body.get("attached_ms")) is int:
            self.session.clock.measure(self.sent_at, attached_ms / 1000)
        for lease, outcome in zip(self.leases, outcomes, strict=True):
            self.session.renewed(lease, outcome, self.sent_at)

    # refused or lost: sent again a little later, since `_renew` has set when


@define(eq=False)
class WorkerSession(ClientSession):
    """A worker's session.

    The driver reads and reports `lost` and `stale_settlements` (too late).
    """

    worker: str = ""
    queues: Sequence[str] = ()
    credit: int = 1  # how many leases it may hold; 0: it gets no more, and those that it holds go on
    most_begun: int = 0  # how many of these may have begun, as the server counts; 0: all
    started_at_ms: int = 0  # 0: its name is not kept across restarts
    settled: Callable[[str, Sequence[Settlement], Sequence[str]], None] = _ignore  # queue, outcomes
    dropped: Callable[[str, Settlement, FairqError], None] = _ignore  # queue, what is invalid, why
    sent_credit: int | None = field(default=None, init=False)  # the last credit that was sent; None: none was
    has_asked: bool = field(default=False, init=False)  # some server was asked to attach it
    is_attached: bool = field(default=False, init=False)
    must_attach: bool = field(default=False, init=False)
    held: dict[str, dict[str, _Held]] = field(factory=dict, init=False)  # by queue and id
    # By line: a queue, or a partition of it: a frame of settlements waits for one primary of the store alone.
    settlements: defaultdict[str, deque[Settlement]] = field(factory=lambda: defaultdict(deque), init=False)
    unsettled: int = field(default=0, init=False)
    shortest_s: float = field(default=float("inf"), init=False)  # the shortest lease since nothing was held
    lost: list[HeldLease] = field(factory=list, init=False)
    cancelled: set[HeldLease] = field(factory=set, init=False)  # those of `lost` that were cancelled
    stale_settlements: list[HeldLease] = field(factory=list, init=False)
    has_renewed: bool = field(default=False, init=False)  # since the driver reset it
    clock: ServerClock = field(factory=ServerClock, init=False)
    watch: Watch = field(factory=Watch)
    _all_sure_until: float = field(default=inf, init=False)  # until when all held leases are sure, at least
    _sure_until: float = field(default=-inf, init=False)  # the same, or when the worker stands still
    _doubted_at: float = field(default=float("-inf"), init=False)  # a renewal that was sent earlier confirms nothing
    # Settlements that share no frame, by queue, id and lease; since when.
    alone: dict[tuple[str, str, int], float] = field(factory=dict, init=False)
    due_at: float = field(default=float("inf"), init=False)  # before this time no lease needs action
    reports: dict[str, dict[tuple[str, int], Report]] = field(factory=dict, init=False)  # not yet sent, by queue
    report_at: float = field(default=0.0, init=False)

    def opened(self, now: float) -> None:
        """Attach as the first request."""
        self.must_attach = True

    def disconnected(self, now: float) -> None:
        """Do as any client; settlements without an answer wait for the next connection."""
        super().disconnected(now)
        self.is_attached = self.must_attach = False
        self.due_at = now

    def refused(self, error: FairqError, now: float) -> bool:
        """Return whether to ask again after a delay; if not, `fatal` is set and this worker ends."""
        if isinstance(error, Retryable):
            self.back_off(error, now)
            return True
        self.fatal = error
        return False

    def receive(self, message: Message, now: float) -> Any | None:
        """Process one message; returns a Push (its leases are held from now on), Dismiss or None. Raises: BadFrame."""
        self._look(now)
        frame = super().receive(message, now)
        if isinstance(frame, Push):
            lease_s = frame.lease_ms / 1000
            self.shortest_s = min(self.shortest_s, lease_s) if self.holding else lease_s
            attached_s = None if frame.attached_ms is None else frame.attached_ms / 1000
            given_at = now if attached_s is None else self.clock.earliest(attached_s, now)
            terms = Terms(now, lease_s, lease_s / _RENEWALS_PER_LEASE, given_at, attached_s, frame.partition)
            held, pushed = self.held.setdefault(frame.queue, {}), {task.id: (task.lease, terms) for task in frame.tasks}
            for id in held.keys() & pushed:  # its old lease was lost, which was not known before
                self.lost.append(HeldLease(frame.queue, id, held[id][0]))
            held |= pushed
            self.due_at = min(self.due_at, terms.renew_at)
            self.watch.begin(now)
            self._all_sure_until = min(self._all_sure_until, terms.sure_until)
            self._sure_until = min(self._sure_until, terms.sure_until)
        elif isinstance(frame, Stop):
            for each in frame.leases:
                self._stop(HeldLease(frame.queue, each.id, each.lease))
            return None
        return frame

    def _stop(self, lease: HeldLease) -> None:
        """Release a cancelled task; its handler is cancelled as for a lost lease."""
        if self.settle(lease.queue, Settlement("release", lease.id, lease.lease)):
            self.lost.append(lease)
            self.cancelled.add(lease)

    def holds(self, queue: str, id: str, number: int) -> bool:
        """True if we still hold the lease of this number, as far as known."""
        held = self.held.get(queue, {}).get(id)
        return held is not None and held[0] == number

    def start_of(self, queue: str, id: str, number: int, begin_by: float) -> Start:
        """Return whether a held task may begin; LATER: it is known when `has_renewed` is set, or the lease is lost.

        `begin_by`: its expiry, if its lease began when the push came. To be asked right before the task begins.
        """
        watch = self.watch
        now = watch.clock() + watch.ahead_s  # later than now if the machine was suspended
        if now < self._sure_until and begin_by == inf:
            return NOW  # as nearly all
        held = self.held[queue].get(id)
        if held is None or held[0] != number:
            return Start.NEVER
        terms = held[1]
        if now >= watch.stalls_at:
            self._doubt(now)
        start = terms.start(begin_by, self.clock, now)
        if start is Start.LATER:
            self.due_at = min(self.due_at, terms.renew_at)
        return start

    def _look(self, now: float) -> None:
        has_stalled, slept_s = self.watch.look(now)
        self.clock.stood_still(slept_s)
        if has_stalled:
            self._doubt(now)
        self._sure_until = min(self.watch.stalls_at, self._all_sure_until)

    def _doubt(self, now: float) -> None:
        """Let no task begin before its lease is renewed: the worker has stood still."""
        self.due_at = self._doubted_at = now
        self.watch.stalls_at = now + STALL_S
        self._sure_until = self._all_sure_until = -inf
        for held in self.held.values():
            for _, terms in held.values():
                terms.doubt(now)

    @property
    def is_given_tasks(self) -> bool:
        """True if the server may push tasks."""
        return self.is_attached

    @property
    def holding(self) -> int:
        """The number of leases that are held or have a settlement without an answer."""
        return self.unsettled + sum(map(len, self.held.values()))

    @property
    def max_reconnect_s(self) -> float:
        """The longest wait before it connects again: a small part of the leases that it holds or settles."""
        if not self.holding:
            return super().max_reconnect_s
        return min(super().max_reconnect_s, max(RECONNECT_BASE_S, self.shortest_s / _RECONNECTS_PER_LEASE))

    def settle(self, queue: str, settlement: Settlement) -> bool:
        """End a lease; returns False if it was already lost."""
        leases, id = self.held.get(queue, {}), settlement.id
        held = leases.get(id)
        if held is None or held[0] != settlement.lease:
            return False
        del leases[id]
        partition = held[1].partition
        self.settlements[place_of(queue, partition) if partition else queue].append(settlement)
        self.unsettled += 1
        return True

    def report(self, queue: str, report: Report) -> None:
        """Report a task's progress; a lost report is not repeated."""
        self.reports.setdefault(queue, {})[report.id, report.lease] = report

    @property
    def _window(self) -> int:
        """How many frames of settlements may be under way; running tasks must not wait behind those of a few others."""
        return _PREFETCH_WINDOW if self.most_begun else SEND_WINDOW

    @property
    def unsent(self) -> int:
        """How many settlements are sent at the end of the turn: none that wait for earlier ones, or for a pause."""
        return sum(len(waiting) for line, waiting in self.settlements.items() if waiting and self._may_settle(line))

    def _may_settle(self, line: str) -> bool:
        return self.has_room(SettleExchange, settle_key(line), self._window)

    @property
    def has_outgoing(self) -> bool:
        """True if anything waits to be sent: as for any client, and settlements, reports or a new credit."""
        has_news = self.must_attach or self.credit != self.sent_credit or bool(self.reports)
        return has_news or any(self.settlements.values()) or super().has_outgoing

    @property
    def is_quiet(self) -> bool:
        """True if the server has answered the last change of credit; after one to 0, no push is under way."""
        return self.credit == self.sent_credit and _CreditExchange not in self.under_way

    def renewed(self, renewal: HeldLease, outcome: str, sent_at: float) -> None:
        """Handle the outcome of a renewal that was sent at `sent_at`."""
        if not self.holds(renewal.queue, renewal.id, renewal.lease):
            return
        held = self.held[renewal.queue]
        if outcome == "ok":
            terms = held[renewal.id][1].renewed(sent_at)
            if sent_at < self._doubted_at:
                terms.doubt(self._doubted_at)
            held[renewal.id] = renewal.lease, terms
            self.has_renewed = True
            self.due_at = min(self.due_at, terms.renew_at)
        elif outcome == "cancelled":
            self._stop(renewal)
        else:
            del held[renewal.id]
            self.lost.append(renewal)

    def gather(self, now: float) -> None:
        """Send attach, then credit, then settlements: a stopping worker must not get its released tasks again."""
        if self.must_attach:
            self._attach(now)
        if not self.is_attached:
            return
        if self.credit != self.sent_credit and _CreditExchange not in self.under_way:
            self.sent_credit = self.credit
            self.start("credit", {"credit": self.credit}, _CreditExchange(self), now)
        for line, waiting in list(self.settlements.items()):
            while waiting and self._may_settle(line):
                batch = take_settlements(queue := queue_of(line), waiting, self.alone, self.enqueues.limits)
                body = {"queue": queue, "settlements": [encode_settlement(each) for each in batch]}
                self.start("settle", body, SettleExchange(self, line, batch), now)
                del self.settlements[line]  # it goes behind the others: they take turns
                if waiting:
                    self.settlements[line] = waiting
        if self.reports and now >= self.report_at:
            self._tell_progress(now)
        super().gather(now)

    def _tell_progress(self, now: float) -> None:
        self.report_at = now + _REPORT_S
        for queue, reports in self.reports.items():
            held = [each for each in reports.values() if self.holds(queue, each.id, each.lease)]
            most = self._most(LEASE_BYTES + BYTES_PER_CHAR * MAX_PROGRESS_CHARS)
            for start in range(0, len(held), most):
                body = [
                    {"id": each.id, "lease": each.lease, "fraction": each.fraction, "text": sendable(each.text)}
                    for each in held[start : start + most]
                ]
                self.start("progress", {"queue": queue, "reports": body}, Exchange(), now)
        self.reports.clear()

    def _attach(self, now: float) -> None:
        """Send attach, with the held leases and those with unanswered settlements, as many as fit in a frame.

        Held leases always fit, since credit is bounded. The others are settled later, with or without this: but the
        end of the old connection, which may come first, takes an attempt.
        """
        self.must_attach, self.has_asked, self.sent_credit = False, True, self.credit
        most = self._most(LEASE_BYTES)
        leases = [HeldLease(queue, id, number) for queue, line in self.held.items() for id, (number, _) in line.items()]
        waiting = self.settlements.items()
        leases += [HeldLease(queue_of(line), each.id, each.lease) for line, some in waiting for each in some]
        body: dict[str, Any] = {
            "worker": self.worker,
            "queues": list(self.queues),
            "credit": self.credit,
            "leases": [{"queue": each.queue, "id": each.id, "lease": each.lease} for each in leases[:most]],
        }
        if 0 < self.most_begun < self.credit:
            body["prefetch"] = self.credit - self.most_begun
        if self.started_at_ms:
            body["started_at_ms"] = self.started_at_ms
        self.start("attach", body, _AttachExchange(self, leases[:most], now), now)

    def _most(self, size: int) -> int:
        """Return how many items of this size (bytes) fit in a frame; 1 where none does, and then it is not sent."""
        limits = self.enqueues.limits
        return max(1, min(limits.batch, (limits.message_bytes - FRAME_BYTES) // size))

    def deadline(self) -> float:
        """Return when `expire` or `outgoing` has something to do."""
        may_tell = self.reports and self.is_attached and self._resume_at is None
        return min(super().deadline(), self.due_at, self.watch.next_at, self.report_at if may_tell else float("inf"))

    def expire(self, now: float) -> None:
        """Do what is due: renew leases, and give up those that were not renewed in time."""
        super().expire(now)
        if now >= self.watch.next_at:
            self._all_sure_until = min(
                (t.sure_until for held in self.held.values() for _, t in held.values()), default=inf
            )
        self._look(now)
        self.watch.plan(now, any(self.held.values()))
        if now < self.due_at:
            return
        self.due_at = float("inf")
        for queue, held in self.held.items():
            for id, (number, terms) in list(held.items()):
                if terms.lost_at <= now:
                    self._give_up(queue, id, number, terms)
            if self.is_attached:
                self._renew(queue, held, now)
            for _, terms in held.values():
                self.due_at = min(self.due_at, terms.lost_at, terms.renew_at if self.is_attached else terms.lost_at)

    def _give_up(self, queue: str, id: str, number: int, terms: Terms) -> None:
        """Lose a lease that could not be renewed in time.

        If nothing was received since its renewal was due, the connection is dead and is closed. Otherwise the store is
        unavailable; the server still counts the lease against our credit, so it is released.
        """
        self.lost.append(HeldLease(queue, id, number))
        if self.is_connected and self.last_received_at < terms.lost_at - terms.lease_s * (1 - 1 / _RENEWALS_PER_LEASE):
            self.is_timed_out = True
            del self.held[queue][id]
        else:
            self.settle(queue, Settlement("release", id, number))

    def _renew(self, queue: str, held: dict[str, _Held], now: float) -> None:
        """Renew leases after a third of their time."""
        lines: dict[str, list[HeldLease]] = {}
        for id, (number, terms) in held.items():
            if terms.renew_at <= now:
                lines.setdefault(terms.partition, []).append(HeldLease(queue, id, number))
        most = self._most(LEASE_BYTES)
        for batch in (due[start : start + most] for due in lines.values() for start in range(0, len(due), most)):
            for each in batch:
                terms = held[each.id][1]
                terms.renew_at = now + min(_RETRY_RENEWAL_S, terms.lease_s / 10)
            renewals = [{"action": "extend", "id": each.id, "lease": each.lease} for each in batch]
            self.start("settle", {"queue": queue, "settlements": renewals}, _ExtendExchange(self, batch, now), now)
