"""A walk of the state machine through queues that are emptied now and then, and forgotten if nothing is left."""

from __future__ import annotations

import random
from collections.abc import Callable

from fairq.model.queue.batches import BATCH_KEEP_MS
from fairq.model.queue.limits import LIMITS, UNSET
from fairq.model.queue.model import Model

from .expected_history import ExpectedHistory
from .machine import NAMES, QueueMachine, Walk


class IdleWalk(Walk):
    """Steps of the usual walk; then all is taken out of the queue, or all but a little."""

    def __init__(self, machine: QueueMachine, seed: int) -> None:
        super().__init__(machine, seed)
        self.emptier = random.Random(seed)

    def step(self) -> None:
        """Take a usual step, or empty the queue."""
        if self.emptier.random() < 0.97:
            return super().step()
        parts: list[Callable[[], None]] = [
            self.end_settings, self.end_hours, self.end_schedules, self.end_batches, self.end_pauses, self.end_limits,
            self.end_tasks, self.end_dead,
        ]  # fmt: skip
        left = self.emptier.choice([None, None, *parts])
        for part in parts:
            if part != left:
                part()
        if self.keeper.random() < 0.5:
            self.end_webhooks()
        if left == self.end_pauses:
            self.pause_queue()
        self.pass_time(2 * BATCH_KEEP_MS)
        self.expire_keys()
        self.machine.forget_tenants()
        for name in NAMES:
            self.machine.drop_tenant(tenant=name)
        self.machine.forget_queue(for_ms=self.emptier.choice([0, 50, 60_000]))
        self.machine.advance(ms=self.emptier.choice([50, 60_000]))
        self.machine.forget_queue(for_ms=60_000)
        self.compare()

    def pass_time(self, ms: int) -> None:
        """Let time pass, and ticks do all that is due."""
        self.machine.tick(ms=ms, limit=100)
        for _ in range(20):
            self.machine.tick(ms=0, limit=100)

    def expire_keys(self) -> None:
        """Delete what is kept for a time, as the store does by its own clock."""
        client = self.machine.client
        for key in sorted(client.scan_iter()):
            if client.pttl(key) > 0:
                client.delete(key)
        self.machine.history = ExpectedHistory()

    def end_settings(self) -> None:
        settings = Model().settings
        self.machine.call("configure", *(part for pair in settings.items() for part in pair))
        self.machine.model.configure(self.machine.now, **settings)

    def end_hours(self) -> None:
        """Open the queue and its tenants for ever."""
        for name in ["", *NAMES]:
            self.machine.set_opening_hours(name=name, text="", is_open=True, after=70_000)

    def end_schedules(self) -> None:
        for field in list(self.machine.model.schedules):
            self.machine.change_schedule(verb="unschedule", field=field, after=50)

    def end_webhooks(self) -> None:
        for id in list(self.machine.webhooks):
            self.machine.change_webhook(verb="remove", id=id, name="", on=0)

    def end_batches(self) -> None:
        for name in list(self.machine.model.batches):
            self.machine.end_batch(verb="cancel_batch", name=name)

    def end_pauses(self) -> None:
        """Resume the queue and its tenants."""
        for name in NAMES:
            self.machine.operate(verb="resume", tenant=name, weight=1)

    def pause_queue(self) -> None:
        m = self.machine
        for name, is_paused in (*((name, 0) for name in NAMES), ("", 1)):
            m.same(m.call("set_paused", name, is_paused), m.model.set_paused(m.now, name, is_paused))

    def end_limits(self) -> None:
        m, values = self.machine, dict.fromkeys(LIMITS, float(UNSET))
        for name in NAMES:
            m.same(m.queue_at_now().set_limits(name, **values), m.model.set_limits(m.now, name, values))
        common = {name: float(UNSET) for name in LIMITS if name != "guaranteed"}
        m.same(m.queue_at_now().set_limits("", **common), m.model.set_limits(m.now, "", common))

    def end_tasks(self) -> None:
        """Let leases run out, and cancel what waits."""
        for _ in range(2):
            for name in NAMES:
                self.machine.purge_waiting(tenant=name, leased=0)
            self.pass_time(100_000)

    def end_dead(self) -> None:
        """Delete all dead letters."""
        if dead := list(self.machine.model.dead):
            self.machine.replay_or_purge(verb="purge", ids=dead)
