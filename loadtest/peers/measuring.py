"""Measuring one peer: what goes in, comes out and passes through, what that costs, and what a flood does to others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

from loadtest.baseline import Baseline, Rates
from loadtest.fairness import QUIET_TASKS, QUIET_TENANTS, TASK_MS
from loadtest.figures import Verdict, judge, spread
from loadtest.peers.catalogue import Peer
from loadtest.peers.driving import (
    Producer,
    count_starts,
    family_cpu,
    rate_of,
    read_starts,
    running_producer,
    running_workers,
    tail,
    wait_for,
)
from loadtest.peers.environments import Environment
from loadtest.peers.stores import RunningStore, running_store
from loadtest.processes import RunFailed
from loadtest.report import Progress

PACES = {"idle": 20, "steady": 200}  # tasks/s of one caller, while nothing else goes on
PACED_S = 5
QUIET_WARM = 50  # starts of the flood before the quiet tenants come
SETTLE_S = 5.0  # for the last acknowledgements to arrive


@frozen
class Sizes:
    """How many tasks there are: one by one; of a peer's own numbers, a part; of raw Redis in a round."""

    one: int = 1_000
    part: float = 1.0
    raw: int = 10_000
    seconds: float = 1_300.0  # no further peer begins after these, counted from the first installation

    def paced(self, pace: int) -> int:
        """Return how many tasks there are at so many a second."""
        return max(10, int(PACED_S * pace * self.part))

    def of(self, count: int) -> int:
        """Return how many tasks take the place of `count`."""
        return max(100, int(count * self.part))


QUICK = Sizes(one=50, part=0.02, raw=500, seconds=12.0)


def ids_of(prefix: str, count: int) -> list[str]:
    """Return the ids of the tasks that a producer makes for an order."""
    return [f"{prefix}{i:08d}" for i in range(count)]


def beside(name: str, rate: float, kind: str, *rounds: Rates) -> dict[str, float]:
    """Return a rate, and which part it is of the yardstick's mean in these rounds."""
    raw = sum(getattr(taken, kind) for taken in rounds) / len(rounds)
    return {name: round(rate), f"{name}_raw": round(raw), f"{name}_of_raw": round(rate / raw, 4)}


@define(eq=False)
class Measuring:
    """The measurements of one peer, each with a fresh store in `directory`."""

    peer: Peer
    environment: Environment
    directory: Path
    sizes: Sizes
    fsync: str
    baseline: Baseline
    progress: Progress
    verdicts: dict[str, Verdict] = field(factory=dict, init=False)

    def _say(self, text: str) -> None:
        self.progress.say(f"{self.peer.name}: {text}")

    def _record(self, what: str) -> Path:
        """Return the record file of a measurement, in a folder of its own."""
        name = "".join(letter if letter.isalnum() else "-" for letter in f"{self.peer.name}-{what}")
        (self.directory / name).mkdir(parents=True, exist_ok=True)
        return self.directory / name / "record"

    @asynccontextmanager
    async def _started(
        self, record: Path, slots: int, **more: Any
    ) -> AsyncIterator[tuple[RunningStore, Producer, Mapping[str, Any]]]:
        """Run a store and a producer; gives the settings for workers too."""
        async with running_store(self.peer, self.environment.program, record.parent / "store", self.fsync) as store:
            settings = {**store.settings, **self.peer.options, "slots": slots, "record": str(record), **more}
            async with running_producer(self.environment, settings, record.parent / "producer.log") as producer:
                yield store, producer, settings

    async def rates(self) -> dict[str, Any]:
        """Enqueue one by one and in bulk, drain, then do both at once; returns a row."""
        one, many, record = self.sizes.one, self.sizes.of(self.peer.count), self._record("rates")
        paced = [id for name, pace in PACES.items() for id in ids_of(name[:4], self.sizes.paced(pace))]
        expected = [*ids_of("one-", one), *ids_of("many", many), *ids_of("flow", many), *paced]
        try:
            async with self._started(record, self.peer.slots) as (store, producer, settings):
                row = await self._rates(one, many, record, store, producer, settings)
        finally:
            verdict = self.verdicts[self.peer.name] = judge(expected, [start.id for start in read_starts(record)])
        return {
            "name": self.peer.name, "setting": self.peer.setting, "tasks": verdict.expected, **row,
            "lost": len(verdict.lost), "twice": len(verdict.duplicated),
        }  # fmt: skip

    async def _rates(
        self, one: int, many: int, record: Path, store: RunningStore, producer: Producer, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        self._say(f"enqueuing {one + many:,} tasks")
        raw = [await self.baseline.take()]
        one_by_one = await producer.order(do="one", prefix="one-", count=one)
        bytes_before = store.bytes_used()
        bulk = await producer.order(do="many", prefix="many", count=many)
        bytes_per_task = (store.bytes_used() - bytes_before) / many
        raw.append(await self.baseline.take())
        self._say(f"draining {one + many:,} tasks")
        async with self._workers(record, settings) as workers:
            await wait_for("the drain", lambda: count_starts(record), one + many)
            drained = rate_of(read_starts(record))
            raw.append(await self.baseline.take())
            self._say(f"flow of {many:,} tasks")
            flow, cpu = await self._passed("flow", many, producer, store, workers, record)
            raw.append(await self.baseline.take())
            paced = await self._paced(producer, store, workers, record)
            left = await self._left(producer)
        return {
            "one_by_one": round(one / one_by_one["seconds"]),
            **beside("bulk", many / bulk["seconds"], "push", *raw[:2]),
            **beside("drained", drained, "drain", *raw[1:3]),
            **beside("flow", flow, "flow", *raw[2:]),
            "cpu_s_per_1000": {name: round(used / many * 1000, 4) for name, used in cpu.items()},
            "cpu_s_per_1000_total": round(sum(cpu.values()) / many * 1000, 4),
            "bytes_per_task": round(bytes_per_task), **paced, "left": left,
        }  # fmt: skip

    @asynccontextmanager
    async def _workers(
        self, record: Path, settings: Mapping[str, Any], processes: int = 1
    ) -> AsyncIterator[Sequence[int]]:
        """Run workers; a failure while they run is raised with their output."""
        log = record.parent / "worker.log"
        try:
            async with running_workers(self.environment, settings, log, processes=processes) as workers:
                yield workers
        except RunFailed as error:
            raise RunFailed(f"{error}\n{tail(log)}".strip()) from error

    async def _paced(
        self, producer: Producer, store: RunningStore, workers: Sequence[int], record: Path
    ) -> dict[str, Any]:
        """Have one caller enqueue at each pace; returns the dwell of its tasks in ms, and what each costs."""
        self._say(f"one caller, {' and '.join(map(str, PACES.values()))} tasks/s")
        found = dict[str, Any]()
        for name, pace in PACES.items():
            count, before = self.sizes.paced(pace), count_starts(record)
            order = {"do": "one", "every_s": 1 / pace}
            _, cpu = await self._passed(name[:4], count, producer, store, workers, record, **order)
            dwells = [(start.started_us - start.enqueued_us) / 1000 for start in read_starts(record)[before:]]
            costs = {process: round(used / count * 1000, 2) for process, used in cpu.items()}
            found[name] = {**spread(dwells), **costs, "cpu_ms": round(sum(costs.values()), 2)}
        return found

    async def _passed(
        self,
        prefix: str,
        count: int,
        producer: Producer,
        store: RunningStore,
        workers: Sequence[int],
        record: Path,
        **order: Any,
    ) -> tuple[float, dict[str, float]]:
        """Have the producer enqueue while the worker works; returns tasks/s up to the last start, and CPU seconds."""

        def used() -> dict[str, float]:
            seconds = {name: family_cpu([pid]) for name, pid in store.pids.items()}
            if "server" in seconds:
                seconds["server"] -= seconds["store"]  # which is its child
            return {**seconds, "worker": family_cpu(workers)}

        started, before = count_starts(record), used()
        made = await producer.order(**{"do": "many", "prefix": prefix, "count": count, **order})
        await wait_for(prefix, lambda: count_starts(record), started + count)
        cpu = {name: seconds - before[name] for name, seconds in used().items()}
        last = max(start.started_us for start in read_starts(record))
        return count / (last - made["began_us"]) * 1e6, {"client": made["cpu_s"], **cpu}

    async def _left(self, producer: Producer) -> int:
        """Return how many tasks are not acknowledged when the last acknowledgements have had time to arrive."""
        deadline = trio.current_time() + SETTLE_S
        while True:
            left = int((await producer.order(do="left"))["left"])
            if not left or trio.current_time() > deadline:
                return left
            await trio.sleep(0.1)

    async def quiet(self) -> dict[str, Any]:
        """Measure the dwell of quiet tenants who come while a flood of another waits; returns a row."""
        assert self.peer.ten_slots is not None
        processes, slots = self.peer.ten_slots
        flood, record = self.sizes.of(self.peer.flood), self._record("quiet")
        orders = [{"prefix": f"q{i:03d}", "count": QUIET_TASKS, "tenant": f"quiet-{i}"} for i in range(QUIET_TENANTS)]
        quiet = {id for order in orders for id in ids_of(str(order["prefix"]), QUIET_TASKS)}
        self._say(f"quiet tenants, {flood:,} tasks before them")
        async with self._started(record, slots, is_quiet=True) as (_, producer, settings):
            await producer.order(do="many", prefix="loud", count=flood, ms=TASK_MS, tenant="loud")
            async with self._workers(record, settings, processes):
                await wait_for("the flood", lambda: count_starts(record), QUIET_WARM)
                for order in orders:
                    await producer.order(do="many", ms=TASK_MS, **order)
                await self._until_started(record, quiet, flood + len(quiet))
            left = int((await producer.order(do="left"))["left"])
        starts = read_starts(record)
        expected = [*ids_of("loud", flood), *sorted(quiet)]
        verdict = judge(expected, [start.id for start in starts], left=left)
        self.verdicts[f"{self.peer.name}, quiet tenants"] = verdict
        return {
            "name": self.peer.name, "flood": flood, "processes": processes, "slots": slots,
            "rate": round(rate_of(starts)),
            **spread([(start.started_us - start.enqueued_us) / 1000 for start in starts if start.id in quiet]),
            "lost": len(verdict.lost), "twice": len(verdict.duplicated),
        }  # fmt: skip

    async def _until_started(self, record: Path, ids: set[str], total: int) -> None:
        """Wait until all these tasks have been started, however many others have."""
        while not ids <= {start.id for start in read_starts(record)}:
            await wait_for(
                "the quiet tenants' tasks", lambda: count_starts(record), min(count_starts(record) + 1, total)
            )
            await trio.sleep(0.2)
