"""What a clock that was far ahead has left, once it is set right: lua/verbs/jumps.lua."""

from __future__ import annotations

import math

from fairq.model.queue.schedules import Scheduling
from fairq.model.queue.tasks import Task

STEPS = 3


class Jumping(Scheduling):
    """What ticks do after the time has gone back, a step each."""

    def mend(self, now: float) -> None:
        """Do the next step."""
        if self.mending == 1:
            times = {("fires", field): self.due_at(field) for field in self.schedules}
        elif self.mending == 2:
            times = {("hours", name): self.hours_at(name) for name in self.hours}
        else:
            times = {}
            for id, task in self.records.items():
                self.mend_task(id, task, now)
        self.made_due |= {each: now for each, at in times.items() if now < at < math.inf}
        self.mending = (self.mending + 1) % (STEPS + 1)
        if self.mending:
            self.sweeping = self.sweeping or 2

    def mend_task(self, id: str, task: Task, now: float) -> None:
        """Count from now the spans that were counted from a time that is still to come."""

        def recount(at: float, since: float) -> float:
            return now + at - since if now < since < at else at

        run, t = self.runs.get(id), task.tenant
        waits_from = run.waits_from if run and id not in self.leases else 0
        start_from, end_from = task.start_from * 1000, task.end_from * 1000
        if max(start_from, end_from, waits_from) <= now:
            return
        if id in t.delayed:
            score = t.delayed[id]
            t.delayed[id] = recount(score, start_from if math.floor(score) == task.start_at else waits_from)
            self.due[t.name] = min(self.due.get(t.name, math.inf), math.floor(t.delayed[id]))
        task.start_at, task.expires_at = recount(task.start_at, start_from), recount(task.expires_at, end_from)
        if id in self.expiring:
            self.expiring[id] = task.expires_at
        if run and id not in self.leases:
            run.waits_from = min(run.waits_from, now)
        task.start_from, task.end_from = (min(each, int(now // 1000)) for each in (task.start_from, task.end_from))
