"""What comes to a queue: when each tenant's tasks arrive, and how long they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from attrs import frozen

FLUSH_MS = 10_000  # servers add what they count about as often, so an interval has some of the one in front of it


@frozen
class Demand:
    """What one tenant asked for: tasks per interval, and what they took; those of a `group` are told as one.

    `waiting`: how many waited at the beginning, for `waited_ms` at most. `run_ms` is the mean of an attempt, of which
    the part `fails` fails.
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
    """What the history does not tell, and is assumed.

    `in_bursts`: tenants whose tasks come all at once in each interval, in place of evenly. `is_uneven`: run times vary
    (exponentially distributed), in place of being all the same.
    """

    in_bursts: frozenset[str] = frozenset()
    is_uneven: bool = True


def arrival_times(demand: Demand, step_ms: float, pattern: Pattern, factor: float, source: Random) -> Iterator[float]:
    """Yield when each task comes, in order of intervals, ms from the beginning; negative: it waits already."""
    for n in range(demand.waiting):
        yield -demand.waited_ms * (1 - n / demand.waiting)
    owed = 0.0
    for number, count in enumerate(demand.arrivals):
        owed += count * factor
        whole, begins = int(owed + 1e-9), number * step_ms
        owed -= whole
        if demand.group in pattern.in_bursts:
            at = max(0.0, begins + source.random() * step_ms - source.random() * FLUSH_MS)
            yield from (at for _ in range(whole))
        else:
            for _ in range(whole):
                yield max(0.0, begins + source.random() * step_ms - source.random() * FLUSH_MS)


def run_times(demand: Demand, pattern: Pattern, source: Random) -> Callable[[], float]:
    """Return what tells how long the tenant's next task runs, in ms."""
    mean = demand.run_ms
    if pattern.is_uneven:
        return lambda: max(1.0, mean * source.expovariate(1.0))
    return lambda: max(1.0, mean * (0.9 + 0.2 * source.random()))
