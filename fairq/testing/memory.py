"""A queue in memory: the rules of lua/ on a clock that the caller owns.

Tasks are served in the order in which they became ready, whoever's they are. Left out is what takes several processes
or tenants to happen: shares, pauses, leases that are lost, a store that is full.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

import orjson
from attrs import define, field

from fairq.model import NewTask, QueueSettings, Settlement, TaskState
from fairq.wire.messages import PushedTask

_WINDOW_MS = 60_000  # ids that are done are remembered for one to two of these
_WAITING = ("ready", "delayed")


@define(eq=False)
class Record:
    """A task and what has become of it; times in ms, 0 for none. `at_ms`: when it starts, or ended."""

    id: str
    tenant: str
    payload: bytes
    max_attempts: int
    enqueued_at_ms: int
    start_at_ms: int
    expires_at_ms: int
    state: str = "ready"
    at_ms: int = 0
    attempt: int = 0
    reason: str = ""
    error: str = ""
    exceptions: list[Exception] = field(factory=list)
    progress: list[tuple[float, str]] = field(factory=list)


@define(eq=False)
class MemoryQueue:
    """The tasks of one queue. `jitter` gives numbers in [0, 1)."""

    settings: QueueSettings
    jitter: Callable[[], float]
    records: dict[str, Record] = field(factory=dict, init=False)
    _ready: deque[Record] = field(factory=deque, init=False)  # some may have expired there
    _due: list[tuple[int, str, Record]] = field(factory=list, init=False)  # heaps; those that moved on are passed over
    _expiring: list[tuple[int, str, Record]] = field(factory=list, init=False)

    def enqueue(self, now: int, tenant: str, task: NewTask) -> str:
        """Store a task, whose id is a full one."""
        start_at = now + task.delay_ms if task.delay_ms else task.start_at_ms
        expires_at = now + task.expires_in_ms if task.expires_in_ms else task.expires_at_ms
        if self._knows(now, task.id):
            return "duplicate"
        if 0 < expires_at <= max(start_at, now):
            return "expired"
        attempts = task.max_attempts or self.settings.max_attempts
        record = Record(task.id, tenant, task.payload, attempts, now, start_at, expires_at)
        self.records[task.id] = record
        self._wait(record, start_at if start_at > now else 0)
        return "ok"

    def _knows(self, now: int, id: str) -> bool:
        record = self.records.get(id)
        if record is None or record.state != "done":
            return record is not None
        return now // _WINDOW_MS - record.at_ms // _WINDOW_MS <= 1

    def _wait(self, record: Record, start_at: int) -> None:
        """Have a task wait: for a worker, or for its start."""
        record.state, record.at_ms = ("delayed", start_at) if start_at else ("ready", 0)
        if start_at:
            heapq.heappush(self._due, (start_at, record.id, record))
        else:
            self._ready.append(record)
        if record.expires_at_ms:
            heapq.heappush(self._expiring, (record.expires_at_ms, record.id, record))

    def _bury(self, now: float, record: Record, reason: str) -> None:
        record.state, record.at_ms, record.reason = "dead", round(now), reason

    def tick(self, now: float) -> None:
        """Do what time does to tasks."""
        while self._due and self._due[0][0] <= now:
            at, _, record = heapq.heappop(self._due)
            if record.state == "delayed" and record.at_ms == at:
                record.state, record.at_ms = "ready", 0
                self._ready.append(record)
        while self._expiring and self._expiring[0][0] <= now:
            record = heapq.heappop(self._expiring)[2]
            if record.state in _WAITING:
                self._bury(now, record, "expired")

    def next_due(self) -> float:
        """Return when the next tick will find work."""
        for heap, states in ((self._due, _WAITING[1:]), (self._expiring, _WAITING)):
            while heap and heap[0][2].state not in states:
                heapq.heappop(heap)
        return min((heap[0][0] for heap in (self._due, self._expiring) if heap), default=float("inf"))

    def claim(self, now: int) -> PushedTask | None:
        """Lease the task that has been ready for longest, if any."""
        while self._ready:
            record = self._ready.popleft()
            if record.state == "ready" and 0 < record.expires_at_ms <= now:
                self._bury(now, record, "expired")
            elif record.state == "ready":
                record.state, record.attempt = "leased", record.attempt + 1
                return PushedTask(
                    record.id, record.attempt, record.max_attempts, record.tenant, record.enqueued_at_ms,
                    orjson.loads(record.payload), record.start_at_ms or None, record.expires_at_ms or None,
                )  # fmt: skip
        return None

    def settle(self, now: int, settlement: Settlement) -> None:
        """End a lease as its handler's end says."""
        action, id, _, delay_ms, error, _ = settlement
        record = self.records[id]
        if action == "ack":
            record.state, record.at_ms = "done", now
            return
        if action == "release":
            record.max_attempts += 1  # the attempt does not count
            self._wait(record, 0)
            self._ready.rotate(1)  # to the head
            return
        record.error = error
        if action == "reject":
            self._bury(now, record, "rejected")
        elif record.attempt >= record.max_attempts:
            self._bury(now, record, "exhausted")
        else:
            delay_ms = self._backoff_ms(record) if delay_ms is None else delay_ms
            self._wait(record, now + delay_ms if delay_ms else 0)

    def _backoff_ms(self, record: Record) -> int:
        """Full jitter: anywhere up to min(cap, base * 2^(attempt - 1))."""
        longest = self.settings.retry_base_ms * 2 ** min(record.attempt - 1, 40)
        return int(self.jitter() * min(self.settings.retry_cap_ms, longest)) + 1

    def state(self, id: str) -> TaskState:
        """Tell what is known of a task."""
        record = self.records.get(id)
        if record is None:
            return TaskState(id, "unknown")
        if record.state == "done":
            return TaskState(id, "done", attempt=record.attempt)
        return TaskState(
            id, record.state, record.tenant, record.attempt, record.at_ms, reason=record.reason, error=record.error  # type: ignore[arg-type]
        )  # fmt: skip

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())
