"""The fair pick in memory: lua/pick/README.md and pick/reserve.lua say why. All tenants are looked at for each pick.

There are few (MAX_TENANTS in setup.py), so probes, classes and cursor are left out; times are ms. A start takes
20 to 27 us, and 210 to 240 by the exact model (fairq/model/queue): that is why simulations have this one.
"""

from __future__ import annotations

import math
from collections import deque
from random import Random

from attrs import define, field

from fairq.model.simulation.setup import Setup, Terms

OUT, AWAKE, SEATED = range(3)
_LOAN, _GIFT = 1, 2
_REFILL_MS = 20
_SOONER = 2.0**36  # ms, more than virtual times differ
_OWN_PART, _QUEUE_PART = 8, 64  # of which estimates are means


@define(eq=False)
class Account:
    """A tenant of the queue: what it waits for, what runs, its virtual time."""

    terms: Terms
    ready: deque[tuple[float, int]] = field(factory=deque)  # when each came, its attempt
    weight: int = field(init=False)  # in thousandths, so that sums are exact
    leased: int = 0
    starts: float = 0.0  # sum of when the running leases began
    base: float = 0.0
    estimate: float = 0.0
    served_ms: float = 0.0  # of leases that have ended
    place: int = OUT
    is_woken: bool = False
    is_eligible: bool = False
    competes: bool = False
    loan: int = 0
    arrival_ms: float = 0.0  # theoretical, of the rate's bucket
    blocked_until: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.weight = round(self.terms.weight * 1000)

    @property
    def is_guaranteed(self) -> bool:
        """True if fewer tasks run than are guaranteed."""
        return self.leased < self.terms.guaranteed

    def held_ms(self, now: float) -> float:
        """Return the worker time that it has had up to now."""
        return self.served_ms + self.leased * now - self.starts


@define(eq=False)
class FairPick:
    """The tenants of a queue, and which of them is served next."""

    setup: Setup
    random: Random
    accounts: list[Account] = field(init=False)
    now: float = 0.0
    leased: int = 0
    _level: float = 0.0
    _weights: int = 0  # of the tenants that compete
    _running: int = 0  # leases of theirs
    _loans: int = 0
    _mean: float = 0.0  # what a running task, looked at now, takes in all
    _took: float = 0.0
    _took_squared: float = 0.0
    _wake: deque[Account] = field(factory=deque)
    _seated: list[Account] = field(factory=list)
    _by_time: bool = field(init=False)
    _ordinary: int = field(init=False)  # slots that are not kept

    def __attrs_post_init__(self) -> None:
        setup = self.setup
        self._by_time = setup.share == "time"
        self._ordinary = max(1, setup.slots - math.ceil(setup.slots * setup.reserve / 100))
        self.accounts = [Account(terms) for terms in setup.tenants.values()]

    def pass_time(self, until: float) -> None:
        """Let time pass: the level moves with what runs."""
        if self._by_time and self._weights:
            self._level += (until - self.now) * self._running / self._weights
        self.now = until

    def arrive(self, account: Account, came_at: float, attempt: int = 1) -> None:
        """Have a task wait."""
        account.ready.append((came_at, attempt))
        if not account.is_eligible:
            self._seat(account)

    def start(self) -> Account | None:
        """Begin a lease of the tenant that is to be served next, which takes its first task; None: none may start."""
        while (account := self._pick()) is not None:
            if account.loan and not self._repay(account):
                continue
            if self.setup.reserve and self._is_full and not account.is_guaranteed:
                self._lend(account)
            if not self._by_time and account.loan != _GIFT:
                account.base += 1 / account.weight
                self._level += 1 / self._weights if account.competes else 0
            account.leased += 1
            account.starts += self.now
            self.leased += 1
            self._running += account.competes and account.loan != _GIFT
            if account.terms.rate:
                self._spend(account)
            return account
        return None

    def take(self, account: Account) -> tuple[float, int]:
        """Return the task that has just begun: when it came, its attempt."""
        task = account.ready.popleft()
        self._seat(account)
        return task

    def end(self, account: Account, began_at: float) -> None:
        """End a lease."""
        took = max(self.now - began_at, 1.0)
        is_gift = account.loan == _GIFT
        account.leased -= 1
        account.starts -= began_at
        account.served_ms += took
        self.leased -= 1
        self._running -= account.competes and not is_gift
        self._loans -= account.loan > 0
        account.loan = 0
        if self._by_time:
            if not is_gift:
                account.base += took / account.weight
            account.estimate = _towards(account.estimate, took, _OWN_PART)
            self._took = _towards(self._took, took, _QUEUE_PART)
            self._took_squared = _towards(self._took_squared, took * took, _QUEUE_PART)
            self._mean = self._took_squared / self._took
        self._seat(account)

    def unblock(self, account: Account) -> None:
        """Let a tenant in that has tokens again."""
        self._meter(account)
        self._seat(account)

    # --- who is next

    def _pick(self) -> Account | None:
        wake, is_full = self._wake, bool(self.setup.reserve) and self._is_full
        while wake and not (wake[0].place == AWAKE and self._may_start(wake[0]) and self._may_wake(wake[0])):
            dropped = wake.popleft()
            dropped.is_woken = False
            self._seat(dropped)
        best = self._first_idle() if is_full else self._first()
        if wake:
            is_behind = best and self._vtime(best) + self._expected(best) / best.weight < self._level
            if not (is_behind and self.random.random() < (1 / 8 if wake[0].is_guaranteed else 1 / 2)):
                woken = wake.popleft()
                woken.is_woken = False
                return woken
        if best is not None and not is_full:
            self._level = max(self._level, self._vtime(best))
        return best

    def _first(self) -> Account | None:
        """Return the seated tenant with the lowest virtual time, running leases taken for as long as expected.

        Those whose share of the slots has room for one more come before the others.
        """
        seated, now, mean = self._seated, self.now, max(self._mean, 1.0)
        if len(seated) < 2 or not self._by_time:
            return self._first_of_count()
        slots_per_weight = (self.setup.slots - self.leased + self._running) / self._weights if self._weights else 0.0
        turn = self.random.randrange(len(seated))
        best, lowest = None, math.inf
        for place in range(turn - len(seated), turn):
            account = seated[place]
            time, leased = account.base, account.leased
            if leased:
                age = leased * now - account.starts
                least = leased * (account.estimate if account.estimate > mean else mean)
                time += (age if age > least else least) / account.weight
            if leased + 1 <= account.weight * slots_per_weight:
                time -= _SOONER
            if time < lowest:
                best, lowest = account, time
        return best

    def _first_of_count(self) -> Account | None:
        seated = self._seated
        turn = self.random.randrange(len(seated)) if len(seated) > 1 else 0
        return min(seated[turn:] + seated[:turn], key=lambda account: account.base, default=None)

    def _first_idle(self) -> Account | None:
        idle = (account for account in self._seated if not account.leased)
        return min(idle, key=lambda account: account.base, default=None)

    def _vtime(self, account: Account) -> float:
        if not self._by_time or account.loan == _GIFT:
            return account.base
        return account.base + (account.leased * self.now - account.starts) / account.weight

    def _expected(self, account: Account) -> float:
        return max(account.estimate, self._mean, 1.0) if self._by_time else 1.0

    # --- where a tenant stands

    def _may_start(self, account: Account) -> bool:
        most = account.terms.max_running
        is_below = not most or account.leased < most
        return bool(account.ready) and is_below and account.blocked_until <= self.now

    def _may_wake(self, account: Account) -> bool:
        return not self.setup.reserve or not account.leased or account.is_guaranteed

    def _seat(self, account: Account) -> None:
        """Put a tenant where its state says that it belongs."""
        self._recount(account)
        if not account.is_eligible:
            self._leave(account, OUT)
        elif account.place == OUT:
            behind = self._level - self._vtime(account)
            if behind >= 0:
                account.base += behind
            if (behind >= 0 or account.is_guaranteed) and self._may_wake(account):
                self._wake_up(account)
            else:
                self._sit_down(account)
        elif account.is_guaranteed:
            self._wake_up(account)
        elif account.place == AWAKE and not account.is_woken:
            self._sit_down(account)

    def _recount(self, account: Account) -> None:
        account.is_eligible = self._may_start(account)
        competes = account.is_eligible and not 0 < account.terms.guaranteed >= account.leased
        if competes != account.competes:
            account.competes = competes
            sign = 1 if competes else -1
            self._weights += sign * account.weight
            self._running += sign * (0 if account.loan == _GIFT else account.leased)

    def _leave(self, account: Account, place: int) -> None:
        if account.place == SEATED:
            self._seated.remove(account)
        account.place = place

    def _sit_down(self, account: Account) -> None:
        account.place = SEATED
        self._seated.append(account)

    def _wake_up(self, account: Account) -> None:
        self._leave(account, AWAKE)
        if not account.is_woken:
            account.is_woken = True
            self._wake.append(account)

    # --- kept slots

    @property
    def _is_full(self) -> bool:
        return self.leased - self._loans >= self._ordinary

    def _lend(self, account: Account) -> None:
        is_ahead = self._vtime(account) > self._level + self._expected(account) / account.weight
        account.loan = _GIFT if is_ahead else _LOAN
        self._loans += 1

    def _repay(self, account: Account) -> bool:
        """Make a loan an ordinary lease; returns whether the tenant gets another lease nevertheless."""
        vtime, was_gift = self._vtime(account), account.loan == _GIFT
        self._loans -= 1
        account.loan = 0
        account.base += vtime - self._vtime(account)
        self._running += account.leased if was_gift and account.competes else 0
        return account.is_guaranteed

    # --- rates

    def _spend(self, account: Account) -> None:
        account.arrival_ms = max(account.arrival_ms, self.now) + 1000 / account.terms.rate
        self._meter(account)

    def _meter(self, account: Account) -> None:
        rate = account.terms.rate
        interval, burst = 1000 / rate, account.terms.burst or max(1, math.floor(rate))
        next_at = account.arrival_ms - (burst - 1) * interval
        account.blocked_until = 0.0
        if next_at > self.now:
            refill = min(burst, max(1, math.floor(_REFILL_MS / interval)))
            account.blocked_until = math.ceil(next_at + (refill - 1) * interval)


def _towards(mean: float, value: float, part: int) -> float:
    return mean + (value - mean) / part if mean else value
