"""How leases end, and how tasks are called off or moved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fairq.model.queue.accounts import Tenant
from fairq.model.queue.batches import Batching
from fairq.model.queue.tasks import Run
from fairq.model.queues import longest_wait_ms

LATE_MS = 1_000
_LOST = ("reap", "lose", "lose_alone")


class Settling(Batching):
    """The verbs that end leases, and those that cancel or reschedule tasks."""

    def settle(
        self,
        now: float,
        random_values: Iterator[float],
        settlements: Sequence[tuple[str, str, int | str, float | None, str, str]],
        sent: float = math.inf,
    ) -> list[str]:
        """End or extend leases, each fenced by (id, lease); `sent`: when, if it was more than LATE_MS ago."""
        now = self.open(now)
        until = sent if now - sent > LATE_MS else math.inf
        outcomes = [self.settle_one(*settlement, now, random_values, until) for settlement in settlements]
        if any(outcome not in ("gone", "stale") for outcome in outcomes):
            self.finish_batches(now)
            self.close(now)
        return outcomes

    def settle_one(
        self,
        action: str,
        id: str,
        lease: int | str,
        delay: float | None,
        said: str,
        traceback: str,
        now: float,
        random_values: Iterator[float],
        until: float = math.inf,
    ) -> str:
        """End or extend one lease, which was worked on until then; `said`: the result or the error."""
        until = min(until, now)
        lease, taken = map(int, lease.split("/")) if isinstance(lease, str) else (lease, None)
        run = self.runs.get(id)
        if run is None or run.state not in ("leased", "stopping") or run.lease != lease:
            return self.refusal(id, lease, now)
        if taken not in (None, run.takeovers):
            return "stale"
        if action in ("extend", "take"):
            run.lasts = max(run.lasts, self.settings["lease_ms"])
            self.leases[id], run.is_extended = self.at + run.lasts, True
            run.takeovers += action == "take"
            outcome = "cancelled" if run.state == "stopping" else "ok"
            return outcome + (f" {run.takeovers} {run.lasts}" if action == "take" else "")
        if action == "ack":
            self.end_lease(id, run, "settled", until, True).done += 1
            self.forget(id, run, "done", now, said)
        elif run.state == "stopping":
            self.end_lease(id, run, "settled", until)
            self.forget(id, None if action in _LOST else run, "cancelled", now)
        elif action == "nack":
            self.nack(id, run, delay, said, traceback, now, random_values, until)
        elif action == "reject":
            self.end_lease(id, run, "settled", until, True)
            self.note_error(id, run, said)
            self.tell_of(id, "failed", now, run.attempt, run.error)
            self.bury(id, "rejected", now, traceback)
        elif action == "release":
            self.release(id, run, delay, said, now, until)
        else:
            is_over = action != "reap" and self.count_lost(run, was_alone=action == "lose_alone")
            self.reap(id, run, now, until, is_over)
        return "ok"

    def end_lease(self, id: str, run: Run, state: str, until: float, is_worked: bool = False) -> Tenant:
        """Close a lease and its account."""
        t = self.touch(self.records[id].tenant.name)
        del self.leases[id]
        if b := self.batch_of(id):
            b.running, b.admitted = b.running - 1, b.admitted - 1
        self.charge_lease(t, run.began_at, until, is_worked)
        run.state = state
        return t

    def keep_waiting(self, id: str, now: float, ready_at: float) -> None:
        """Make the task wait for its next attempt; its window is watched again."""
        self.runs[id].wait(now, ready_at)
        if self.records[id].expires_at:
            self.expiring[id] = self.records[id].expires_at

    def release(self, id: str, run: Run, delay: float | None, error: str, now: float, until: float) -> None:
        """Put the task back at the head of the list, or delay it; the attempt does not count."""
        t = self.end_lease(id, run, "settled", until)
        run.uncounted_attempts += 1
        if error:
            self.note_error(id, run, error)
        if delay is not None:
            return self.wait_for(t, id, delay, now)
        self.keep_waiting(id, now, now)
        self.put_ready(t, id, at_head=True)

    def count_lost(self, run: Run, was_alone: bool) -> bool:
        """Count a lease that was lost with its worker's process; returns whether it was the last one allowed."""
        most, lost = self.settings["max_lost_leases"], run.lost_leases + 1
        is_over = 0 < most <= lost
        if is_over and not was_alone and most > 1:
            return False
        run.lost_leases = min(lost, 255)
        return is_over

    def reap(self, id: str, run: Run, now: float, until: float, is_over: bool) -> None:
        """Put the task of a lost lease back at the head of the list, or, if an attempt counted before, with a delay."""
        t = self.end_lease(id, run, "reaped", until)
        self.tell_of(id, "failed", now, run.attempt, "lease_lost")
        if is_over or run.is_last:
            return self.bury(id, "lease_lost", now)
        if before := run.attempt - run.uncounted_attempts - 1:
            return self.wait_for(t, id, self.longest_wait(id, before), now)
        self.keep_waiting(id, now, now)
        self.put_ready(t, id, at_head=True)

    def nack(
        self,
        id: str,
        run: Run,
        delay: float | None,
        error: str,
        traceback: str,
        now: float,
        random: Iterator[float],
        until: float,
    ) -> None:
        """Send a task to its next attempt, or to the dead letters."""
        t = self.end_lease(id, run, "settled", until, True)
        self.note_error(id, run, error)
        self.tell_of(id, "failed", now, run.attempt, run.error)
        if run.is_last:
            return self.bury(id, "exhausted", now, traceback)
        if delay is None:
            delay = math.floor(next(random) * self.longest_wait(id, run.attempt - run.uncounted_attempts)) + 1
        self.wait_for(t, id, delay, now)

    def longest_wait(self, id: str, attempts: int) -> float:
        """Return how long a task waits at most after so many attempts that count."""
        asked, settings = self.records[id].options, self.settings
        base, cap = asked.retry_base_ms or settings["retry_base_ms"], asked.retry_cap_ms or settings["retry_cap_ms"]
        return longest_wait_ms(int(base), int(cap), attempts)

    def wait_for(self, t: Tenant, id: str, delay: float, now: float) -> None:
        """Let a task wait for its next attempt."""
        self.keep_waiting(id, now, now + delay)
        if delay > 0:
            self.put_delayed(t, id, now + delay)
        else:
            self.put_ready(t, id)

    def refusal(self, id: str, lease: int, now: float) -> str:
        """Say why a number is not the number of a task's lease."""
        run, finished, death = self.runs.get(id), self.marks.get(id), self.dead.get(id)
        if run:
            return "gone" if run.lease == lease and run.state == "settled" else "stale"
        if finished:
            return "gone" if finished[0] == lease else "stale"
        return "gone" if death is None or death.owner == lease else "stale"

    def cancel(self, now: float, ids: list[str]) -> list[str]:
        """Forget waiting tasks, and have running ones stopped."""
        now = self.open(now)
        outcomes = [self.cancel_one(id, now) for id in ids]
        self.finish_batches(now)
        self.close(now)
        return outcomes

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
                    starts_at = max(start_at, now)
                    if run := self.runs.get(id):
                        run.wait(now if delay else starts_at, starts_at)
                    t.bytes -= task.bytes(id)
                    task.start_from = int(now // 1000) if delay else 0
                    if task.end_moves and task.expires_at:
                        task.expires_at += starts_at - (task.start_at or task.created_at)
                        self.expiring[id] = task.expires_at
                        task.end_from = task.start_from if start_at > now else int(now // 1000)
                    task.start_at = starts_at
                    t.bytes += task.bytes(id)
                    if start_at > now:
                        self.put_delayed(t, id, start_at)
                    else:
                        self.put_ready(t, id)
        self.finish_batches(now)
        self.close(now)
        return outcomes

    def has_all_delayed(self, t: Tenant) -> bool:
        """True if a tenant has as many delayed tasks as it may have."""
        most = self.limit(t, "delayed")
        return 0 < most <= len(t.delayed)
