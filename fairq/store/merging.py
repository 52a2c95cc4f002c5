"""Joins what the places of a queue answer into the answer of one queue. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import groupby
from operator import attrgetter, or_
from typing import Any

from attrs import evolve

from fairq.model.dead_letters import DeadLetter, DeadPage
from fairq.model.history import OTHERS, Row, Slot
from fairq.model.places import queue_of
from fairq.model.queues import QueueState
from fairq.model.tenants import TenantState
from fairq.model.waiting import Facts
from fairq.store.partitions import siblings
from fairq.store.rows import COUNTS, FLAGS


def first(answers: Sequence[Any]) -> Any:
    """Join answers that are all the same."""
    return answers[0]


def chained(answers: Sequence[Sequence[Any]]) -> list[Any]:
    """Join lists."""
    return [each for answer in answers for each in answer]


def by_name(rows: Sequence[TenantState]) -> list[TenantState]:
    """Sort tenants by name."""
    return sorted(rows, key=attrgetter("tenant"))


def longest(waits: Sequence[int | None]) -> int | None:
    """Return the longest wait; None if nothing waits anywhere."""
    return max((wait for wait in waits if wait is not None), default=None)


def one_queue(states: Sequence[QueueState]) -> QueueState:
    """Sum the counts of the places that answer; all have the same settings."""
    joined: dict[str, Any] = {name: sum(getattr(each, name) for each in states) for name in COUNTS}
    joined |= {name: any(getattr(each, name) for each in states) for name in FLAGS}
    place = states[0].queue
    settings = evolve(states[0].settings, partitions=len(siblings(place)))
    return evolve(states[0], queue=queue_of(place), settings=settings, **joined)


def sums(answers: Sequence[dict[str, float]]) -> dict[str, float]:
    """Add up numbers by their names; what blocks one place blocks the queue."""
    blocked = reduce(or_, [int(each["blocked"]) for each in answers])
    return {name: sum(each[name] for each in answers) for name in answers[0]} | {"blocked": blocked}


def of_whole_queue(facts: Facts, states: Sequence[dict[str, float]]) -> Facts:
    """Return the facts about a task of one place with the running tasks, and the weights, of all places."""
    leased, weight_sum = (sum(each[name] for each in states) for name in ("leased", "weight_sum"))
    known = [each["estimate"] for each in states if each["estimate"]]
    estimate = sum(known) / max(len(known), 1)
    return evolve(facts, queue_leased=leased, queue_weight_sum=weight_sum, queue_estimate=estimate)


def one_walk(pages: Sequence[DeadPage], count: int) -> DeadPage:
    """Join pages of dead letters that one cursor led to. A place ends its page with where it has looked up to.

    The cursor of one place is good for all: it names the last letter looked at, by (died_at, id), and the walk's end.
    """
    cursors = [page.cursor for page in pages if page.cursor]
    end = min(map(_position, cursors), default=None)
    known = sorted(chained([page.letters for page in pages]), key=_order)
    here = [each for each in known if end is None or _order(each) <= end][:count]
    left = sum(page.left for page in pages) + len(known) - len(here)
    if not left:
        return DeadPage(here, "", 0)
    if end is None or len(here) == count:
        end = _order(here[-1])
    until = cursors[0].partition(":")[0] if cursors else known[-1].died_at_ms
    return DeadPage(here, f"{until}:{end[0]}:{end[1]}", left)


def _order(letter: DeadLetter) -> tuple[int, str]:
    return letter.died_at_ms, letter.id


def _position(cursor: str) -> tuple[int, str]:
    _, died_at, id = cursor.split(":", 2)
    return int(died_at), id


def one_history(slots: Iterable[Slot]) -> list[Slot]:
    """Join the intervals of all places, by their numbers; tenants without a row of their own stay one row."""
    by_number = groupby(sorted(slots, key=attrgetter("number")), key=attrgetter("number"))
    return [reduce(_added_slot, same) for _, same in by_number]


def _added_slot(one: Slot, two: Slot) -> Slot:
    totals = {name: getattr(one, name) + getattr(two, name) for name in Slot._fields[1:-1]}
    rows = [row for row in (*one.rows, *two.rows) if row.tenant != OTHERS]
    others = [row for row in (*one.rows, *two.rows) if row.tenant == OTHERS]
    return one._replace(rows=rows + ([reduce(_added_row, others)] if others else []), **totals)


def _added_row(one: Row, two: Row) -> Row:
    added = {name: getattr(one, name) + getattr(two, name) for name in Row._fields if name not in ("tenant", "waits")}
    waits = dict(one.waits)
    for bucket, count in two.waits.items():
        waits[bucket] = waits.get(bucket, 0) + count
    return one._replace(waits=waits, **added)
