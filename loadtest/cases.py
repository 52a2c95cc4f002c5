"""The fairness cases as data: who sends how much work, when; and the arrivals that follow from it.

A case is as long as one likes: times are parts of its length, and work is a part of what all slots can do in it.
Who counts as backlogged (`is_backlogged`) has more ready than it is served; its share is what is measured. In all
cases of the scorecard but one some quiet tenants send a few short tasks at random moments, and their dwell is measured.

CASES are the scorecard's. BOUNDS are cases with a period in which every tenant has ready tasks, and the tenants are
due a known number of slots then.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, field, frozen

CREDIT, TASK_MS = 10, 100
WAY_MS = 7.0  # what a lease takes beside its task, about: only to size the work
QUIET_TENANTS, QUIET_MS, QUIET_RATE = 4, 5, 5.0


@frozen
class AtOnce:
    """Work that comes at a moment (`at`), and is due then or later (`due`): both parts of the case's length.

    It is so many `tasks`, or `work` as a part of what all slots can do.
    """

    work: float = 0.0
    at: float = 0.0
    due: float = 0.0
    tasks: int = 0


@frozen
class Poisson:
    """Single tasks at random moments, per second."""

    rate: float


@frozen
class Trickle:
    """One task at a time: the next is sent when the last is done."""


@frozen
class Stream:
    """What one tenant sends: tasks of these lengths, in turn; `connections` share its tasks among them.

    Each task is handed back at once so many times (`hand_backs`) before it runs. A tenant may have several streams.
    """

    tenant: str
    arrivals: AtOnce | Poisson | Trickle
    lengths_ms: tuple[float, ...] = (TASK_MS,)
    connections: int = 1
    hand_backs: int = 0

    @property
    def is_backlogged(self) -> bool:
        """It sends more than it is served, for a while."""
        return isinstance(self.arrivals, AtOnce)


@frozen
class Period:
    """The end of a case of so many seconds, from `begins` on (a part of its length); who is `due` how many slots then.

    What is left of the tasks when it ends does not run.
    """

    seconds: float
    begins: float
    due: Mapping[str, float]


@frozen
class Case:
    """A situation in which shares could go wrong. `changed`: new weights at half time."""

    name: str
    what: str
    streams: tuple[Stream, ...]
    weights: Mapping[str, float] = field(factory=dict)
    changed: Mapping[str, float] = field(factory=dict)
    limits: Mapping[str, Mapping[str, float]] = field(factory=dict)
    period: Period | None = None

    @property
    def backlogged(self) -> list[str]:
        """The tenants whose shares are measured."""
        return list(dict.fromkeys(stream.tenant for stream in self.streams if stream.is_backlogged))

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
    lengths_ms: Sequence[float]
    connection: int = 0
    delay: float = 0.0
    hand_backs: int = 0


def _others(count: int, work: float, at: float = 0.0) -> list[Stream]:
    return [Stream(f"other-{n}", AtOnce(work / count, at)) for n in range(1, count + 1)]


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
    Case("lone-tenant", "one tenant, no other", (Stream("lone", AtOnce(1.0)),)),
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

LONG_MS = 2000
TAIL_MS = (1, 2, 5, 20, 50, 100, 200, 500, 1000, 2000)
ENOUGH = 1.6  # all work of a case with a period: no tenant may run out of tasks


def _jittered(ms: float) -> tuple[float, ...]:
    """Return 50 lengths of a quarter more or less."""
    draws = random.Random(str(ms))
    return tuple(round(ms * draws.uniform(0.75, 1.25), 3) for _ in range(50))


# what of the slots is left when quiet tenants have what they want
_BESIDE_QUIET = CREDIT - QUIET_TENANTS * QUIET_RATE * (QUIET_MS + WAY_MS) / 1000
_TAIL = {f"{ms}-ms": (1.0 + n % 3, _jittered(ms)) for n, ms in enumerate(TAIL_MS)}
_TAIL_WEIGHTS = {tenant: weight for tenant, (weight, _) in _TAIL.items()}
_TAIL_DUE = {tenant: CREDIT * weight / sum(_TAIL_WEIGHTS.values()) for tenant, weight in _TAIL_WEIGHTS.items()}

BOUNDS = (
    Case(
        "gamer", "100 tasks of 1 ms, then long ones, beside ten tenants of 100 ms",
        (
            Stream("gamer", AtOnce(at=2 / 26, tasks=100), (1,)), Stream("gamer", AtOnce(0.2, at=6 / 26), (LONG_MS,)),
            *_others(10, ENOUGH),
        ),
        period=Period(26, 6 / 26, {"gamer": CREDIT / 11}),
    ),
    Case(
        "newcomer-long", "an unknown tenant comes with long tasks, beside ten tenants of 100 ms",
        (Stream("newcomer", AtOnce(0.2, at=3 / 23), (LONG_MS,)), *_others(10, ENOUGH)),
        period=Period(23, 3 / 23, {"newcomer": CREDIT / 11}),
    ),
    Case(
        "gives-back", "240 leases handed back at once, then long tasks, beside ten tenants of 100 ms",
        (
            Stream("giver", AtOnce(at=1 / 26, tasks=60), (1,), hand_backs=4),
            Stream("giver", AtOnce(0.2, at=6 / 26), (LONG_MS,)), *_others(10, ENOUGH),
        ),
        period=Period(26, 6 / 26, {"giver": CREDIT / 11}),
    ),
    Case(
        "long-then-short", "ten long tasks in all slots; later, when others have caught up, tasks of 100 ms",
        (
            Stream("former", AtOnce(tasks=10), (LONG_MS,)), Stream("former", AtOnce(0.4, at=14 / 25)),
            *_others(4, ENOUGH, at=1 / 25),
        ),
        period=Period(25, 14 / 25, {"former": CREDIT / 5}),
    ),
    Case(
        "joins-beside-limit", "one tenant has a limit of 1, one has none, a third one joins",
        (
            Stream("second", AtOnce(1.2)), Stream("capped", AtOnce(0.3)),
            Stream("newcomer", AtOnce(0.6, at=8 / 20)),
        ),
        limits={"capped": {"max_running": 1}},
        period=Period(20, 8 / 20, {"second": (CREDIT - 1) / 2, "newcomer": (CREDIT - 1) / 2}),
    ),
    Case(
        "joins-beside-guarantee", "one tenant is guaranteed 5 slots, nine are not, one more joins",
        (
            Stream("newcomer", AtOnce(0.1, at=8 / 20)), Stream("guaranteed", AtOnce(0.8)), *_others(9, 0.8),
        ),
        limits={"guaranteed": {"guaranteed": 5}},
        period=Period(20, 8 / 20, {"newcomer": (CREDIT - 5) / 10}),
    ),
    Case(
        "joins-beside-quiet", "three tenants of 100 ms and four quiet ones, one more joins after 20 s",
        (Stream("newcomer", AtOnce(0.25, at=20 / 26)), *_others(3, ENOUGH), *_QUIET),
        period=Period(26, 20 / 26, {"newcomer": _BESIDE_QUIET / 4}),
    ),
    Case(
        "heavy-tail", "tasks of 1 ms to 2 s, weights 1 to 3",
        tuple(
            Stream(tenant, AtOnce(2.5 * _TAIL_DUE[tenant] / CREDIT), lengths) for tenant, (_, lengths) in _TAIL.items()
        ),
        _TAIL_WEIGHTS, period=Period(32, 2 / 32, _TAIL_DUE),
    ),
)  # fmt: skip


def scaled(case: Case, by: float) -> Case:
    """Return a case with a period as it is when all its times are multiplied, its tasks' too."""
    assert case.period
    streams = (evolve(stream, lengths_ms=tuple(by * ms for ms in stream.lengths_ms)) for stream in case.streams)
    return evolve(case, streams=tuple(streams), period=evolve(case.period, seconds=by * case.period.seconds))


def _tasks(stream: Stream, at_once: AtOnce, seconds: float) -> list[float]:
    """Return the lengths of the tasks; `work` is a part of what all slots can do."""
    mean_ms = sum(stream.lengths_ms) / len(stream.lengths_ms) + WAY_MS
    count = at_once.tasks or max(1, round(at_once.work * seconds * CREDIT * 1000 / mean_ms))
    return list(itertools.islice(itertools.cycle(stream.lengths_ms), count))


def _arrivals(stream: Stream, seconds: float, seed: str) -> Iterator[Arrival]:
    match stream.arrivals:
        case AtOnce(at=at, due=due) as at_once:
            tasks, delay = _tasks(stream, at_once, seconds), max(0.0, due - at) * seconds
            for n in range(min(stream.connections, len(tasks))):
                own = tasks[n :: stream.connections]
                yield Arrival(at * seconds, stream.tenant, own, n, delay, stream.hand_backs)
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
