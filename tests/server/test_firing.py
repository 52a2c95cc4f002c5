"""Fires have a rate for each tenant, over all queues; one that has used it up delays no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import trio
from structlog.testing import capture_logs

from fairq.model.queues import Tick
from fairq.model.schedules import ScheduleState
from fairq.server.engine.timers.calendar_jobs import FIRES_BURST, FIRES_PER_S
from fairq.server.engine.timers.ticker import Ticker
from fairq.server.rated_log import LINES_AT_ONCE, LINES_PER_S
from fairq.store.store import Fire, Schedule

QUEUES = [f"q{n}" for n in range(8)]
SECONDS = 5


class Schedules:
    """A store: in each queue 100 schedules of ada's fire every second, and in one of them one of bob's."""

    def __init__(self) -> None:
        self.next = {(queue, f"ada/s{n}"): 0 for queue in QUEUES for n in range(100)} | {("q7", "bob/s"): 500}
        self.fired = Counter[str]()
        self.late_ms = 0
        self.calls = 0

    @property
    def registry(self) -> SimpleNamespace:
        """The list of queues, which are their places."""
        return SimpleNamespace(all_places=self.queues, places_known=lambda queue: [queue])

    @property
    def connection(self) -> SimpleNamespace:
        """One primary has them all."""
        return SimpleNamespace(owner=lambda prefix: None)

    async def queues(self) -> list[str]:
        return QUEUES

    def _due(self, queue: str) -> list[str]:
        return [field for (of, field), at in self.next.items() if of == queue and at <= self._now_ms()]

    def _now_ms(self) -> int:
        return round(trio.current_time() * 1000)

    async def tick(self, queue: str, server: str) -> Tick:
        """Count what is due."""
        self.calls += 1
        next_ms = int(min(at for (of, _), at in self.next.items() if of == queue))
        return Tick(self._now_ms(), next_ms, 0, 0, 0, 0, 0, fires=len(self._due(queue)))

    async def due_schedules(self, queue: str, passed: Iterable[str]) -> tuple[int, int, list[Schedule]]:
        due, taken = [], Counter[str](dict.fromkeys(passed, 25))
        for field in self._due(queue):
            tenant, name = field.split("/")
            taken[tenant] += 1
            if taken[tenant] <= 25:
                state = ScheduleState(tenant, name, every_ms=1000, next_at_ms=self.next[queue, field])
                due.append(Schedule(b"", state))
        later = [at for (of, _), at in self.next.items() if of == queue and at > self._now_ms()]
        return self._now_ms(), min(later, default=-1), due

    async def fire(self, queue: str, fires: Sequence[Fire]) -> list[str]:
        for schedule, next_at_ms in fires:
            tenant = schedule.state.tenant
            if tenant == "bob":
                self.late_ms = max(self.late_ms, self._now_ms() - schedule.state.next_at_ms)
            self.fired[tenant] += 1
            self.next[queue, schedule.field] = next_at_ms
        return ["ok"] * len(fires)


async def test_a_tenants_fires_over_all_queues_have_a_rate_and_make_no_other_late(autojump_clock: object) -> None:
    store = Schedules()
    began = trio.current_time()
    store.next = {key: at + round(began * 1000) for key, at in store.next.items()}
    with capture_logs() as lines, trio.move_on_after(SECONDS):
        await Ticker(store, lambda _: None).run()  # type: ignore[arg-type]
    assert sum(line["event"] == "fired" for line in lines) <= LINES_AT_ONCE + LINES_PER_S * SECONDS
    most = FIRES_BURST + FIRES_PER_S * SECONDS
    assert 0.8 * most <= store.fired["ada"] <= most
    assert store.fired["bob"] == SECONDS
    assert store.late_ms <= 100
    assert store.calls < 10 * len(QUEUES) * SECONDS
