"""Features: what an enqueue, a claim and an acknowledgement cost the store with each feature on, beside all off.

And what a purge of one tenant does to another (purge.py).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from attrs import define, field, frozen

from fairq.model.limits import OpeningHours
from fairq.model.tasks import NewTask
from fairq.store.embedded import embedded_store
from fairq.store.store import Store
from loadtest import purge
from loadtest.bench import CALL_TASKS, PAYLOAD, Bench, for_all
from loadtest.figures import Verdict
from loadtest.report import Progress, Table
from loadtest.stores import opened

UNREACHED = 1_000_000  # of limits: all rows do the same work
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
VERBS = ("enqueue", "claim", "ack")
PRIORITIES = (25, 50, 75)
PLACES = 5  # of a tenant's batch: the tasks of the other rounds are pending until an acknowledgement makes room


@frozen
class Sizes:
    """How many tenants, and in how many rounds each of them gets a task."""

    tenants: int = 1_000
    rounds: int = 20


QUICK = Sizes(tenants=50, rounds=6)


@frozen
class Feature:
    """What is set for the queue, what for each tenant, and what a tenant's n-th task asks for."""

    name: str
    for_queue: Callable[[Store, str], Awaitable[object]] | None = None
    for_tenant: Callable[[Store, str, str], Awaitable[object]] | None = None
    asks: Callable[[str, int], dict[str, Any]] = lambda _tenant, _n: {}


def _own(name: str, **limits: float) -> Feature:
    return Feature(name, for_tenant=lambda store, queue, tenant: store.set_limits(queue, tenant, limits))


async def _open_hours(store: Store, queue: str, tenant: str) -> None:
    closes_at_ms = round(time.time() * 1000) + DAY_MS
    await store.set_opening_hours(queue, OpeningHours(tenant, "00:00-23:59 UTC", True, closes_at_ms))


async def _open_batch(store: Store, queue: str, tenant: str) -> None:
    await store.open_batch(queue, tenant, f"{tenant}-batch", PLACES, (b"", b"", b""))


OFF = Feature("off")
FEATURES = (
    Feature(
        "max_running for all", for_queue=lambda store, queue: store.set_limits(queue, "", {"max_running": UNREACHED})
    ),
    _own("max_running of their own", max_running=UNREACHED),
    _own("rates of their own", rate=UNREACHED),
    _own("guarantees of their own", guaranteed=1),
    _own("quotas of their own", queued=UNREACHED, stored_bytes=UNREACHED * len(PAYLOAD)),
    Feature("opening hours, open", for_tenant=_open_hours),
    Feature("three priorities", asks=lambda _, n: {"priority": PRIORITIES[n % len(PRIORITIES)]}),
    Feature("three groups", asks=lambda _, n: {"group": f"group{n % 3}"}),
    Feature("a group per task", asks=lambda _, n: {"group": f"group{n}"}),
    Feature("dedupe keys", asks=lambda tenant, n: {"dedupe_key": f"{tenant}-{n}"}),
    Feature("results", asks=lambda *_: {"result_ttl_ms": HOUR_MS}),
    Feature("batches with max_running", for_tenant=_open_batch, asks=lambda tenant, _: {"batch": f"{tenant}-batch"}),
    Feature("events", asks=lambda *_: {"events": True}),
    Feature("expiry", asks=lambda *_: {"expires_in_ms": HOUR_MS}),
)


@define(eq=False)
class Side:
    """A queue with a feature on, or with all off; `us`: what its rounds cost per task inside the function library."""

    feature: Feature
    bench: Bench
    tenants: int
    us: dict[str, list[float]] = field(factory=lambda: {verb: [] for verb in VERBS}, init=False)

    async def prepare(self) -> None:
        """Turn the feature on, for the queue or for its tenants."""
        store, queue, for_tenant = self.bench.store, self.bench.queue, self.feature.for_tenant
        if self.feature.for_queue:
            await self.feature.for_queue(store, queue)
        if for_tenant:
            await for_all(range(self.tenants), lambda i: for_tenant(store, queue, f"t{i}"))

    async def enqueue(self) -> None:
        """Give each tenant a task, one per call."""
        n = len(self.us["enqueue"])

        async def give(i: int) -> None:
            await self.bench.enqueue(f"t{i}", [NewTask(f"t{i}-{n}", PAYLOAD, **self.feature.asks(f"t{i}", n))])

        await self._note("enqueue", lambda: for_all(range(self.tenants), give))

    async def work(self) -> None:
        """Claim as many tasks as there are tenants, and acknowledge them."""
        await self._note("claim", lambda: self.bench.claim(self.tenants))
        await self._note("ack", self.bench.settle)

    async def _note(self, verb: str, work: Callable[[], Awaitable[None]]) -> None:
        self.us[verb].append((await self.bench.cost_of(self.tenants, work)).function)

    def medians(self) -> dict[str, float]:
        """Return the median round of each verb."""
        return {verb: round(median(rounds), 1) for verb, rounds in self.us.items()}


def of_off(on: Sequence[float], off: Sequence[float]) -> float:
    """Return the median of what rounds cost as parts of the mean of the rounds just before and just after them."""
    return round(median(cost / fmean(around) for cost, around in zip(on, pairwise(off), strict=True)), 2)


@define(eq=False)
class Features:
    """All features, one after the other; the rounds of each in turn with rounds of a queue with all of them off."""

    store: Store
    sizes: Sizes
    progress: Progress
    rows: list[dict[str, Any]] = field(factory=list, init=False)
    verdicts: dict[str, Verdict] = field(factory=dict, init=False)

    async def run(self) -> None:
        """Measure; leaves no task behind."""
        for n, feature in enumerate(FEATURES):
            self.progress.say(f"features: {feature.name}")
            on, off = (self._side(one, f"features-{n}-{side}") for one, side in ((feature, "on"), (OFF, "off")))
            await on.prepare()
            for step in (Side.enqueue, Side.work):
                await step(off)
                for _ in range(self.sizes.rounds):
                    await step(on)
                    await step(off)
            parts = {verb: of_off(on.us[verb], off.us[verb]) for verb in VERBS}
            self.rows.append({"name": feature.name, "us": on.medians(), "off_us": off.medians(), "of_off": parts})
            self.verdicts[f"features, {feature.name}"] = on.bench.verdict()
            self.verdicts[f"features, off beside {feature.name}"] = off.bench.verdict()

    def _side(self, feature: Feature, queue: str) -> Side:
        return Side(feature, Bench(self.store, queue), self.sizes.tenants)


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    async with embedded_store(directory / "features", fsync=fsync) as url, opened(url) as store:
        scenario = Features(store, sizes, progress)
        await scenario.run()
    row, verdicts = await purge.measure(directory / "purge", progress, purge.sizes_of(quick=quick), fsync=fsync)
    return {
        "tenants": sizes.tenants, "tasks": sizes.tenants * sizes.rounds, "call_tasks": CALL_TASKS,
        "rows": scenario.rows, "purge": row, "verdicts": {**scenario.verdicts, **verdicts},
    }  # fmt: skip


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    rows = [["off", *(cell for verb in VERBS for cell in _spread([row["off_us"][verb] for row in part["rows"]]))]]
    for row in part["rows"]:
        rows.append([row["name"], *(cell for verb in VERBS for cell in (row["us"][verb], row["of_off"][verb]))])
    title = (
        f"what features cost the store, in us per task inside the function library; in each row {part['tasks']:,} tasks"
        f" of {part['tenants']:,} tenants, enqueued 1 per call, claimed and acknowledged {part['call_tasks']} per call"
    )
    note = (
        "of off: parts of the rounds with all off just before and after, their median; off: the lowest and the highest"
    )
    headings = ["on", *(heading for verb in VERBS for heading in (verb, "of off"))]
    return [Table(title, headings, rows, note), purge.table(part["purge"])]


def _spread(values: Sequence[float]) -> tuple[float, str]:
    """Return the median, and the lowest and the highest as parts of it."""
    middle = median(values)
    return middle, f"{min(values) / middle:.2f}-{max(values) / middle:.2f}"
