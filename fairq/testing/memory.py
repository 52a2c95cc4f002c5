"""A queue in memory: the rules of lua/ on a clock that the caller owns.

Tenants are served in the order in which their tasks became ready, each by its own priorities. Left out is what takes
several processes or tenants to happen: shares, pauses, leases that are lost, a store that is full; and the turns of
groups, also of a batch's tasks with others.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence

import orjson
from attrs import define, field

from fairq.errors import BatchClosed, NotFound
from fairq.model.checks import DERIVED, bare_id, full_id
from fairq.model.events import Event, EventName
from fairq.model.queues import QueueSettings
from fairq.model.tasks import Action, NewTask, Settlement, TaskState, is_last_attempt
from fairq.testing.batches import MemoryBatch
from fairq.testing.feeds import Feeds
from fairq.wire.frames import PushedTask

_WINDOW_MS = 60_000  # ids that are done are remembered for one to two of these
_DERIVED_WINDOWS = 60  # for which those are remembered in addition that begin with `from-`
_WAITING = ("ready", "delayed", "pending")
_ENDED = ("done", "dead", "cancelled")
_FORGOTTEN = ("done", "cancelled")  # but for their ids, for a while


@define(eq=False)
class Record:
    """An enqueued task and its state; times in ms, 0 for none. `at_ms`: when it starts, or when it ended."""

    task: NewTask
    tenant: str
    max_attempts: int
    enqueued_at_ms: int
    start_at_ms: int
    expires_at_ms: int
    batch: MemoryBatch[Record] | None = None
    state: str = "new"
    at_ms: int = 0
    attempt: int = 0
    uncounted_attempts: int = 0  # attempts that do not count
    reason: str = ""
    error: str = ""
    result: bytes = b""
    exceptions: list[BaseException] = field(factory=list)
    progress: list[tuple[float, str]] = field(factory=list)
    is_stopping: bool = False  # it was cancelled while its handler runs

    @property
    def id(self) -> str:
        """Its full id."""
        return self.task.id

    def move(self, state: str) -> None:
        """Be in another state, and count so in the batch."""
        if self.batch:
            self.batch.counts[self.state] -= 1
            self.batch.counts[state] += 1
        self.state = state


@define(eq=False)
class MemoryQueue:
    """The tasks of one queue. `jitter` gives numbers in [0, 1)."""

    settings: QueueSettings
    jitter: Callable[[], float]
    records: dict[str, Record] = field(factory=dict, init=False)
    batches: dict[str, MemoryBatch[Record]] = field(factory=dict, init=False)
    feeds: Feeds = field(init=False)
    _turns: deque[str] = field(factory=deque, init=False)  # of tenants, one per task that became ready
    _lines: defaultdict[str, list[tuple[int, int, Record]]] = field(factory=lambda: defaultdict(list), init=False)
    _last_lease: int = field(default=0, init=False)
    _order: int = field(default=0, init=False)  # in a tenant's line: a heap of priority and order; some have expired
    _holders: dict[tuple[str, str], tuple[int, Record]] = field(factory=dict, init=False)  # of dedupe keys; until when
    _due: list[tuple[int, str, Record]] = field(factory=list, init=False)  # heaps; those that moved on are passed over
    _expiring: list[tuple[int, str, Record]] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.feeds = Feeds(self.settings.events_keep)

    def enqueue_all(self, now: int, tenant: str, tasks: Sequence[NewTask]) -> list[str]:
        """Store tasks, whose ids are full ones, all or none. Raises: NotFound, BatchClosed."""
        for task in tasks:
            if task.batch and not self._knows(now, task.id):
                self._check_batch(now, tenant, task.batch)
        keys = set[str]()
        return [self.enqueue(now, tenant, task, keys) for task in tasks]

    def _check_batch(self, now: int, tenant: str, name: str) -> None:
        batch = self.batches.get(full_id(tenant, name))
        if batch is None or not batch.is_kept(now):
            raise NotFound("there is no such batch", field="batch")
        if batch.state != "open":
            raise BatchClosed("the batch takes no more tasks", field="batch")

    def enqueue(self, now: int, tenant: str, task: NewTask, keys: set[str] | None = None) -> str:
        """Store a task, whose id is a full one, and whose batch is open.

        `keys`: dedupe keys that tasks of the same call have taken: later ones of it do not replace these.
        """
        keys = set() if keys is None else keys
        start_at, expires_at = self._window(now, task)
        if self._knows(now, task.id):
            return "duplicate"
        if 0 < expires_at <= max(start_at, now):
            return "expired"
        first = self._holder(now, tenant, task.dedupe_key) if task.dedupe_key else None
        if first and not (task.replace and task.dedupe_key not in keys and self._may_take(tenant, task.dedupe_key)):
            return f"duplicate {first}"
        attempts = self.settings.max_attempts if task.max_attempts is None else task.max_attempts
        record = Record(task, tenant, attempts, now, start_at, expires_at)
        if first:
            self._cancel(now, self.records[first])
        self.records.pop(task.id, None)  # of a task that is forgotten
        if task.batch:
            record.batch = self.batches[full_id(tenant, task.batch)]
            record.batch.counts["new"] += 1
        self.records[record.id] = record
        if task.dedupe_key:
            held_until = now + task.dedupe_period_ms if task.dedupe_period_ms else 0
            self._holders[tenant, task.dedupe_key] = held_until, record
            keys.add(task.dedupe_key)
        self._wait(record, start_at if start_at > now else 0)
        self._follow(now, record.batch)
        return "replaced" if first else "ok"

    def _window(self, now: int, task: NewTask) -> tuple[int, int]:
        """Return when a task starts, and when it expires."""
        start_at = now + task.delay_ms if task.delay_ms else task.start_at_ms
        expires_at = now + task.expires_in_ms if task.expires_in_ms else task.expires_at_ms
        if task.expires_after_start_ms:
            expires_at = (start_at or now) + task.expires_after_start_ms
        return start_at, expires_at

    def is_late(self, now: int, task: NewTask) -> bool:
        """Tell whether a new task would expire before it may start."""
        start_at, expires_at = self._window(now, task)
        return not self._knows(now, task.id) and 0 < expires_at <= max(start_at, now)

    def _knows(self, now: int, id: str) -> bool:
        record = self.records.get(id)
        if record is None or record.state not in _FORGOTTEN:
            return record is not None
        return self._is_remembered(now, id, record.at_ms)

    def _is_remembered(self, now: int, id: str, ended_at: int) -> bool:
        more = _DERIVED_WINDOWS if f"/{DERIVED}" in id else 0
        return now // _WINDOW_MS - ended_at // _WINDOW_MS <= 1 + more

    def _holder(self, now: int, tenant: str, dedupe_key: str) -> str | None:
        """Name the task that holds a dedupe key: until its end, or for a period."""
        if (tenant, dedupe_key) not in self._holders:
            return None
        until, record = self._holders[tenant, dedupe_key]
        return record.id if (until > now if until else record.state not in _ENDED) else None

    def _may_take(self, tenant: str, dedupe_key: str) -> bool:
        """Tell whether the task that took a key still waits, in no batch; its id may be another one's by now."""
        _, record = self._holders[tenant, dedupe_key]
        return record.state in _WAITING and not record.batch and self.records.get(record.id) is record

    def _wait(self, record: Record, start_at: int) -> None:
        """Have a task wait: for a worker, or for its start."""
        if start_at:
            record.move("delayed")
            record.at_ms = start_at
            heapq.heappush(self._due, (start_at, record.id, record))
        else:
            self._make_ready(record)
        self._watch_end(record)

    def _watch_end(self, record: Record) -> None:
        if record.expires_at_ms:
            heapq.heappush(self._expiring, (record.expires_at_ms, record.id, record))

    def _make_ready(self, record: Record, *, at_head: bool = False) -> None:
        """Put a task to the end, or the head, of those of its tenant and priority; or have it wait for a batch slot."""
        self._order += 1
        record.at_ms = 0
        if record.batch and not record.batch.has_slot(record.state):
            record.move("pending")
            record.batch.add_pending(record.task.priority, self._order, record)
            return
        record.move("ready")
        order = -self._order if at_head else self._order
        heapq.heappush(self._lines[record.tenant], (record.task.priority, order, record))
        (self._turns.appendleft if at_head else self._turns.append)(record.tenant)

    def ready(self, tenant: str) -> list[Record]:
        """List a tenant's ready tasks in their order."""
        return [record for _, _, record in sorted(self._lines[tenant]) if record.state == "ready"]

    def _bury(self, now: float, record: Record, reason: str) -> None:
        record.reason = reason
        if reason == "expired" and record.batch:
            record.batch.expired += 1
        self._end(now, record, "dead", "expired" if reason == "expired" else "dead", reason)

    def _end(self, now: float, record: Record, state: str, event: EventName, detail: str = "") -> None:
        record.move(state)
        record.at_ms = round(now)
        self._tell_of(now, record, event, detail)

    def _tell_of(self, now: float, record: Record, event: EventName, detail: str = "") -> None:
        """Put into the tenant's feed what has become of a task, if it asked for that."""
        if record.task.events:
            told = Event(0, event, round(now), bare_id(record.id), "", record.attempt, detail)
            self.feeds.tell(record.tenant, told)

    def _follow(self, now: float, batch: MemoryBatch[Record] | None) -> None:
        """Bring a batch up to date after a change of its tasks: slots for pending ones, callbacks, its end."""
        if batch is None or batch.state == "complete":
            return
        while record := batch.pop_pending():
            if record.state == "pending":
                self._make_ready(record)
        if batch.counts["dead"]:
            self._call_back(now, batch, "death")
        if not batch.is_over:
            return
        batch.state, batch.completed_at_ms = "complete", round(now)
        state = batch.told(bare_id(batch.id))
        if batch.has_events:
            ends = (state.done, state.dead, state.cancelled, state.expired)
            self.feeds.tell(batch.tenant, Event(0, "batch_completed", round(now), "", state.id, 0, "", *ends))
        self._call_back(now, batch, "complete")
        if state.done == state.total:
            self._call_back(now, batch, "success")

    def _call_back(self, now: float, batch: MemoryBatch[Record], event: str) -> None:
        """Enqueue a callback task, once."""
        if payload := batch.callbacks.pop(event, None):
            self.enqueue(round(now), batch.tenant, NewTask(f"{batch.id}-{event}-{batch.created_at_ms}", payload))

    def open_batch(self, now: int, batch: MemoryBatch[Record]) -> str:
        """Open a batch, unless it is known."""
        known = self.batches.get(batch.id)
        if known and known.is_kept(now):
            return "duplicate"
        self.batches[batch.id] = batch
        return "ok"

    def close_batch(self, now: int, batch: MemoryBatch[Record]) -> str:
        """Close a batch; returns its previous state."""
        previous = batch.state
        if previous == "open":
            batch.state = "closed"
            self._follow(now, batch)
        return previous

    def cancel_batch(self, now: int, batch: MemoryBatch[Record]) -> tuple[str, list[Record]]:
        """Close a batch and cancel its tasks; returns its previous state, and those that run."""
        previous = batch.state
        if previous == "complete":
            return previous, []
        batch.state = "closed"
        mine = [record for record in self if record.batch is batch]
        for record in mine:
            self._cancel(now, record)
        self._follow(now, batch)
        return previous, [record for record in mine if record.is_stopping]

    def cancel(self, now: int, record: Record) -> str:
        """Cancel a task that waits; one that runs is to be stopped."""
        outcome = self._cancel(now, record)
        self._follow(now, record.batch)
        return outcome

    def _cancel(self, now: int, record: Record) -> str:
        if record.state in _ENDED:
            return "gone"
        if record.state == "leased":
            record.is_stopping = True
            return "running"
        self._end(now, record, "cancelled", "cancelled")
        return "ok"

    def tick(self, now: float) -> None:
        """Do what time does to tasks."""
        while self._due and self._due[0][0] <= now:
            at, _, record = heapq.heappop(self._due)
            if record.state == "delayed" and record.at_ms == at:
                self._make_ready(record)
        expired = list[Record]()
        while self._expiring and self._expiring[0][0] <= now:
            record = heapq.heappop(self._expiring)[2]
            if record.state in _WAITING:
                self._bury(now, record, "expired")
                expired.append(record)
        for record in expired:  # batches are told of after all tasks, as the service does
            self._follow(now, record.batch)

    def next_due(self) -> float:
        """Return when the next tick will find work."""
        for heap, states in ((self._due, ("delayed",)), (self._expiring, _WAITING)):
            while heap and heap[0][2].state not in states:
                heapq.heappop(heap)
        return min((heap[0][0] for heap in (self._due, self._expiring) if heap), default=float("inf"))

    def claim(self, now: int) -> PushedTask | None:
        """Lease the most urgent task of the tenant whose turn it is, if any."""
        while self._turns:
            record = heapq.heappop(self._lines[self._turns.popleft()])[2]
            if record.state == "ready" and 0 < record.expires_at_ms <= now:
                self._bury(now, record, "expired")
                self._follow(now, record.batch)
            elif record.state == "ready":
                record.move("leased")
                record.attempt += 1
                self._last_lease += 1
                return PushedTask(
                    record.id, self._last_lease, record.attempt, record.max_attempts, record.tenant,
                    record.enqueued_at_ms, orjson.loads(record.task.payload), record.start_at_ms or None,
                    record.expires_at_ms or None, bool(record.task.result_ttl_ms), record.task.name,
                    trace=record.task.trace,
                )  # fmt: skip
        return None

    def settle(self, now: int, settlement: Settlement) -> None:
        """End a lease as its handler's end says."""
        action, id, _, delay_ms, error, result, *_ = settlement
        record = self.records[id]
        if action == "ack":
            record.result = result or b"null"
            self._end(now, record, "done", "done")
        elif record.is_stopping:
            self._end(now, record, "cancelled", "cancelled")
        else:
            self._give_back(now, record, action, delay_ms, error)
        self._follow(now, record.batch)

    def _give_back(self, now: int, record: Record, action: Action, delay_ms: int | None, error: str) -> None:
        if action == "release":
            self._count_out(record)
            self._make_ready(record, at_head=True)
            self._watch_end(record)
            return
        record.error = error
        if action == "postpone":
            self._count_out(record)
            self._wait(record, now + (delay_ms or 0))
            return
        self._tell_of(now, record, "failed", error)
        if action == "reject":
            self._bury(now, record, "rejected")
        elif is_last_attempt(record.attempt, record.max_attempts):
            self._bury(now, record, "exhausted")
        else:
            delay_ms = self._backoff_ms(record) if delay_ms is None else delay_ms
            self._wait(record, now + delay_ms if delay_ms else 0)

    def _count_out(self, record: Record) -> None:
        """Have the attempt not count."""
        record.uncounted_attempts += 1
        record.max_attempts += record.max_attempts > 0

    def _backoff_ms(self, record: Record) -> int:
        """Full jitter: anywhere up to min(cap, base * 2^(attempt - 1)), of the attempts that count."""
        longest = self.settings.retry_base_ms * 2 ** min(record.attempt - record.uncounted_attempts - 1, 40)
        return int(self.jitter() * min(self.settings.retry_cap_ms, longest)) + 1

    def state(self, id: str) -> TaskState:
        """Tell what is known of a task."""
        record = self.records.get(id)
        if record is None:
            return TaskState(id, "unknown")
        if record.state in _FORGOTTEN:
            return TaskState(id, record.state)  # type: ignore[arg-type]
        return TaskState(
            id, record.state, record.tenant, record.attempt, record.at_ms, reason=record.reason, error=record.error  # type: ignore[arg-type]
        )  # fmt: skip

    def result(self, now: float, id: str) -> bytes | None:
        """Return a result that is kept, as JSON text."""
        record = self.records.get(id)
        if record is None or record.state != "done" or now >= record.at_ms + record.task.result_ttl_ms:
            return None
        return record.result

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())
