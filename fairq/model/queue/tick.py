"""Changes that come with time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fairq.model.queue.accounts import OUT
from fairq.model.queue.batches import BATCH_KEEP_MS, CHANGES_PER_CALL
from fairq.model.queue.jumps import Jumping
from fairq.model.queue.remembered import MINUTE_MS
from fairq.model.queue.settle import Settling
from fairq.model.queue.sorted_set import first_by_score
from fairq.model.waiting import RATE_LIMITED

TENANTS_PER_TICK, LEAST_EACH, MOVES_PER_TICK, ENDS_PER_TICK = 8, 20, 40, 80


def first_of(times: Iterable[float]) -> float:
    """Return the earliest time; infinite if there is none."""
    return min(times, default=math.inf)


class Ticking(Settling, Jumping):
    """The verb that does the due jobs."""

    def tick(self, now: float, limit: int, witness: float = math.inf) -> tuple[Any, ...]:
        """Do the due jobs: the reply of `tick`. Deletions wait for the witness's clock, too."""
        now = self.open(now, witness)
        sure = now - self.ahead
        if self.goes_back or self.sweeping == 3:
            self.sweeping, self.goes_back, self.mending = 2, False, 1
        jobs = {job for job, at in self.due_times(now).items() if at <= now}
        due = max(1, len(jobs - {"fires", "opening_changes"}))
        part, ends = math.ceil(limit / due), math.ceil(min(limit, ENDS_PER_TICK) / due)
        self.trim_ends(sure, part)
        promoted, expired = self.promote(now, math.ceil(min(limit, MOVES_PER_TICK) / due)), self.expire(now, ends)
        lost = [id for _, at, ids in self.deadlines() if at <= self.at for id in ids][:ends]
        ended: list[Any] = []
        for id in reversed(lost):
            ended += (id.encode(), self.runs[id].lease, self.runs[id].attempt)
            until = self.leases[id] + self.call_origin - self.runs[id].lasts
            self.settle_one("reap", id, self.runs[id].lease, None, "", "", now, iter(()), until)
        trimmed = self.trim_dead(now, sure, ends)
        self.unpark(first_by_score(self.parked, part, now))
        swept = self.sweep()
        if "sweep" in jobs and self.mending:
            self.mend(now)
        self.cancel_members(now, min(ends, CHANGES_PER_CALL))
        self.finish_batches(now)
        self.trim_batches(sure, part)
        swept |= self.trim_marks(sure, 4 * part)
        if self.touched or swept:
            self.close(now)
        ready = sum(len(t.ready) for t in self.tenants.values())
        fires = sum(self.due_at(field) <= now for field in self.schedules) if "fires" in jobs else 0
        changes = sum(self.hours_at(name) <= now for name in self.hours) if "opening_changes" in jobs else 0
        return (now, self.next_due(now), ready, promoted, expired, len(lost), trimmed, fires, changes, ended)

    def due_times(self, now: float) -> dict[str, float]:
        """Return when each job of a tick next has something to do."""
        completed = [b.completed_at for b in self.batches.values() if b.state == "complete"]
        has_too_many = len(self.dead) > self.settings["dead_keep"]
        waiting: dict[str, float] = {
            "due": first_of(self.due.values()),
            "expiring": self.expiring.lowest + self.ahead,
            "leases": first_of(at for is_extended, at, _ in self.deadlines() if not is_extended) + self.call_origin,
            "extended": first_of(at for is_extended, at, _ in self.deadlines() if is_extended) + self.call_origin,
            "fires": first_of(self.due_at(field) for field in self.schedules),
            "deaths": now if has_too_many else self.deaths.lowest + self.settings["dead_keep_ms"] + self.ahead,
            "completed": first_of(completed) + BATCH_KEEP_MS + self.ahead,
            "ends": self.ends.lowest + self.ahead,
            "cancelling": first_of(self.cancelling.values()),
            "parked": first_of(self.parked.values()),
            "opening_changes": first_of(self.hours_at(name) for name in self.hours),
            "marks": (self.minute + 2) * MINUTE_MS + self.ahead if self.marks else math.inf,
            "sweep": now if self.sweeping or self.goes_back else math.inf,
        }
        return {job: at for job, at in waiting.items() if at < math.inf}

    def next_due(self, now: float) -> float:
        """Return when the next tick will find work."""
        return max(min(times), now) if (times := self.due_times(now).values()) else -1

    def promote(self, now: float, limit: int) -> int:
        """Move due tasks to their tenants' lists."""
        names = first_by_score(self.due, TENANTS_PER_TICK, now)
        each, moved = max(LEAST_EACH, limit // max(1, len(names))), 0
        for name in names:
            if moved >= limit:
                break
            t = self.touch(name)
            for id in t.delayed.due(min(each, limit - moved), now):
                del t.delayed[id]
                self.put_ready(t, id)
                moved += 1
            del self.due[name]
            if t.delayed:
                self.due[name] = max(t.delayed.first_at, now)
        return moved

    def expire(self, now: float, limit: int) -> int:
        """Bury waiting tasks that have expired."""
        ids = self.expiring.first(limit, now - self.ahead)
        for id in ids:
            del self.expiring[id]
            self.take_out(id)
            self.bury(id, "expired", now)
        return len(ids)

    def trim_dead(self, now: float, sure: float, limit: int) -> int:
        """Forget dead letters that are too old, and while there are too many the oldest of the tenant with most."""
        ids = self.deaths.first(limit, sure - self.settings["dead_keep_ms"])
        trimmed = 0
        while True:
            for id in ids:
                self.drop_letter(id, now)
            trimmed += len(ids)
            if trimmed == limit or len(self.dead) <= self.settings["dead_keep"]:
                return trimmed
            _, most = max((t.dead, t.name) for t in self.tenants.values())
            ids = first_by_score(self.deaths_of(most), 1)

    def deadlines(self) -> list[tuple[bool, float, list[str]]]:
        """Return when leases end: a claim's leases together; then each extended lease by itself."""
        found, together = list[tuple[bool, float, str, list[str]]](), dict[int, list[str]]()
        for id, at in self.leases.items():
            if self.runs[id].is_extended:
                found.append((True, at, id, [id]))
            else:
                together.setdefault(self.runs[id].lease, []).append(id)
        found += [(False, self.leases[ids[0]], str(number), ids) for number, ids in together.items()]
        return [(is_extended, at, ids) for is_extended, at, _, ids in sorted(found)]

    def sweep(self) -> bool:
        """Let in the tenants that a limit for all kept out, and look for their delayed tasks in time."""
        if not self.sweeping:
            return False
        for name, t in self.tenants.items():
            if (t.ready and t.slot == OUT) or (self.reserve and t.slot > 0 and not t.leased):
                self.touch(name)
            if t.blocked & RATE_LIMITED:
                self.parked.pop(name, None)
                self.meter(self.touch(name))
            if t.cause and t.let_in_at > self.call_now:
                self.touch(name).let_in_at = self.call_now
            if t.delayed:
                self.due[name] = min(self.due.get(name, math.inf), t.delayed.first_at)
        self.sweeping = 0
        return True
