"""Batches: their verbs, and their updates when tasks change."""

from __future__ import annotations

from collections.abc import Mapping

from fairq.model.queue.records import Records
from fairq.model.queue.sorted_set import first_by_score
from fairq.model.queue.tasks import Batch, Task
from fairq.model.tasks import NewTask

BATCH_KEEP_MS, CHANGES_PER_CALL = 86_400_000, 64


class Batching(Records):
    """The verbs on batches."""

    def call_back(self, name: str, event: str) -> None:
        """Enqueue the callback task for an event of a batch, unless it is there."""
        b = self.batches[name]
        id = b.callback_id(name, event)
        if event in b.callbacks and id not in self.records:
            t, task = self.touch(b.tenant), b.callbacks[event]._replace(id=id)
            self.add_record(id, Task(t, task, 0, 0, self.settings["max_attempts"], is_apart=True))
            self.put_ready(t, id)
            self.counts["enqueued"] += 1

    def refill(self, b: Batch) -> None:
        """Hand free batch slots to pending tasks."""
        for id in b.pending.first(b.max_running - b.admitted) if b.max_running else ():
            t = self.touch(b.tenant)
            del b.pending[id]
            t.pending -= 1
            self.records[id].ready_at = self.call_now
            self.put_ready(t, id)

    def finish_batches(self, now: float) -> None:
        """Hand free batch slots to pending tasks, complete what is at its end, and call back."""
        for name, b in sorted(self.batches.items()):
            if b.state == "complete":
                continue
            self.refill(b)
            if b.dead and "death" in b.callbacks:
                self.call_back(name, "death")
                self.drop_callbacks(name, b, ["death"])
            if b.state == "closed" and b.ended == b.total:
                b.state, b.completed_at = "complete", now
                if b.events:
                    counts = f"{b.done} {b.dead} {b.cancelled} {b.expired}"
                    self.tell(self.touch(b.tenant), "batch_completed", name, now, 0, counts)
                self.call_back(name, "complete")
                if b.done == b.total:
                    self.call_back(name, "success")
                may_succeed = b.dead and not b.cancelled
                self.drop_callbacks(name, b, [event for event in b.callbacks if event != "success" or not may_succeed])

    def drop_callbacks(self, name: str, b: Batch, events: list[str]) -> None:
        """Free the bytes of callbacks that have been stored, or will not be."""
        before = b.bytes(name)
        for event in events:
            del b.callbacks[event]
        self.touch(b.tenant).bytes += b.bytes(name) - before

    def open_batch(
        self,
        now: float,
        tenant: str,
        name: str,
        max_running: int,
        callbacks: Mapping[str, NewTask],
        events: int = 0,
    ) -> str:
        """Open a batch; `callbacks` are tasks by `complete`, `success` and `death`."""
        now = self.open(now)
        if name in self.batches:
            return "duplicate"
        new = Batch(tenant, max_running, now, dict(callbacks), events)
        if self.is_one_too_many(tenant) or self.keeps_too_much(tenant, new.bytes(name)):
            return f"FAIRQ quota_exceeded {'max_tenants' if self.is_one_too_many(tenant) else 'stored_bytes'}"
        self.touch(tenant).bytes += new.bytes(name)
        self.batches[name] = new
        self.close(now)
        return "ok"

    def close_batch(self, now: float, name: str) -> str:
        """Close a batch; returns its previous state."""
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

    def batch_results(self, now: float, id: str, lease: int) -> str | list[tuple[str, str | None]]:
        """Return the results of the batch for which a task calls back, or why they are refused."""
        if id not in self.leases or self.runs[id].lease != lease:
            return "FAIRQ forbidden lease"
        for name, b in self.batches.items():
            if id in [b.callback_id(name, event) for event in ("complete", "success", "death")]:
                named = [each.split(" ", 1) for each in sorted(b.results, key=b.results.__getitem__)]
                kept = [(task, until, *self.results.get(task, (0.0, ""))) for until, task in named]
                return [(task, said if at > now and f"{at:.0f}" == until else None) for task, until, at, said in kept]
        return "FAIRQ not_found id"

    def cancel_members(self, now: float, limit: int) -> None:
        """Go on cancelling the tasks of cancelled batches."""
        for name in first_by_score(self.cancelling, limit):
            b = self.batches[name]
            ids = b.members.first(limit)
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
            b = self.batches.pop(name)
            self.touch(b.tenant).bytes -= b.bytes(name)
