"""The metrics of tenants: for few queues, and in each those with the most traffic; all others as OTHER.

Counters are those of this server alone, since it started (fairq/server/engine/stats/tallies.py): sum their rates.
Gauges are worked out from the store, by any server alike. So which tenants have counters and which have gauges may
differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from fairq.model.fairness import Service, added, jain_index, noisy_ones, split_service
from fairq.model.history import OTHERS, STEPS, middle_of
from fairq.model.tenants import TenantState
from fairq.server.engine.stats.tallies import QueueTally
from fairq.store.overview import some_tenants
from fairq.store.routes import Away
from fairq.store.store import Store

QUEUES, TENANTS = 50, 20  # queues with tenants in the metrics; tenants of each
OTHER = "(other)"  # no tenant has that name
_COMPARED = 100  # tenants of a queue that are compared by their backlogs
_SLOTS = 6  # of a minute each: the last five, and the one that is not over
_LEAST_SHARE = 0.01  # of all dues: less says little of how alike all are served
_EDGES = range(2, 45, 2)  # buckets of the history that end at 2, 4, 8 ms, ... up to 70 minutes
_PER_SERVER = "of this server since it started: sum the rates"
_COUNTERS = {"enqueued": "tasks enqueued", "started": "attempts begun", "failed": "attempts that failed"}


@frozen
class Tenants:
    """The tenants of a queue: states, and their contested service by due in the last minutes."""

    queue: str
    states: Sequence[TenantState]
    noisy: set[str]
    ratios: Mapping[str, float]
    jain: float


async def read_tenants(store: Store, queue: str) -> Tenants:
    """Read the metrics of a queue's tenants, at a cost that does not grow with their number.

    Those whose partition does not answer are left out.
    """
    found, away = defaultdict[str, list[Service]](list), Away()
    for slot in (await store.history(queue, STEPS["24h"][0], -1, _SLOTS, away=away)).slots:
        for name, service in split_service({row.tenant: (row.delivered, row.entitled) for row in slot.rows}).items():
            found[name].append(service)
    given = {name: added(of) for name, of in found.items() if name != OTHERS}
    served = sorted(given, key=lambda name: (-given[name].delivered - given[name].due, name))[:TENANTS]
    _, some = await some_tenants(store, queue, _COMPARED, away)
    asked = list(dict.fromkeys([*served, *some]))[:_COMPARED]
    states = {each.tenant: each for each in await store.tenants(queue, asked, away=away)} if asked else {}
    waiting = sorted(states, key=lambda name: (-states[name].ready, name))
    names = [name for name in dict.fromkeys([*served, *waiting]) if name in states][:TENANTS]
    ratios = {name: given[name].contested / given[name].due for name in names if name in given and given[name].due > 0}
    least = _LEAST_SHARE * sum(given[name].due for name in ratios)
    jain = jain_index(ratio for name, ratio in ratios.items() if given[name].due >= least)
    return Tenants(queue, [states[name] for name in names], noisy_ones(list(states.values())), ratios, jain)


def gauge(name: str, meaning: str, labels: str, rows: Iterable[tuple[Any, ...]]) -> Metric:
    """Write a gauge; a row has the values of its labels, and its own."""
    return _filled(GaugeMetricFamily(name, meaning, labels=labels.split()), rows)


def counter(name: str, meaning: str, labels: str, rows: Iterable[tuple[Any, ...]]) -> Metric:
    """Write a counter, in the same way."""
    return _filled(CounterMetricFamily(name, meaning, labels=labels.split()), rows)


def _filled(family: Any, rows: Iterable[tuple[Any, ...]]) -> Metric:
    for *values, value in rows:
        family.add_metric(values, float(value))
    filled: Metric = family
    return filled


def tell_stored(all_tenants: Sequence[Tenants]) -> Iterator[Metric]:
    """Write what the store knows about tenants."""
    minutes, states = "in the last five minutes", [(each, state) for each in all_tenants for state in each.states]
    for name, meaning, value in (
        ("share_ratio", f"what it got {minutes} while tenants waited, by what it was due then",
         lambda each, state: each.ratios.get(state.tenant)),
        ("weight", "its weight", lambda _, state: state.weight),
        ("ready", "its tasks that are ready and wait", lambda _, state: state.ready),
        ("noisy", "1: a backlog of over twice what its weight is worth of all tenants' tasks",
         lambda each, state: state.tenant in each.noisy),
    ):  # fmt: skip
        rows = ((each.queue, state.tenant, value(each, state)) for each, state in states)
        meaning = f"{meaning}; all servers report the same"
        yield gauge(f"fairq_tenant_{name}", meaning, "queue tenant", (row for row in rows if row[2] is not None))
    jain = f"how alike tenants' share ratios were {minutes}; 1: all alike"
    yield gauge("fairq_jain_index", jain, "queue", ((each.queue, each.jain) for each in all_tenants))


def tell_counted(tallies: Mapping[str, QueueTally]) -> Iterator[Metric]:
    """Write what this server has counted."""
    counts = [(queue, name, each.counts) for queue, tally in tallies.items() for name, each in tally.named.items()]
    counts += [(queue, OTHER, tally.others) for queue, tally in tallies.items()]
    for name, meaning in _COUNTERS.items():
        rows = ((queue, tenant, getattr(each, name)) for queue, tenant, each in counts)
        yield counter(f"fairq_tenant_{name}", f"{meaning}; {_PER_SERVER}", "queue tenant", rows)
    waits = HistogramMetricFamily(
        "fairq_wait_seconds",
        f"from when tasks were ready to their first start; {_PER_SERVER}; the sum is right to some 20 %",
        labels=["queue"],
    )
    for queue, tally in tallies.items():
        waits.add_metric([queue], _cumulated(tally.waits), sum(middle_of(b) * n for b, n in tally.waits.items()) / 1000)
    yield waits


def _cumulated(waits: Mapping[int, int]) -> list[tuple[str, float]]:
    buckets = [(str(2 ** (edge // 2) / 1000), sum(n for b, n in waits.items() if b <= edge)) for edge in _EDGES]
    return [*buckets, ("+Inf", sum(waits.values()))]
