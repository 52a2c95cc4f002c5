"""The traffic of a queue: when each tenant's tasks arrive, and how long they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random

from attrs import field, frozen

FLUSH_MS = 10_000  # servers add what they count about as often, so an interval has some of the one in front of it
_CHANCE = 2.0  # variance / mean of counts that chance alone seldom makes


@frozen
class Demand:
    """The demand of one tenant: tasks per interval, and their duration; tenants of a `group` are reported as one.

    `waiting`: how many waited at the beginning, for `waited_ms` at most. `run_ms` is the mean of an attempt; the part
    `fails` of attempts fails.
    """

    tenant: str
    group: str
    arrivals: Sequence[int]
    run_ms: float
    fails: float = 0.0
    waiting: int = 0
    waited_ms: float = 0.0


@frozen
class Pattern:
    """Assumptions about facts that the history lacks.

    `batches`: how many tasks of a group come at once, if it is more than one. `is_uneven`: run times vary
    (exponentially distributed), in place of being all the same.
    """

    batches: Mapping[str, int] = field(factory=dict)
    is_uneven: bool = True


def batch_size(arrivals: Sequence[int]) -> int:
    """Return how many tasks come at once, by how much the counts of neighbouring intervals differ.

    If tasks come one by one at random, the variance of the counts is their mean; in batches of n it is n times that.
    Differences of neighbours ignore slow changes, such as day and night.
    """
    whole = sum(arrivals)
    if len(arrivals) < 6 or not whole:
        return 1
    squares = sum((one - next) ** 2 for one, next in pairwise(arrivals)) / (len(arrivals) - 1) / 2
    size = squares * len(arrivals) / whole
    return round(size) if size >= _CHANCE else 1


def arrival_times(demand: Demand, step_ms: float, pattern: Pattern, factor: float, source: Random) -> Iterator[float]:
    """Yield when each task comes, in order of intervals, ms from the beginning; negative: it waits already."""
    for n in range(demand.waiting):
        yield -demand.waited_ms * (1 - n / demand.waiting)
    owed, size, whole_ms = 0.0, pattern.batches.get(demand.group, 1), step_ms * len(demand.arrivals)
    for number, count in enumerate(demand.arrivals):
        owed += count * factor
        whole, begins = int(owed + 1e-9), number * step_ms
        owed -= whole
        batches = max(1, round(whole / size))
        for n in range(batches):
            at = begins + source.random() * step_ms - source.random() * FLUSH_MS
            at %= whole_ms  # what came before the beginning comes at the end
            yield from (at for _ in range(whole * n // batches, whole * (n + 1) // batches))


def run_times(demand: Demand, pattern: Pattern, source: Random) -> Callable[[], float]:
    """Return a function that gives the duration of the tenant's next task, in ms."""
    mean = demand.run_ms
    if pattern.is_uneven:
        return lambda: max(1.0, mean * source.expovariate(1.0))
    return lambda: max(1.0, mean * (0.9 + 0.2 * source.random()))
