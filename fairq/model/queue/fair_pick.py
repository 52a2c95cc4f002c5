"""The fair pick, exact to the last bit; lua/pick/README.md and pick/draws.lua have the theory."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterator
from operator import itemgetter

from attrs import define

from fairq.model.queue.accounts import AWAKE, Accounts, Tenant, is_outside

FEW, FIRST, POOL, PROBES, REDRAWS = 16, 3, 8, 8, 6
_TIME = itemgetter(0)


@define
class Pick:
    """A dispatch, and by how much it moved the clock."""

    tenant: Tenant
    id: str
    moved: float | None  # None: it was a gift


class Round:
    """The state of one round of picks: the thrown probes, the cursor's way, and the tenants it has looked at."""

    def __init__(self, line: list[tuple[float, list[Tenant]]]) -> None:
        self.line = line
        self.seated = [t for _, seats in line for t in seats]
        self.wanted = 0
        self.probes: deque[tuple[Tenant, float]] = deque()
        self.passed: list[Tenant] = []
        self.passes = 0
        self.is_filled = False  # few tenants are all in the pool from the first pick on
        self.pool: list[tuple[float, Tenant]] = []  # by virtual time
        self.ahead: float = 0

    def add(self, t: Tenant, time: float, most: int) -> None:
        """Add a tenant to the pool, once, behind its equals; the pool keeps the best."""
        if all(other is not t for _, other in self.pool):
            insort(self.pool, (time, t), key=_TIME)
            del self.pool[most:]


class FairPick(Accounts):
    """Who is served next."""

    few, pool = FEW, POOL

    def aim(self, round: Round, random_values: Iterator[float]) -> None:
        """Throw probes, and read the tenants on the cursor's way."""
        total = sum(top * len(seats) for top, seats in round.line)
        for _ in range(round.wanted + FIRST - 1):
            point = next(random_values) * total
            for top, seats in round.line:
                if point < top * len(seats):
                    break
                point -= top * len(seats)
            round.probes.append((seats[min(math.floor(point / top), len(seats) - 1)], top))
        if not round.passed:
            count, first = len(round.seated), (self.cursor + 1) % len(round.seated)
            round.passed = [round.seated[(first + i) % count] for i in range(min(round.wanted, count))]

    def account_of(self, t: Tenant) -> Tenant | None:
        """Return a tenant of which anything is left."""
        return t if self.is_eligible(t) and t not in self.passed_over else self.touch(t.name) and None

    def draw(self, round: Round, random_values: Iterator[float]) -> None:
        """Draw one tenant by the class of its rate."""
        for _ in range(PROBES):
            if not round.probes:
                self.aim(round, random_values)
            t, top = round.probes.popleft()
            if self.account_of(t):
                if is_outside(self.rate_of(t), top):
                    self.touch(t.name)
                return self.pool_up(round, t)
        return None

    def pass_on(self, round: Round) -> None:
        """Move the cursor on."""
        self.cursor = (self.cursor + 1) % len(round.seated)
        round.passes += 1
        self.pool_up(round, self.account_of(round.passed[(round.passes - 1) % len(round.passed)]))

    def pool_up(self, round: Round, t: Tenant | None) -> None:
        """Add a tenant to the pool if it can be served."""
        if t:
            round.add(t, self.tentative_of(t), self.few if len(round.seated) <= self.few else self.pool)

    def choose_of_few(self, round: Round, random_values: Iterator[float]) -> Tenant | None:
        """Choose from all tenants; chance decides between equal virtual times."""
        seated = round.seated
        if not round.is_filled:
            round.is_filled = True
            first = math.floor(next(random_values) * len(seated)) if len(seated) > 1 else 0
            for i in range(len(seated)):
                self.pool_up(round, self.account_of(seated[(first + i) % len(seated)]))
        return round.pool[0][1] if round.pool else None

    def choose(self, round: Round, random_values: Iterator[float]) -> Tenant | None:
        """Choose among those that have slots: the lowest of those that this round has looked at."""
        if len(round.seated) <= self.few:
            return self.choose_of_few(round, random_values) if round.seated else None
        for _ in range(1 if round.passes else FIRST):
            self.draw(round, random_values)
        self.pass_on(round)
        for _ in range(REDRAWS):
            time, best = round.pool[0] if round.pool else (0, None)
            if best and time <= self.level + self.running * round.ahead + self.expected_of(best) / 2 / best.weight:
                break
            self.draw(round, random_values)
        return round.pool[0][1] if round.pool else None

    def give_back(self, round: Round, t: Tenant) -> None:
        """Return a served tenant to the pool, if it has a slot and more tasks."""
        if t.slot > 0 and t.is_servable:
            self.pool_up(round, t)

    def pop_woken(self, wanted: int) -> deque[Tenant]:
        """Take tenants off the wake list; entries of tenants that are no longer eligible are dropped."""
        woken: deque[Tenant] = deque()
        passed = []
        for _ in range(min(wanted, len(self.wake))):
            t = self.wake.popleft()
            if t in self.passed_over:
                passed.append(t)
            elif t.slot == AWAKE and self.is_eligible(t) and self.may_wake(t):
                woken.append(t)
            else:
                self.touch(t.name).is_on_wake_list = False
        self.wake.extend(passed)
        return woken

    def pick(self, woken: deque[Tenant], round: Round, random_values: Iterator[float]) -> Tenant | None:
        """Choose whom to serve: the wake list first, unless a tenant that is behind wins the toss."""
        is_full = self.is_full()
        best = self.first_idle() if is_full else self.choose(round, random_values)
        is_behind = woken and best and self.vtime_of(best) + self.expected_of(best) / best.weight < self.level
        chance = 1 / 8 if woken and self.is_guaranteed(woken[0]) else 1 / 2
        if woken and not (is_behind and next(random_values) < chance):
            t = woken.popleft()
            t.is_on_wake_list = False
            return t
        if best and not is_full:
            self.level = max(self.level, self.vtime_of(best))
            del round.pool[0]
        return best

    def pass_over(self, t: Tenant) -> None:
        """Drop a tenant that had no task to give; it had its turn."""
        turn = self.level + self.expected_of(t) / t.weight
        t.base += max(0, turn - self.vtime_of(t))
        self.passed_over.add(t)

    def pick_round(self, wanted: int, random_values: Iterator[float]) -> list[Pick]:
        """Pick, charge and pop up to `wanted` tasks; slots stay as they are meanwhile.

        `is_empty`: there was nobody to pick; `only_reserve_left`: since those that wait may have no more slots.
        """
        has_popped = not self.passed_over.issuperset(list(self.wake)[:wanted])
        woken, again = self.pop_woken(wanted), 0
        has_slots = self.slots > 0 and self.weight_sum > 0 and not self.share
        self.slots_per_weight = (self.slots - self.leased + self.running) / self.weight_sum if has_slots else 0
        round = Round([(2.0**c, list(seats)) for c, seats in sorted(self.classes.items()) if seats])
        if not self.share and self.weight_sum:
            round.ahead = self.mean / 2 / self.weight_sum
        picks: list[Pick] = []
        while len(picks) < wanted and self.servable > 0:
            round.wanted = wanted - len(picks)
            t = self.pick(woken, round, random_values)
            if t is None:
                break
            self.touch(t.name)
            if t.loan and not self.repay(t):
                self.give_back(round, t)
                continue
            self.lend(t)
            if t.cause and t.name not in {name for name, *_ in self.kept}:
                self.kept.append((t.name, t.cause, t.out_at, t.let_in_at))
            picks.append(Pick(t, t.ready.popleft(), self.charge(t)))
            self.count_lease(t, 1)
            self.spend(t, 1)
            self.recount(t)
            self.give_back(round, t)
            if t.is_servable and self.is_guaranteed(t):
                woken.append(t)
                t.is_on_wake_list, again = True, again + 1
        unserved = [woken.popleft() for _ in range(len(woken) - again)]
        self.wake.extendleft(reversed(unserved))
        self.wake.extend(woken)
        self.only_reserve_left = not picks and not has_popped and self.is_full() and not self.passed_over
        self.is_empty = not picks and not has_popped
        return picks
