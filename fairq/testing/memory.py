"""A queue in memory: the exact model, plus what a test asks for: payloads, and what became of tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import orjson
from attrs import define, field

from fairq.model.batches import BatchState
from fairq.model.checks import bare_id, full_id
from fairq.model.events import Event, EventPage
from fairq.model.queue import feeds
from fairq.model.queue.limits import UNSET
from fairq.model.queue.model import Model
from fairq.model.queue.tasks import Run, Task
from fairq.model.queue.tick import first_of
from fairq.model.queues import SHARES, QueueSettings
from fairq.model.refusals import refusal
from fairq.model.tasks import NewTask, Settlement, TaskState
from fairq.model.waiting import PAUSED
from fairq.wire.frames import PushedTask

_PER_TICK = 1000  # changes


@define(eq=False)
class Record:
    """A task (with its full id), and what became of it."""

    task: NewTask
    tenant: str
    enqueued_at_ms: int
    _model: Model
    exceptions: list[BaseException] = field(factory=list, init=False)
    progress: list[tuple[float, str]] = field(factory=list, init=False)
    ended: TaskState | None = field(default=None, init=False)

    @property
    def state(self) -> TaskState:
        """Return its state, also after the queue has forgotten it."""
        return self.ended or self._model.state_of(self.task.id)


class _Followed(Model):
    """The model of a queue; `known` are all its tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Record] = {}

    def add_record(self, id: str, task: Task) -> None:
        """Keep a task's record."""
        super().add_record(id, task)
        self.known[id] = Record(task.options, task.tenant.name, int(self.call_now), self)

    def bury(self, id: str, reason: str, now: float, traceback: str = "") -> None:
        """Make a dead letter."""
        self._end(id, "dead", now, reason)
        super().bury(id, reason, now, traceback)

    def forget(self, id: str, owner: Run | None, how: str, now: float, result: str = "") -> None:
        """Forget a task but for its id and its result."""
        self._end(id, how, now)
        super().forget(id, owner, how, now, result)

    def _end(self, id: str, how: Any, now: float, reason: str = "") -> None:
        record, run = self.known[id], self.runs.get(id) or Run(0)
        record.ended = TaskState(id, how, record.tenant, run.attempt, int(now), reason=reason, error=run.error)


@define(eq=False)
class MemoryQueue:
    """The tasks of one queue; `slots` of them run at once. Time does not go back; leases do not expire."""

    settings: QueueSettings
    slots: int
    rng: Random
    model: _Followed = field(factory=_Followed, init=False)

    def __attrs_post_init__(self) -> None:
        values = {name: getattr(self.settings, name) for name in self.model.settings}
        self.model.configure(0, **{**values, "share": SHARES.index(self.settings.share)})

    @property
    def records(self) -> dict[str, Record]:
        """All tasks that it has had."""
        return self.model.known

    def _random(self) -> Iterator[float]:
        return iter(self.rng.random, None)

    def enqueue(self, now: int, tenant: str, tasks: Sequence[NewTask]) -> list[str]:
        """Store tasks with full ids, all or none. Raises: NotFound, BatchClosed, QuotaExceeded."""
        return _accepted(self.model.enqueue(now, tenant, [_with_full_batch(tenant, task) for task in tasks]))

    def open_batch(
        self, now: int, id: str, tenant: str, max_running: int, callbacks: dict[str, NewTask], *, has_events: bool
    ) -> str:
        """Open a batch, unless it is known; `callbacks` are tasks by `complete`, `success` and `death`."""
        (outcome,) = _accepted([self.model.open_batch(now, tenant, id, max_running, callbacks, int(has_events))])
        return outcome

    def cancel_batch(self, now: int, id: str) -> tuple[str, list[Record]]:
        """Close a batch and cancel its tasks; returns its previous state, and what is to be stopped."""
        previous = self.model.cancel_batch(now, id)
        self.tick(now)
        return previous, [self.records[stopping] for stopping in self.model.stopping()]

    def batch(self, id: str, shown_id: str) -> BatchState | None:
        """Return a batch's progress, under an id that its caller knows."""
        b = self.model.batches.get(id)
        return b.state_of(shown_id) if b else None

    def set_weight(self, now: int, tenant: str, weight: float) -> float:
        """Give a tenant a weight; returns the one before."""
        return self.model.set_weight(now, tenant, round(weight * 1000)) / 1000

    def set_limits(self, now: int, tenant: str, limits: Mapping[str, float | None]) -> dict[str, float | None]:
        """Limit a tenant, or (empty) all; returns the previous limits."""
        values = {name: UNSET if value is None else value for name, value in limits.items()}
        previous = self.model.set_limits(now, tenant, values)
        return {name: None if value == UNSET else value for name, value in previous.items()}

    def set_paused(self, now: int, tenant: str, *, is_paused: bool) -> bool:
        """Pause or resume a tenant, or (empty) the queue; returns whether it was paused before."""
        return bool(self.model.set_paused(now, tenant, PAUSED * is_paused))

    def tick(self, now: float) -> None:
        """Do what time does, all that is due."""
        while first_of(self.model.due_times(now).values()) <= now:
            self.model.tick(max(now, self.model.now), _PER_TICK)

    def next_due(self) -> float:
        """Return when the next tick will make a task ready, or let one expire."""
        tenants = self.model.tenants
        starts = (tenants[name].delayed.first_at for name in self.model.due)
        tokens = (at for name, at in self.model.parked.items() if tenants[name].ready)
        return min(first_of(starts), self.model.expiring.lowest, first_of(tokens))

    def claim(self, now: int) -> PushedTask | None:
        """Lease the next task by the fair pick, if any is ready."""
        leased = self.model.claim(now, self._random(), "memory", 1, self.slots)
        if not leased:
            return None
        ((id, attempt, last_attempt),) = leased
        self.model.leases[id] = math.inf
        record, times = self.records[id], self.model.records[id]
        return PushedTask(
            id, self.model.last_lease, attempt, max(last_attempt, 0), record.tenant, record.enqueued_at_ms,
            orjson.loads(record.task.payload), int(times.start_at) or None, int(times.expires_at) or None,
            bool(record.task.result_ttl_ms), record.task.name, trace=record.task.trace,
            uncounted_attempts=self.model.runs[id].uncounted_attempts,
        )  # fmt: skip

    def settle(self, now: int, settlement: Settlement, links: Sequence[NewTask] = ()) -> None:
        """End a lease, by how its handler ended, and store what follows: all or nothing. Raises: what refuses that."""
        action, id, lease, delay_ms, error, result, _, traceback = settlement
        said = result.decode() if action == "ack" else error
        if not links:
            self.model.settle(now, self._random(), [(action, id, lease, delay_ms, said, traceback)])
            return
        _accepted([self.model.settle_linked(now, id, lease, said, links)])

    def state(self, id: str) -> TaskState:
        """Return a task's state, for longer than the service does."""
        found, record = self.model.state_of(id), self.records.get(id)
        return TaskState(id, record.state.state) if found.state == "unknown" and record else found

    def result(self, now: float, id: str) -> bytes | None:
        """Return a result that is kept, as JSON text."""
        until, text = self.model.results.get(id, (0, ""))
        return text.encode() if now < until else None

    def batch_results(self, now: int, id: str, lease: int) -> list[dict[str, Any]]:
        """Read the results of the batch for which a task calls back. Raises: Forbidden, NotFound."""
        found = self.model.batch_results(now, id, lease)
        if isinstance(found, str):
            raise refusal(found) or AssertionError(found)
        return [{"id": id} | ({"result": orjson.loads(text)} if text else {}) for id, text in found]

    def events(self, tenant: str, after: int, count: int) -> EventPage:
        """Read events after one of them. Raises: TooOld, BadRequest."""
        oldest, newest, found = self.model.feeds.read(tenant, after, count)
        page = EventPage(oldest, newest, [_event(each) for each in found])
        page.check(after)
        return page


def _with_full_batch(tenant: str, task: NewTask) -> NewTask:
    return task._replace(batch=full_id(tenant, task.batch)) if task.batch else task


def _accepted(outcomes: list[str]) -> list[str]:
    """Return outcomes, unless they are one refusal."""
    if error := refusal(outcomes[0]):
        raise error
    return outcomes


def _event(found: feeds.Event) -> Event:
    id, event, of, at, attempt, detail = found
    if event != "batch_completed":
        return Event(id, event, int(at), bare_id(of), attempt=attempt, detail=detail)  # type: ignore[arg-type]
    done, dead, cancelled, expired = map(int, detail.split())
    return Event(id, event, int(at), batch=bare_id(of), done=done, dead=dead, cancelled=cancelled, expired=expired)  # type: ignore[arg-type]
