"""A queue in plain Python: what the function library must do, with clock and dice as arguments.

It is exact: the same calls with the same clock and dice give the same replies, counts and accounts, to the last bit.
It knows nothing of keys, packed values or voids, and forgets no path: every method changes lists and then seats whom
it touched. Who is served next is in fair_pick.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .fair_pick import Pick, Run, Tenant
from .schedule_model import Scheduling

ROUNDS, TENANTS_PER_TICK, WINDOW_MS = 8, 50, 60_000


@dataclass
class Task:
    """A task's record."""

    tenant: Tenant
    start_at: float
    expires_at: float
    max_attempts: int


@dataclass
class Death:
    """A dead letter."""

    tenant: Tenant
    reason: str
    attempts: int
    died_at: float
    error: str


def first_by_score(scores: dict[str, float], limit: int, highest: float = math.inf) -> list[str]:
    """List the members of a sorted set up to a score, lowest first, at most `limit`."""
    due = sorted((score, member) for member, score in scores.items() if score <= highest)
    return [member for _, member in due[:limit]]


class Model(Scheduling):
    """The queue. `now` is the time of the call; what is stored is the time of the last call that changed anything."""

    def __init__(self) -> None:
        super().__init__()
        self.now: float = 0
        self.settings = {
            "share": 0,
            "lease_ms": 30_000,
            "max_attempts": 5,
            "retry_base_ms": 1000,
            "retry_cap_ms": 3_600_000,
            "dead_keep_ms": 14 * 86_400_000,
            "dead_keep": 100_000,
        }
        self.paused = 0
        self.hungry = 0
        self.readied = False
        self.published = 0
        self.counts = dict.fromkeys(("enqueued", "done", "buried", "expired"), 0)
        self.records: dict[str, Task] = {}
        self.runs: dict[str, Run] = {}
        self.leases: dict[str, float] = {}
        self.expiring: dict[str, float] = {}
        self.due: dict[str, float] = {}
        self.dead: dict[str, Death] = {}
        self.deaths: dict[str, float] = {}
        self.done: dict[tuple[int, str], int] = {}

    def open(self, now: float) -> float:
        """Begin a call: time never goes back."""
        self.touched, self.woken, self.readied = [], [], False
        return max(now, self.now)

    def close(self, now: float) -> None:
        """End a call that changes something."""
        self.seat_all()
        for t in self.touched:
            t.rerated = False
        self.wake.extend(self.woken)
        if self.hungry and self.readied and not self.paused:
            self.hungry = 0
            self.published += 1
        self.now = now

    def put_ready(self, t: Tenant, id: str, at_head: bool = False) -> None:
        """Put a task on its tenant's list."""
        (t.ready.appendleft if at_head else t.ready.append)(id)
        self.readied = self.readied or not t.paused

    def put_delayed(self, t: Tenant, id: str, start_at: float) -> None:
        """Let a task wait for its start."""
        t.delayed[id] = start_at
        self.due[t.name] = min(start_at, self.due.get(t.name, math.inf))

    def bury(self, id: str, reason: str, now: float, attempts: int = 0, error: str = "") -> None:
        """Make a dead letter."""
        t = self.records[id].tenant
        self.runs.pop(id, None)
        self.dead[id], self.deaths[id] = Death(t, reason, attempts, now, error), now
        t.dead += 1
        self.counts["buried"] += 1
        self.counts["expired"] += reason == "expired"

    def remembered(self, id: str, now: float) -> int | None:
        """Tell the attempt that finished a task not long ago."""
        window = math.floor(now / WINDOW_MS)
        return self.done.get((window, id)) or self.done.get((window - 1, id))

    def enqueue(self, now: float, tenant: str, tasks: list[tuple[str, dict[str, float]]]) -> list[str]:
        """Store tasks of one tenant; options are delay, start_at, expires_in, expires_at, max_attempts."""
        now = self.open(now)
        outcomes = self.store(now, tenant, tasks)
        if self.touched:
            self.close(now)
        return outcomes

    def store(self, now: float, tenant: str, tasks: list[tuple[str, dict[str, float]]]) -> list[str]:
        """Store those tasks whose ids are not known, and that would not expire before they could start."""
        outcomes: list[str] = []
        for id, given in tasks:
            start_at = now + given["delay"] if given.get("delay") else given.get("start_at", 0)
            expires_at = now + given["expires_in"] if given.get("expires_in") else given.get("expires_at", 0)
            if id in self.records or self.remembered(id, now):
                outcomes.append("duplicate")
            elif 0 < expires_at <= max(start_at, now):
                outcomes.append("expired")
            else:
                outcomes.append("ok")
                t = self.touch(tenant)
                attempts = int(given.get("max_attempts", 0)) or self.settings["max_attempts"]
                self.records[id] = Task(t, start_at, expires_at, attempts)
                if start_at > now:
                    self.put_delayed(t, id, start_at)
                else:
                    self.put_ready(t, id)
                if expires_at:
                    self.expiring[id] = expires_at
        self.counts["enqueued"] += outcomes.count("ok")
        return outcomes

    def claim(self, now: float, dice: Iterator[float], worker: str, limit: int) -> list[tuple[str, int, int]]:
        """Lease up to `limit` tasks by the fair pick: (id, attempt, max_attempts) each."""
        now = self.open(now)
        leased: list[tuple[str, int, int]] = []
        rounds = 0
        while not self.paused and len(leased) < limit and self.weight_sum > 0 and rounds < ROUNDS:
            for p in self.pick_round(limit - len(leased), dice):
                leased += self.lease(p, worker, now)
            self.seat_all()
            rounds += 1
        is_short = len(leased) < limit
        if rounds or (is_short and not self.hungry):
            if is_short:
                self.hungry, self.readied = 1, self.weight_sum > 0
            self.close(now)
        return leased

    def lease(self, p: Pick, worker: str, now: float) -> list[tuple[str, int, int]]:
        """Lease a picked task, or drop it when its window has closed."""
        task, t = self.records[p.id], p.tenant
        run = self.runs.get(p.id) or Run(task.max_attempts)
        self.expiring.pop(p.id, None)
        if 0 < task.expires_at <= now:
            self.charge(t, -p.cost, p.weight_sum)
            self.bury(p.id, "expired", now, run.attempt, run.error)
            return []
        run.attempt, run.state, run.epoch, run.leased_at = run.attempt + 1, "leased", self.epoch, now
        run.cost, run.weight_sum, run.worker = p.cost, p.weight_sum, worker
        self.runs[p.id], self.leases[p.id] = run, now + self.settings["lease_ms"]
        t.leased += 1
        return [(p.id, run.attempt, run.max_attempts + run.forgiven)]

    def end_lease(self, id: str, run: Run, state: str, now: float) -> Tenant:
        """Close a lease and its account."""
        t = self.touch(self.records[id].tenant.name)
        del self.leases[id]
        t.leased -= 1
        self.correct(t, run, now)
        run.state = state
        return t

    def keep_waiting(self, id: str) -> None:
        """Watch the window again while the task waits for its next attempt."""
        if self.records[id].expires_at:
            self.expiring[id] = self.records[id].expires_at

    def take_back(self, id: str, run: Run, state: str, now: float) -> None:
        """Return a lease to the head of the list."""
        t = self.end_lease(id, run, state, now)
        if state == "reaped" and run.is_last:
            return self.bury(id, "lease_lost", now, run.attempt, run.error)
        run.forgiven += state == "settled"
        self.keep_waiting(id)
        self.put_ready(t, id, at_head=True)

    def nack(self, id: str, run: Run, delay: float | None, error: str, now: float, dice: Iterator[float]) -> None:
        """Send a task to its next attempt, or to the dead letters."""
        t = self.end_lease(id, run, "settled", now)
        run.error = error
        if run.is_last:
            return self.bury(id, "exhausted", now, run.attempt, error)
        self.keep_waiting(id)
        if delay is None:
            longest = self.settings["retry_base_ms"] * 2 ** min(run.attempt - 1, 40)
            delay = math.floor(next(dice) * min(self.settings["retry_cap_ms"], longest)) + 1
        if delay > 0:
            self.put_delayed(t, id, now + delay)
        else:
            self.put_ready(t, id)

    def refusal(self, id: str, attempt: int, now: float) -> str:
        """Say why a token opens no lease."""
        run, finished, death = self.runs.get(id), self.remembered(id, now), self.dead.get(id)
        if run:
            return "gone" if run.attempt == attempt and run.state == "settled" else "stale"
        if finished:
            return "gone" if finished == attempt else "stale"
        if death is None:
            return "gone"
        return "gone" if death.attempts == attempt and death.reason in ("exhausted", "rejected") else "stale"

    def settle_one(
        self, action: str, id: str, attempt: int, delay: float | None, error: str, now: float, dice: Iterator[float]
    ) -> str:
        """End or extend one lease."""
        run = self.runs.get(id)
        if run is None or run.state != "leased" or run.attempt != attempt:
            return self.refusal(id, attempt, now)
        if action == "ack":
            t = self.end_lease(id, run, "settled", now)
            del self.runs[id], self.records[id]
            self.done[math.floor(now / WINDOW_MS), id] = run.attempt
            t.done += 1
            self.counts["done"] += 1
        elif action == "nack":
            self.nack(id, run, delay, error, now, dice)
        elif action == "reject":
            self.end_lease(id, run, "settled", now)
            self.bury(id, "rejected", now, run.attempt, error)
        elif action == "extend":
            self.leases[id] = now + self.settings["lease_ms"]
        else:
            self.take_back(id, run, {"release": "settled", "reap": "reaped"}[action], now)
        return "ok"

    def settle(
        self, now: float, dice: Iterator[float], settlements: Sequence[tuple[str, str, int, float | None, str]]
    ) -> list[str]:
        """End or extend leases, each fenced by (id, attempt)."""
        now = self.open(now)
        outcomes = [self.settle_one(*settlement, now, dice) for settlement in settlements]
        if "ok" in outcomes:
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
            t = self.touch(self.records[id].tenant.name)
            if t.delayed.pop(id, None) is None:
                t.ready.remove(id)
            run = self.runs.get(id)
            self.bury(id, "expired", now, run.attempt if run else 0, run.error if run else "")
        return len(ids)

    def forget_dead(self, id: str) -> Tenant:
        """Delete a dead letter."""
        death = self.dead.pop(id)
        del self.deaths[id]
        t = self.touch(death.tenant.name)
        t.dead -= 1
        return t

    def trim_dead(self, now: float, limit: int) -> int:
        """Forget dead letters that are too old or too many."""
        excess = min(limit, len(self.dead) - self.settings["dead_keep"])
        if excess > 0:
            ids = first_by_score(self.deaths, excess)
        else:
            ids = first_by_score(self.deaths, limit, now - self.settings["dead_keep_ms"])
        for id in ids:
            self.forget_dead(id)
            del self.records[id]
        return len(ids)

    def next_due(self, now: float) -> float:
        """Tell when the next tick will find work."""
        waiting = [*self.due.values(), *self.expiring.values(), *self.leases.values()]
        waiting += [at for field in self.schedules if (at := self.due_at(field)) < math.inf]
        waiting += [died_at + self.settings["dead_keep_ms"] for died_at in self.deaths.values()]
        if len(self.dead) > self.settings["dead_keep"]:
            waiting.append(now)
        return max(min(waiting), now) if waiting else -1

    def tick(self, now: float, limit: int) -> tuple[float, ...]:
        """Do what time does: the reply of `tick`."""
        now = self.open(now)
        promoted, expired = self.promote(now, limit), self.expire(now, limit)
        lost = first_by_score(self.leases, limit, now)
        for id in reversed(lost):
            self.take_back(id, self.runs[id], "reaped", now)
        trimmed = self.trim_dead(now, limit)
        if self.touched:
            self.close(now)
        ready = sum(len(t.ready) for t in self.tenants.values())
        fires = sum(self.due_at(field) <= now for field in self.schedules)
        return (now, self.next_due(now), ready, promoted, expired, len(lost), trimmed, fires)

    def set_weight(self, now: float, tenant: str, weight: int) -> int:
        """Give a tenant a weight; returns the one that it had."""
        now = self.open(now)
        t = self.touch(tenant)
        before = t.weight
        if t.counted:
            self.accrue(t)
            self.weight_sum += weight - before
        t.vtime = self.clock + (t.vtime - self.clock) * before / weight
        t.weight, t.rerated = weight, True
        self.close(now)
        return before

    def set_paused(self, now: float, tenant: str, paused: int) -> int:
        """Pause or resume a tenant, or (empty name) the queue."""
        now = self.open(now)
        if tenant:
            t = self.touch(tenant)
            before, t.paused = t.paused, paused
            has_work = bool(t.ready)
        else:
            before, self.paused = self.paused, paused
            has_work = self.weight_sum > 0
        self.readied = not paused and has_work
        self.close(now)
        return before

    def configure(self, now: float, **values: int) -> None:
        """Change settings; a change of share starts everybody's account anew."""
        now = self.open(now)
        self.settings |= values
        if self.share != self.settings["share"]:
            self.share, self.epoch, self.clock, self.estimate = self.settings["share"], self.epoch + 1, 0, 0
            for t in self.tenants.values():
                t.vtime = t.estimate = t.delivered = t.entitled = t.joined = 0
        self.close(now)

    def replay(self, now: float, ids: list[str]) -> list[str]:
        """Give dead letters a fresh set of attempts."""
        now = self.open(now)
        outcomes = []
        for id in ids:
            outcomes.append("ok" if id in self.dead else "gone")
            if id in self.dead:
                attempts, task = self.dead[id].attempts, self.records[id]
                t = self.forget_dead(id)
                if attempts:
                    self.runs[id] = Run(task.max_attempts, attempts, attempts, "reaped")
                if task.expires_at > now:
                    self.expiring[id] = task.expires_at
                task.expires_at = task.expires_at if task.expires_at > now else 0
                self.put_ready(t, id)
        self.close(now)
        return outcomes

    def purge(self, now: float, ids: list[str]) -> list[str]:
        """Delete dead letters."""
        now = self.open(now)
        outcomes = []
        for id in ids:
            outcomes.append("ok" if id in self.dead else "gone")
            if id in self.dead:
                self.forget_dead(id)
                del self.records[id]
        self.close(now)
        return outcomes
