"""What /metrics tells, in Prometheus' text format: of all queues what the store has, of this server what it sees.

Counts of tasks are the store's, so every server tells the same ones, and they do not begin anew when a server does.
At most MAX_QUEUES queues are told, first those that workers of this server take tasks of; `fairq_queues` counts all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import trio
from attrs import define, field
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from fairq.model.queues import QueueState
from fairq.server.admin.health import Finding, Health
from fairq.server.app import App

MAX_QUEUES = 200
KEPT_S = 1.0  # how long a page is told to all who ask
_STATES = ("ready", "pending", "delayed", "leased", "dead")
_TOTALS = ("enqueued", "done", "expired", "cancelled")


@define(eq=False)
class Metrics:
    """Writes the page of one server, at most every KEPT_S."""

    app: App
    health: Health
    _page: bytes = field(default=b"", init=False)
    _written_at: float = field(default=float("-inf"), init=False)
    _writing: trio.Lock = field(factory=trio.Lock, init=False)
    _process: CollectorRegistry = field(factory=CollectorRegistry, init=False)

    def __attrs_post_init__(self) -> None:
        for kind in (ProcessCollector, PlatformCollector, GCCollector):
            kind(registry=self._process)

    async def page(self) -> bytes:
        """Return the page as it is, or was KEPT_S ago. Raises: FairqError if the store goes while it is read."""
        async with self._writing:
            if trio.current_time() - self._written_at > KEPT_S:
                self._page = await self._write()
                self._written_at = trio.current_time()
            return self._page

    async def _write(self) -> bytes:
        found, store = await self.health.look(), self.app.store
        names: list[str] = []
        if not found.troubles:
            names = sorted(await store.queues(), key=lambda name: (name not in self.app.dispatchers, name))
        registry = CollectorRegistry()
        registry.register(_Now(self.app, found, [await store.queue(name) for name in names[:MAX_QUEUES]], len(names)))
        return bytes(generate_latest(registry) + generate_latest(self._process))


@define(eq=False)
class _Now:
    """The metrics of one moment."""

    app: App
    health: Finding
    states: Sequence[QueueState]
    queues: int

    def collect(self) -> Iterator[Metric]:
        """Tell the metrics."""
        app = self.app
        yield _gauge("fairq_ready", "1: the server can do its work; see /readyz", not self.health.troubles)
        yield _gauge("fairq_store_rtt_seconds", "time of one write and one read of the store", self.health.store_s)
        yield _gauge("fairq_ticker_lag_seconds", "how late the oldest due tick is", app.ticker.lag_s)
        yield _gauge("fairq_queues", "queues that there are", self.queues)
        connections = GaugeMetricFamily("fairq_connections", "open websockets of this server", labels=["role"])
        for role, count in Counter(each.identity.role.value for each in app.connections).items():
            connections.add_metric([role], count)
        yield connections
        yield from self._of_queues()

    def _of_queues(self) -> Iterable[Metric]:
        tasks = GaugeMetricFamily("fairq_queue_tasks", "tasks by state", labels=["queue", "state"])
        totals = {
            name: CounterMetricFamily(f"fairq_tasks_{name}", f"tasks {name} since the queue was made", labels=["queue"])
            for name in _TOTALS
        }
        slots = GaugeMetricFamily("fairq_slots", "tasks that workers may hold, at all servers", labels=["queue"])
        workers = GaugeMetricFamily("fairq_workers", "workers attached to this server", labels=["queue"])
        paused = GaugeMetricFamily("fairq_queue_paused", "1: an operator has paused it", labels=["queue"])
        for state in self.states:
            for name in _STATES:
                tasks.add_metric([state.queue, name], getattr(state, name))
            for name, total in totals.items():
                total.add_metric([state.queue], getattr(state, name))
            slots.add_metric([state.queue], self.app.count_slots(state.queue))
            workers.add_metric([state.queue], self.app.count_workers(state.queue))
            paused.add_metric([state.queue], state.is_paused)
        return [tasks, *totals.values(), slots, workers, paused]


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, value=float(value))
