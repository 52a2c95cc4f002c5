"""Fires have a rate for each tenant, over all queues; one that has used it up delays no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import trio
from attrs import evolve
from structlog.testing import capture_logs

from fairq.model.queues import Tick
from fairq.model.schedules import ScheduleState
from fairq.server.engine.timers.calendar_jobs import FIRES_BURST, FIRES_PER_S
from fairq.server.rated_log import LINES_AT_ONCE, LINES_PER_S
from fairq.store.store import Fire, Schedule

from .test_ticker import NOTHING, QuietStore, start_ticker

QUEUES = [f"q{n}" for n in range(8)]
SECONDS = 5


class Schedules(QuietStore):
    """A store: in each queue 100 schedules of ada's fire every second, and in one of them one of bob's."""

    def __init__(self) -> None:
        super().__init__(*QUEUES)
        self.next = {(queue, f"ada/s{n}"): 0 for queue in QUEUES for n in range(100)} | {("q7", "bob/s"): 500}
        self.fired = Counter[str]()
        self.late_ms = 0

    def _due(self, queue: str) -> list[str]:
        return [field for (of, field), at in self.next.items() if of == queue and at <= self._now_ms()]

    def _now_ms(self) -> int:
        return round(trio.current_time() * 1000)

    async def find(self, queue: str) -> Tick:
        """Count what is due."""
        next_ms = min(at for (of, _), at in self.next.items() if of == queue)
        return evolve(NOTHING, now_ms=self._now_ms(), next_due_ms=next_ms, fires=len(self._due(queue)))

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


async def test_a_tenants_fires_over_all_queues_have_a_rate_and_make_no_other_late(
    autojump_clock: object, nursery: trio.Nursery
) -> None:
    store = Schedules()
    began = trio.current_time()
    store.next = {key: at + round(began * 1000) for key, at in store.next.items()}
    with capture_logs() as lines:
        start_ticker(nursery, store)
        await trio.sleep(SECONDS)
    assert sum(line["event"] == "fired" for line in lines) <= LINES_AT_ONCE + LINES_PER_S * SECONDS
    most = FIRES_BURST + FIRES_PER_S * SECONDS
    assert 0.8 * most <= store.fired["ada"] <= most
    assert store.fired["bob"] == SECONDS
    assert store.late_ms <= 100
    assert len(store.ticked) < 10 * len(QUEUES) * SECONDS
