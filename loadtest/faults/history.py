"""What observers saw of each task, and what must never be among it.

The observers do not know each other: the program that enqueues knows which tasks were acknowledged; handlers write down
each start and end; a worker over HTTP knows when it asked for each lease, and the outcome of each settlement. A call
that was refused has done nothing. Of one with no answer the outcome is *unknown*: it may have been carried out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import product
from operator import attrgetter
from typing import Literal, NamedTuple

from attrs import define, field

CLOCK_S = 0.05  # between the clocks of two processes of one machine
EXPIRED = "expired"
LATE_S = 1.0  # a worker that stood still for less does not ask again whether its task has expired


class Enqueued(NamedTuple):
    """A task that a call was to enqueue after a fault began, and the outcome."""

    id: str
    outcome: Literal["ok", "refused", "unknown"]
    start_at: float = 0.0  # at the earliest
    expires: tuple[float, float] | None = None  # at the earliest, and at the latest
    fault: str = ""


class Ran(NamedTuple):
    """An attempt that a handler began, or has ended without an error; a lease that is not renewed has an end."""

    id: str
    attempt: int
    event: str  # start or end
    at: float
    leased_until: float = 0.0  # at the least, if known


class Settled(NamedTuple):
    """A settlement that was sent at a time, and its outcome."""

    id: str
    attempt: int
    sent_at: float
    outcome: str
    fault: str = ""


class Dead(NamedTuple):
    """A dead letter."""

    reason: str
    at: float


@define
class History:
    """All that was seen until no task was left. `dead` has dead letters by id, `faults` counts faults."""

    enqueued: list[Enqueued] = field(factory=list)
    ran: list[Ran] = field(factory=list)
    settled: list[Settled] = field(factory=list)
    dead: dict[str, Dead] = field(factory=dict)
    left: list[str] = field(factory=list)
    crashed: list[str] = field(factory=list)  # processes that ended, and nobody had ended them
    faults: Counter[str] = field(factory=Counter)
    fault: str = ""  # that goes on, or was the last one

    @property
    def acknowledged(self) -> set[str]:
        """Return the ids of tasks that must have run, or be dead letters."""
        return {task.id for task in self.enqueued if task.outcome == "ok"}

    @property
    def seen(self) -> set[str]:
        """Return the ids of tasks that ran, or are dead letters."""
        return {ran.id for ran in self.ran} | {each.id for each in self.settled} | {*self.dead}

    def story(self, id: str) -> str:
        """Say all that was seen of a task."""
        seen = [f"{ran.event} of attempt {ran.attempt}" for ran in self.ran if ran.id == id]
        seen += [f"attempt {each.attempt} settled: {each.outcome}" for each in self.settled if each.id == id]
        return f"{id} ({', '.join(seen) or 'it never began'})"

    def events(self, event: str) -> Iterator[Ran]:
        """Return the starts, or the ends."""
        return (ran for ran in self.ran if ran.event == event)


def _lost(history: History) -> Iterable[str]:
    done = {ran.id for ran in history.events("end")} | {each.id for each in history.settled if each.outcome == "ok"}
    return history.acknowledged - done - {id for id, dead in history.dead.items() if dead.reason}


def _strange(history: History) -> Iterable[str]:
    return history.seen - {task.id for task in history.enqueued}


def _done_though_refused(history: History) -> Iterable[str]:
    return history.seen & {task.id for task in history.enqueued if task.outcome == "refused"}


def _doubled(history: History) -> Iterable[str]:
    starts = Counter((ran.id, ran.attempt) for ran in history.events("start"))
    return (f"{id}, attempt {attempt}" for (id, attempt), count in starts.items() if count > 1)


def _leased_twice(history: History) -> Iterable[str]:
    leases: dict[str, list[Ran]] = {}
    for ran in history.events("start"):
        leases.setdefault(ran.id, []).append(ran)
    for own in leases.values():
        for ran, later in product(own, own):
            if later.attempt > ran.attempt and later.at < ran.leased_until - CLOCK_S:
                yield f"{ran.id}, attempt {later.attempt} during the lease of {ran.attempt}"


def _run_after_end(history: History) -> Iterable[str]:
    ended = dict[str, Settled]()  # the first, for also an attempt that should not have begun may be acknowledged
    for each in sorted(history.settled, key=attrgetter("attempt")):
        if each.outcome == "ok":
            ended.setdefault(each.id, each)
    for ran in history.events("start"):
        end = ended.get(ran.id)
        if end and ran.attempt > end.attempt and ran.at >= end.sent_at - CLOCK_S:
            yield f"{ran.id}, attempt {ran.attempt} after {end.attempt} was acknowledged"
    yield from (f"{id} is a dead letter after it was acknowledged" for id in ended.keys() & history.dead.keys())


def _stale_taken(history: History) -> Iterable[str]:
    begun = {(ran.id, ran.attempt): ran.at for ran in history.events("start")}
    for each in history.settled:
        later = [at for (id, attempt), at in begun.items() if id == each.id and attempt > each.attempt]
        if each.outcome == "ok" and later and min(later) < each.sent_at - CLOCK_S:
            yield f"{each.id}, attempt {each.attempt}"


def _early(history: History) -> Iterable[str]:
    starts = {task.id: task.start_at for task in history.enqueued}
    return {ran.id for ran in history.events("start") if ran.at < starts.get(ran.id, 0.0) - CLOCK_S}


def _late(history: History) -> Iterable[str]:
    ends = _expiries(history)
    return {ran.id for ran in history.events("start") if ran.id in ends and ran.at > ends[ran.id][1] + LATE_S}


def _expired_early(history: History) -> Iterable[str]:
    ends = _expiries(history)
    return {id for id, dead in history.dead.items() if id in ends and dead.at < ends[id][0] - CLOCK_S}


def _expiries(history: History) -> dict[str, tuple[float, float]]:
    return {task.id: task.expires for task in history.enqueued if task.expires}


def _dead(history: History) -> Iterable[str]:
    ends = _expiries(history)
    for id, dead in history.dead.items():
        if dead.reason and (dead.reason != EXPIRED or id not in ends):
            yield f"{id}: {dead.reason}"


def _left(history: History) -> Iterable[str]:
    return history.left


def _crashed(history: History) -> Iterable[str]:
    return history.crashed


RULES: Mapping[str, Callable[[History], Iterable[str]]] = {
    "lost": _lost,  # acknowledged, and neither run to its end nor a dead letter with a reason
    "strange": _strange,  # run or a dead letter, and never enqueued
    "done though refused": _done_though_refused,
    "doubled": _doubled,  # an attempt has one lease, so it begins once
    "leased twice": _leased_twice,  # at once
    "run after its end": _run_after_end,
    "stale settlement taken": _stale_taken,
    "started before its start": _early,
    "started after its expiry": _late,
    "expired before its expiry": _expired_early,
    "dead by a fault": _dead,  # handlers fail once at most, so only a task with an expiry may be a dead letter
    "left": _left,
    "ended by itself": _crashed,  # a process
}


def check(history: History, faults: Collection[str]) -> dict[str, list[str]]:
    """Return what broke each rule; and which of the faults never happened, for they prove nothing."""
    found = {name: sorted(rule(history)) for name, rule in RULES.items()}
    return {**found, "fault that never happened": sorted(set(faults) - set(history.faults))}
