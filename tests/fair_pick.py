"""The fair pick in plain Python, to the last bit; lua/10_tenants.lua, 15_draw.lua and 30_claim.lua say why it is so."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from .limits_model import CAPPED, Limiting

OUT, AWAKE, SLOT_PROBES = 0, -1, 32


@dataclass(eq=False)
class Tenant:
    """A tenant: its account and its lists."""

    name: str
    weight: int = 1000
    vtime: float = 0
    slot: int = OUT
    estimate: float = 0
    delivered: float = 0
    entitled: float = 0
    joined: float = 0
    barred: int = 0
    spent: float = 0
    cause: int = 0
    out_at: float = 0
    since: float = 0
    listed: bool = False
    counted: bool = False
    rank: int = 0
    rerated: bool = False
    leased: int = 0
    dead: int = 0
    done: int = 0
    held: int = 0
    ready: deque[str] = field(default_factory=deque)
    delayed: dict[str, float] = field(default_factory=dict)


@dataclass
class Run:
    """What changes of a task: its lease, or how the last one ended."""

    max_attempts: int
    attempt: int = 0
    forgiven: int = 0
    state: str = ""
    epoch: int = 0
    leased_at: float = 0
    cost: float = 0
    weight_sum: int = 0
    worker: str = ""
    error: str = ""

    @property
    def is_last(self) -> bool:
        """Whether no attempt is left."""
        return self.attempt - self.forgiven >= self.max_attempts


@dataclass
class Pick:
    """A charged dispatch."""

    tenant: Tenant
    id: str
    cost: float
    weight_sum: int


class Darts:
    """One round's quiver: darts are thrown `refill` at a time and used in order."""

    def __init__(self) -> None:
        self.refill = 0
        self.hits: deque[tuple[Tenant, float]] = deque()


class FairPick(Limiting):
    """Who is served next, and the structures that say so."""

    def __init__(self) -> None:
        super().__init__()
        self.tenants: dict[str, Tenant] = {}
        self.classes: dict[int, list[Tenant]] = {}
        self.wake: deque[Tenant] = deque()
        self.clock: float = 0
        self.weight_sum = 0
        self.share = 0
        self.epoch = 0
        self.estimate: float = 0
        self.touched: list[Tenant] = []
        self.woken: list[Tenant] = []
        self.readied = False
        self.kept: list[tuple[str, int, float, float]] = []

    def touch(self, name: str) -> Tenant:
        """Get a tenant to change it: it is seated when the call ends."""
        t = self.tenants.setdefault(name, Tenant(name))
        if t not in self.touched:
            self.touched.append(t)
        return t

    def rate_of(self, t: Tenant) -> float:
        """Tell the tenant's part of the dispatches."""
        return t.weight if self.share or t.estimate == 0 else t.weight * self.estimate / t.estimate

    def take_slot(self, t: Tenant) -> None:
        """Give the tenant the next slot of its class."""
        t.rank = math.frexp(self.rate_of(t))[1]
        seats = self.classes.setdefault(t.rank, [])
        seats.append(t)
        t.slot = len(seats)

    def free_slot(self, t: Tenant) -> None:
        """Take the tenant's slot away; the last of its class moves into the hole."""
        seats = self.classes[t.rank]
        moved = seats.pop()
        if moved is not t:
            self.touch(moved.name).slot = t.slot
            seats[t.slot - 1] = moved
        t.slot = OUT

    def accrue(self, t: Tenant) -> None:
        """Book what the tenant was entitled to."""
        t.entitled += t.weight * (self.clock - t.joined)
        t.joined = self.clock

    def count_in(self, t: Tenant) -> None:
        """Add the tenant's weight."""
        if not t.counted:
            t.counted, t.joined = True, self.clock
            self.weight_sum += t.weight

    def count_out(self, t: Tenant) -> None:
        """Take the tenant's weight away."""
        if t.counted:
            self.accrue(t)
            t.counted = False
            self.weight_sum -= t.weight

    def wake_up(self, t: Tenant) -> None:
        """Put the tenant on the wake list, once."""
        t.slot = AWAKE
        if not t.listed:
            t.listed = True
            self.woken.append(t)

    def keep_out(self, t: Tenant) -> None:
        """Note what keeps a tenant with ready tasks out, and since when."""
        was_in, cause = t.slot != OUT, t.cause
        t.cause = (t.barred or CAPPED) if t.ready else 0
        if t.cause and (was_in or not cause):
            t.out_at = self.call_now

    def seat(self, t: Tenant) -> None:
        """Put the tenant where its state says it belongs."""
        if not self.is_eligible(t):
            self.keep_out(t)
            if t.slot != OUT:
                self.count_out(t)
                if t.slot > 0:
                    self.free_slot(t)
                t.slot = OUT
        elif t.slot == OUT:
            t.since = self.call_now
            self.count_in(t)
            self.readied = True
            if t.vtime > self.clock and not self.is_guaranteed(t):
                self.take_slot(t)
            else:
                t.vtime = max(t.vtime, self.clock)
                self.wake_up(t)
        elif self.is_guaranteed(t):
            if t.slot > 0:
                self.free_slot(t)
            self.wake_up(t)
        elif t.slot == AWAKE:
            if not t.listed:
                self.take_slot(t)
        elif t.rerated and not 0.4 * 2.0**t.rank <= self.rate_of(t) <= 2.0**t.rank:
            self.free_slot(t)
            self.take_slot(t)

    def seat_all(self) -> None:
        """Seat whom the call touched; seating one may touch another."""
        i = 0
        while i < len(self.touched):
            self.seat(self.touched[i])
            i += 1

    def cost_of(self, t: Tenant) -> float:
        """Estimate what the tenant's next task costs."""
        if self.share:
            return 1
        return t.estimate if t.estimate > 0 else max(self.estimate, 1)

    def charge(self, t: Tenant, cost: float, weight_sum: int) -> None:
        """Charge a dispatch to the tenant and the clock."""
        t.vtime += cost / t.weight
        t.delivered += cost
        self.clock += cost / weight_sum

    def correct(self, t: Tenant, run: Run, now: float) -> None:
        """Replace a lease's estimate by the time that it took."""
        t.rerated = True
        if self.share or run.epoch != self.epoch:
            return
        measured = max(now - run.leased_at, 1)
        excess = measured - run.cost
        step = excess / max(run.weight_sum, self.weight_sum)
        t.vtime = t.vtime + excess / t.weight - excess / run.weight_sum + step
        t.delivered += excess
        self.clock += step
        t.estimate = measured if t.estimate == 0 else t.estimate + (measured - t.estimate) / 8
        self.estimate = measured if self.estimate == 0 else self.estimate + (measured - self.estimate) / 64

    def throw(self, darts: Darts, dice: Iterator[float]) -> None:
        """Throw a quiver of darts at the slots."""
        spans = [(2.0**c, seats) for c, seats in sorted(self.classes.items()) if seats]
        total = sum(top * len(seats) for top, seats in spans)
        for _ in range(darts.refill):
            point = next(dice) * total
            for top, seats in spans:
                if point < top * len(seats):
                    break
                point -= top * len(seats)
            slot = min(math.floor(point / top), len(seats) - 1)
            darts.hits.append((seats[slot], point - slot * top))

    def draw(self, darts: Darts, dice: Iterator[float]) -> Tenant | None:
        """Draw one tenant by rate."""
        for _ in range(SLOT_PROBES):
            if not darts.hits:
                self.throw(darts, dice)
            t, inside = darts.hits.popleft()
            if not self.is_eligible(t):
                self.touch(t.name)
            elif inside < self.rate_of(t):
                return t
        return None

    def draw_two(self, darts: Darts, dice: Iterator[float]) -> Tenant | None:
        """Draw two and take the better one; a tenant that stands alone is not drawn."""
        seated = [t for seats in self.classes.values() for t in seats]
        if len(seated) == 1:
            if not self.is_eligible(seated[0]):
                self.touch(seated[0].name)
                return None
            return seated[0]
        one = self.draw(darts, dice)
        other = self.draw(darts, dice) if one else None
        return other if one and other and other.vtime < one.vtime else one

    def pop_woken(self, wanted: int) -> deque[Tenant]:
        """Take tenants off the wake list; whoever has left it is dropped."""
        woken: deque[Tenant] = deque()
        for _ in range(min(wanted, len(self.wake))):
            t = self.wake.popleft()
            if t.slot == AWAKE and self.is_eligible(t):
                woken.append(t)
            else:
                self.touch(t.name).listed = False
        return woken

    def pick(self, woken: deque[Tenant], darts: Darts | None, dice: Iterator[float]) -> Tenant | None:
        """Choose whom to serve: the wake list first, unless one who is behind wins the toss."""
        drawn = self.draw_two(darts, dice) if darts else None
        is_behind = woken and drawn and drawn.vtime + self.cost_of(drawn) / drawn.weight < self.clock
        chance = 1 / 8 if woken and self.is_guaranteed(woken[0]) else 1 / 2
        if woken and not (is_behind and next(dice) < chance):
            t = woken.popleft()
            t.listed = False
            return t
        return drawn

    def pick_round(self, wanted: int, dice: Iterator[float]) -> list[Pick]:
        """Pick, charge and pop up to `wanted` tasks; slots stay as they are meanwhile."""
        woken, again = self.pop_woken(wanted), 0
        darts = Darts() if any(self.classes.values()) else None
        picks: list[Pick] = []
        while len(picks) < wanted and self.weight_sum > 0:
            if darts:
                darts.refill = 2 * (wanted - len(picks)) + 2
            t = self.pick(woken, darts, dice)
            if t is None:
                break
            self.touch(t.name)
            if t.cause and t.name not in {name for name, *_ in self.kept}:
                self.kept.append((t.name, t.cause, t.out_at, t.since))
            picks.append(Pick(t, t.ready.popleft(), self.cost_of(t), self.weight_sum))
            self.charge(t, picks[-1].cost, self.weight_sum)
            t.leased += 1
            self.spend(t, 1)
            if not self.is_eligible(t):
                self.count_out(t)
            elif self.is_guaranteed(t):
                woken.append(t)
                t.listed, again = True, again + 1
        unserved = [woken.popleft() for _ in range(len(woken) - again)]
        self.wake.extendleft(reversed(unserved))
        self.wake.extend(woken)
        return picks
