"""The metrics page in Prometheus' text format: the store's numbers for all queues, and this server's own counts.

A metric that is this server's own says "this server" in its help text: sum it. For the others all servers report the
same, and a restart of a server does not reset them. At most MAX_QUEUES queues are reported, first those with workers at
this server; `fairq_queues` counts all. Tenants: tenant_metrics.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version

import trio
from attrs import define, field, frozen
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from fairq.model.waiting import CLOSED, PAUSED
from fairq.server.engine.app import App
from fairq.server.web.admin.health import Finding, Health
from fairq.server.web.admin.store_figures import Node, read_nodes
from fairq.server.web.admin.tenant_metrics import QUEUES as TENANT_QUEUES
from fairq.server.web.admin.tenant_metrics import Tenants, counter, gauge, read_tenants, tell_counted, tell_stored
from fairq.server.web.http.shared import Shared
from fairq.store.routes import NO_ANSWER, Away

MAX_QUEUES = 200
MAX_TENANTS = 32  # that are asked for a queue's oldest wait
KEPT_S = 1.0  # how long a page is served to all scrapers
_STATES = ("ready", "pending", "delayed", "leased", "dead")
_TOTALS = {"enqueued": "enqueued", "done": "done", "dead": "buried", "expired": "expired", "cancelled": "cancelled"}


@frozen
class Queue:
    """A queue's numbers in the store, and the longest wait of the tasks that are next, in seconds."""

    name: str
    counts: Mapping[str, float]  # of the partitions that answer; empty if none does
    oldest_s: float
    away: int = 0  # partitions that do not answer


@define(eq=False)
class Metrics:
    """Writes a server's metrics pages, each at most every KEPT_S: of all queues, and of the queues of a token."""

    app: App
    health: Health
    _pages: Shared[bytes] = field(factory=lambda: Shared(KEPT_S), init=False)
    _process: CollectorRegistry = field(factory=CollectorRegistry, init=False)

    def __attrs_post_init__(self) -> None:
        for kind in (ProcessCollector, PlatformCollector, GCCollector):
            kind(registry=self._process)

    async def page(self, only: frozenset[str] | None = None) -> bytes:
        """Return the page of these queues (None: of all) as it is, or was KEPT_S ago.

        Raises: FairqError if the store goes while it is read.
        """
        return await self._pages.get(only, partial(self._write, only))

    async def _write(self, only: frozenset[str] | None) -> bytes:
        found, store = await self.health.look(), self.app.store
        names: list[str] = []
        nodes: list[Node] = []
        if not found.troubles or len(store.connection.nodes()) > 1:  # the others may answer
            names = [name for name in await store.queues(or_last=True) if only is None or name in only]
            names.sort(key=lambda name: (not self.app.queues.dispatchers_of(name), name))
            nodes = await read_nodes(store.connection.nodes())
        queues = [await self._look(name) for name in names[:MAX_QUEUES]]  # one by one: tasks go before them
        tenants = list[Tenants]()
        for each in queues[:TENANT_QUEUES]:
            if each.counts:
                with suppress(*NO_ANSWER):  # its primary has just gone: the others are reported
                    tenants.append(await read_tenants(store, each.name))
        collected = _Collected(list(_Now(self.app, found, queues, tenants, len(names), nodes).collect()))
        text = await trio.to_thread.run_sync(generate_latest, collected)  # a long page takes some 40 ms
        return bytes(text + generate_latest(self._process))

    async def _look(self, name: str) -> Queue:
        store, away = self.app.store, Away()
        try:
            counts = await store.numbers(name, away=away)
            oldest_ms = await store.oldest_wait_ms(name, MAX_TENANTS, away=away) if counts["ready"] else None
        except NO_ANSWER:
            return Queue(name, {}, 0.0, len(store.registry.places_known(name)))
        return Queue(name, counts, (oldest_ms or 0) / 1000, len(away))


@define(eq=False)
class _Collected(Collector):
    """Metrics of one moment, as a registry has them."""

    metrics: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        """Write them again."""
        return self.metrics


@define(eq=False)
class _Now:
    """The metrics of one moment."""

    app: App
    health: Finding
    queues: Sequence[Queue]
    tenants: Sequence[Tenants]
    queue_count: int
    nodes: Sequence[Node]

    def collect(self) -> Iterator[Metric]:
        """Write the metrics."""
        yield from self._of_server()
        yield from self._of_store()
        yield from self._of_queues()
        yield from self._of_dispatch()
        yield from self._of_tenants()

    def _of_server(self) -> Iterator[Metric]:
        app = self.app
        yield InfoMetricFamily("fairq_build", "version of this server", value={"version": version("fairq")})
        yield gauge("fairq_ready", "1: this server can do its work; see /readyz", "", [(not self.health.troubles,)])
        yield gauge("fairq_ticker_lag_seconds", "how late ticks of this server are", "", [(app.ticker.lag_s,)])
        yield gauge("fairq_queues", "queues that there are", "", [(self.queue_count,)])
        roles = Counter(each.identity.role.value for each in app.connections)
        yield gauge("fairq_connections", "open connections of this server", "role", roles.items())
        attached = [each.account for each in app.connections if each.is_attached]
        credit, held = sum(each.credit for each in attached), sum(each.busy for each in attached)
        yield gauge("fairq_worker_credit", "tasks that the workers of this server may hold", "", [(credit,)])
        yield gauge("fairq_worker_leases", "tasks that the workers of this server hold", "", [(held,)])
        refused = sorted(app.refusals.counts.items())
        yield counter("fairq_refusals", "requests that this server refused", "code", refused)

    def _of_store(self) -> Iterator[Metric]:
        rtt_s, is_ahead, nodes = self.health.store_s, self.app.ticker.is_ahead, self.nodes
        yield gauge("fairq_store_rtt_seconds", "time of one write and one read by this server", "", [(rtt_s,)])
        ahead = "1: the store's clock is over a minute ahead of that of this server"
        yield gauge("fairq_store_clock_ahead", ahead, "", [(is_ahead,)])
        for name, meaning, figure in (
            ("memory_bytes", "memory of a node of the store", "memory_bytes"),
            ("memory_limit_bytes", "its maxmemory; 0: no limit", "limit_bytes"),
            ("evicts", "1: a full node drops tasks", "evicts"),
            ("durable", "1: its append-only file is written", "is_durable"),
        ):
            yield gauge(f"fairq_store_{name}", meaning, "node", ((each.name, getattr(each, figure)) for each in nodes))

    def _of_queues(self) -> Iterator[Metric]:
        queues, slots = [each for each in self.queues if each.counts], self.app.queues.count_slots
        away = ((each.name, each.away) for each in self.queues)
        yield gauge("fairq_queue_partitions_away", "partitions whose primary does not answer", "queue", away)
        states = ((each.name, state, each.counts[state]) for each in queues for state in _STATES)
        yield gauge("fairq_queue_tasks", "tasks by state", "queue state", states)
        for name, count in _TOTALS.items():
            totals = [(each.name, each.counts[count]) for each in queues if not each.away]  # counters never fall
            yield counter(f"fairq_tasks_{name}", f"tasks {name} since the queue was made", "queue", totals)
        oldest = f"longest wait of a task that is next of its tenant; of {MAX_TENANTS} tenants by chance, if more wait"
        yield gauge("fairq_oldest_ready_age_seconds", oldest, "queue", ((each.name, each.oldest_s) for each in queues))
        held = ((each.name, slots(each.name)) for each in queues)
        yield gauge("fairq_slots", "tasks that workers may hold, at all servers", "queue", held)
        offers, silent = self.app.queues.offers(), self.app.silent_workers()
        attached = ((each.name, offers[each.name].workers if each.name in offers else 0) for each in queues)
        yield gauge("fairq_workers", "workers that are attached, at all servers", "queue", attached)
        counted = ((each.name, len(silent.get(each.name, ()))) for each in queues)
        yield gauge("fairq_workers_silent", "workers from which nothing comes, at all servers", "queue", counted)
        unread = ((each.name, not each.counts) for each in self.queues)
        yield gauge("fairq_queue_unavailable", "1: a node of the store that has it cannot be reached", "queue", unread)
        for name, bit, meaning in (
            ("paused", PAUSED, "an operator paused it"),
            ("closed", CLOSED, "outside its hours"),
        ):
            held_back = ((each.name, int(each.counts["blocked"]) & bit != 0) for each in queues)
            yield gauge(f"fairq_queue_{name}", f"1: {meaning}", "queue", held_back)

    def _of_dispatch(self) -> Iterator[Metric]:
        here = ((each.name, self.app.queues.dispatchers_of(each.name)) for each in self.queues)
        waits = [(name, [each.claims.wait_times for each in dispatchers]) for name, dispatchers in here if dispatchers]
        started = ((name, sum(each.starts for each in of)) for name, of in waits)
        yield counter("fairq_tasks_dispatched", "attempts that this server began", "queue", started)
        retried = ((name, sum(each.retries for each in of)) for name, of in waits)
        yield counter("fairq_tasks_retried", "of these of this server, those not a task's first", "queue", retried)

    def _of_tenants(self) -> Iterator[Metric]:
        recorder = self.app.recorder
        dropped = "starts that this server counted, and that the history has not: the store was away or full"
        yield counter("fairq_history_dropped", dropped, "", [(recorder.dropped,)])
        yield from tell_stored(self.tenants)
        tallies = recorder.tallies.queues
        yield from tell_counted({each.queue: tallies[each.queue] for each in self.tenants if each.queue in tallies})
