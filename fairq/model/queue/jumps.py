"""Corrects the times that were computed while the clock was far ahead: lua/verbs/jumps.lua."""

from __future__ import annotations

import math

from fairq.model.queue.schedules import Scheduling
from fairq.model.queue.tasks import Run, Task

STEPS = 4


class Jumping(Scheduling):
    """The steps of ticks after the time has gone back, one each."""

    def mend(self, now: float) -> None:
        """Do the next step."""
        if self.mending == 1:
            times = {("fires", field): self.due_at(field) for field in self.schedules}
        elif self.mending == 2:
            times = {("hours", name): self.hours_at(name) for name in self.hours}
        else:
            times = {}
        if self.mending == 3:
            for id, task in self.records.items():
                self.mend_task(id, task, now)
        if self.mending == 4:
            for id in [id for id, at in self.deaths.items() if at > now]:
                self.deaths[id] = self.dead[id].died_at = now
        self.made_due |= {each: now for each, at in times.items() if now < at < math.inf}
        self.mending = (self.mending + 1) % (STEPS + 1)
        if self.mending:
            self.sweeping = self.sweeping or 2

    def mend_task(self, id: str, task: Task, now: float) -> None:
        """Count from now the spans that were counted from a time in the future."""

        def recount(at: float, since: float) -> float:
            return now + at - since if now < since < at else at

        run, t = self.runs.get(id), task.tenant
        start_from, end_from = task.start_from * 1000, task.end_from * 1000
        if id not in self.dead and id not in self.leases and self.ready_since(id) > now:
            at = now
            if is_delayed := id in t.delayed:
                wait_from = (run.ready_at - run.wait_s * 1000 if run.wait_s else 0) if run else start_from
                at = t.delayed[id] = recount(t.delayed[id], wait_from)
                self.due[t.name] = min(self.due.get(t.name, math.inf), math.floor(at))
            if run:
                run.ready_at = math.floor(at)
            elif not is_delayed or task.created_at > now:
                self.runs[id] = Run(task.max_attempts, state="reaped", ready_at=math.floor(at))
        if task.ready_at > now:
            task.ready_at = now
        if max(start_from, end_from) <= now:
            return
        task.start_at, task.expires_at = recount(task.start_at, start_from), recount(task.expires_at, end_from)
        if id in self.expiring:
            self.expiring[id] = task.expires_at
        task.start_from, task.end_from = (min(each, int(now // 1000)) for each in (task.start_from, task.end_from))
