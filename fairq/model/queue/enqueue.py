"""How tasks are stored."""

from __future__ import annotations

from collections.abc import Sequence

from fairq.model.queue.accounts import Tenant
from fairq.model.queue.batches import Batching
from fairq.model.queue.limits import bytes_of
from fairq.model.queue.remembered import bytes_of_id
from fairq.model.queue.tasks import Task
from fairq.model.tasks import NewTask

New = dict[str, Task]  # by id


def window(now: float, task: NewTask) -> tuple[float, float]:
    """Return when a task starts and when it expires; 0 means never set."""
    start_at = now + task.delay_ms if task.delay_ms else task.start_at_ms
    expires_at = now + task.expires_in_ms if task.expires_in_ms else task.expires_at_ms or 0
    if after := task.expires_after_start_ms:
        expires_at = (start_at or now) + after
    return start_at, expires_at


def counted_from(now: float, task: NewTask) -> tuple[int, int]:
    """Return the seconds from which start and end were counted; 0: they are times that the caller gave."""
    seconds = int(now // 1000)
    start_from = seconds if task.delay_ms else 0
    if task.expires_after_start_ms:
        return start_from, start_from if window(now, task)[0] else seconds
    return start_from, seconds if task.expires_in_ms else 0


class Enqueueing(Batching):
    """The verb that stores tasks."""

    def enqueue(self, now: float, tenant: str, tasks: Sequence[NewTask], *, notify: bool = True) -> list[str]:
        """Store tasks of one tenant; ids and batches are full ones."""
        now = self.open(now)
        outcomes = self.store(now, tenant, tasks)
        if self.touched:
            self.finish_batches(now)
            self.close(now, notify=notify)
        return [self.with_state(outcome, task.id) for outcome, task in zip(outcomes, tasks, strict=False)]

    def with_state(self, outcome: str, id: str) -> str:
        """Add to the outcome of a duplicate the state of the task that it duplicates."""
        word, _, holder = outcome.partition(" ")
        return f"{outcome}\n{self.state_of(holder or id).state}" if word == "duplicate" else outcome

    def store(self, now: float, tenant: str, tasks: Sequence[NewTask]) -> list[str]:
        """Store the tasks that are new and would not expire before they could start."""
        outcomes, new, replaced = self.decide(now, tenant, tasks)
        self.store_decided(now, new, replaced)
        return outcomes

    def decide(
        self, now: float, tenant: str, tasks: Sequence[NewTask], ending: Sequence[str] = ()
    ) -> tuple[list[str], New, list[str]]:
        """Return outcomes, new tasks, and replaced tasks; `ending` are tasks that the call acknowledges."""
        outcomes: list[str] = []
        if why_not := self.batches_refuse(tenant, tasks):
            return [why_not], {}, []
        new: New = {}
        replaced: list[str] = []  # tasks that hold a key that a new task takes
        holders: dict[str, str] = {}
        t = self.tenants.get(tenant) or Tenant(tenant)
        for each in tasks:
            id, key = each.id, each.dedupe_key
            start_at, expires_at = window(now, each)
            first = holders.get(key) or self.holder(tenant, key, now, ending)
            may_replace = each.replace and first and self.can_be_replaced(first, key, new)
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
                attempts = self.settings["max_attempts"] if each.max_attempts is None else each.max_attempts
                new[id] = task = Task(t, each, start_at, expires_at, attempts)
                task.start_from, task.end_from = counted_from(now, each)
                if first:
                    replaced.append(first)
        if new and (which := self.too_much(t, now, new, replaced, ending)):
            return [f"FAIRQ quota_exceeded {which}"], {}, []
        self.incoming_bytes = self.bytes_of_new(new)
        return outcomes, new, replaced

    def bytes_of_new(self, new: New) -> int:
        """Return the bytes that new tasks will count, with the keys that they hold for a period."""
        asked = [task.options for task in new.values() if task.options.dedupe_period_ms]
        keys = sum(bytes_of(each.dedupe_key, len(each.id)) for each in asked if each.dedupe_key)
        return keys + sum(task.bytes(id) for id, task in new.items())

    def store_decided(self, now: float, new: New, replaced: list[str]) -> None:
        """Store new tasks in the places of others, which may have come with the same call."""
        self.incoming_bytes = 0
        for id, task in new.items():
            self.add(id, task, now)
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
        delayed = sum(new[id].start_at > now for id in staying) - sum(id in t.delayed for id in stored)
        more = self.bytes_of_new(new) - sum(new[id].bytes(id) for id in new.keys() - staying)
        more -= sum(map(self.bytes_of_task, [*stored, *ending]))
        more += sum(bytes_of(id, 0) for id in ending if self.records[id].options.result_ttl_ms)
        more += sum(map(bytes_of_id, [*replaced, *ending])) + sum(map(self.bytes_of_result_name, ending))
        kept = self.compared_by(t) + more
        return self.exceeded(t, len(new) - len(replaced), delayed, kept, t.pending)

    def can_be_replaced(self, id: str, key: str, new: New) -> bool:
        """True if the task that took a key waits, in no batch; its id may be another task's by now."""
        if id in new:
            return not new[id].options.batch
        is_waiting = id in self.records and id not in self.dead and id not in self.leases
        return is_waiting and self.records[id].options.dedupe_key == key and not self.records[id].options.batch

    def add(self, id: str, task: Task, now: float) -> None:
        """Store a new task, which holds its dedupe key for a period (0: until its end)."""
        t, asked = self.touch(task.tenant.name), task.options
        task.tenant = t
        self.add_record(id, task)
        self.results.pop(id, None)
        if b := self.batches.get(asked.batch):
            task.opened_at = b.created_at
            b.total, b.sequence = b.total + 1, b.sequence + 1
            b.members[id] = b.sequence
        if key := asked.dedupe_key:
            period = asked.dedupe_period_ms
            self.holders[t.name, key] = now + period if period else 0, id
            if period:
                self.keep(t, "k", key, len(id), now + period)
        if task.start_at > now:
            self.put_delayed(t, id, task.start_at)
        else:
            self.put_ready(t, id)
        if task.expires_at:
            self.expiring[id] = task.expires_at

    def batches_refuse(self, tenant: str, tasks: Sequence[NewTask]) -> str:
        """Say why tasks cannot be added to their batches, or nothing."""
        taken: set[str] = set()
        for task in tasks:
            id, b = task.id, self.batches.get(task.batch)
            if task.batch and id not in taken and id not in self.records and id not in self.marks:
                if not b or b.tenant != tenant:
                    return "FAIRQ not_found batch"
                if b.state != "open":
                    return "FAIRQ batch_closed batch"
            taken.add(id)
        return ""
