"""The records of tasks, batches and dead letters."""

from __future__ import annotations

import math

from attrs import define, field

from fairq.model.batches import BatchStage, BatchState
from fairq.model.queue.accounts import Tenant
from fairq.model.queue.limits import BATCH_BYTES, GROUP_BYTES, NAMED_BYTES, RESULTS_BYTES, bytes_of, bytes_of_error
from fairq.model.queue.ready import Asked
from fairq.model.queue.sorted_set import SortedSet
from fairq.model.tasks import NewTask

HEADER_BYTES = 33  # of a record: the fixed ones of HEADER in lua/base/formats.lua
FROM_BYTES = 9  # of an empty `trace`, and of the times from which a window is counted


@define
class Task:
    """A task's record."""

    tenant: Tenant
    options: NewTask  # as it was enqueued
    start_at: float
    expires_at: float
    max_attempts: int
    opened_at: float = 0  # its batch
    created_at: float = 0
    is_apart: bool = False  # its payload, however short: that of a callback
    start_from: int = 0  # the second from which its start was counted
    end_from: int = 0  # likewise its end
    ready_at: float = 0  # when it got a batch slot that it had waited for

    @property
    def length(self) -> int:
        """How long its record is, with its payload."""
        more = FROM_BYTES if self.start_from or self.end_from else 0
        return HEADER_BYTES + len(self.tenant.name + self.options.name) + self.size + more

    @property
    def size(self) -> int:
        """How long its payload is."""
        return len(self.options.payload)

    @property
    def end_moves(self) -> bool:
        """True if its end counts from its start."""
        return bool(self.options.expires_after_start_ms)

    def bytes(self, id: str) -> int:
        """Return the bytes that it counts for its tenant."""
        group, key = self.options.group, self.options.dedupe_key
        asked = bytes_of(key + group, GROUP_BYTES if group else 0) if self.options.has_rare_options else 0
        return bytes_of(id, self.length + asked)

    @property
    def asked(self) -> Asked:
        """Return the options that decide its place among its tenant's ready tasks."""
        return Asked(self.options.priority, self.options.group or self.options.batch)


@define
class Run:
    """The changing part of a task: its lease, or how the last one ended."""

    max_attempts: int
    attempt: int = 0
    lease: int = 0
    uncounted_attempts: int = 0
    state: str = ""
    is_extended: bool = False
    takeovers: int = 0
    began_at: float = 0
    lasts: float = 0  # ms
    claim: str = ""  # its name
    error: str = ""
    lost_leases: int = 0
    ready_at: float = 0  # since when it is ready, or when it will be, unless it is leased
    wait_s: int = 0  # before that: how long its wait is, in whole seconds

    def wait(self, now: float, ready_at: float) -> None:
        """Make its task wait, from now on."""
        self.ready_at, self.wait_s = ready_at, math.ceil((ready_at - now) / 1000)

    @property
    def last_attempt(self) -> int:
        """The attempt after which a failure is final; without a limit: minus the attempts that did not count."""
        return self.max_attempts + self.uncounted_attempts if self.max_attempts else -self.uncounted_attempts

    @property
    def is_last(self) -> bool:
        """True if no attempt is left."""
        return 0 < self.last_attempt <= self.attempt


@define
class Batch:
    """A batch: its counts, and where its tasks are."""

    tenant: str
    max_running: int
    created_at: float
    callbacks: dict[str, NewTask]  # that may still come, by their events
    events: int = 0
    state: BatchStage = "open"
    completed_at: float = 0
    sequence: int = 0
    total: int = 0
    admitted: int = 0
    running: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0  # of the dead
    members: SortedSet[str] = field(factory=SortedSet)
    pending: SortedSet[str] = field(factory=SortedSet)  # priority and order
    names_results: bool = field(init=False)  # for its callbacks
    results: SortedSet[str] = field(factory=SortedSet)  # names of results; in the order of their tasks

    def __attrs_post_init__(self) -> None:
        self.names_results = bool(self.callbacks)

    def bytes(self, id: str) -> int:
        """Return the bytes that it counts for its tenant, with those of callback tasks that may still come."""
        to_come = {self.callback_id(id, event): self.length(event) for event in self.callbacks}
        named = RESULTS_BYTES * self.names_results + sum(NAMED_BYTES + len(name) for name in self.results)
        return bytes_of(id, BATCH_BYTES + named) + sum(bytes_of(task, length) for task, length in to_come.items())

    def length(self, event: str) -> int:
        """Return how long the record of a callback task is, with its payload."""
        task = self.callbacks[event]
        return HEADER_BYTES + len(self.tenant + task.name) + len(task.payload)

    def callback_id(self, id: str, event: str) -> str:
        """Return the id of a callback task."""
        return f"{id}-{event}-{self.created_at:.0f}"

    def state_of(self, id: str) -> BatchState:
        """Return its progress, under this id."""
        counts = (self.max_running, self.total, self.running, self.done, self.dead, self.cancelled)
        moments = (int(self.created_at), int(self.completed_at))
        return BatchState(id, self.state, self.tenant, *counts, *moments, self.expired)

    @property
    def ended(self) -> int:
        """How many of its tasks have come to an end."""
        return self.done + self.dead + self.cancelled


@define
class Death:
    """A dead letter."""

    tenant: Tenant
    reason: str
    attempts: int
    lease: int
    died_at: float
    error: str
    traceback: str
    lost_leases: int = 0

    @property
    def owner(self) -> int:
        """Return the lease if its owner ended it; else 0."""
        return self.lease if self.reason in ("exhausted", "rejected") else 0

    @property
    def counted(self) -> int:
        """Return the bytes that it counts in addition to its task."""
        return bytes_of_error(self.error) + bytes_of_error(self.traceback)
