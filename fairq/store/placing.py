"""Places the lines of a backup anew: after its restore a queue has another number of partitions.

Each line of a tenant goes to the tenant's new place. What each place has once is joined: settings, and limits and the
like for all tenants, are those of the first place, as callers see them; counts and histories are added up.

Three things mean something in their own place only:

- A *tag* is a tenant's number. The tenants of the whole queue are numbered anew, in the order of their places and tags.
- A *lease number* stays, since workers hold it. It opens a lease only together with its task's id, and the new places
  begin after the greatest number of all. So none opens the lease of another task, and none is given again.
- *Time and virtual time* count from the place's origin and level. All new places have those of one old place, or the
  earliest, and each account and lease is moved by the difference.

The new places are written as under repair, so the time from the backup to the repair counts as no tenant's service.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field

from fairq.errors import BadRequest
from fairq.model.checks import check_int
from fairq.model.history import OTHERS
from fairq.model.places import queue_of
from fairq.model.refusals import partitions_without_reserve
from fairq.store.backup_kinds import KINDS, Line
from fairq.store.backup_lines import FORMATS
from fairq.store.partitions import MAX_PARTITIONS, Places, place_in, places_of, siblings

_ADDED = (  # counts of a queue, ever; those of its tasks now are counted by the repair
    "enqueued", "done", "buried", "expired", "cancelled", "delivered", "entitled",
)  # fmt: skip
_MEANS = ("estimate", "estimate_sq")
_LATEST = ("now", "last_lease", "kept_until", "epoch", "sweeping", "slots")
_IS_PAUSED, _IS_IN_REPAIR = 1, 16  # of `blocked`; the repair derives the others
_COMPETES = 2  # of an account's `standing`
_LEASED = (0, 3)  # states of a run
_AT_TAG, _AT_OLD = 6, 38  # in an entry: the bits of the tenant's new place, its tag, its old place
_MOST = (1 << 32) - 1


def check_partitions(asked: Mapping[str, int]) -> Mapping[str, int]:
    """Check numbers of partitions by queue. Raises: BadRequest."""
    for count in asked.values():
        check_int(count, "partitions", 1, MAX_PARTITIONS)
    return asked


def added(one: Line, two: Line) -> Line:
    """Add two lines of one interval of a history; rows of one tenant are added."""
    rows = {row["name"]: row for row in one["rows"]}
    for row in two["rows"]:
        known = rows.get(row["name"])
        rows[row["name"]] = _sum("SLOT_ROW", known, row) if known else row
    return _sum("SLOT", one, two) | {"rows": list(rows.values())}


def _sum(record: str, one: Line, two: Line) -> Line:
    numbers = {each.name: each.type for each in FORMATS[record].fields if each.type in "Id" and each.name != "number"}
    found = {name: one.get(name, 0) + two.get(name, 0) for name in numbers}
    found |= {name: min(found[name], _MOST) for name, type_ in numbers.items() if type_ == "I"}
    if record == "SLOT_ROW":
        waits = dict[int, int](one.get("waits", ()))
        for bucket, count in two.get("waits", ()):
            waits[bucket] = min(waits.get(bucket, 0) + count, _MOST)
        found["waits"] = [list(pair) for pair in sorted(waits.items())]
    return two | found


@define(eq=False)
class Layout:
    """The new places of a queue. It has seen all lines (`learn`, then `end`) before it places them."""

    places: Places
    is_known: bool = field(default=False, init=False)  # the backup has the queue
    _states: dict[str, Line] = field(factory=dict, init=False)  # by the old places
    _tenants: array[int] = field(factory=lambda: array("Q"), init=False)  # an entry for each, see _entry; sorted
    _joined: Line | None = field(default=None, init=False)  # the state of the new places

    def learn(self, line: Line) -> None:
        """See a line that was checked."""
        match line["kind"]:
            case "queue":
                self.is_known = True
            case "state":
                self._states[line["queue"]] = line
            case "tenant":
                new = self.places.index(place_in(self.places, line["account"]["name"]))
                self._tenants.append(_entry(line["queue"], line["tag"]) | new)

    def end(self) -> None:
        """Number the tenants. Raises: BadRequest for a queue with a reserve."""
        self._tenants = array("Q", sorted(set(self._tenants)))
        old = next(iter(self._states), "")
        states = [self._states[place] for place in siblings(old) if place in self._states] if old else []
        if states:
            own = {name: value for name, value in states[0].get("settings", {}).items() if name != "partitions"}
            if len(self.places) > 1 and own.get("reserve"):
                raise partitions_without_reserve("partitions")
            settings = own | ({"partitions": count} if (count := len(self.places)) > 1 else {})
            self._joined = _joined(states) | {"numbers": len(self._tenants), "settings": settings}

    def placed(self, line: Line) -> Iterator[Line]:
        """Write a line for the new places, or for none of them."""
        kind, place = line["kind"], line["queue"]
        if kind == "queue":
            yield line
            if len(self.places) > 1:
                yield {"kind": "partitions", "queue": place, "count": len(self.places)}
        elif kind == "partitions":
            return
        elif kind == "slot":
            yield from self._parts_of_slot(line)
        elif kind == "kept":
            yield line | self._home(place, line["tag"])
        elif tenant := KINDS[kind].tenant(line)[1]:
            yield self._moved(line) | {"queue": place_in(self.places, tenant)}
        elif place == self._first:
            for n, each in enumerate(self.places):
                yield (self._state(n) if kind == "state" else line) | {"queue": each}

    @property
    def _first(self) -> str:
        """The first of the old places; all of them agree but for changes that broke off."""
        assert self._joined
        return str(self._joined["queue"])

    def _state(self, n: int) -> Line:
        assert self._joined
        return self._joined if n == 0 else self._joined | dict.fromkeys(_ADDED, 0)  # so their sums are right

    def _home(self, old: str, tag: int) -> Line:
        """Return the new place of a tenant, and its tag there, by those that it had."""
        at = bisect_left(self._tenants, _entry(old, tag))
        return {"queue": self.places[self._tenants[at] % (1 << _AT_TAG)], "tag": at + 1}

    def _moved(self, line: Line) -> Line:
        """Return a tenant or a task with its tag, its times and its virtual time as they are in the new places."""
        place, run = line["queue"], line.get("run")
        if line["kind"] == "tenant":
            tag = self._home(place, line["tag"])["tag"]
            account = self._moved_account(self._states[place], line["account"])
            return line | {"tag": tag, "account": account, "details": line["details"] | {"tag": tag}}
        if line["kind"] == "task" and run:
            moved = {"tag": self._home(place, run.get("tag", 0))["tag"]}
            if run.get("state", 0) in _LEASED:
                moved["began_at"] = run.get("began_at", 0) + self._later(self._states[place])
            return line | {"run": run | moved}
        return line

    def _later(self, state: Line) -> float:
        """Return by how much a place's time began after that of the new places."""
        assert self._joined
        later: float = state.get("origin", 0) - self._joined.get("origin", 0)
        return later

    def _moved_account(self, state: Line, account: Line) -> Line:
        """Move an account; one whose unit of service was changed since, or is another one now, begins anew."""
        assert self._joined
        books, epoch, level = account["books"], state.get("epoch", 0), state.get("level", 0)
        if (epoch and books.get("epoch", 0) != epoch) or _share(state) != _share(self._joined):
            account = account | {"base": level, "estimate": 0, "standing": 0}
            books = books | {"delivered": 0, "entitled": 0}
        elif account.get("standing", 0) == _COMPETES:
            entitled = books.get("entitled", 0) + account["weight"] * state.get("clock", 0)
            account, books = account | {"standing": 0}, books | {"entitled": entitled}
        base = account.get("base", 0) + self._joined.get("level", 0) - level
        seen_at = books.get("seen_at", 0) + self._later(state)
        return account | {"base": base, "books": books | {"epoch": self._joined["epoch"], "seen_at": seen_at}}

    def _parts_of_slot(self, line: Line) -> Iterator[Line]:
        """Write the rows of an interval where their tenants live; the first place has all that is of no tenant."""
        totals = {each.name: 0 for each in FORMATS["SLOT"].fields if each.type == "I"}
        for n, place in enumerate(self.places):
            rows = [row for row in line["rows"] if self._home_of_row(row) == place]
            if rows or n == 0:
                yield line | (totals if n else {}) | {"queue": place, "rows": rows}

    def _home_of_row(self, row: Line) -> str:
        name = row.get("name", OTHERS)
        return place_in(self.places, name) if name != OTHERS else self.places[0]


def _entry(old: str, tag: int) -> int:
    """Return a tenant's entry, without its new place: 44 bits."""
    return siblings(old).index(old) << _AT_OLD | tag << _AT_TAG


def _share(state: Line) -> Any:
    return state.get("settings", {}).get("share", 0)


def _joined(states: Sequence[Line]) -> Line:
    """Join the states of a queue's places, the first one with its settings."""
    first = states[0]
    found = {name: max(each.get(name, 0) for each in states) for name in _LATEST}
    found |= {name: sum(each.get(name, 0) for each in states if _share(each) == _share(first)) for name in _ADDED}
    origin = min(each.get("origin", 0) for each in states)
    epochs = [each.get("epoch_at", 0) + each.get("origin", 0) - origin for each in states if each.get("epoch", 0)]
    known = [each for each in states if each.get("estimate", 0)]
    means = {name: sum(each.get(name, 0) for each in known) / max(len(known), 1) for name in _MEANS}
    is_paused = any(each.get("blocked", 0) & _IS_PAUSED for each in states)
    return first | found | means | {
        "origin": origin, "epoch_at": max(epochs, default=0), "hungry": 0, "classes": "",
        "blocked": is_paused * _IS_PAUSED + _IS_IN_REPAIR,
    }  # fmt: skip


@define(eq=False)
class Placing:
    """The queues of a backup that get another number of partitions."""

    layouts: Mapping[str, Layout] = field(factory=dict)

    @classmethod
    def of(cls, partitions: Mapping[str, int]) -> Placing:
        """Place these queues. Raises: BadRequest."""
        return cls({queue: Layout(places_of(queue, count)) for queue, count in check_partitions(partitions).items()})

    def learn(self, line: Line) -> None:
        """See a line that was checked."""
        if self.layouts and (layout := self.layouts.get(queue_of(line.get("queue", "")))):
            layout.learn(line)

    def end(self) -> None:
        """Prepare to place lines. Raises: BadRequest if a queue is not in the backup, or has a reserve."""
        for queue, layout in self.layouts.items():
            if not layout.is_known:
                raise BadRequest(f"partitions: the backup has no queue {queue:.80}", field="partitions")
            layout.end()

    def is_new(self, place: str) -> bool:
        """True if the lines of a place come from several others."""
        return queue_of(place) in self.layouts

    def placed(self, line: Line) -> Iterator[Line]:
        """Write a line for where its data is to be."""
        layout = self.layouts.get(queue_of(line.get("queue", ""))) if self.layouts else None
        if layout:
            yield from layout.placed(line)
        else:
            yield line
