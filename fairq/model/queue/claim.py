"""How tasks are leased."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from fairq.model.queue.accounts import Tenant
from fairq.model.queue.batches import Batching
from fairq.model.queue.fair_pick import Pick
from fairq.model.queue.tasks import Run
from fairq.model.tasks import MAX_LEASES, first_lease_at

ROUNDS = 8


class Claiming(Batching):
    """The verb that leases.

    A claim leases `most` tasks, and takes no more once it has `page` bytes of payloads that are longer than `large`. It
    buries at most `late` expired tasks, `late_each` of one tenant.
    """

    large, page = 4096, 1_048_576
    most, late, late_each = MAX_LEASES, 64, 16

    def claim(
        self,
        now: float,
        random_values: Iterator[float],
        name: str,
        limit: int,
        slots: int = 0,
        owed: int = 0,
        witness: float = math.inf,
    ) -> list[tuple[str, int, int]]:
        """Lease up to `limit` tasks by the fair pick: (id, attempt, max_attempts) each; all have one number.

        `name`: of the claim. Before these, it leases up to `owed` of tenants below their guarantees.
        """
        now, limit = self.open(now, witness), min(limit, self.most)
        owed = min(owed, self.most - limit)
        self.claimed_bytes, self.returned = 0, []
        leased: list[tuple[str, int, int]] = []
        number = max(self.last_lease + 1, first_lease_at(int(now)))
        has_changed, only_reserve_left, self.slots = slots != self.slots, False, slots
        self.proven_slots = self.leased + limit + owed
        self.passed_over, self.late_of = set(), Counter[Tenant]()
        self.met_awake, self.within_guarantee = set(), []
        rounds, self.kept_out = 0, [("", self.blocked, now, now)] if self.blocked else []
        if owed and not self.blocked:
            picks = self.pick_owed(owed)
            while picks:
                picks = [p for p in picks if not self.lease(p, name, now, number, leased)]
            rounds, limit = 1, limit + len(leased)
        while (
            not self.blocked and len(leased) < limit and self.servable > 0 and rounds < ROUNDS and not only_reserve_left
        ):
            if self.claimed_bytes >= self.page or self.late_of.total() >= self.late or self.cost >= self.costly:
                break
            if rounds:
                self.seat_all()
            picks = self.pick_round(limit - len(leased), random_values)
            while picks:
                picks = [p for p in picks if not self.lease(p, name, now, number, leased)]
            if self.is_empty and self.passed_over:
                self.passed_over = set()  # no other tenant is left
            else:
                rounds, only_reserve_left = rounds + 1, self.only_reserve_left
        self.owed = sum(self.owed_to(t) for t in self.met_awake)
        self.put_back()
        is_short = len(leased) < limit
        if leased:
            self.last_lease, self.claims[name], self.bundles[number] = number, number, [id for id, *_ in leased]
        if rounds or has_changed or (is_short and not self.hungry):
            self.finish_batches(now)
            if is_short:
                self.hungry, self.readied = 1, self.readied or (self.servable > 0 and not only_reserve_left)
            elif owed:
                self.readied = self.readied or self.servable > 0
            self.close(now)
        self.proven_slots = 0
        return leased

    def lease(self, p: Pick, name: str, now: float, number: int, leased: list[tuple[str, int, int]]) -> bool:
        """Lease a picked task, drop it if it has expired, or put it back when the reply is full.

        Returns whether the pick is used up; if not, it is for another task of its tenant.
        """
        task = self.records[p.id]
        run = self.runs.get(p.id) or Run(task.max_attempts)
        is_late = 0 < task.expires_at <= now - self.ahead
        if self.claimed_bytes >= self.page or (is_late and self.late_of.total() >= self.late):
            self.unpick(p, is_returned=True)
            return True
        self.expiring.pop(p.id, None)
        if is_late:
            return self.drop_late(p, now)
        run.attempt, run.lease, run.state, run.began_at, run.claim = run.attempt + 1, number, "leased", self.at, name
        run.is_extended, run.takeovers, run.lasts = False, 0, self.settings["lease_ms"]
        self.claimed_bytes += task.length if task.size > self.large or task.is_apart else 0
        self.runs[p.id], self.leases[p.id] = run, self.at + self.settings["lease_ms"]
        if b := self.batch_of(p.id):
            b.running += 1
        leased.append((p.id, run.attempt, run.last_attempt))
        self.within_guarantee += [p.id] * p.is_guaranteed
        return True

    def drop_late(self, p: Pick, now: float) -> bool:
        """Bury an expired task; returns whether its tenant is passed over."""
        t, id = p.tenant, p.id
        self.late_of[t] += 1
        is_over = not t.ready or self.late_of[t] >= self.late_each
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

    def claim_again(self, now: float, name: str) -> list[tuple[str, int, int]]:
        """Repeat the answer of an earlier claim, with new deadlines for its open leases; empty: none is open."""
        now, number = self.open(now), self.claims.get(name, 0)
        ids = [id for id in self.bundles.get(number, []) if id in self.leases and self.runs[id].lease == number]
        self.leases |= dict.fromkeys(ids, self.at + self.settings["lease_ms"])
        if ids:
            self.close(now)
        self.kept_out = [("", self.blocked, now, now)] if self.blocked else []
        self.within_guarantee, self.owed = [], 0
        runs = [(id, self.runs[id]) for id in ids]
        return [(id, run.attempt, run.last_attempt) for id, run in runs]
