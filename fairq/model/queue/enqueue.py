"""How tasks are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairq.model.queue.accounts import Tenant
from fairq.model.queue.batches import Batching
from fairq.model.queue.limits import bytes_of
from fairq.model.queue.remembered import bytes_of_id
from fairq.model.queue.tasks import Task

New = dict[str, tuple[Task, dict[str, Any]]]  # tasks by id, with their options


def window(now: float, given: dict[str, Any]) -> tuple[float, float]:
    """Return when a task starts and when it expires; 0 means never set."""
    start_at = now + given["delay"] if given.get("delay") else given.get("start_at", 0)
    expires_at = now + given["expires_in"] if given.get("expires_in") else given.get("expires_at", 0)
    if after := given.get("after_start"):
        expires_at = (start_at or now) + after
    return start_at, expires_at


def counted_from(now: float, given: dict[str, Any]) -> tuple[int, int]:
    """Return the seconds from which start and end were counted; 0: they are times that the caller gave."""
    seconds = int(now // 1000)
    start_from = seconds if given.get("delay") else 0
    if given.get("after_start"):
        return start_from, start_from if window(now, given)[0] else seconds
    return start_from, seconds if given.get("expires_in") else 0


class Enqueueing(Batching):
    """The verb that stores tasks."""

    def enqueue(
        self, now: float, tenant: str, tasks: list[tuple[str, dict[str, Any]]], *, notify: bool = True
    ) -> list[str]:
        """Store tasks of one tenant; `calls.options` has the options."""
        now = self.open(now)
        outcomes = self.store(now, tenant, tasks)
        if self.touched:
            self.finish_batches(now)
            self.close(now, notify=notify)
        return [self.with_state(outcome, id) for outcome, (id, _) in zip(outcomes, tasks, strict=False)]

    def with_state(self, outcome: str, id: str) -> str:
        """Add to the outcome of a duplicate the state of the task that it duplicates."""
        word, _, holder = outcome.partition(" ")
        return f"{outcome}\n{self.state_of(holder or id).state}" if word == "duplicate" else outcome

    def store(self, now: float, tenant: str, tasks: list[tuple[str, dict[str, Any]]]) -> list[str]:
        """Store the tasks that are new and would not expire before they could start."""
        outcomes, new, replaced = self.decide(now, tenant, tasks)
        self.store_decided(now, new, replaced)
        return outcomes

    def decide(
        self, now: float, tenant: str, tasks: list[tuple[str, dict[str, Any]]], ending: Sequence[str] = ()
    ) -> tuple[list[str], New, list[str]]:
        """Return outcomes, new tasks, and replaced tasks; `ending` are tasks that the call acknowledges."""
        outcomes: list[str] = []
        if why_not := self.batches_refuse(tenant, tasks, now):
            return [why_not], {}, []
        new: New = {}
        replaced: list[str] = []  # tasks that hold a key that a new task takes
        holders: dict[str, str] = {}
        t = self.tenants.get(tenant) or Tenant(tenant)
        for id, given in tasks:
            start_at, expires_at = window(now, given)
            key = given.get("key", "")
            first = holders.get(key) or self.holder(tenant, key, now, ending)
            may_replace = given.get("replace") and first and self.can_be_replaced(first, key, new)
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
                task = Task(t, start_at, expires_at, attempts, *asked, size=given.get("size", 2))
                task.group = given.get("group", "")
                task.retry_base, task.retry_cap = given.get("retry_base", 0), given.get("retry_cap", 0)
                task.end_moves = bool(given.get("after_start"))
                task.name = given.get("name", "")
                task.start_from, task.end_from = counted_from(now, given)
                new[id] = task, given
                if first:
                    replaced.append(first)
        if new and (which := self.too_much(t, now, new, replaced, ending)):
            return [f"FAIRQ quota_exceeded {which}"], {}, []
        self.promised = self.bytes_of_new(new)
        return outcomes, new, replaced

    def bytes_of_new(self, new: New) -> int:
        """Return the bytes that new tasks will count, with the keys that they hold for a period."""
        keys = sum(bytes_of(task.key, len(id)) for id, (task, given) in new.items() if task.key and given.get("period"))
        return keys + sum(task.bytes(id) for id, (task, _) in new.items())

    def store_decided(self, now: float, new: New, replaced: list[str]) -> None:
        """Store new tasks in the places of others, which may have come with the same call."""
        self.promised = 0
        for id, (task, given) in new.items():
            self.add(id, task, given.get("period", 0), now)
        for holder in replaced:
            self.cancel_one(holder, now)
        self.counts["enqueued"] += len(new)

    def holder(self, tenant: str, key: str, now: float, ending: Sequence[str]) -> str | None:
        """Name the task that holds a dedupe key."""
        until, id = self.holders.get((tenant, key), (-1, ""))
        return id if key and ((until == 0 and id not in ending) or until > now) else None

    def too_much(self, t: Tenant, now: float, new: New, replaced: list[str], ending: Sequence[str]) -> str:
        """Say which limit new tasks would exceed once the tasks that they replace, or that end, are gone."""
        if self.is_one_too_many(t.name):
            return "max_tenants"
        staying, stored = new.keys() - replaced, [id for id in replaced if id not in new]
        delayed = sum(new[id][0].start_at > now for id in staying) - sum(id in t.delayed for id in stored)
        more = self.bytes_of_new(new) - sum(new[id][0].bytes(id) for id in new.keys() - staying)
        more -= sum(map(self.bytes_of_task, [*stored, *ending]))
        more += sum(bytes_of(id, 0) for id in ending if self.records[id].result_ttl)
        more += sum(map(bytes_of_id, [*replaced, *ending])) + sum(map(self.bytes_of_result_name, ending))
        kept = self.compared_by(t) + more
        return self.exceeded(t, len(new) - len(replaced), delayed, kept, t.pending)

    def can_be_replaced(self, id: str, key: str, new: New) -> bool:
        """True if the task that took a key waits, in no batch; its id may be another task's by now."""
        if id in new:
            return not new[id][0].batch
        is_waiting = id in self.records and id not in self.dead and id not in self.leases
        return is_waiting and self.records[id].key == key and not self.records[id].batch

    def add(self, id: str, task: Task, period: float, now: float) -> None:
        """Store a new task, which holds its dedupe key for a period (0: until its end)."""
        t = task.tenant = self.touch(task.tenant.name)
        self.add_record(id, task)
        self.results.pop(id, None)
        if b := self.batches.get(task.batch):
            task.opened_at = b.created_at
            b.total, b.sequence = b.total + 1, b.sequence + 1
            b.members[id] = b.sequence
        if task.key:
            self.holders[t.name, task.key] = now + period if period else 0, id
            if period:
                self.keep(t, "k", task.key, len(id), now + period)
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
