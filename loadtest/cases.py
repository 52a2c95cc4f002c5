"""The fairness cases as data: who sends how much work, when; and the arrivals that follow from it.

A case is as long as one likes: times are parts of its length, and work is a part of what all slots can do in it.
Who counts as backlogged (`is_backlogged`) has more ready than it is served; its share is what is measured. In all
cases but one some quiet tenants send a few short tasks at random moments, and their dwell is measured.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

from attrs import field, frozen

CREDIT, TASK_MS = 10, 100
WAY_MS = 7.0  # what a lease takes beside its task, about: only to size the work
QUIET_TENANTS, QUIET_MS, QUIET_RATE = 4, 5, 5.0


@frozen
class AtOnce:
    """Work that comes at a moment (`at`), and is due then or later (`due`): both parts of the case's length."""

    work: float
    at: float = 0.0
    due: float = 0.0


@frozen
class Poisson:
    """Single tasks at random moments, per second."""

    rate: float


@frozen
class Trickle:
    """One task at a time: the next is sent when the last is done."""


@frozen
class Stream:
    """What one tenant sends: tasks of these lengths, in turn; `connections` share its tasks among them."""

    tenant: str
    arrivals: AtOnce | Poisson | Trickle
    lengths_ms: tuple[int, ...] = (TASK_MS,)
    connections: int = 1

    @property
    def is_backlogged(self) -> bool:
        """It sends more than it is served, for a while."""
        return isinstance(self.arrivals, AtOnce)


@frozen
class Case:
    """A situation in which shares could go wrong. `changed`: new weights at half time."""

    name: str
    what: str
    streams: tuple[Stream, ...]
    weights: Mapping[str, float] = field(factory=dict)
    changed: Mapping[str, float] = field(factory=dict)

    @property
    def backlogged(self) -> list[str]:
        """The tenants whose shares are measured."""
        return [stream.tenant for stream in self.streams if stream.is_backlogged]

    @property
    def quiet(self) -> list[str]:
        """The tenants whose dwell is measured."""
        return [stream.tenant for stream in self.streams if isinstance(stream.arrivals, Poisson)]

    def weight(self, tenant: str) -> float:
        """Return the tenant's first weight."""
        return self.weights.get(tenant, 1.0)


@frozen
class Arrival:
    """Tasks that come together, `at` seconds after the beginning; due so many seconds later."""

    at: float
    tenant: str
    lengths_ms: Sequence[int]
    connection: int = 0
    delay: float = 0.0


def _others(count: int, work: float) -> list[Stream]:
    return [Stream(f"other-{n}", AtOnce(work / count)) for n in range(1, count + 1)]


_QUIET = [Stream(f"quiet-{n}", Poisson(QUIET_RATE), (QUIET_MS,)) for n in range(1, QUIET_TENANTS + 1)]

ALONE = Case("alone", "the quiet tenants have the queue to themselves", tuple(_QUIET))

CASES = (
    Case(
        "skew", "one tenant has 90 % of all tasks",
        (Stream("heavy", AtOnce(0.9)), *_others(4, 0.1), *_QUIET),
    ),
    Case(
        "sybil", "one tenant sends over 20 connections, others over one",
        (Stream("sybil", AtOnce(0.5), connections=20), *_others(3, 0.5), *_QUIET),
    ),
    Case(
        "trickle", "one tenant sends one task at a time",
        (Stream("trickle", Trickle()), *_others(4, 1.0), *_QUIET),
    ),
    Case(
        "long-hold", "tasks of 200 to 500 ms beside tasks of 5 ms",
        (
            Stream("long", AtOnce(0.25), (200, 500, 300)),
            *(Stream(f"short-{n}", AtOnce(0.25), (5,)) for n in (1, 2, 3)),
            *_QUIET,
        ),
    ),
    Case(
        "burst", "a tenant idles for a third of the time, then comes with a burst",
        (Stream("burst", AtOnce(0.2, at=1 / 3)), *_others(3, 0.9), *_QUIET),
    ),
    Case("lone-tenant", "one tenant, nobody else", (Stream("lone", AtOnce(1.0)),)),
    Case(
        "delayed-herd", "delayed tasks of one tenant, all due at a third of the time",
        (Stream("herd", AtOnce(0.3, due=1 / 3)), *_others(3, 0.9), *_QUIET),
    ),
    Case(
        "weight-change-live", "weights 4 and 1 are swapped at half time",
        (Stream("up", AtOnce(0.5)), Stream("down", AtOnce(0.5)), Stream("same", AtOnce(0.3)), *_QUIET),
        {"up": 1.0, "down": 4.0, "same": 1.0}, {"up": 4.0, "down": 1.0},
    ),
)  # fmt: skip


def _tasks(stream: Stream, work: float, seconds: float) -> list[int]:
    """Return the lengths of so many tasks as make up a part of what all slots can do."""
    mean_ms = sum(stream.lengths_ms) / len(stream.lengths_ms) + WAY_MS
    count = max(1, round(work * seconds * CREDIT * 1000 / mean_ms))
    return list(itertools.islice(itertools.cycle(stream.lengths_ms), count))


def _arrivals(stream: Stream, seconds: float, seed: str) -> Iterator[Arrival]:
    match stream.arrivals:
        case AtOnce(work, at, due):
            tasks = _tasks(stream, work, seconds)
            for n in range(min(stream.connections, len(tasks))):
                own = tasks[n :: stream.connections]
                yield Arrival(at * seconds, stream.tenant, own, n, max(0.0, due - at) * seconds)
        case Poisson(rate):
            draws = random.Random(seed)
            at, lengths = draws.expovariate(rate), itertools.cycle(stream.lengths_ms)
            while at < seconds:
                yield Arrival(at, stream.tenant, [next(lengths)])
                at += draws.expovariate(rate)


def arrivals(case: Case, seconds: float) -> list[Arrival]:
    """Return what arrives in a case of that length, in order; not what trickles, since that hangs on the service."""
    each = (_arrivals(stream, seconds, stream.tenant) for stream in case.streams)
    return sorted(itertools.chain.from_iterable(each), key=lambda arrival: arrival.at)
