"""Operators' verbs: weights, limits, pauses, settings, dead letters, and the ends of tenants and queues."""

from __future__ import annotations

from fairq.model.queue.accounts import Tenant
from fairq.model.queue.calls import SETTINGS
from fairq.model.queue.schedules import Scheduling
from fairq.model.queue.tasks import Run
from fairq.model.waiting import PAUSED


class Operating(Scheduling):
    """The verbs of operators."""

    def waiting(self, tenant: str) -> list[str]:
        """Name the waiting tasks of a tenant."""
        mine = (id for id, task in self.records.items() if task.tenant.name == tenant)
        return [id for id in mine if id not in self.dead and id not in self.leases]

    def cancel_waiting(self, now: float, ids: list[str]) -> int:
        """Forget the waiting ones of these tasks; returns how many there were."""
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
        if self.has_any(t):
            return "not_empty"
        self.drop(t)
        return "ok"

    def has_any(self, t: Tenant) -> bool:
        """True if a tenant has tasks, or keeps anything apart from its feed."""
        return len(t.ready) + t.pending + len(t.delayed) + t.leased + t.dead + t.bytes > 0

    def drop(self, t: Tenant) -> None:
        """Delete a tenant, its settings and its feed."""
        name = t.name
        del self.tenants[name]
        self.dropped["delivered"] += t.delivered
        self.dropped["entitled"] += self.entitled_to(t)
        self.wake = type(self.wake)(other for other in self.wake if other is not t)
        self.idle.discard(name)
        for known in (self.due, self.parked, self.own, self.hours, self.feeds.kept, self.feeds.newest):
            known.pop(name, None)

    def forget_tenants(self, now: float) -> int:
        """Delete the tenants that have nothing and equal new ones; returns how many."""
        self.open(now)
        is_set, unset = {*self.own, *self.hours, *self.feeds.newest}, Tenant("").weight
        idle = [t for t in self.tenants.values() if not (self.has_any(t) or t.blocked)]
        new = [t for t in idle if t.weight == unset and t.name not in is_set]
        for t in new:
            self.drop(t)
        return len(new)

    def forget_queue(self, now: float, for_ms: float) -> str:
        """True if the queue has been empty for long enough, and has no settings: then this model is at its end."""
        now = self.open(now)
        has_any = self.tenants or self.records or self.marks or self.batches or self.schedules or self.ends
        is_set = self.own or self.hours or self.blocked or self.settings != SETTINGS
        return "stays" if has_any or is_set or min(self.now, now) + for_ms > now else "ok"

    def dead_page(
        self, now: float, tenant: str, cursor: str, count: int, reason: str, error: str, older: float, younger: float
    ) -> tuple[str, int, list[tuple[str, str, str, int, float, str, str, int]]]:
        """Walk over dead letters; returns where the next page begins, how many are left to look at, and the matches."""
        now = self.open(now)
        until, after = max(0, now - older), (max(0, now - younger) if younger else 0, "")
        if cursor:
            first, second, id = cursor.split(":")
            until, after = float(first), (float(second), id)
        deaths = ((at, id) for id, at in self.deaths_of(tenant).items() if at <= until)
        line = sorted(each for each in deaths if each > after)
        rows: list[tuple[str, str, str, int, float, str, str, int]] = []
        while line and len(rows) < count:
            at, id = line.pop(0)
            d = self.dead[id]
            cursor = f"{until:.0f}:{at:.0f}:{id}"
            if reason in ("", d.reason) and error in d.error:
                rows.append((id, d.tenant.name, d.reason, d.attempts, at, d.error, d.traceback, d.lost_leases))
        return (cursor if line else "", len(line), rows)

    def set_weight(self, now: float, tenant: str, weight: int) -> int:
        """Set a tenant's weight; returns the previous one."""
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
        """Set when a tenant, or the queue, is open; a revision that is given must be the current one."""
        now = self.open(now)
        if revision and revision != self.hours.get(name):
            return None
        previous = self.note_opening_hours(name, text, is_open, changes_at)
        self.close(now)
        return previous

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
        """Change settings; a change of share starts all accounts anew."""
        now = self.open(now)
        self.settings |= values
        if self.reserve != self.settings["reserve"] or (self.reserve and self.share != self.settings["share"]):
            self.reserve, self.idle = self.settings["reserve"], set()
            self.sweeping = max(self.sweeping, 2) if self.reserve else self.sweeping
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
            outcomes.append("gone")
            if id in self.dead:
                attempts, task, is_expired = self.dead[id].attempts, self.records[id], self.dead[id].reason == "expired"
                t = self.forget_dead(id)
                self.runs[id] = Run(
                    task.max_attempts, attempts, uncounted_attempts=attempts, state="reaped", ready_at=now
                )
                if task.expires_at > now:
                    self.expiring[id] = task.expires_at
                task.expires_at = task.expires_at if task.expires_at > now else 0
                outcomes[-1] = self.revive(id, is_expired)
                self.put_ready(t, id)
        self.finish_batches(now)
        self.close(now)
        return outcomes

    def revive(self, id: str, is_expired: bool) -> str:
        """Count a dead letter for its batch again, which is not complete until it ends; returns the outcome."""
        task = self.records[id]
        b = self.batches.get(task.options.batch)
        if not b or b.created_at != task.opened_at:
            return "batch_gone" if task.options.batch else "ok"
        if b.state == "complete":
            b.state, b.completed_at = "closed", 0
        b.dead, b.expired, b.sequence = b.dead - 1, b.expired - is_expired, b.sequence + 1
        b.members[id] = b.sequence
        return "ok"

    def purge(self, now: float, ids: list[str]) -> list[str]:
        """Delete dead letters."""
        now = self.open(now)
        outcomes = []
        for id in ids:
            outcomes.append("ok" if id in self.dead else "gone")
            if id in self.dead:
                self.drop_letter(id, now)
        self.close(now)
        return outcomes
