"""A worker's end of a connection: credit, the leases it holds and renews, settlements until they are answered.

Leases outlive connections. After a reconnect the worker brings along what it still holds; whatever has meanwhile gone
to somebody else is reported as lost, so that its handler can be cancelled. A settlement is repeated until the store
has answered it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from fairq.errors import FairqError
from fairq.model import Settlement
from fairq.wire.client_session import RETRYABLE, WINDOW, ClientSession, Exchange
from fairq.wire.messages import Attach, Credit, Drain, Extend, HeldLease, Push, Settle

_RENEWALS_PER_LEASE = 3
_RETRY_RENEWAL_S = 1.0


@define(eq=False)
class _Held:
    id: str
    attempt: int
    lease_s: float
    renew_at: float
    lost_at: float


@define(eq=False)
class _AttachExchange(Exchange):
    session: WorkerSession
    leases: list[HeldLease]
    sent_at: float

    def answered(self, body: dict[str, Any], now: float) -> None:
        self.session.is_attached = True
        for lease, outcome in zip(self.leases, body["leases"], strict=True):
            self.session.renewed(lease.queue, lease.id, outcome, self.sent_at)

    def refused(self, error: FairqError, now: float) -> None:
        if error.code in RETRYABLE:
            self.session.back_off(now)
            self.session.must_attach = True
        else:
            self.session.fatal = error

    def lost(self) -> None:
        pass  # every connection begins with an attach


@define(eq=False)
class _SettleExchange(Exchange):
    session: WorkerSession
    queue: str
    settlements: list[Settlement]

    def answered(self, body: dict[str, Any], now: float) -> None:
        self.session.settles_under_way -= 1
        self.session.unsettled -= len(self.settlements)
        for settlement, outcome in zip(self.settlements, body["outcomes"], strict=True):
            if outcome == "stale":
                self.session.refused_settlements.append(HeldLease(self.queue, settlement.id, settlement.attempt))

    def refused(self, error: FairqError, now: float) -> None:
        self.session.settles_under_way -= 1
        if error.code in RETRYABLE:
            self.session.back_off(now)
            self.lost()
        else:
            self.session.unsettled -= len(self.settlements)
            self.session.fatal = error

    def lost(self) -> None:
        self.session.settlements.setdefault(self.queue, deque()).extendleft(reversed(self.settlements))


@define(eq=False)
class _ExtendExchange(Exchange):
    session: WorkerSession
    queue: str
    ids: list[str]
    sent_at: float

    def answered(self, body: dict[str, Any], now: float) -> None:
        for id, outcome in zip(self.ids, body["outcomes"], strict=True):
            self.session.renewed(self.queue, id, outcome, self.sent_at)

    def refused(self, error: FairqError, now: float) -> None:
        pass  # tried again a little later: see `expire`

    def lost(self) -> None:
        pass  # the attach of the next connection renews


@define(eq=False)
class WorkerSession(ClientSession):
    """A worker's conversation. `lost` and `refused_settlements` gather what the driver must hear of."""

    worker: str = ""
    queues: Sequence[str] = ()
    credit: int = 1
    is_attached: bool = field(default=False, init=False)
    must_attach: bool = field(default=False, init=False)
    held: dict[str, dict[str, _Held]] = field(factory=dict, init=False)  # by queue, in the order of renewal
    settlements: dict[str, deque[Settlement]] = field(factory=dict, init=False)
    unsettled: int = field(default=0, init=False)
    settles_under_way: int = field(default=0, init=False)
    lost: list[HeldLease] = field(factory=list, init=False)
    refused_settlements: list[HeldLease] = field(factory=list, init=False)

    def opened(self, now: float) -> None:
        """Attach, first of all."""
        self.must_attach = True

    def disconnected(self, now: float) -> None:
        """As for any client; settlements without an answer wait for the next connection."""
        super().disconnected(now)
        self.is_attached = self.must_attach = False
        self.settles_under_way = 0

    def receive(self, text: str, now: float) -> Any | None:
        """Take in one text; returns a Push, whose leases are held from now on, or None."""
        frame = super().receive(text, now)
        if isinstance(frame, Push):
            lease_s = frame.lease_ms / 1000
            held = self.held.setdefault(frame.queue, {})
            for task in frame.tasks:
                held[task.id] = _Held(
                    task.id, task.attempt, lease_s, now + lease_s / _RENEWALS_PER_LEASE, now + lease_s
                )
        return frame

    def holds(self, queue: str, id: str) -> bool:
        """Tell whether the lease is still ours, as far as we know."""
        return id in self.held.get(queue, {})

    @property
    def holding(self) -> int:
        """How many leases are held or wait for the answer to their settlement."""
        return self.unsettled + sum(map(len, self.held.values()))

    def settle(self, queue: str, settlement: Settlement) -> bool:
        """End a lease; returns False if it was lost before."""
        if self.held.get(queue, {}).pop(settlement.id, None) is None:
            return False
        self.settlements.setdefault(queue, deque()).append(settlement)
        self.unsettled += 1
        return True

    def set_credit(self, credit: int) -> None:
        """Change how many tasks this worker holds at most."""
        self.credit = credit
        if self.is_attached:
            self.request(Credit.type, {"credit": credit}, float("inf"))

    def stop_pushes(self) -> None:
        """Ask for no more tasks; those held go on."""
        self.credit = 0
        if self.is_open:
            self.send(Drain.type)

    def renewed(self, queue: str, id: str, outcome: str, sent_at: float) -> None:
        """Take the answer to a renewal that left at `sent_at`."""
        held = self.held.get(queue, {})
        lease = held.pop(id, None)
        if lease is None:
            return
        if outcome == "ok":
            lease.renew_at, lease.lost_at = sent_at + lease.lease_s / _RENEWALS_PER_LEASE, sent_at + lease.lease_s
            held[id] = lease
        else:
            self.lost.append(HeldLease(queue, id, lease.attempt))

    def gather(self, now: float) -> None:
        """Attach first; then settlements, before all else."""
        if self.must_attach:
            self.must_attach = False
            leases = [HeldLease(queue, h.id, h.attempt) for queue, held in self.held.items() for h in held.values()]
            body = {
                "worker": self.worker,
                "queues": list(self.queues),
                "credit": self.credit,
                "leases": [{"queue": h.queue, "id": h.id, "attempt": h.attempt} for h in leases],
            }
            self.start(Attach.type, body, _AttachExchange(self, leases, now))
        if not self.is_attached:
            return
        for queue, waiting in self.settlements.items():
            while waiting and self.settles_under_way < WINDOW:
                batch = [waiting.popleft() for _ in range(min(len(waiting), self.max_batch))]
                self.settles_under_way += 1
                self.start(
                    Settle.type, {"queue": queue, "settlements": [_encode(s) for s in batch]},
                    _SettleExchange(self, queue, batch),
                )  # fmt: skip
        super().gather(now)

    def deadline(self) -> float:
        """Return when `expire` has something to do."""
        earliest = super().deadline()
        for held in self.held.values():
            for lease in held.values():  # the first is the next
                earliest = min(earliest, lease.renew_at if self.is_attached else lease.lost_at)
                break
        return earliest

    def expire(self, now: float) -> None:
        """Renew what is due, give up what was not renewed in time."""
        super().expire(now)
        for queue, held in self.held.items():
            due = []
            for lease in list(held.values()):
                if lease.renew_at > now:
                    break
                if lease.lost_at <= now:
                    del held[lease.id]
                    self.lost.append(HeldLease(queue, lease.id, lease.attempt))
                elif self.is_attached and len(due) < self.max_batch:
                    lease.renew_at = now + min(_RETRY_RENEWAL_S, lease.lease_s / 10)
                    due.append(lease)
            if due:
                body = {"queue": queue, "leases": [{"id": h.id, "attempt": h.attempt} for h in due]}
                self.start(Extend.type, body, _ExtendExchange(self, queue, [h.id for h in due], now))


def _encode(settlement: Settlement) -> dict[str, Any]:
    action, id, attempt, delay_ms, error = settlement
    body: dict[str, Any] = {"action": action, "id": id, "attempt": attempt}
    if delay_ms is not None:
        body["delay_ms"] = delay_ms
    if error:
        body["error"] = error
    return body
