"""One simulation: tasks come, are picked, run and end, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from attrs import frozen

from fairq.model.simulation.queue import SimulatedQueue, Start
from fairq.model.simulation.setup import Setup
from fairq.model.simulation.traffic import Demand, Pattern, arrival_times, run_times

MAX_STARTS = 50_000  # in one simulation; it ends with the last of them
_ARRIVES, _ENDS, _LETS_IN = range(3)


@frozen
class Outcome:
    """A tenant's results: its part of all service (0 to 1; None: there was none), waiting times of first attempts (ms;
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
    setup: Setup, demands: Sequence[Demand], step_ms: float, pattern: Pattern, *,
    factors: Callable[[str], float] = lambda _: 1.0,
) -> Played:  # fmt: skip
    """Simulate a queue from an empty one on. What comes depends on the demands alone, not on the setup.

    `setup` has the terms of each demand's tenant, in the same order.
    """
    queue = SimulatedQueue(setup, Random("pick"))
    sources = [Random(demand.tenant) for demand in demands]
    lengths = [run_times(demand, pattern, Random(f"run {demand.tenant}")) for demand in demands]
    arrivals = iter(
        sorted(
            (at, n)
            for n, (demand, source) in enumerate(zip(demands, sources, strict=True))
            for at in arrival_times(demand, step_ms, pattern, factors(demand.group), source)
        )
    )
    until = step_ms * max((len(demand.arrivals) for demand in demands), default=0)
    numbers = {demand.tenant: n for n, demand in enumerate(demands)}
    waits: list[list[float]] = [[] for _ in demands]
    starts, held_ms = [0] * len(demands), [0.0] * len(demands)
    events: list[tuple[float, int, int, Start, float]] = []  # at, order, what, the task's start, when it began
    order = count = running = 0
    now = 0.0
    coming = next(arrivals, None)
    while count < MAX_STARTS:
        next_at = events[0][0] if events else until
        if coming is not None and coming[0] <= next_at:
            at, n = coming
            coming = next(arrivals, None)
            if at >= until:
                break
            now = max(now, at)
            queue.arrive(Start(demands[n].tenant, at, 1), now)
        elif events and next_at < until:
            now, _, what, task, since = heapq.heappop(events)
            if what == _ENDS:
                n = numbers[task.tenant]
                queue.end(task.tenant, since, now)
                running -= 1
                held_ms[n] += now - since
                if again_at := _retry_at(setup, demands[n], task.attempt, now, sources[n]):
                    order += 1
                    heapq.heappush(events, (again_at, order, _ARRIVES, task._replace(attempt=task.attempt + 1), 0.0))
            elif what == _ARRIVES:
                queue.arrive(task, now)
            else:
                queue.let_in(task.tenant, now)
        else:
            break
        while (free := min(setup.slots - running, MAX_STARTS - count)) and (started := queue.claim(free, now)):
            for task in started:
                n = numbers[task.tenant]
                starts[n] += 1
                if task.attempt == 1:
                    waits[n].append(now - task.came_at)
                order, count, running = order + 1, count + 1, running + 1
                heapq.heappush(events, (now + lengths[n](), order, _ENDS, task, now))
                if let_in_at := queue.parked.get(task.tenant):
                    heapq.heappush(events, (let_in_at, -order, _LETS_IN, task, 0.0))
    if count < MAX_STARTS:
        now = until
    for _, _, what, task, since in events:
        held_ms[numbers[task.tenant]] += (now - since) * (what == _ENDS)
    waiting = [len(queue.tenants[demand.tenant].ready) for demand in demands]
    return _outcomes(setup, demands, waiting, waits, starts, held_ms, now)


def _retry_at(setup: Setup, demand: Demand, attempt: int, now: float, source: Random) -> float:
    """Return when a task that failed is ready again; 0: it did not fail, or it is dead."""
    if source.random() >= demand.fails or (setup.max_attempts and attempt >= setup.max_attempts):
        return 0.0
    return now + source.random() * min(setup.retry_cap_ms, setup.retry_base_ms * 2.0 ** min(attempt - 1, 40))


def _outcomes(
    setup: Setup, demands: Sequence[Demand], waiting: Sequence[int], waits: Sequence[list[float]],
    starts: Sequence[int], held: Sequence[float], until: float,
) -> Played:  # fmt: skip
    of_share = held if setup.share == "time" else starts
    whole, groups = sum(of_share), dict[str, list[int]]()
    for n, demand in enumerate(demands):
        groups.setdefault(demand.group, []).append(n)
    outcomes = {}
    for group, some in groups.items():
        waited = sorted(wait for n in some for wait in waits[n])
        outcomes[group] = Outcome(
            sum(of_share[n] for n in some) / whole if whole else None,
            percentile(waited, 50),
            percentile(waited, 99),
            sum(starts[n] for n in some),
            sum(waiting[n] for n in some),
        )
    return Played(outcomes, sum(held) / (until * setup.slots) if until else 0.0, until)
