"""Tenants' accounts and seats, exact to the last bit; lua/pick/README.md and pick/reserve.lua have the theory."""

from __future__ import annotations

import math
from collections import deque

from attrs import define, field

from fairq.model.queue.limits import Limiting
from fairq.model.queue.ready import ReadyTasks
from fairq.model.queue.remembered import Remembered
from fairq.model.queue.sorted_set import Delayed
from fairq.model.waiting import AT_MAX_RUNNING

OUT, AWAKE = 0, -1
LOAN, GIFT = 1, 2


@define(eq=False)
class Tenant:
    """A tenant: its account and its lists."""

    name: str
    number: int = 0
    weight: int = 1000
    base: float = 0
    starts: float = 0
    slot: int = OUT
    estimate: float = 0
    delivered: float = 0
    entitled: float = 0
    blocked: int = 0
    theoretical_arrival: float = 0
    cause: int = 0
    out_at: float = 0
    let_in_at: float = 0
    is_on_wake_list: bool = False
    in_weight_sum: bool = False
    is_servable: bool = False
    rank: int = 0
    leased: int = 0
    loan: int = 0
    dead: int = 0
    done: int = 0
    pending: int = 0
    bytes: int = 0  # of all that it keeps, without its feed and remembered ids
    remembered: Remembered = field(factory=Remembered)
    ready: ReadyTasks = field(factory=ReadyTasks)
    delayed: Delayed = field(factory=Delayed)


def towards(mean: float, value: float, part: int) -> float:
    """Move a running mean."""
    return value if mean == 0 else mean + (value - mean) / part


class Accounts(Limiting):
    """The service of tenants, their seats, and the structures behind them."""

    call_origin: float  # of the call that is under way
    lowered_from: float | None  # the level, until lost leases took from it in this call
    lowered_by: list[Tenant]

    def __init__(self) -> None:
        super().__init__()
        self.tenants: dict[str, Tenant] = {}
        self.numbers = 0  # of tenants, given so far
        self.classes: dict[int, list[Tenant]] = {}
        self.wake: deque[Tenant] = deque()
        self.clock: float = 0
        self.level: float = 0
        self.weight_sum = 0
        self.leased = 0
        self.running = 0
        self.servable = 0
        self.cursor = 0
        self.share = 0
        self.epoch = 0
        self.epoch_at: float = 0
        self.origin: float = 0
        self.at: float = 0  # of the call that is under way, since the origin
        self.estimate: float = 0
        self.estimate_sq: float = 0
        self.mean: float = 0  # the expected duration of a running task, when the call began
        self.touched: dict[Tenant, None] = {}  # in this order
        self.woken: list[Tenant] = []
        self.readied = False
        self.freed = False
        self.reserve = 0
        self.loans = 0
        self.idle: set[str] = set()
        self.kept_out: list[tuple[str, int, float, float]] = []
        self.passed_over: set[Tenant] = set()  # by the claim that is under way
        self.met_awake: set[Tenant] = set()  # on the wake list, by the last claim
        self.within_guarantee: list[str] = []  # ids of tasks that it leased so
        self.owed = 0  # how many more it could have leased so

    def touch(self, name: str) -> Tenant:
        """Get a tenant to change it: it is seated when the call ends."""
        if name not in self.tenants:
            self.numbers += 1
            self.tenants[name] = Tenant(name, self.numbers)
        t = self.tenants[name]
        self.touched[t] = None
        return t

    def age_of(self, t: Tenant) -> float:
        """Add up how long the tenant's leases have run."""
        return t.leased * self.at - t.starts

    def vtime_of(self, t: Tenant) -> float:
        """Return the tenant's virtual time."""
        return t.base if self.share or t.loan == GIFT else t.base + self.age_of(t) / t.weight

    def expected_of(self, t: Tenant) -> float:
        """Return the least that a task of the tenant is expected to cost."""
        return 1 if self.share else max(t.estimate, self.mean, 1)

    def tentative_of(self, t: Tenant) -> float:
        """Return the virtual time by which the tenant is compared."""
        if self.share:
            return t.base
        return t.base + max(t.leased * self.expected_of(t), self.age_of(t)) / t.weight

    def rate_of(self, t: Tenant) -> float:
        """Return the tenant's part of the dispatches."""
        if self.share:
            return t.weight
        ms = t.estimate if t.estimate > 0 else self.mean
        if t.leased:
            ms = self.age_of(t) / t.leased if self.age_of(t) > ms * t.leased else ms
        return t.weight / max(ms, 1)

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

    def entitled_to(self, t: Tenant) -> float:
        """Return the service to which the tenant was entitled."""
        return t.entitled + t.weight * self.clock if t.in_weight_sum else t.entitled

    def recount(self, t: Tenant) -> None:
        """Add the tenant to the eligible and the competing, or remove it."""
        is_servable = self.is_eligible(t)
        in_weight_sum = is_servable and not 0 < self.limit(t, "guaranteed") >= t.leased
        if is_servable != t.is_servable:
            t.is_servable, self.servable = is_servable, self.servable + (1 if is_servable else -1)
        if in_weight_sum == t.in_weight_sum:
            return
        sign = 1 if in_weight_sum else -1
        t.entitled = t.entitled - sign * t.weight * self.clock
        t.in_weight_sum = in_weight_sum
        self.weight_sum += sign * t.weight
        self.running += sign * (0 if t.loan == GIFT else t.leased)

    def count_lease(self, t: Tenant, count: int) -> None:
        """Begin a lease, or (-1) take it back."""
        t.leased += count
        self.leased += count
        t.starts += count * self.at
        self.running += count * t.in_weight_sum * (t.loan != GIFT)

    @property
    def ordinary_slots(self) -> int:
        """Return how many leases may be ordinary."""
        slots = max(self.slots, self.proven_slots)
        return max(1, slots - math.ceil(slots * self.reserve / 100))

    def is_full(self) -> bool:
        """True if none but kept slots are left."""
        return self.reserve > 0 and self.leased - self.loans >= self.ordinary_slots

    @property
    def kept_slots(self) -> int:
        """Return how many slots are kept; 0 while others are left."""
        return max(0, self.slots - self.ordinary_slots) if self.is_full() else 0

    def first_idle(self) -> Tenant | None:
        """Return the tenant with the lowest virtual time that has a slot and nothing running."""
        found = [t for t in self.tenants.values() if t.name in self.idle or t in self.touched]
        fit = [t for t in found if t.slot > 0 and not t.leased and t not in self.passed_over]
        return min(fit, key=lambda t: (t.base, t.number), default=None)

    def lend(self, t: Tenant) -> None:
        """Let a lease that begins in a kept slot be a loan."""
        if self.is_full() and not self.is_guaranteed(t):
            t.loan = GIFT if self.vtime_of(t) > self.level + self.expected_of(t) / t.weight else LOAN
            self.loans += 1

    def end_loan(self, t: Tenant) -> None:
        """End a tenant's loan, if it has one."""
        self.loans -= t.loan > 0
        t.loan = 0

    def repay(self, t: Tenant) -> bool:
        """Make a loan an ordinary lease; returns whether the tenant gets another lease nevertheless."""
        vtime, gift = self.vtime_of(t), t.loan == GIFT
        self.end_loan(t)
        t.base = t.base + vtime - self.vtime_of(t)
        self.running += gift * t.leased * t.in_weight_sum
        return self.is_guaranteed(t)

    def write_idle(self) -> None:
        """Record which of the touched tenants have a slot and nothing running."""
        if self.reserve:
            for t in self.touched:
                (self.idle.add if t.slot > 0 and not t.leased else self.idle.discard)(t.name)

    def may_wake(self, t: Tenant) -> bool:
        """True if the tenant may stand on the wake list."""
        return not self.reserve or not t.leased or self.is_guaranteed(t)

    def wake_up(self, t: Tenant) -> None:
        """Put the tenant on the wake list, once."""
        t.slot = AWAKE
        if not t.is_on_wake_list:
            t.is_on_wake_list = True
            self.woken.append(t)

    def keep_out(self, t: Tenant) -> None:
        """Note what keeps a tenant with ready tasks out, and since when."""
        was_in, cause = t.slot != OUT, t.cause
        t.cause = (t.blocked or AT_MAX_RUNNING) if t.ready else 0
        if t.cause and (was_in or not cause):
            t.out_at = self.call_now

    def seat(self, t: Tenant) -> None:
        """Put the tenant where its state says it belongs."""
        self.recount(t)
        if not t.is_servable:
            self.keep_out(t)
            if t.slot > 0:
                self.free_slot(t)
            t.slot = OUT
        elif t.slot == OUT:
            t.let_in_at = self.call_now
            self.readied = True
            behind = self.level - self.vtime_of(t)
            if behind < 0 and not self.is_guaranteed(t):
                self.take_slot(t)
            else:
                t.base += max(behind, 0)
                (self.wake_up if self.may_wake(t) else self.take_slot)(t)
        elif self.is_guaranteed(t):
            if t.slot > 0:
                self.free_slot(t)
            self.wake_up(t)
        elif t.slot == AWAKE:
            if not t.is_on_wake_list:
                self.take_slot(t)
        elif not 0.4 <= self.rate_of(t) / 2.0**t.rank <= 1:  # it has left its class
            self.free_slot(t)
            self.take_slot(t)

    def seat_all(self) -> None:
        """Seat the tenants that the call touched; seating one may touch another."""
        seated = 0
        while seated < len(self.touched):
            for t in list(self.touched)[seated:]:
                self.seat(t)
                seated += 1

    def charge(self, t: Tenant) -> float | None:
        """Charge a dispatch, where tasks are shared; returns by how much it moved the clock."""
        if not self.share:
            return 0
        t.delivered += 1
        if t.loan == GIFT:
            return None
        moved = 1 / self.weight_sum if t.in_weight_sum else 0
        t.base += 1 / t.weight
        self.clock += moved
        self.level += moved
        return moved

    def refund(self, t: Tenant, moved: float | None) -> None:
        """Take a charge back."""
        t.delivered -= self.share
        if self.share and moved is not None:
            t.base -= 1 / t.weight
            self.clock -= moved
            self.level -= moved

    def charge_lease(self, t: Tenant, began_at: float, until: float, is_worked: bool) -> None:
        """Book the end of a lease."""
        start = max(began_at, self.epoch_at)
        took = max(until - self.call_origin - start, 1)
        t.leased -= 1
        self.leased -= 1
        t.starts -= start
        is_gift = t.loan == GIFT
        self.running -= t.in_weight_sum * (not is_gift)
        self.freed = True
        self.end_loan(t)
        if self.share:
            return
        if not is_gift:
            t.base += took / t.weight
        t.delivered += took
        unseen = took - (self.at - start)
        if t.in_weight_sum and not is_gift:
            if unseen < 0:
                self.lowered_from = self.level if self.lowered_from is None else self.lowered_from
                self.lowered_by.append(t)
            self.clock += max(unseen, 0) / self.weight_sum
            self.level += unseen / self.weight_sum
        if is_worked:
            t.estimate = towards(t.estimate, took, 8)
            self.estimate = towards(self.estimate, took, 64)
            self.estimate_sq = towards(self.estimate_sq, took * took, 64)

    def bound_level(self) -> None:
        """Keep the level from falling below the first tenant that lost leases."""
        if self.lowered_from is not None:
            self.level = max(self.level, min(self.lowered_from, *map(self.vtime_of, self.lowered_by)))
