"""What observers saw of each task, and what must never be among it.

The observers do not know each other: the program that enqueues knows which tasks were acknowledged; handlers write down
each start and end; a worker over HTTP knows the outcome of each settlement. A call that failed or timed out is
*unknown*: it may have been carried out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from attrs import define, field

CLOCK_S = 0.05  # between the clocks of two processes of one machine
LATE_S = 1.0  # a worker that stood still for less does not ask again whether its task has expired


class Enqueued(NamedTuple):
    """A task that was enqueued after a fault began, and whether that was acknowledged (else it is unknown)."""

    id: str
    is_acknowledged: bool
    start_at: float = 0.0
    expires_at: float = 0.0  # 0: never
    fault: str = ""


class Ran(NamedTuple):
    """An attempt that a handler began, or has ended without an error."""

    id: str
    attempt: int
    event: str  # start or end
    at: float


class Settled(NamedTuple):
    """A settlement that was sent at a time, and its outcome."""

    id: str
    attempt: int
    sent_at: float
    outcome: str
    fault: str = ""


@define
class History:
    """All that was seen until no task was left. `dead` has the reason of each dead letter, `faults` counts faults."""

    enqueued: list[Enqueued] = field(factory=list)
    ran: list[Ran] = field(factory=list)
    settled: list[Settled] = field(factory=list)
    dead: dict[str, str] = field(factory=dict)
    left: list[str] = field(factory=list)
    crashed: list[str] = field(factory=list)  # processes that ended, and nobody had ended them
    faults: Counter[str] = field(factory=Counter)
    fault: str = ""  # that goes on, or was the last one

    @property
    def acknowledged(self) -> set[str]:
        """Return the ids of tasks that must have run, or be dead letters."""
        return {task.id for task in self.enqueued if task.is_acknowledged}

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
    return history.acknowledged - done - {id for id, reason in history.dead.items() if reason}


def _strange(history: History) -> Iterable[str]:
    return {ran.id for ran in history.ran} - {task.id for task in history.enqueued}


def _doubled(history: History) -> Iterable[str]:
    starts = Counter((ran.id, ran.attempt) for ran in history.events("start"))
    return (f"{id}, attempt {attempt}" for (id, attempt), count in starts.items() if count > 1)


def _run_after_end(history: History) -> Iterable[str]:
    ended = {each.id: each for each in history.settled if each.outcome == "ok"}
    for ran in history.events("start"):
        if (end := ended.get(ran.id)) and ran.attempt > end.attempt:
            yield f"{ran.id}, attempt {ran.attempt} after {end.attempt} was acknowledged"


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
    ends = {task.id: task.expires_at for task in history.enqueued if task.expires_at}
    return {ran.id for ran in history.events("start") if ran.id in ends and ran.at > ends[ran.id] + LATE_S}


def _dead(history: History) -> Iterable[str]:
    return (f"{id}: {reason}" for id, reason in history.dead.items() if reason not in ("", "expired"))


def _left(history: History) -> Iterable[str]:
    return history.left


def _crashed(history: History) -> Iterable[str]:
    return history.crashed


RULES: Mapping[str, Callable[[History], Iterable[str]]] = {
    "lost": _lost,  # acknowledged, and neither run to its end nor a dead letter with a reason
    "strange": _strange,  # run, and never enqueued
    "doubled": _doubled,  # an attempt has one lease, so it begins once
    "run after its end": _run_after_end,
    "stale settlement taken": _stale_taken,
    "started before its start": _early,
    "started after its expiry": _late,
    "dead by a fault": _dead,  # handlers fail once at most, so only an expired task may be a dead letter
    "left": _left,
    "ended by itself": _crashed,  # a process
}


def check(history: History, faults: Collection[str]) -> dict[str, list[str]]:
    """Return what broke each rule; and which of the faults never happened, for they prove nothing."""
    found = {name: sorted(rule(history)) for name, rule in RULES.items()}
    return {**found, "fault that never happened": sorted(set(faults) - set(history.faults))}
