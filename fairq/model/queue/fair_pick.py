"""The fair pick, exact to the last bit; lua/pick/README.md and pick/draws.lua have the theory."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Iterator
from operator import itemgetter

from attrs import define

from fairq.model.queue.accounts import AWAKE, Accounts, Tenant

FEW, LOOKS, FIRST, REDRAWS, BLOCKS, WIDEST, CURSOR = 16, 2, 4, 4, 8, 64, 4
OWED_LOOKS = 16
_TIME = itemgetter(0)
Line = list[tuple[float, list[Tenant]]]  # of each class, its top and its tenants


@define
class Pick:
    """A dispatch, and by how much it moved the clock."""

    tenant: Tenant
    id: str
    moved: float | None  # None: it was a gift
    is_guaranteed: bool


class Round:
    """One round of picks: the tenants it may serve, in the order of virtual time.

    `looked`: not served yet. `back`: served, with more tasks.
    """

    def __init__(self, line: Line, wanted: int, slots_per_weight: float) -> None:
        self.line = line
        self.wanted = wanted  # picks that are still to be made
        self.slots_per_weight = slots_per_weight
        self.kept = 0  # of them, for tenants with room in their shares
        self.tenants = sum(len(seats) for _, seats in line)
        self.seen: set[Tenant] = set()
        self.looked: list[tuple[float, Tenant]] = []
        self.back: list[tuple[float, Tenant]] = []
        self.is_begun = False

    def room_of(self, t: Tenant) -> int:
        """Return how many more leases the tenant's share of the slots has room for."""
        return max(0, math.floor(t.weight * self.slots_per_weight - t.leased))

    def first(self) -> list[tuple[float, Tenant]]:
        """Return the list with the next tenant in front."""
        return self.back if self.back and (not self.looked or self.back[0][0] < self.looked[0][0]) else self.looked


class FairPick(Accounts):
    """Chooses the tenants that are served next, until tokens and tenants with groups have cost `costly`."""

    costly = 60
    few, looks, first, blocks, widest = FEW, LOOKS, FIRST, BLOCKS, WIDEST

    def look_at(self, round: Round, tenants: list[Tenant], latest: float) -> int:
        """Look at tenants, each once: add those that can be served; returns how many of them are due."""
        due = 0
        for t in tenants:
            if t not in round.seen:
                round.seen.add(t)
                if t in self.passed_over or not self.is_eligible(t):
                    self.touch(t.name)
                    continue
                time = self.tentative_of(t)
                round.looked.append((time, t))
                room = round.room_of(t)
                round.kept += min(room, len(t.ready))
                due += room > 0 or time <= latest + self.expected_of(t) / t.weight / 2
        return due

    def throw(self, line: Line, count: int, random_values: Iterator[float]) -> list[Tenant]:
        """Throw blocks at the line, so that some `count` tenants lie in them."""
        found: list[Tenant] = []
        length = sum(top * len(seats) for top, seats in line)
        width = 1
        while 2 * width * self.blocks <= count and width < self.widest:
            width *= 2
        for top, seats in line:
            share = count * (len(seats) * top) / length
            if share >= len(seats):
                found += seats
                continue
            blocks, wanted = -(-len(seats) // width), math.floor(share / width + next(random_values))
            for _ in range(wanted):
                found += seats[math.floor(next(random_values) * blocks) * width :][:width]
        return found

    def look(self, round: Round, random_values: Iterator[float]) -> None:
        """Look at as many tenants as the round may need."""
        line, wanted = round.line, round.wanted
        ahead = self.mean / 2 / self.weight_sum if self.weight_sum and not self.share else 0
        latest = self.level + self.running * ahead
        seated = [t for _, seats in line for t in seats]
        if len(seated) <= max(self.few, self.looks * wanted):
            first = math.floor(next(random_values) * len(seated)) if len(seated) > 1 else 0
            self.look_at(round, seated[first:] + seated[:first], latest)
        else:
            passed, left = -(-wanted // CURSOR), REDRAWS * wanted + self.first
            found = [seated[(self.cursor + n) % len(seated)] for n in range(passed)]
            self.cursor = (self.cursor + passed) % len(seated)
            found += self.throw(line, max(self.looks * wanted, self.first), random_values)
            due = self.look_at(round, found, latest)
            while due < wanted and left > 0:
                count = max(self.looks * (wanted - due), self.first)
                left -= count
                due += self.look_at(round, self.throw(line, count, random_values), latest)
        round.looked = sorted(reversed(round.looked), key=_TIME)

    def choose(self, round: Round, random_values: Iterator[float]) -> Tenant | None:
        """Choose the tenant with a slot and the lowest virtual time."""
        if not round.is_begun and round.tenants:
            round.is_begun = True
            self.look(round, random_values)
        while first := round.first():
            t = first[0][1]
            if round.wanted > round.kept or round.room_of(t):
                return t
            del first[0]  # it would take others' room
        return None

    def give_back(self, round: Round, t: Tenant) -> None:
        """Let a served tenant be chosen again, if it has a slot and more tasks."""
        if t.slot > 0 and t.is_servable:
            insort(round.back, (self.tentative_of(t), t), key=_TIME)

    def pop_woken(self, wanted: int) -> deque[Tenant]:
        """Take tenants off the wake list; entries of tenants that are no longer eligible are dropped."""
        woken: deque[Tenant] = deque()
        passed = []
        for _ in range(min(wanted, len(self.wake))):
            t = self.wake.popleft()
            self.met_awake.add(t)
            if t in self.passed_over:
                passed.append(t)
            elif t.slot == AWAKE and self.is_eligible(t) and self.may_wake(t):
                woken.append(t)
            else:
                self.touch(t.name).is_on_wake_list = False
                self.met_awake.remove(t)
        self.wake.extend(passed)
        return woken

    def pick(self, woken: deque[Tenant], round: Round, random_values: Iterator[float]) -> Tenant | None:
        """Choose the tenant to serve: the wake list first, unless a tenant that is behind wins the toss."""
        is_full = self.is_full()
        best = self.first_idle() if is_full else self.choose(round, random_values)
        is_behind = woken and best and self.vtime_of(best) + self.expected_of(best) / best.weight < self.level
        chance = 1 / 8 if woken and self.is_guaranteed(woken[0]) else 1 / 2
        if woken and not (is_behind and next(random_values) < chance):
            t = woken.popleft()
            t.is_on_wake_list = False
            self.met_awake.remove(t)
            return t
        if best and not is_full:
            self.level = max(self.level, self.vtime_of(best))
            del round.first()[0]
        return best

    def pick_owed(self, wanted: int) -> list[Pick]:
        """Serve tenants of the wake list that are below their guarantees alone."""
        woken, again, others, picks = self.pop_woken(wanted + OWED_LOOKS), 0, list[Tenant](), list[Pick]()
        while len(picks) < wanted and woken and self.cost < self.costly:
            t = woken.popleft()
            if self.is_guaranteed(t):
                t.is_on_wake_list = False
                self.met_awake.remove(t)
                again += self.serve(t, picks, woken)
            else:
                others.append(t)
        self.keep_woken(woken, again)
        self.wake.extendleft(reversed(others))
        return picks

    def serve(self, t: Tenant, picks: list[Pick], woken: deque[Tenant]) -> bool:
        """Serve a tenant, or have it repay a loan; returns whether it takes another turn, behind the woken ones."""
        self.cost += t not in self.touched and t.ready.has_groups
        self.touch(t.name)
        if t.loan and not self.repay(t):
            return False
        self.lend(t)
        if t.cause and t.name not in {name for name, *_ in self.kept_out}:
            self.kept_out.append((t.name, t.cause, t.out_at, t.let_in_at))
        picks.append(Pick(t, t.ready.popleft(), self.charge(t), self.is_guaranteed(t)))
        self.count_lease(t, 1)
        self.spend(t, 1)
        self.recount(t)
        takes_another = t.is_servable and self.is_guaranteed(t)
        if takes_another:
            woken.append(t)
            t.is_on_wake_list = True
            self.met_awake.add(t)
        return takes_another

    def keep_woken(self, woken: deque[Tenant], again: int) -> None:
        """Put those that were not served back to the head of the wake list, and the last `again` to its end."""
        unserved = [woken.popleft() for _ in range(len(woken) - again)]
        self.wake.extendleft(reversed(unserved))
        self.wake.extend(woken)

    def pass_over(self, t: Tenant) -> None:
        """Drop a tenant that had no task to give; it had its turn."""
        turn = self.level + self.expected_of(t) / t.weight
        t.base += max(0, turn - self.vtime_of(t))
        self.passed_over.add(t)

    def pick_round(self, wanted: int, random_values: Iterator[float]) -> list[Pick]:
        """Pick, charge and pop up to `wanted` tasks; slots stay as they are meanwhile.

        Sets `is_empty` if no tenant could be picked, `only_reserve_left` if the free slots are kept for others.
        """
        has_popped = not self.passed_over.issuperset(list(self.wake)[:wanted])
        woken, again = self.pop_woken(wanted), 0
        has_shares = self.weight_sum > 0 and not self.share
        slots_per_weight = (self.running + wanted) / self.weight_sum if has_shares else 0
        line = [(2.0**c, list(seats)) for c, seats in sorted(self.classes.items()) if seats]
        round = Round(line, wanted, slots_per_weight)
        picks: list[Pick] = []
        while len(picks) < wanted and self.servable > 0 and self.cost < self.costly:
            t = self.pick(woken, round, random_values)
            if t is None:
                break
            room, before = t.slot > 0 and round.room_of(t) > 0, len(picks)
            again += self.serve(t, picks, woken)
            if len(picks) > before:
                round.wanted, round.kept = round.wanted - 1, round.kept - room
            self.give_back(round, t)
        self.keep_woken(woken, again)
        self.only_reserve_left = not picks and not has_popped and self.is_full() and not self.passed_over
        self.is_empty = not picks and not has_popped
        return picks
