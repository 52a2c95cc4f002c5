"""Limits and opening hours in plain Python, a part of the model: lua/pick/limits.lua, features/opening_hours.lua."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from fairq.model.waiting import CLOSED, RATE_LIMITED

if TYPE_CHECKING:
    from fairq.model.queue.accounts import Tenant

LIMITS = ("max_running", "guaranteed", "rate", "burst", "queued", "stored_bytes", "delayed", "dead")
UNSET, REFILL_MS = -1, 20
DEFAULTS: dict[str, float] = {
    **dict.fromkeys(LIMITS, 0),
    "queued": 10_000_000,
    "stored_bytes": 2**30,
    "delayed": 10_000_000,
}
ALL_UNSET: dict[str, float] = dict.fromkeys(LIMITS, UNSET)
ITEM_BYTES, NAMED_IN, EVENT_COST = 400, 4, 700
GROUP_BYTES, BATCH_BYTES = 600, 2000  # of a group's sorted set, and of those of a batch
RESULTS_BYTES, NAMED_BYTES = 1000, 128  # of the set of a batch's results, and of each entry
CUT, CUT_AT, ERROR_BYTES, TRACEBACK_BYTES = " [cut: stored_bytes]", 40, 2048, 8192


def bytes_of(name: str, size: int) -> int:
    """Return the bytes that a thing of that name counts for its tenant."""
    return ITEM_BYTES + NAMED_IN * len(name) + size


def bytes_of_error(text: str) -> int:
    """Return the bytes that an error or traceback counts: nothing where it was cut."""
    size = len(text.encode())
    return 0 if size <= CUT_AT + len(CUT) and text.endswith(CUT) else size


def head_of(text: str, most: int) -> str:
    """Return the first bytes of a text."""
    return text.encode()[:most].decode(errors="replace")


class Limiting:
    """Limits and opening hours."""

    touch: Callable[[str], Tenant]
    call_now: float  # of the call that is under way
    servable: int
    readied: bool

    def __init__(self) -> None:
        self.own: dict[str, dict[str, float]] = {}  # the limits set, by tenant; "": for all
        self.parked: dict[str, float] = {}
        self.hours: dict[str, tuple[str, bool, float]] = {}  # text, is open, changes at
        self.made_due: dict[tuple[str, str], float] = {}  # schedules, opening hours that servers are to look at
        self.blocked = 0
        self.sweeping = 0
        self.slots = 0  # attached to the queue, by the last claim
        self.proven_slots = 0  # the least number of slots: the claim under way asks for as many
        self.cost = 0  # of the picks of a call

    def set_for(self, name: str) -> dict[str, float]:
        """Return the limits set for a tenant, or for all."""
        return self.own.get(name) or (ALL_UNSET if name else DEFAULTS)

    def limit(self, t: Tenant, which: str) -> float:
        """Return a limit in force for a tenant; 0 means none."""
        own = self.set_for(t.name)[which]
        return self.set_for("")[which] if own == UNSET else own

    def is_eligible(self, t: Tenant) -> bool:
        """True if one more task of the tenant may be leased."""
        max_running = self.limit(t, "max_running")
        return bool(t.ready) and not t.blocked and (not max_running or t.leased < max_running)

    def is_guaranteed(self, t: Tenant) -> bool:
        """True if the tenant has fewer leases than it is guaranteed."""
        return t.leased < self.limit(t, "guaranteed")

    def owed_to(self, t: Tenant) -> int:
        """Return how many more leases the tenant is owed within its guarantee."""
        if not self.is_guaranteed(t) or not self.is_eligible(t):
            return 0
        return int(min(len(t.ready), self.limit(t, "guaranteed") - t.leased))

    def meter(self, t: Tenant) -> None:
        """Block a tenant without tokens, or let it in again."""
        rate, burst = self.limit(t, "rate"), self.limit(t, "burst")
        t.blocked &= ~RATE_LIMITED
        if not rate:
            return
        interval, burst = 1000 / rate, burst or max(1, math.floor(rate))
        t.theoretical_arrival = min(t.theoretical_arrival, self.call_now + burst * interval)
        next_at = t.theoretical_arrival - (burst - 1) * interval
        if next_at > self.call_now:
            t.blocked |= RATE_LIMITED
            refill = min(burst, max(1, math.floor(REFILL_MS / interval)))
            self.parked[t.name] = math.ceil(next_at + (refill - 1) * interval)

    def spend(self, t: Tenant, count: int) -> None:
        """Take a token, or give it back."""
        if rate := self.limit(t, "rate"):
            self.cost += count
            t.theoretical_arrival = max(t.theoretical_arrival, self.call_now) + count * 1000 / rate
            self.meter(t)

    def unpark(self, names: list[str]) -> None:
        """Let in tenants that have tokens again."""
        for name in names:
            del self.parked[name]
        for name in names:
            self.meter(self.touch(name))

    def exceeded(self, t: Tenant, new: int, delayed: int, size: float, pending: int) -> str:
        """Say which limit tasks would exceed; `pending` wait already, and `size` bytes will be kept."""
        waiting = len(t.ready) + pending + len(t.delayed)
        excess = {"queued": waiting + new, "stored_bytes": size, "delayed": (len(t.delayed) + delayed) * (delayed > 0)}
        return next((name for name, value in excess.items() if 0 < self.limit(t, name) < value), "")

    def change_limits(self, name: str, values: dict[str, float]) -> dict[str, float]:
        """Set limits; returns the previous ones."""
        previous = self.set_for(name)
        unset = ALL_UNSET if name else DEFAULTS
        after = {**previous, **{limit: unset[limit] if value < 0 else value for limit, value in values.items()}}
        if after == unset:
            self.own.pop(name, None)
        else:
            self.own[name] = after
        if name:
            self.meter(self.touch(name))
        else:
            self.sweeping = max(self.sweeping, 2)
        return previous

    def note_opening_hours(self, name: str, text: str, is_open: bool, changes_at: float) -> str:
        """Open or close; returns the previous text."""
        previous = self.hours.pop(name, ("", True, 0))[0]
        self.made_due.pop(("hours", name), None)
        if text:
            self.hours[name] = text, is_open, changes_at
        thing = self.touch(name) if name else self
        thing.blocked = thing.blocked & ~CLOSED if is_open or not text else thing.blocked | CLOSED
        has_work = bool(self.touch(name).ready) if name else self.servable > 0
        self.readied = not thing.blocked and has_work
        return previous
