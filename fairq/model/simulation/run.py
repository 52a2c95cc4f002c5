"""One simulation: tasks come, are picked, run and end, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from attrs import frozen

from fairq.model.simulation.fair_pick import Account, FairPick
from fairq.model.simulation.setup import Setup
from fairq.model.simulation.traffic import Demand, Pattern, arrival_times, run_times

MAX_STARTS = 100_000  # in one simulation; it ends with the last of them
_ARRIVES, _ENDS, _UNBLOCKS = range(3)


@frozen
class Outcome:
    """What a tenant got: its part of all service (0 to 1; None: there was none), waiting times of first attempts (ms;
    None: none started), how many started, and how many wait in the end.
    """

    share: float | None
    p50_ms: int | None
    p99_ms: int | None
    started: int
    waiting: int


class Played(NamedTuple):
    """The outcomes by group, which part of the slots' time was used (0 to 1), and the time that was simulated."""

    outcomes: dict[str, Outcome]
    used: float
    over_ms: float


def percentile(values: Sequence[float], percent: int) -> int | None:
    """Return the value that `percent` % of the values, which are in order, do not exceed."""
    return round(values[-(-len(values) * percent // 100) - 1]) if values else None


def play(
    setup: Setup, demands: Sequence[Demand], step_ms: float, pattern: Pattern, *, seed: int = 0,
    factors: Callable[[str], float] = lambda _: 1.0,
) -> Played:  # fmt: skip
    """Simulate a queue from an empty one on. What comes depends on the seed alone, not on the setup.

    `setup` has the terms of each demand's tenant, in the same order.
    """
    pick = FairPick(setup, Random(f"{seed} pick"))
    sources = [Random(f"{seed} {demand.tenant}") for demand in demands]
    lengths = [run_times(demand, pattern, Random(f"{seed} run {demand.tenant}")) for demand in demands]
    arrivals = iter(
        sorted(
            (at, place)
            for place, (demand, source) in enumerate(zip(demands, sources, strict=True))
            for at in arrival_times(demand, step_ms, pattern, factors(demand.group), source)
        )
    )
    until = step_ms * max((len(demand.arrivals) for demand in demands), default=0)
    waits: list[list[float]] = [[] for _ in demands]
    starts = [0] * len(demands)
    events: list[tuple[float, int, int, int, float, int]] = []  # at, order, what, of whom, came or began at, attempt
    order = count = 0
    coming = next(arrivals, None)
    accounts = pick.accounts
    places = {id(account): place for place, account in enumerate(accounts)}
    while count < MAX_STARTS:
        next_at = events[0][0] if events else until
        if coming is not None and coming[0] <= next_at:
            at, place = coming
            coming = next(arrivals, None)
            if at >= until:
                break
            if at > pick.now:
                pick.pass_time(at)
            pick.arrive(accounts[place], at)
        elif events and next_at < until:
            at, _, what, place, since, attempt = heapq.heappop(events)
            pick.pass_time(at)
            if what == _ENDS:
                pick.end(accounts[place], since)
                order += 1
                if demands[place].fails and (again_at := _retry_at(setup, demands[place], attempt, at, sources[place])):
                    heapq.heappush(events, (again_at, order, _ARRIVES, place, 0.0, attempt + 1))
            elif what == _ARRIVES:
                pick.arrive(accounts[place], at, attempt)
            else:
                pick.unblock(accounts[place])
        else:
            break
        while pick.leased < setup.slots and (account := pick.start()) is not None:
            place = places[id(account)]
            came_at, attempt = pick.take(account)
            starts[place] += 1
            if attempt == 1:
                waits[place].append(pick.now - came_at)
            order, count = order + 1, count + 1
            heapq.heappush(events, (pick.now + lengths[place](), order, _ENDS, place, pick.now, attempt))
            if account.blocked_until > pick.now:
                heapq.heappush(events, (account.blocked_until, -order, _UNBLOCKS, place, 0.0, 0))
    if count < MAX_STARTS:
        pick.pass_time(until)
    return _outcomes(setup, demands, accounts, waits, starts, pick.now)


def _retry_at(setup: Setup, demand: Demand, attempt: int, now: float, source: Random) -> float:
    """Return when a task that failed is ready again; 0: it did not fail, or it is dead."""
    if source.random() >= demand.fails or (setup.max_attempts and attempt >= setup.max_attempts):
        return 0.0
    return now + source.random() * min(setup.retry_cap_ms, setup.retry_base_ms * 2.0 ** min(attempt - 1, 40))


def _outcomes(
    setup: Setup, demands: Sequence[Demand], accounts: Sequence[Account], waits: Sequence[list[float]],
    starts: Sequence[int], until: float,
) -> Played:  # fmt: skip
    held = [account.held_ms(until) for account in accounts]
    of_share = held if setup.share == "time" else starts
    whole, groups = sum(of_share), dict[str, list[int]]()
    for place, demand in enumerate(demands):
        groups.setdefault(demand.group, []).append(place)
    outcomes = {}
    for group, some in groups.items():
        waited = sorted(wait for place in some for wait in waits[place])
        outcomes[group] = Outcome(
            sum(of_share[place] for place in some) / whole if whole else None,
            percentile(waited, 50),
            percentile(waited, 99),
            sum(starts[place] for place in some),
            sum(len(accounts[place].ready) for place in some),
        )
    return Played(outcomes, sum(held) / (until * setup.slots) if until else 0.0, until)
