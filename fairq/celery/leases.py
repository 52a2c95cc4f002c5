"""A worker's connection, which a thread of its own keeps: leases are renewed while the main thread runs a task.

The main thread takes tasks with `take` and ends their leases with `settle`, which sends at once. The thread receives,
renews, connects again, and rings the alarm when there is something to take. See `fairq.sync.driver` for how threads
share a connection, and `fairq.wire.held_leases` for when a task may begin.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections import deque
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple, TypedDict, Unpack

from attrs import define, field

from fairq.client.channel import check_token, choose_servers
from fairq.client.connect_steps import Servers
from fairq.client.suspension import awake_clock
from fairq.errors import FairqError
from fairq.log import Log
from fairq.model.places import queue_of
from fairq.model.tasks import Settlement, leased_at_ms
from fairq.sync.alarm import Alarm
from fairq.sync.blocking import finish
from fairq.sync.driver import Driver
from fairq.wire.calls import Call
from fairq.wire.frames import HeldLease, Push, PushedTask
from fairq.wire.held_leases import Start, Watch
from fairq.wire.worker_session import WorkerSession

log = Log("fairq.celery")

_LEAVE_S = 2.0  # for which the answers to the last settlements are waited for


class Pushed(NamedTuple):
    """A task that waits to begin, at the latest at `begin_by` of the clock."""

    queue: str
    task: PushedTask
    begin_by: float

    @property
    def lease(self) -> HeldLease:
        """Its lease."""
        return HeldLease(self.queue, self.task.id, self.task.lease)


class _Options(TypedDict):
    worker: str
    queues: list[str]
    credit: int
    alarm: Alarm


@define(eq=False)
class Leases(Driver):
    """A worker attached to some queues. `alarm` wakes the main thread."""

    worker: str = field(kw_only=True)
    queues: list[str] = field(kw_only=True)
    credit: int = field(kw_only=True)
    alarm: Alarm = field(kw_only=True)
    cancelled: deque[HeldLease] = field(factory=deque, init=False)  # which the main thread has yet to hear of
    is_dismissed: bool = field(default=False, init=False)  # an operator drains this worker
    _waiting: deque[Pushed] = field(factory=deque, init=False)
    _work: WorkerSession = field(init=False)
    _end: Call = field(factory=lambda: Call(inf), init=False)  # the thread waits for it, and so leads
    _is_leaving: bool = field(default=False, init=False)
    _thread: threading.Thread = field(init=False)

    def _new_session(self) -> WorkerSession:
        self._work = WorkerSession(
            worker=self.worker, queues=self.queues, credit=self.credit,
            started_at_ms=time.time_ns() // 1_000_000, watch=Watch(awake_clock()), dropped=_report_dropped,
        )  # fmt: skip
        return self._work

    @classmethod
    def open(cls, url: str, token: str | None, tls: ssl.SSLContext | None, **options: Unpack[_Options]) -> Leases:
        """Connect, and attach. Raises: SettingsError."""
        servers = Servers(choose_servers(url, tls))
        leases = cls(servers, None if token is None else check_token(token), **options)
        leases._start()
        return leases

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="fairq-leases", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(FairqError):  # the main thread finds it in `session.fatal`
            finish(self.wait(self._end))
        self.alarm.ring()

    def take(self) -> Pushed | None:
        """Return a task that may begin now, if there is one. Raises: the error that has ended the connection."""
        if self.session.fatal:
            raise self.session.fatal
        return self._change(self._take) if self._waiting else None

    def _take(self) -> Pushed | None:
        in_doubt: list[Pushed] = []
        found: Pushed | None = None
        while self._waiting and not found:
            pushed = self._waiting.popleft()
            queue, task, begin_by = pushed
            start = self._work.start_of(queue, task.id, task.lease, begin_by)
            if start is Start.NOW:
                found = pushed
            elif start is Start.LATER:
                in_doubt.append(pushed)
            else:  # the store lets it expire
                self._work.settle(queue, Settlement("release", task.id, task.lease))
        if in_doubt:
            self._waiting.extendleft(reversed(in_doubt))
            self._send(time.monotonic())
        return found

    def settle(self, lease: HeldLease, action: Any, error: str = "") -> bool:
        """End a lease; returns False if it was lost before, or its task was cancelled."""
        return self._change(lambda: self._settle(Settlement(action, lease.id, lease.lease, error=error), lease.queue))

    def _settle(self, settlement: Settlement, queue: str) -> bool:
        was_held = self._work.settle(queue, settlement)
        self._send(time.monotonic())
        return was_held

    def limit(self, credit: int) -> None:
        """Hold at most this number of tasks from now on; 0: give back those that have not begun."""
        self._change(lambda: self._limit(credit))

    def _limit(self, credit: int) -> None:
        self._work.credit = self.credit = credit
        self._give_waiting_back()
        self._send(time.monotonic())

    def _give_waiting_back(self) -> None:
        while not self.credit and self._waiting:  # each goes to the head of its tenant's tasks: the oldest last
            queue, task, _ = self._waiting.pop()
            self._work.settle(queue, Settlement("release", task.id, task.lease))

    def consume(self, queues: list[str]) -> None:
        """Attach to these queues, and those of held leases, on another connection, which takes the leases over."""
        self._change(lambda: self._consume(queues))

    def _consume(self, queues: list[str]) -> None:
        if self._transport:
            self._transport.abandon()  # without a farewell, which would give the leases back
            self._lose(time.monotonic())
        self.queues, work = queues, self._work
        held = {queue_of(line) for lines in (work.held, work.settlements) for line, some in lines.items() if some}
        work.queues = sorted({*queues, *held})

    def leave(self) -> None:
        """Give back what has not begun, wait a short time until the server knows all settlements, and disconnect."""
        self._is_leaving = True
        with suppress(FairqError):
            self.limit(0)
        self._alarm.ring()
        self._thread.join(_LEAVE_S)
        self.close()

    def _handle(self, frame: Any) -> None:
        if not isinstance(frame, Push):
            self.is_dismissed = True
        else:
            now = time.monotonic()
            for task in frame.tasks:
                # By the store's clock: ours may be wrong. It is over already where the store's was set back.
                left_s = (task.expires_at_ms - leased_at_ms(task.lease)) / 1000 if task.expires_at_ms else 0.0
                self._waiting.append(Pushed(frame.queue, task, now + left_s if left_s > 0 else inf))
            self._give_waiting_back()
        self.alarm.ring()

    def _proceed(self, now: float) -> None:
        super()._proceed(now)
        work = self._work
        has_news = work.has_renewed or bool(work.lost)
        for lease in work.lost:
            if lease not in work.cancelled:
                self._say(log.warning, "lost the lease of a task, which may run again", **_named(lease))
        for lease in work.stale_settlements:
            self._say(log.warning, "too late: the lease was lost before", **_named(lease))
        self.cancelled.extend(work.cancelled)
        if has_news:  # the main thread can see it now
            self.alarm.ring()
        work.has_renewed = False
        for noted in (work.lost, work.cancelled, work.stale_settlements):
            noted.clear()
        if self._is_leaving and not work.holding and (work.is_quiet or not work.is_attached):
            self._end.finish()

    def _end_session(self) -> None:
        super()._end_session()
        self._end.finish(error=self.session.fatal)

    def reset(self) -> None:
        """Leave the connection to the parent: this process was forked off, and no thread keeps one here."""
        self._is_closed = True
        super().reset()


def _named(lease: HeldLease) -> dict[str, Any]:
    return {"task": lease.id, "queue": lease.queue, "lease": lease.lease}


def _report_dropped(queue: str, settlement: Settlement, error: FairqError) -> None:
    log.error("cannot settle a task", task=settlement.id, queue=queue, error=error.message)
