"""A queue in plain Python: what the function library must do; clock and random values are arguments.

It is exact: with the same clock and random values the same calls give the same replies and accounts, bit by bit.
It knows nothing of keys or packed values, and forgets no path: every method changes lists and then seats
whom it touched. Who is served next is in fair_pick.py.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fairq.store import library

from .fair_pick import OUT, Pick, Run, Tenant
from .feed_model import Feeds
from .limits_model import EVENT_COST, PAUSED, RATE_LIMITED, bytes_of
from .ready_model import Asked
from .schedule_model import Scheduling

ROUNDS, TENANTS_PER_TICK, MINUTE_MS, BATCH_KEEP_MS, CLOCK_BACK_MS = 8, 50, 60_000, 86_400_000, 60_000
ENDS_PER_TICK, CHANGES_PER_CALL, LATE_PER_TENANT = 80, 64, 16
HEADER_SIZE = library.formats()["HEADER"].size
LEASES_SINCE, LEASES_PER_MS = 1_735_689_600_000, 32


@dataclass
class Task:
    """A task's record."""

    tenant: Tenant
    start_at: float
    expires_at: float
    max_attempts: int
    priority: int = 50
    key: str = ""
    result_ttl: float = 0
    batch: str = ""
    events: int = 0
    opened_at: float = 0
    group: str = ""
    weight: float = 1  # of its group
    end_moves: bool = False  # its end counts from its start
    created_at: float = 0
    size: int = 2  # of its payload
    is_apart: bool = False  # its payload, however short: that of a callback
    name: str = ""

    @property
    def length(self) -> int:
        """How long its record is, with its payload."""
        return HEADER_SIZE + len(self.tenant.name + self.name) + self.size

    def bytes(self, id: str) -> int:
        """Tell what it counts among its tenant's bytes."""
        asks = self.priority != 50 or self.key or self.result_ttl or self.batch or self.events or self.group
        return bytes_of(id, self.length + (bytes_of(self.key + self.group, 0) if asks else 0))

    @property
    def asked(self) -> Asked:
        """What says where it stands among its tenant's ready tasks."""
        group = self.group or self.batch
        return Asked(self.priority, group, self.weight if group else 1)


@dataclass
class Batch:
    """A batch: its counts, and where its tasks are."""

    tenant: str
    max_running: int
    created_at: float
    callbacks: dict[str, str]
    events: int = 0
    state: str = "open"
    completed_at: float = 0
    sequence: int = 0
    total: int = 0
    admitted: int = 0
    running: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0  # of the dead
    members: dict[str, float] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)  # priority and order

    def bytes(self, id: str) -> int:
        """Tell what it counts among its tenant's bytes."""
        return bytes_of(id, sum(len(payload) for payload in self.callbacks.values()))

    @property
    def ended(self) -> int:
        """How many of its tasks have come to an end."""
        return self.done + self.dead + self.cancelled


@dataclass
class Death:
    """A dead letter."""

    tenant: Tenant
    reason: str
    attempts: int
    lease: int
    died_at: float
    error: str
    traceback: str


Member = TypeVar("Member", str, bytes)


def first_by_score(scores: dict[Member, float], limit: int, highest: float = math.inf) -> list[Member]:
    """List the members of a sorted set up to a score, lowest first, at most `limit`."""
    due = sorted((score, member) for member, score in scores.items() if score <= highest)
    return [member for _, member in due[:limit]]


class Model(Scheduling):
    """The queue. `now` is the time of the call; what is stored is the time of the last call that changed anything.

    A claim takes no more once it has `page` bytes of payloads that are longer than `large`.
    """

    large, page = 4096, 1_048_576

    def __init__(self) -> None:
        super().__init__()
        self.now: float = 0
        self.stored_clock: float = 0
        self.stored_level: float = 0
        self.call_origin: float = 0
        self.goes_back = False
        self.settings = {
            "share": 0,
            "lease_ms": 30_000,
            "max_attempts": 5,
            "retry_base_ms": 1000,
            "retry_cap_ms": 3_600_000,
            "dead_keep_ms": 14 * 86_400_000,
            "dead_keep": 100_000,
            "events_keep": 10_000,
            "max_tenants": 1_000_000,
            "reserve": 0,
            "run_timeout_ms": 0,
        }
        self.last_lease: int = 0
        self.hungry = 0
        self.readied = False
        self.published = 0
        self.dropped = {"delivered": 0.0, "entitled": 0.0}  # by tenants that are not there any more
        self.counts = dict.fromkeys(("enqueued", "done", "buried", "expired", "cancelled"), 0)
        self.records: dict[str, Task] = {}
        self.runs: dict[str, Run] = {}
        self.leases: dict[str, float] = {}  # id -> deadline, since the origin
        self.expiring: dict[str, float] = {}
        self.due: dict[str, float] = {}
        self.dead: dict[str, Death] = {}
        self.deaths: dict[str, float] = {}
        self.bundles: dict[int, list[str]] = {}  # number of a claim -> what it took
        self.claims: dict[str, int] = {}  # its name -> its number
        self.claimed_bytes = 0
        self.sequence = 0  # the last order given to a ready task
        self.returned: list[str] = []  # by a claim whose reply was full
        self.marks: dict[str, tuple[int, str]] = {}  # id -> its owner's lease or 0, how it ended
        self.ended: dict[int, list[str]] = {}  # minute -> ids that ended in it
        self.minute = 0
        self.ends: dict[bytes, float] = {}  # results and dedupe keys that are kept for a time, as the store names them
        self.holders: dict[tuple[str, str], tuple[float, str]] = {}  # (tenant, dedupe key) -> until (0: its end), id
        self.batches: dict[str, Batch] = {}
        self.cancelling: dict[str, float] = {}
        self.results: dict[str, tuple[float, str]] = {}  # id -> until, result
        self.kept_until: float = 0  # the last of results and dedupe keys that outlive their tasks
        self.feeds = Feeds()

    def open(self, now: float) -> float:
        """Begin a call: time never goes back."""
        self.touched, self.woken, self.readied, self.freed = [], [], False, False
        self.lowered_from, self.lowered_by = None, []
        back = self.now - now
        self.goes_back = back > CLOCK_BACK_MS
        jump = max(0, now - self.now - self.longest_step(self.now)) if self.leases else 0
        last = now if self.goes_back else self.now + jump
        self.call_now = max(now, last)
        self.call_origin = (self.origin or self.call_now) - (back if self.goes_back else 0) + jump
        self.clock, self.level = self.stored_clock, self.stored_level
        if not self.share and self.weight_sum > 0:
            moved = (self.call_now - last) * self.running / self.weight_sum
            self.clock, self.level = self.clock + moved, self.level + moved
        self.at = self.call_now - self.call_origin
        self.mean = self.estimate_sq / self.estimate if self.estimate > 0 else 0
        return self.call_now

    def longest_step(self, since: float) -> float:
        """Tell for how long nothing may happen while leases run."""
        return max(self.settings["lease_ms"], CLOCK_BACK_MS, *(at + self.origin - since for at in self.leases.values()))

    def close(self, now: float, *, notify: bool = True) -> None:
        """End a call that changes something; `is_covered`: the caller claims what it has made ready."""
        self.bound_level()
        self.seat_all()
        self.write_idle()
        has_room = self.freed and self.reserve > 0 and self.servable > 0 and not self.is_full()
        self.stored_clock, self.stored_level, self.origin = self.clock, self.level, self.call_origin
        self.sweeping = 2 if self.goes_back else self.sweeping
        self.wake.extend(self.woken)
        if self.hungry and (self.readied or has_room) and not self.blocked and notify:
            self.hungry = 0
            self.published += 1
        self.now = now

    def put_ready(self, t: Tenant, id: str, at_head: bool = False) -> None:
        """Put a task among those of its priority and group; without a place in its batch it is pending."""
        asked, b = self.records[id].asked, self.batch_of(id)
        if b and 0 < b.max_running <= b.admitted:
            b.sequence += 1
            b.pending[id] = asked.priority * 2**42 + b.sequence
            t.pending += 1
            return
        if b:
            b.admitted += 1
        self.line_up(t, id, at_head)
        self.readied = self.readied or not t.blocked

    def line_up(self, t: Tenant, id: str, at_head: bool) -> None:
        """Put a task that has a slot where it stands."""
        asked = self.records[id].asked
        self.sequence += 1
        t.ready.put(id, asked, -self.sequence if at_head else self.sequence, at_head)

    def put_delayed(self, t: Tenant, id: str, start_at: float) -> None:
        """Let a task wait for its start."""
        t.delayed[id] = start_at
        self.due[t.name] = min(start_at, self.due.get(t.name, math.inf))

    def bury(self, id: str, reason: str, now: float, traceback: str = "") -> None:
        """Make a dead letter."""
        t, run = self.records[id].tenant, self.runs.pop(id, None) or Run(0)
        self.free_key(id)
        self.note_end(id, "dead")
        if b := self.batch_of(id):
            b.expired += reason == "expired"
        self.tell_of(id, "expired" if reason == "expired" else "dead", now, run.attempt, reason)
        self.dead[id], self.deaths[id] = Death(t, reason, run.attempt, run.lease, now, run.error, traceback), now
        t.dead += 1
        self.counts["buried"] += 1
        self.counts["expired"] += reason == "expired"
        excess = t.dead - self.limit(t, "dead") if self.limit(t, "dead") else 0
        for oldest in first_by_score(self.deaths_of(t.name), min(2, max(0, int(excess)))):
            self.drop_letter(oldest)

    def free_key(self, id: str) -> None:
        """Give a dedupe key back, unless it is held for a period or is another task's."""
        held = self.records[id].tenant.name, self.records[id].key
        if self.holders.get(held) == (0, id):
            del self.holders[held]

    def forget(self, id: str, owner: Run | None, how: str, now: float) -> None:
        """Forget a task but for its id, and for the lease whose owner ended it, if one did."""
        self.free_key(id)
        self.note_end(id, how)
        self.tell_of(id, how, now, owner.attempt if owner else 0)
        self.runs.pop(id, None)
        del self.records[id]
        self.mark(id, owner.lease if owner else 0, how, now)
        self.counts[how] += 1

    def mark(self, id: str, lease: int, how: str, now: float) -> None:
        """Remember an id."""
        minute = math.floor(now / MINUTE_MS)
        if not self.marks or minute < self.minute:
            self.minute = minute
        self.marks[id] = lease, how
        self.ended.setdefault(minute, []).append(id)

    def trim_marks(self, now: float, limit: int) -> bool:
        """Forget ids that ended long enough ago; each minute that is over counts as one."""
        previous = self.minute, len(self.marks)
        while limit > 0 and self.marks and (self.minute + 2) * MINUTE_MS <= now:
            ids = self.ended.get(self.minute, [])[:limit]
            for id in ids:
                del self.marks[id]
            self.ended[self.minute] = self.ended.get(self.minute, [])[limit:]
            limit -= len(ids) or 1
            self.minute += not ids
        return previous != (self.minute, len(self.marks))

    def take_out(self, id: str) -> None:
        """Take a waiting task out of its place."""
        t, b = self.touch(self.records[id].tenant.name), self.batch_of(id)
        if t.delayed.pop(id, None) is not None:
            return
        if b and b.pending.pop(id, None) is not None:
            t.pending -= 1
            return
        t.ready.remove(id)
        if b:
            b.admitted -= 1

    def batch_of(self, id: str) -> Batch | None:
        """Find the unfinished batch of a task."""
        task = self.records[id]
        b = self.batches.get(task.batch)
        return b if b and b.state != "complete" and b.created_at == task.opened_at else None

    def note_end(self, id: str, how: str) -> None:
        """Count a task's end for its batch."""
        if b := self.batch_of(id):
            setattr(b, how, getattr(b, how) + 1)
            b.members.pop(id, None)

    def tell_of(self, id: str, event: str, now: float, attempt: int, detail: str = "") -> None:
        """Tell what has become of a task, if it asked for that."""
        if self.records[id].events:
            self.feeds.tell(self.settings["events_keep"], self.records[id].tenant.name, event, id, now, attempt, detail)

    def call_back(self, name: str, event: str, now: float) -> None:
        """Enqueue the callback task for an event of a batch, unless it is there."""
        b = self.batches[name]
        id = f"{name}-{event}-{b.created_at:.0f}"
        if b.callbacks.get(event) and id not in self.records:
            t = self.touch(b.tenant)
            self.records[id] = Task(t, 0, 0, self.settings["max_attempts"], size=len(b.callbacks[event]), is_apart=True)
            self.put_ready(t, id)
            self.counts["enqueued"] += 1

    def finish_batches(self, now: float) -> None:
        """Hand free places to pending tasks, complete what is at its end, and call back."""
        for name, b in sorted(self.batches.items()):
            if b.state == "complete":
                continue
            if b.max_running:
                t = self.touch(b.tenant) if b.pending and b.admitted < b.max_running else self.tenants.get(b.tenant)
                for id in first_by_score(b.pending, max(0, b.max_running - b.admitted)):
                    assert t
                    del b.pending[id]
                    t.pending -= 1
                    self.put_ready(t, id)
            if b.dead and b.callbacks.get("death"):
                self.call_back(name, "death", now)
                b.callbacks["death"] = ""
            if b.state == "closed" and b.ended == b.total:
                b.state, b.completed_at = "complete", now
                if b.events:
                    counts = f"{b.done} {b.dead} {b.cancelled} {b.expired}"
                    self.touch(b.tenant)
                    self.feeds.tell(self.settings["events_keep"], b.tenant, "batch_completed", name, now, 0, counts)
                self.call_back(name, "complete", now)
                if b.done == b.total:
                    self.call_back(name, "success", now)

    def open_batch(
        self, now: float, tenant: str, name: str, max_running: int, callbacks: dict[str, str], events: int = 0
    ) -> str:
        """Open a batch."""
        now = self.open(now)
        if name in self.batches:
            return "duplicate"
        new = Batch(tenant, max_running, now, dict(callbacks), events)
        if self.is_one_too_many(tenant) or self.keeps_too_much(tenant, new.bytes(name)):
            return f"FAIRQ quota_exceeded {'max_tenants' if self.is_one_too_many(tenant) else 'stored_bytes'}"
        self.touch(tenant)
        self.batches[name] = new
        self.close(now)
        return "ok"

    def close_batch(self, now: float, name: str) -> str:
        """Close a batch; returns the state that it had."""
        now = self.open(now)
        b = self.batches[name]
        previous = b.state
        if previous == "open":
            b.state = "closed"
            self.finish_batches(now)
            self.close(now)
        return previous

    def cancel_batch(self, now: float, name: str) -> str:
        """Close a batch and cancel its tasks."""
        now = self.open(now)
        b = self.batches[name]
        previous = b.state
        if previous != "complete":
            b.state = "closed"
            self.cancelling.setdefault(name, now)
            self.cancel_members(now, CHANGES_PER_CALL)
            self.finish_batches(now)
            self.close(now)
        return previous

    def cancel_members(self, now: float, limit: int) -> None:
        """Go on cancelling the tasks of cancelled batches."""
        for name in first_by_score(self.cancelling, limit):
            b = self.batches[name]
            ids = first_by_score(b.members, limit)
            if len(ids) < limit:
                del self.cancelling[name]
            for id in ids:
                del b.members[id]
                self.cancel_one(id, now)
            limit -= len(ids)
            if not limit:
                break

    def trim_batches(self, now: float, limit: int) -> None:
        """Forget batches that have been complete for long enough."""
        completed = {name: b.completed_at for name, b in self.batches.items() if b.state == "complete"}
        for name in first_by_score(completed, limit, now - BATCH_KEEP_MS):
            self.touch(self.batches.pop(name).tenant)

    def is_one_too_many(self, tenant: str) -> bool:
        """True if a tenant is new, and there are as many as there may be."""
        return tenant not in self.tenants and len(self.tenants) >= self.settings["max_tenants"]

    def keeps_too_much(self, tenant: str, size: int) -> bool:
        """True if a tenant that kept so much more would have more than its limit."""
        t = self.tenants.get(tenant) or Tenant(tenant)
        most = self.limit(t, "stored_bytes")
        return size > 0 and 0 < most < self.kept_by(t, most) + size

    def keep(self, t: Tenant, kind: str, name: str, size: int, until: float) -> None:
        """Count a result or a dedupe key among its tenant's bytes, until then."""
        member = kind.encode() + struct.pack("<II", t.number, bytes_of(name, size)) + name.encode()
        self.ends[member], self.kept_until = until, max(self.kept_until, until + MINUTE_MS)

    def trim_ends(self, now: float, limit: int) -> None:
        """Stop counting entries that were kept long enough."""
        for member in first_by_score(self.ends, limit, now):
            (number,) = struct.unpack_from("<I", member, 1)
            self.touch(next(t.name for t in self.tenants.values() if t.number == number))
            del self.ends[member]

    def holder(self, tenant: str, key: str, now: float) -> str | None:
        """Name the task that holds a dedupe key."""
        until, id = self.holders.get((tenant, key), (-1, ""))
        return id if key and (until == 0 or until > now) else None

    def enqueue(
        self, now: float, tenant: str, tasks: list[tuple[str, dict[str, Any]]], *, notify: bool = True
    ) -> list[str]:
        """Store tasks of one tenant; the options are those of `calls.options`."""
        now = self.open(now)
        outcomes = self.store(now, tenant, tasks)
        if self.touched:
            self.finish_batches(now)
            self.close(now, notify=notify)
        return outcomes

    def store(self, now: float, tenant: str, tasks: list[tuple[str, dict[str, Any]]]) -> list[str]:
        """Store those tasks that are new, and that would not expire before they could start."""
        outcomes: list[str] = []
        if why_not := self.batches_refuse(tenant, tasks, now):
            return [why_not]
        new: dict[str, tuple[Task, dict[str, Any]]] = {}
        replaced: list[str] = []  # who holds a key that a new task takes
        holders: dict[str, str] = {}
        t = self.tenants.get(tenant) or Tenant(tenant)
        for id, given in tasks:
            start_at = now + given["delay"] if given.get("delay") else given.get("start_at", 0)
            expires_at = now + given["expires_in"] if given.get("expires_in") else given.get("expires_at", 0)
            if after := given.get("after_start"):
                expires_at = (start_at or now) + after
            key = given.get("key", "")
            first = holders.get(key) or self.holder(tenant, key, now)
            may_replace = given.get("replace") and key not in holders and first and self.can_be_replaced(first, key)
            if id in self.records or id in new or id in self.marks:
                outcomes.append("duplicate")
            elif 0 < expires_at <= max(start_at, now):
                outcomes.append("expired")
            elif first and not may_replace:
                outcomes.append(f"duplicate {first}")
            else:
                outcomes.append("replaced" if first else "ok")
                if key:
                    holders[key] = id
                attempts = int(given.get("max_attempts", self.settings["max_attempts"]))
                priority, result_ttl = given.get("priority", 50), given.get("result", 0)
                asked = (priority, key, result_ttl, given.get("batch", ""), given.get("events", 0))
                group = {"group": given.get("group", ""), "weight": given.get("weight", 1)}
                group["weight"] = group["weight"] if group["group"] or given.get("batch") else 1
                task = Task(t, start_at, expires_at, attempts, *asked, **group, size=given.get("size", 2))
                task.end_moves, task.created_at = bool(after), now
                task.name = given.get("name", "")
                new[id] = task, given
                if first:
                    replaced.append(first)
        if new and (which := self.too_much(t, now, {id: task for id, (task, _) in new.items()}, replaced)):
            return [f"FAIRQ quota_exceeded {which}"]
        for holder in replaced:
            self.cancel_one(holder, now)
        for id, (task, given) in new.items():
            self.add(id, task, given.get("period", 0), now)
        self.counts["enqueued"] += len(new)
        return outcomes

    def too_much(self, t: Tenant, now: float, new: dict[str, Task], replaced: list[str]) -> str:
        """Say which limit new tasks would exceed, with those gone that they replace."""
        if self.is_one_too_many(t.name):
            return "max_tenants"
        delayed = sum(task.start_at > now for task in new.values()) - sum(id in t.delayed for id in replaced)
        more = sum(task.bytes(id) for id, task in new.items()) - sum(map(self.bytes_of_task, replaced))
        kept = self.kept_by(t, self.limit(t, "stored_bytes")) + more
        return self.exceeded(t, len(new) - len(replaced), delayed, kept, t.pending)

    def can_be_replaced(self, id: str, key: str) -> bool:
        """True if the task that took a key waits, in no batch; its id may be another task's by now."""
        is_waiting = id in self.records and id not in self.dead and id not in self.leases
        return is_waiting and self.records[id].key == key and not self.records[id].batch

    def add(self, id: str, task: Task, window: float, now: float) -> None:
        """Store a new task."""
        t = task.tenant = self.touch(task.tenant.name)
        self.records[id] = task
        self.results.pop(id, None)
        if b := self.batches.get(task.batch):
            task.opened_at = b.created_at
            b.total, b.sequence = b.total + 1, b.sequence + 1
            b.members[id] = b.sequence
        if task.key:
            self.holders[t.name, task.key] = now + window if window else 0, id
            if window:
                self.keep(t, "k", task.key, len(id), now + window)
        if task.start_at > now:
            self.put_delayed(t, id, task.start_at)
        else:
            self.put_ready(t, id)
        if task.expires_at:
            self.expiring[id] = task.expires_at

    def batches_refuse(self, tenant: str, tasks: list[tuple[str, dict[str, Any]]], now: float) -> str:
        """Say why tasks cannot be added to their batches, or nothing."""
        taken: set[str] = set()
        for id, given in tasks:
            b, is_new = self.batches.get(given.get("batch", "")), id not in self.records and id not in taken
            if given.get("batch") and is_new and id not in self.marks:
                if not b or b.tenant != tenant:
                    return "FAIRQ not_found batch"
                if b.state != "open":
                    return "FAIRQ batch_closed batch"
            taken.add(id)
        return ""

    def claim(
        self, now: float, random_values: Iterator[float], worker: str, limit: int, slots: int = 0
    ) -> list[tuple[str, int, int]]:
        """Lease up to `limit` tasks by the fair pick: (id, attempt, max_attempts) each; all have one number."""
        now = self.open(now)
        self.claimed_bytes, self.returned = 0, []
        leased: list[tuple[str, int, int]] = []
        number = max(self.last_lease + 1, int(now - LEASES_SINCE) * LEASES_PER_MS)
        has_changed, is_kept, self.slots = slots != self.slots, False, slots
        self.passed_over, self.late_of = set(), Counter[Tenant]()
        rounds, self.kept = 0, [("", self.blocked, now, now)] if self.blocked else []
        while not self.blocked and len(leased) < limit and self.servable > 0 and rounds < ROUNDS and not is_kept:
            if self.claimed_bytes >= self.page:
                break
            if rounds:
                self.seat_all()
            picks = self.pick_round(limit - len(leased), random_values)
            while picks:
                picks = [p for p in picks if not self.lease(p, worker, now, number, leased)]
            if self.is_empty and self.passed_over:
                self.passed_over = set()  # no other tenant is left
            else:
                rounds, is_kept = rounds + 1, self.is_kept
        self.put_back()
        is_short = len(leased) < limit
        if leased:
            self.last_lease, self.claims[worker], self.bundles[number] = number, number, [id for id, *_ in leased]
        if rounds or has_changed or (is_short and not self.hungry):
            self.finish_batches(now)
            if is_short:
                self.hungry, self.readied = 1, self.readied or (self.servable > 0 and not is_kept)
            self.close(now)
        return leased

    def lease(self, p: Pick, worker: str, now: float, number: int, leased: list[tuple[str, int, int]]) -> bool:
        """Lease a picked task, drop it when its window has closed, or put it back when the reply is full.

        Tells whether that is all; if not, the pick is for another task of its tenant.
        """
        task = self.records[p.id]
        run = self.runs.get(p.id) or Run(task.max_attempts)
        if self.claimed_bytes >= self.page:
            self.unpick(p, is_returned=True)
            return True
        self.expiring.pop(p.id, None)
        if 0 < task.expires_at <= now:
            return self.drop_late(p, now)
        run.attempt, run.lease, run.state, run.began_at, run.worker = run.attempt + 1, number, "leased", self.at, worker
        run.is_extended, run.taken, run.lasts = False, 0, self.settings["lease_ms"]
        self.claimed_bytes += task.length if task.size > self.large or task.is_apart else 0
        self.runs[p.id], self.leases[p.id] = run, self.at + self.settings["lease_ms"]
        if b := self.batch_of(p.id):
            b.running += 1
        leased.append((p.id, run.attempt, run.last_attempt))
        return True

    def drop_late(self, p: Pick, now: float) -> bool:
        """Bury a task whose window has closed; tells whether its tenant is given up."""
        t, id = p.tenant, p.id
        self.late_of[t] += 1
        is_over = not t.ready or self.late_of[t] >= LATE_PER_TENANT
        if is_over:
            self.unpick(p)
            self.pass_over(t)
        else:
            p.id = t.ready.popleft()
            self.recount(t)
        if b := self.batch_of(id):
            b.admitted -= 1
        self.bury(id, "expired", now)
        return is_over

    def unpick(self, p: Pick, is_returned: bool = False) -> None:
        """Take a pick back; a task that is returned is ready, and stands where it stood when the claim ends."""
        t = p.tenant
        self.refund(t, p.moved)
        self.count_lease(t, -1)
        self.end_loan(t)
        if is_returned:
            t.ready.put(p.id, self.records[p.id].asked, 0, at_head=True)
            self.returned.append(p.id)
        self.spend(t, -1)
        self.recount(t)

    def put_back(self) -> None:
        """Put what the claim returned at the heads of its lists, in the order in which it was picked."""
        for id in self.returned:
            self.records[id].tenant.ready.remove(id)
        for id in reversed(self.returned):
            self.line_up(self.records[id].tenant, id, at_head=True)

    def claim_again(self, now: float, worker: str) -> list[tuple[str, int, int]]:
        """Give what is left of a claim whose answer was lost, with new deadlines; nothing else changes."""
        now, number = self.open(now), self.claims.get(worker, 0)
        ids = [id for id in self.bundles.get(number, []) if id in self.leases and self.runs[id].lease == number]
        self.leases |= dict.fromkeys(ids, self.at + self.settings["lease_ms"])
        self.kept = [("", self.blocked, now, now)] if self.blocked else []
        runs = [(id, self.runs[id]) for id in ids]
        return [(id, run.attempt, run.last_attempt) for id, run in runs]

    def end_lease(self, id: str, run: Run, state: str, until: float, is_worked: bool = False) -> Tenant:
        """Close a lease and its account."""
        t = self.touch(self.records[id].tenant.name)
        del self.leases[id]
        if b := self.batch_of(id):
            b.running, b.admitted = b.running - 1, b.admitted - 1
        self.charge_lease(t, run.began_at, until, is_worked)
        run.state = state
        return t

    def keep_waiting(self, id: str) -> None:
        """Watch the window again while the task waits for its next attempt."""
        if self.records[id].expires_at:
            self.expiring[id] = self.records[id].expires_at

    def take_back(self, id: str, run: Run, state: str, now: float, until: float) -> None:
        """Return a lease to the head of the list."""
        t = self.end_lease(id, run, state, until)
        if state == "reaped":
            self.tell_of(id, "failed", now, run.attempt, "lease_lost")
        if state == "reaped" and run.is_last:
            return self.bury(id, "lease_lost", now)
        run.uncounted_attempts += state == "settled"
        self.keep_waiting(id)
        self.put_ready(t, id, at_head=True)

    def nack(
        self, id: str, run: Run, delay: float | None, error: str, traceback: str, now: float, random: Iterator[float]
    ) -> None:
        """Send a task to its next attempt, or to the dead letters."""
        t = self.end_lease(id, run, "settled", now, True)
        run.error = error
        self.tell_of(id, "failed", now, run.attempt, error)
        if run.is_last:
            return self.bury(id, "exhausted", now, traceback)
        if delay is None:
            longest = self.settings["retry_base_ms"] * 2 ** min(run.attempt - run.uncounted_attempts - 1, 40)
            delay = math.floor(next(random) * min(self.settings["retry_cap_ms"], longest)) + 1
        self.wait_for(t, id, delay, now)

    def wait_for(self, t: Tenant, id: str, delay: float, now: float) -> None:
        """Let a task wait for its next attempt."""
        self.keep_waiting(id)
        if delay > 0:
            self.put_delayed(t, id, now + delay)
        else:
            self.put_ready(t, id)

    def refusal(self, id: str, lease: int, now: float) -> str:
        """Say why a number is not that of a task's lease."""
        run, finished, death = self.runs.get(id), self.marks.get(id), self.dead.get(id)
        if run:
            return "gone" if run.lease == lease and run.state == "settled" else "stale"
        if finished:
            return "gone" if finished[0] == lease else "stale"
        if death is None:
            return "gone"
        return "gone" if death.lease == lease and death.reason in ("exhausted", "rejected") else "stale"

    def settle_one(
        self,
        action: str,
        id: str,
        lease: int | str,
        delay: float | None,
        error: str,
        traceback: str,
        now: float,
        random_values: Iterator[float],
        until: float = math.inf,
    ) -> str:
        """End or extend one lease, which was worked on until then."""
        until = min(until, now)
        lease, taken = map(int, lease.split("/")) if isinstance(lease, str) else (lease, None)
        run = self.runs.get(id)
        if run is None or run.state not in ("leased", "stopping") or run.lease != lease:
            return self.refusal(id, lease, now)
        if taken not in (None, run.taken):
            return "stale"
        if action in ("extend", "take"):
            run.lasts = max(run.lasts, self.settings["lease_ms"])
            self.leases[id], run.is_extended = self.at + run.lasts, True
            run.taken += action == "take"
            outcome = "cancelled" if run.state == "stopping" else "ok"
            return outcome + (f" {run.taken} {run.lasts}" if action == "take" else "")
        if action in ("ack", "ack_with_result"):
            self.end_lease(id, run, "settled", now, True).done += 1
            if self.records[id].result_ttl:
                until = now + self.records[id].result_ttl
                self.results[id] = until, error if action == "ack_with_result" else "null"
                self.keep(self.records[id].tenant, "r", id, len(self.results[id][1]), until)
            self.forget(id, run, "done", now)
        elif run.state == "stopping":
            self.end_lease(id, run, "settled", until)
            self.forget(id, None if action == "reap" else run, "cancelled", now)
        elif action == "nack":
            self.nack(id, run, delay, error, traceback, now, random_values)
        elif action == "reject":
            self.end_lease(id, run, "settled", now, True)
            run.error = error
            self.tell_of(id, "failed", now, run.attempt, error)
            self.bury(id, "rejected", now, traceback)
        elif action == "postpone":
            t = self.end_lease(id, run, "settled", until)
            run.uncounted_attempts, run.error = run.uncounted_attempts + 1, error
            self.wait_for(t, id, delay or 0, now)
        else:
            self.take_back(id, run, {"release": "settled", "reap": "reaped"}[action], now, until)
        return "ok"

    def settle(
        self,
        now: float,
        random_values: Iterator[float],
        settlements: Sequence[tuple[str, str, int | str, float | None, str, str]],
    ) -> list[str]:
        """End or extend leases, each fenced by (id, lease)."""
        now = self.open(now)
        outcomes = [self.settle_one(*settlement, now, random_values) for settlement in settlements]
        if any(outcome not in ("gone", "stale") for outcome in outcomes):
            self.finish_batches(now)
            self.close(now)
        return outcomes

    def cancel(self, now: float, ids: list[str]) -> list[str]:
        """Forget waiting tasks, and have running ones stopped."""
        now = self.open(now)
        outcomes = [self.cancel_one(id, now) for id in ids]
        self.finish_batches(now)
        self.close(now)
        return outcomes

    def cancel_one(self, id: str, now: float) -> str:
        """Forget a waiting task, or have a running one stopped."""
        run = self.runs.get(id)
        if id not in self.records or id in self.dead:
            return "gone"
        if id in self.leases:
            assert run
            run.state = "stopping"
            return "running"
        self.take_out(id)
        self.expiring.pop(id, None)
        self.forget(id, run if run and run.state == "settled" else None, "cancelled", now)
        return "ok"

    def waiting(self, tenant: str) -> list[str]:
        """Name the waiting tasks of a tenant."""
        mine = (id for id, task in self.records.items() if task.tenant.name == tenant)
        return [id for id in mine if id not in self.dead and id not in self.leases]

    def cancel_waiting(self, now: float, ids: list[str]) -> int:
        """Forget those of these tasks that wait; returns how many these were."""
        now = self.open(now)
        count = [self.cancel_one(id, now) for id in ids if id not in self.leases].count("ok")
        self.finish_batches(now)
        self.close(now)
        return count

    def drop_tenant(self, now: float, name: str) -> str:
        """Delete a tenant that has nothing."""
        self.open(now)
        t = self.tenants.get(name)
        if t is None:
            return "gone"
        waiting = len(t.ready) + t.pending + len(t.delayed)
        if waiting + t.leased + t.dead + self.bytes_of(t) > 0:
            return "not_empty"
        del self.tenants[name]
        self.dropped["delivered"] += t.delivered
        self.dropped["entitled"] += self.entitled_to(t)
        self.wake = type(self.wake)(other for other in self.wake if other is not t)
        self.idle.discard(name)
        for known in (self.due, self.parked, self.own, self.hours, self.feeds.kept, self.feeds.newest):
            known.pop(name, None)
        return "ok"

    def forget_queue(self, now: float, for_ms: float) -> str:
        """True if the queue has had nothing for so long, and no settings: then this model is at its end."""
        now = self.open(now)
        has_any = self.tenants or self.records or self.marks or self.batches or self.schedules or self.ends
        is_set = self.own or self.hours or self.blocked or self.settings != Model().settings
        return "stays" if has_any or is_set or min(self.now, now) + for_ms > now else "ok"

    def has_all_delayed(self, t: Tenant) -> bool:
        """True if a tenant has as many delayed tasks as it may have."""
        most = self.limit(t, "delayed")
        return 0 < most <= len(t.delayed)

    def reschedule(self, now: float, ids: list[str], delay: float, start_at: float) -> list[str]:
        """Give waiting tasks another start."""
        now = self.open(now)
        start_at = now + delay if delay else start_at
        outcomes = []
        for id in ids:
            task = self.records.get(id)
            if task is None or id in self.dead:
                outcomes.append("gone")
            elif id in self.leases:
                outcomes.append("running")
            elif 0 < task.expires_at <= (now if task.end_moves else max(start_at, now)):
                self.touch(task.tenant.name)
                outcomes.append("expired")
            elif start_at > now and id not in task.tenant.delayed and self.has_all_delayed(task.tenant):
                self.touch(task.tenant.name)
                outcomes.append("quota_exceeded")
            else:
                t = self.touch(task.tenant.name)
                outcomes.append("ok")
                if start_at > now or id in t.delayed:
                    self.take_out(id)
                    if task.end_moves and task.expires_at:
                        starts_at = max(start_at, now)
                        task.expires_at += starts_at - (task.start_at or task.created_at)
                        task.start_at, self.expiring[id] = starts_at, task.expires_at
                    else:
                        task.start_at = start_at
                    if start_at > now:
                        self.put_delayed(t, id, start_at)
                    else:
                        self.put_ready(t, id)
        self.finish_batches(now)
        self.close(now)
        return outcomes

    def promote(self, now: float, limit: int) -> int:
        """Move due tasks to their tenants' lists."""
        names = first_by_score(self.due, TENANTS_PER_TICK, now)
        moved = 0
        for name in names:
            if moved >= limit:
                break
            t = self.touch(name)
            for id in first_by_score(t.delayed, max(1, limit // len(names)), now):
                del t.delayed[id]
                self.put_ready(t, id)
                moved += 1
            del self.due[name]
            if t.delayed:
                self.due[name] = max(min(t.delayed.values()), now)
        return moved

    def expire(self, now: float, limit: int) -> int:
        """Bury waiting tasks whose window has closed."""
        ids = first_by_score(self.expiring, limit, now)
        for id in ids:
            del self.expiring[id]
            self.take_out(id)
            self.bury(id, "expired", now)
        return len(ids)

    def forget_dead(self, id: str) -> Tenant:
        """Delete a dead letter."""
        death = self.dead.pop(id)
        del self.deaths[id]
        t = self.touch(death.tenant.name)
        t.dead -= 1
        return t

    def drop_letter(self, id: str) -> None:
        """Delete a dead letter and its task."""
        self.forget_dead(id)
        self.free_key(id)
        del self.records[id]

    def trim_dead(self, now: float, limit: int) -> int:
        """Forget dead letters that are too old, and while there are too many the oldest of the tenant with most."""
        ids = first_by_score(self.deaths, limit, now - self.settings["dead_keep_ms"])
        trimmed = 0
        while True:
            for id in ids:
                self.drop_letter(id)
            trimmed += len(ids)
            if trimmed == limit or len(self.dead) <= self.settings["dead_keep"]:
                return trimmed
            _, most = max((t.dead, t.name) for t in self.tenants.values())
            ids = first_by_score(self.deaths_of(most), 1)

    def deaths_of(self, tenant: str) -> dict[str, float]:
        """Tell when a tenant's dead letters died; all, if none is named."""
        return {id: at for id, at in self.deaths.items() if tenant in ("", self.dead[id].tenant.name)}

    def dead_page(
        self, now: float, tenant: str, cursor: str, count: int, reason: str, error: str, older: float, younger: float
    ) -> tuple[str, int, list[tuple[str, str, str, int, float, str, str]]]:
        """Walk over dead letters: where the next page begins, how many are left to look at, and those that match."""
        now = self.open(now)
        until, after = max(0, now - older), (max(0, now - younger) if younger else 0, "")
        if cursor:
            first, second, id = cursor.split(":")
            until, after = float(first), (float(second), id)
        deaths = ((at, id) for id, at in self.deaths_of(tenant).items() if at <= until)
        line = sorted(each for each in deaths if each > after)
        rows: list[tuple[str, str, str, int, float, str, str]] = []
        while line and len(rows) < count:
            at, id = line.pop(0)
            d = self.dead[id]
            cursor = f"{until:.0f}:{at:.0f}:{id}"
            if reason in ("", d.reason) and error in d.error:
                rows.append((id, d.tenant.name, d.reason, d.attempts, at, d.error, d.traceback))
        return (cursor if line else "", len(line), rows)

    def due_times(self, now: float) -> dict[str, float]:
        """Tell when each job of a tick next has something to do."""
        waiting: dict[str, list[float]] = {
            "due": [*self.due.values()],
            "expiring": [*self.expiring.values()],
            "leases": [at + self.call_origin for at, is_extended, _ in self.deadlines() if not is_extended],
            "extended": [at + self.call_origin for at, is_extended, _ in self.deadlines() if is_extended],
            "fires": [at for field in self.schedules if (at := self.due_at(field)) < math.inf],
            "deaths": [died_at + self.settings["dead_keep_ms"] for died_at in self.deaths.values()],
            "completed": [b.completed_at + BATCH_KEEP_MS for b in self.batches.values() if b.state == "complete"],
            "ends": [*self.ends.values()],
            "cancelling": [*self.cancelling.values()],
            "parked": [*self.parked.values()],
            "opening_changes": [at for _, _, at in self.hours.values()],
            "marks": [(self.minute + 2) * MINUTE_MS] if self.marks else [],
            "sweep": [now] if self.sweeping or self.goes_back else [],
        }
        if len(self.dead) > self.settings["dead_keep"]:
            waiting["deaths"] = [now]
        return {job: min(times) for job, times in waiting.items() if times}

    def next_due(self, now: float) -> float:
        """Tell when the next tick will find work."""
        return max(min(times), now) if (times := self.due_times(now).values()) else -1

    def tick(self, now: float, limit: int) -> tuple[float, ...]:
        """Do what time does: the reply of `tick`."""
        now = self.open(now)
        times = self.due_times(now).items()
        due = max(1, sum(at <= now for job, at in times if job not in ("fires", "opening_changes")))
        part, ends = math.ceil(limit / due), math.ceil(min(limit, ENDS_PER_TICK) / due)
        self.trim_ends(now, part)
        promoted, expired = self.promote(now, part), self.expire(now, ends)
        lost = [id for at, _, ids in self.deadlines() if at <= self.at for id in ids][:ends]
        for id in reversed(lost):
            until = self.leases[id] + self.call_origin - self.runs[id].lasts
            self.settle_one("reap", id, self.runs[id].lease, None, "", "", now, iter(()), until)
        trimmed = self.trim_dead(now, ends)
        self.unpark(first_by_score(self.parked, part, now))
        swept = self.sweep()
        self.cancel_members(now, min(ends, CHANGES_PER_CALL))
        self.finish_batches(now)
        self.trim_batches(now, part)
        swept |= self.trim_marks(now, 4 * part)
        if self.touched or swept:
            self.close(now)
        ready = sum(len(t.ready) for t in self.tenants.values())
        fires = sum(self.due_at(field) <= now for field in self.schedules)
        changes = sum(at <= now for _, _, at in self.hours.values())
        return (now, self.next_due(now), ready, promoted, expired, len(lost), trimmed, fires, changes)

    def deadlines(self) -> list[tuple[float, bool, list[str]]]:
        """Tell when leases end: those of a claim together, those that were extended each by itself."""
        found = []
        for number, taken in self.bundles.items():
            ids = [id for id in taken if id in self.leases and self.runs[id].lease == number]
            if together := [id for id in ids if not self.runs[id].is_extended]:
                found.append((self.leases[together[0]], False, str(number), together))
            found += [(self.leases[id], True, id, [id]) for id in ids if self.runs[id].is_extended]
        return [(at, is_extended, ids) for at, is_extended, _, ids in sorted(found)]

    def sweep(self) -> bool:
        """Let in the tenants that a limit for all kept out, and look for their delayed tasks in time."""
        if not self.sweeping and not self.goes_back:
            return False
        for name, t in self.tenants.items():
            if (t.ready and t.slot == OUT) or (self.reserve and t.slot > 0 and not t.leased):
                self.touch(name)
            if t.blocked & RATE_LIMITED:
                self.parked.pop(name, None)
                self.meter(self.touch(name))
            if t.delayed:
                self.due[name] = min(self.due.get(name, math.inf), *t.delayed.values())
        self.sweeping, self.goes_back = 0, False
        return True

    def set_weight(self, now: float, tenant: str, weight: int) -> int:
        """Give a tenant a weight; returns the one that it had."""
        now = self.open(now)
        t = self.touch(tenant)
        previous = t.weight
        self.weight_sum += t.in_weight_sum * (weight - previous)
        vtime, entitled = self.vtime_of(t), self.entitled_to(t)
        t.weight = weight
        t.entitled = t.entitled + entitled - self.entitled_to(t)
        t.base = t.base + vtime - self.vtime_of(t)
        self.close(now)
        return previous

    def set_limits(self, now: float, name: str, values: dict[str, float]) -> dict[str, float]:
        """Limit a tenant, or all; returns the previous limits."""
        now = self.open(now)
        previous = self.change_limits(name, values)
        self.close(now)
        return previous

    def set_opening_hours(
        self, now: float, name: str, text: str, is_open: bool, changes_at: float, revision: object = None
    ) -> str | None:
        """Say when a tenant, or the queue, is open; a revision that is brought along must still be the current one."""
        now = self.open(now)
        if revision and revision != self.hours.get(name):
            return None
        previous = self.note_opening_hours(name, text, is_open, changes_at)
        self.close(now)
        return previous

    def bytes_of_task(self, id: str) -> int:
        """Tell what a task counts, with what its run says."""
        run = self.runs.get(id)
        return self.records[id].bytes(id) + (len(run.error) if run else 0)

    def kept_by(self, t: Tenant, limit: float = math.inf) -> float:
        """Add up what a tenant keeps; of its feed no more than half of its limit counts."""
        return self.bytes_of(t) + min(EVENT_COST * len(self.feeds.kept.get(t.name, ())), limit / 2)

    def bytes_of(self, t: Tenant) -> int:
        """Add up what a tenant keeps beside its feed."""
        kept = [struct.unpack_from("<II", member, 1) for member in self.ends]
        return int(
            sum(self.bytes_of_task(id) for id, task in self.records.items() if task.tenant is t)
            + sum(size for owner, size in kept if owner == t.number)
            + sum(b.bytes(name) for name, b in self.batches.items() if b.tenant == t.name)
            + sum(bytes_of(f, self.template_sizes[f]) for f in self.schedules if f.partition("/")[0] == t.name)
        )

    def set_paused(self, now: float, tenant: str, paused: int) -> int:
        """Pause or resume a tenant, or (empty name) the queue."""
        now = self.open(now)
        if tenant:
            t = self.touch(tenant)
            previous, t.blocked = t.blocked & PAUSED, (t.blocked & ~PAUSED) | paused
            has_work, is_blocked = bool(t.ready), bool(t.blocked)
        else:
            previous, self.blocked = self.blocked & PAUSED, (self.blocked & ~PAUSED) | paused
            has_work, is_blocked = self.servable > 0, bool(self.blocked)
        self.readied = not is_blocked and has_work
        self.close(now)
        return previous

    def configure(self, now: float, **values: int) -> None:
        """Change settings; a change of share starts everybody's account anew."""
        now = self.open(now)
        self.settings |= values
        if self.reserve != self.settings["reserve"] or (self.reserve and self.share != self.settings["share"]):
            self.reserve, self.idle = self.settings["reserve"], set()
            self.sweeping = 2 if self.reserve else self.sweeping
            self.readied = self.servable > 0
        if self.share != self.settings["share"]:
            self.share, self.epoch, self.epoch_at = self.settings["share"], self.epoch + 1, self.at
            self.clock = self.level = self.estimate = self.estimate_sq = self.mean = 0
            self.dropped = dict.fromkeys(self.dropped, 0.0)
            for t in self.tenants.values():
                t.base = t.estimate = t.delivered = t.entitled = 0
                t.starts = t.leased * self.at
        self.close(now)

    def replay(self, now: float, ids: list[str]) -> list[str]:
        """Give dead letters a fresh set of attempts."""
        now = self.open(now)
        outcomes = []
        for id in ids:
            outcomes.append("ok" if id in self.dead else "gone")
            if id in self.dead:
                attempts, task, is_expired = self.dead[id].attempts, self.records[id], self.dead[id].reason == "expired"
                t = self.forget_dead(id)
                if attempts:
                    self.runs[id] = Run(task.max_attempts, attempts, uncounted_attempts=attempts, state="reaped")
                if task.expires_at > now:
                    self.expiring[id] = task.expires_at
                task.expires_at = task.expires_at if task.expires_at > now else 0
                if b := self.batch_of(id):
                    b.dead, b.expired, b.sequence = b.dead - 1, b.expired - is_expired, b.sequence + 1
                    b.members[id] = b.sequence
                self.put_ready(t, id)
        self.finish_batches(now)
        self.close(now)
        return outcomes

    def purge(self, now: float, ids: list[str]) -> list[str]:
        """Delete dead letters."""
        now = self.open(now)
        outcomes = []
        for id in ids:
            outcomes.append("ok" if id in self.dead else "gone")
            if id in self.dead:
                self.drop_letter(id)
        self.close(now)
        return outcomes
