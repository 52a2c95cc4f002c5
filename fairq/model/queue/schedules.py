"""Schedules in plain Python, as lua/features/schedules.lua has them. Part of the model of a queue (model.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from attrs import astuple, define

from fairq.model.queue.enqueue import Enqueueing
from fairq.model.queue.limits import bytes_of
from fairq.model.tasks import NewTask

LATE_MS = 60_000
Revision = tuple[Any, ...]


@define
class Schedule:
    """A schedule's revision."""

    timing: bytes
    next_at: float
    misfire: int
    paused: int = 0
    last_fired_at: float = 0


class Scheduling(Enqueueing):
    """The verbs on schedules, by `<tenant>/<name>`."""

    def __init__(self) -> None:
        super().__init__()
        self.schedules: dict[str, Schedule] = {}
        self.templates: dict[str, NewTask] = {}
        self.template_sizes: dict[str, int] = {}  # packed

    def revision(self, field: str) -> Revision | None:
        """Read a schedule's revision, the token of a later change."""
        return astuple(self.schedules[field]) if field in self.schedules else None

    def due_at(self, field: str) -> float:
        """Return when servers look at a schedule next, to fire it."""
        at = self.made_due.get(("fires", field), math.inf)
        return math.inf if self.schedules[field].paused else min(self.schedules[field].next_at, at)

    def hours_at(self, name: str) -> float:
        """Return when servers look at opening hours next, since they change."""
        return min(self.hours[name][2], self.made_due.get(("hours", name), math.inf))

    def schedule(
        self, now: float, field: str, next_at: float, misfire: int, timing: bytes, template: NewTask, size: int
    ) -> tuple[str, float]:
        """Create or change a schedule."""
        now, known = self.open(now), self.schedules.get(field)
        if known and (known.misfire, known.timing, self.templates[field]) == (misfire, timing, template):
            return "same", known.next_at
        tenant = field.partition("/")[0]
        grows = size - self.template_sizes[field] if known else bytes_of(field, size)
        if self.is_one_too_many(tenant):
            return "FAIRQ quota_exceeded max_tenants", 0
        if self.keeps_too_much(tenant, grows):
            return "FAIRQ quota_exceeded stored_bytes", 0
        self.template_sizes[field] = size
        self.touch(tenant).bytes += grows
        s = self.schedules.setdefault(field, Schedule(timing, next_at, misfire))
        if s.timing != timing:
            s.timing, s.next_at = timing, next_at
        s.misfire, self.templates[field] = misfire, template
        self.made_due.pop(("fires", field), None)
        self.close(now)
        return "changed" if known else "created", s.next_at

    def unschedule(self, now: float, field: str) -> str:
        """Delete a schedule."""
        now = self.open(now)
        if field not in self.schedules:
            return "gone"
        self.touch(field.partition("/")[0]).bytes -= bytes_of(field, self.template_sizes.pop(field))
        del self.schedules[field], self.templates[field]
        self.made_due.pop(("fires", field), None)
        self.close(now)
        return "ok"

    def pause_schedule(self, now: float, field: str, revision: Revision | None, next_at: float | None) -> str:
        """Pause a schedule (None), or resume it."""
        now, s = self.open(now), self.schedules.get(field)
        if s is None or self.revision(field) != revision:
            return "stale"
        self.made_due.pop(("fires", field), None)
        s.paused, s.next_at = int(next_at is None), s.next_at if next_at is None else next_at
        self.close(now)
        return "ok"

    def fire(self, now: float, fires: Sequence[tuple[str, Revision | None, float]]) -> list[str]:
        """Enqueue the tasks of due schedules."""
        now = self.open(now)
        outcomes = [self.fire_one(now, *each) for each in fires]
        if set(outcomes) != {"gone"}:
            self.close(now)
        return outcomes

    def fire_one(self, now: float, field: str, revision: Revision | None, next_at: float) -> str:
        """Enqueue the task of one schedule, if its revision is still the current one."""
        s = self.schedules.get(field)
        if s is None or self.revision(field) != revision or self.due_at(field) > now:
            return "gone"
        if s.next_at > now:
            self.made_due.pop(("fires", field))
            s.next_at = min(s.next_at, next_at)
            return "moved"
        if next_at <= s.next_at:
            return "gone"
        self.made_due.pop(("fires", field), None)
        due_at, outcome = s.next_at, "misfire"
        if s.misfire or now - due_at <= LATE_MS:
            task = self.templates[field]._replace(id=f"{field}-{due_at:.0f}", start_at_ms=int(due_at))
            (outcome,) = self.store(now, field.partition("/")[0], [task])
            outcome = "quota_exceeded" if "quota_exceeded" in outcome else outcome
            if outcome == "ok":
                s.last_fired_at = due_at
        s.next_at = next_at
        return outcome
