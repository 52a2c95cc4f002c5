"""Functions that all verbs share: places of tasks, their ends, and their records."""

from __future__ import annotations

import math
from typing import Any

from fairq.model.checks import COPY_MARK
from fairq.model.queue.accounts import Tenant
from fairq.model.queue.limits import (
    CUT,
    CUT_AT,
    ERROR_BYTES,
    TRACEBACK_BYTES,
    bytes_of,
    bytes_of_error,
    head_of,
)
from fairq.model.queue.remembered import MINUTE_MS, is_long
from fairq.model.queue.sorted_set import first_by_score
from fairq.model.queue.stored_bytes import StoredBytes
from fairq.model.queue.tasks import Death, Run, Task
from fairq.model.tasks import TaskState

DERIVED_MINUTES = 60


class Records(StoredBytes):
    """Tasks and their records."""

    def add_record(self, id: str, task: Task) -> None:
        """Keep a task's record."""
        self.records[id], task.created_at = task, self.call_now
        task.tenant.bytes += task.bytes(id)

    def drop_record(self, id: str) -> None:
        """Delete a task's record."""
        task = self.records.pop(id)
        task.tenant.bytes -= task.bytes(id)

    def note_error(self, id: str, run: Run, error: str) -> None:
        """Keep an error; only its beginning if there is no room."""
        t, error = self.records[id].tenant, head_of(error, ERROR_BYTES)
        more = bytes_of_error(error) - bytes_of_error(run.error)
        if more > max(0, self.room(t)):
            error = head_of(error, CUT_AT) + CUT
        t.bytes += bytes_of_error(error) - bytes_of_error(run.error)
        run.error = error

    def ready_since(self, id: str) -> float:
        """Return since when a waiting task is ready, or when it will be, without regard to its batch."""
        run, task = self.runs.get(id), self.records[id]
        return run.ready_at if run else max(task.created_at, task.start_at)

    def put_ready(self, t: Tenant, id: str, at_head: bool = False) -> None:
        """Make a task ready, last of its priority and group; it is pending if its batch has no free slot."""
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
        """Let a task wait for its start, behind those of the same start that came before it."""
        score = t.delayed[id] = t.delayed.next_score(math.floor(start_at))
        self.due[t.name] = min(math.floor(score), self.due.get(t.name, math.inf))

    def bury(self, id: str, reason: str, now: float, traceback: str = "") -> None:
        """Make a dead letter."""
        t, run = self.records[id].tenant, self.runs.pop(id, None) or Run(0)
        traceback = head_of(traceback, TRACEBACK_BYTES)
        if len(traceback.encode()) > max(0, self.room(t)):
            traceback = "" if run.error and not bytes_of_error(run.error) else CUT
        t.bytes += bytes_of_error(traceback)
        self.free_key(id, True)
        self.note_end(id, "dead")
        if b := self.batch_of(id):
            b.expired += reason == "expired"
        self.tell_of(id, "expired" if reason == "expired" else "dead", now, run.attempt, reason)
        self.dead[id] = Death(t, reason, run.attempt, run.lease, now, run.error, traceback, run.lost_leases)
        self.deaths[id] = now
        t.dead += 1
        self.counts["buried"] += 1
        self.counts["expired"] += reason == "expired"
        excess = int(t.dead - most) if (most := self.limit(t, "dead")) else 0
        if excess > 0:
            for oldest in first_by_score(self.deaths_of(t.name), min(2, excess)):
                self.drop_letter(oldest, now)

    def runs_alone(self, id: str) -> bool:
        """True of a leased task that has lost a lease, if the next lost one would be its last."""
        run, most = self.runs[id], self.settings["max_lost_leases"]
        return run.lost_leases > 0 and (run.is_last or 0 < most <= run.lost_leases + 1)

    def free_key(self, id: str, is_kept: bool) -> None:
        """Free a dedupe key, unless another task holds it or it is kept for its period."""
        t, key = self.records[id].tenant, self.records[id].options.dedupe_key
        until, holder = self.holders.get((t.name, key), (0, ""))
        if holder != id or (until and is_kept):
            return
        del self.holders[t.name, key]
        member = self.entry_of(t, "k", key, len(id))
        if until and member in self.ends:
            del self.ends[member]
            t.bytes -= bytes_of(key, len(id))

    def forget(self, id: str, owner: Run | None, how: str, now: float, result: str = "") -> None:
        """Forget a task, except its id, its result, and the lease if its owner ended it."""
        task = self.records[id]
        task.tenant.bytes -= self.bytes_of_task(id)
        task.tenant.remembered.add(self.call_now, id, is_long=is_long(id))
        if how == "done" and task.options.result_ttl_ms:
            self.name_result(id)
            self.keep_result(task, id, result or "null")
        self.free_key(id, how == "done")
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
        more = DERIVED_MINUTES if is_long(id) else 0
        self.ended.setdefault(minute + more, []).append(id)

    def trim_marks(self, now: float, limit: int) -> bool:
        """Forget ids that ended long enough ago, but copies that may be made anew; each minute counts as one."""
        has_trimmed = False
        while limit > 0 and self.marks and (self.minute + 2) * MINUTE_MS <= now:
            ids = self.ended.get(self.minute, [])[:limit]
            self.ended[self.minute] = self.ended.get(self.minute, [])[limit:]
            for id in ids:
                if owner := self.owner_of_copy(id):
                    self.touch(owner.name).remembered.add(self.call_now, id, is_long=True)
                    self.ended.setdefault(math.floor(self.call_now / MINUTE_MS) + DERIVED_MINUTES, []).append(id)
                else:
                    del self.marks[id]
            limit -= len(ids) or 1
            self.minute += not ids
            has_trimmed = True
        return has_trimmed

    def owner_of_copy(self, id: str) -> Tenant | None:
        """Return the id of the task that this id is a copy of, if that task is stored."""
        original, _, copy = id.rpartition(COPY_MARK)
        task = self.records.get(original)
        return task.tenant if task and copy.rpartition("-")[2] == f"{task.created_at:.0f}" else None

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

    def note_end(self, id: str, how: str) -> None:
        """Count a task's end for its batch."""
        if b := self.batch_of(id):
            setattr(b, how, getattr(b, how) + 1)
            b.members.pop(id, None)

    def state_of(self, id: str) -> TaskState:
        """Return the state of a task: the reply of `tasks`."""
        if death := self.dead.get(id):
            dead: Any = {"reason": death.reason, "error": death.error, "lost_leases": death.lost_leases}
            return TaskState(id, "dead", death.tenant.name, death.attempts, int(death.died_at), **dead)
        if id not in self.records:
            return TaskState(id, self.marks.get(id, (0, "unknown"))[1])  # type: ignore[arg-type]
        t, run, b = self.records[id].tenant, self.runs.get(id) or Run(0), self.batch_of(id)
        of_run: Any = {"error": run.error, "lost_leases": run.lost_leases}
        if id in self.leases:
            at = int(self.leases[id] + self.call_origin) if self.leases[id] < math.inf else 0
            return TaskState(id, "leased", t.name, run.attempt, at, run.claim, **of_run)
        state: Any = "delayed" if id in t.delayed else "pending" if b and id in b.pending else "ready"
        since = max(self.ready_since(id), self.records[id].ready_at) if state == "ready" else t.delayed.get(id, 0)
        return TaskState(id, state, t.name, run.attempt, int(since), **of_run)

    def stopping(self) -> list[str]:
        """List the running tasks that were cancelled."""
        return [id for id in self.leases if self.runs[id].state == "stopping"]

    def cancel_one(self, id: str, now: float) -> str:
        """Forget a waiting task, or stop a running one."""
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

    def forget_dead(self, id: str) -> Tenant:
        """Delete a dead letter."""
        death = self.dead.pop(id)
        del self.deaths[id]
        t = self.touch(death.tenant.name)
        t.dead -= 1
        t.bytes -= death.counted
        return t

    def drop_letter(self, id: str, now: float) -> None:
        """Delete a dead letter, and its task but for the id."""
        lease = self.dead[id].owner
        self.forget_dead(id).remembered.add(self.call_now, id, is_long=is_long(id))
        self.free_key(id, False)
        self.drop_record(id)
        self.mark(id, lease, "dead", now)

    def deaths_of(self, tenant: str) -> dict[str, float]:
        """Return when dead letters died: a tenant's, or all."""
        return {id: at for id, at in self.deaths.items() if tenant in ("", self.dead[id].tenant.name)}

    def is_one_too_many(self, tenant: str) -> bool:
        """True if a tenant is new, and there are as many as there may be."""
        return tenant not in self.tenants and len(self.tenants) >= self.settings["max_tenants"]
