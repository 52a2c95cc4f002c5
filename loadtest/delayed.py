"""Delayed tasks: a herd that is due in one second beside live traffic, and how late ordinary delayed tasks start."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

import fairq
from loadtest.figures import Verdict, judge, read_records, spread
from loadtest.openloop import OpenLoop, percentiles_ms
from loadtest.pictures import new_figure, save
from loadtest.processes import RunFailed, Server, running_server, running_worker
from loadtest.report import Progress, Table
from loadtest.throughput import PAYLOAD
from loadtest.watch import queue_state, wait_attached, wait_done

CREDIT, LIVE_RATE = 100, 50.0  # less than a 51st of what one worker does, or it is a backlog of its own
CHUNK, BACKLOG = 5_000, 10_000  # ready tasks that keep the worker busy
QUEUE = "delayed"
_PHASES = ("before the herd is due", "while it is promoted", "while what is left is worked off")


@frozen
class Sizes:
    """How many delayed tasks, of how many tenants, and how long the ordinary traffic goes on."""

    herd: int = 1_000_000
    tenants: int = 50
    ordinary: int = 5_000
    seconds: float = 10.0  # over which ordinary tasks are due, and for which live traffic is measured without the herd
    limit: float = 600.0


QUICK = Sizes(herd=3_000, tenants=10, ordinary=200, seconds=1.5, limit=40.0)


@define(eq=False)
class Delayed:
    """One run of the scenario, against one server."""

    server: Server
    operator: fairq.Client
    sizes: Sizes
    progress: Progress
    verdicts: dict[str, Verdict] = field(factory=dict, init=False)

    async def ordinary(self) -> dict[str, float]:
        """Measure how late delayed tasks start; their delays end at random moments of some seconds."""
        queue, sizes, draws = "ordinary", self.sizes, random.Random(1)
        record = self.server.directory / f"{queue}.record"
        self.progress.say(f"delayed: {sizes.ordinary:,} ordinary tasks over {sizes.seconds:g} s")
        due: dict[str, float] = {}
        async with (
            fairq.open_client(self.server.url, token="dev-tenant:ordinary") as client,
            running_worker(self.server, [queue], CREDIT, record),
        ):
            await wait_attached(self.operator, queue)
            first = time.time() + 1.0 + sizes.ordinary / 2_000  # after the last of them is enqueued
            moments = {f"o{n}": first + draws.random() * sizes.seconds for n in range(sizes.ordinary)}

            async def send(items: Sequence[tuple[str, float]]) -> None:
                for id, at in items:
                    await client.enqueue(queue, PAYLOAD, id=id, start_at=at)
                    due[id] = at * 1000

            items = list(moments.items())
            async with trio.open_nursery() as nursery:
                for n in range(100):
                    nursery.start_soon(send, items[n::100])
            if time.time() > first:
                raise RunFailed("delayed: the machine is too slow to enqueue the ordinary tasks before they are due")
            await self._until_done(queue, sizes.ordinary)
        starts = read_records(record)
        self.verdicts["ordinary delayed tasks"] = judge(due, [entry.id for entry in starts])
        late = [entry.started_ms - due[entry.id] for entry in starts]
        return {**spread(late), "min": round(min(late), 2)}

    async def _until_done(self, queue: str, count: int) -> None:
        await wait_done(self.operator, queue, count, f"delayed, {queue}", self.sizes.limit)

    async def _fill(self, start_at: float, clients: Sequence[fairq.Client]) -> list[str]:
        """Enqueue the herd, all due within the same second."""
        each, ids = self.sizes.herd // len(clients), list[str]()

        async def fill(n: int, client: fairq.Client) -> None:
            for start in range(0, each, CHUNK):
                self.progress.say(f"delayed: filling, {len(ids):,} of {self.sizes.herd:,}")
                batch = [PAYLOAD] * min(CHUNK, each - start)
                own = [f"h{n}-{start + i}" for i in range(len(batch))]
                at = start_at + n / len(clients)
                tasks = await client.enqueue_many(QUEUE, batch, ids=own, start_at=at, timeout=60)
                ids.extend(task.id for task in tasks)

        limit = trio.CapacityLimiter(8)
        async with trio.open_nursery() as nursery:
            for n, client in enumerate(clients):

                async def limited(n: int = n, client: fairq.Client = client) -> None:
                    async with limit:
                        await fill(n, client)

                nursery.start_soon(limited)
        return ids

    async def herd(self) -> dict[str, Any]:
        """Let the herd come due beside live traffic; watch its promotion, and the latency of the live tasks."""
        sizes, record = self.sizes, self.server.directory / "live.record"
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(fairq.open_client(self.server.url, token=f"dev-tenant:herd-{n}"))
                for n in range(sizes.tenants)
            ]
            live = await stack.enter_async_context(fairq.open_client(self.server.url, token="dev-tenant:live"))
            start_at = time.time() + 5.0 + sizes.herd / 10_000
            herd = await self._fill(start_at, clients)
            if time.time() > start_at - 1:
                raise RunFailed("delayed: the machine is too slow to enqueue the herd before it is due")
            await stack.enter_async_context(running_worker(self.server, [QUEUE], CREDIT, record))
            await wait_attached(self.operator, QUEUE)
            alone = OpenLoop(QUEUE, PAYLOAD, LIVE_RATE, 1)
            quiet_s = max(0.5, min(sizes.seconds, start_at - time.time() - 1.0))
            self.progress.say(f"delayed: live traffic alone for {quiet_s:.1f} s")
            await alone.run([live], quiet_s)
            beside, behind = OpenLoop(QUEUE, PAYLOAD, LIVE_RATE), OpenLoop(QUEUE, PAYLOAD, LIVE_RATE)
            samples, seeds = list[tuple[float, list[int]]](), itertools.count(2)

            async def go_on(gathered: OpenLoop) -> None:
                piece = OpenLoop(QUEUE, PAYLOAD, LIVE_RATE, next(seeds))
                await piece.run([live], 1.0)
                gathered.due_ms.update(piece.due_ms)

            await trio.sleep(max(0.0, start_at - time.time()))
            async with trio.open_nursery() as nursery:
                promoted = trio.Event()
                nursery.start_soon(self._watch, start_at, samples, promoted)
                while not promoted.is_set():  # traffic in pieces, for as long as the promotion takes
                    await go_on(beside)
            self.progress.say("delayed: working the herd off")
            until = trio.current_time() + sizes.seconds
            while trio.current_time() < until and (await queue_state(self.operator, QUEUE))["ready"] > BACKLOG:
                await go_on(behind)
            expected = [*herd, *alone.due_ms, *beside.due_ms, *behind.due_ms]
            await self._until_done(QUEUE, len(expected))
        starts = read_records(record)
        self.verdicts["the herd"] = judge(expected, [entry.id for entry in starts])
        seconds = samples[-1][0]
        return {
            "tasks": len(herd), "tenants": sizes.tenants, "promotion_s": round(seconds, 2),
            "promoted_per_s": round(len(herd) / max(seconds, 0.001)), "live_rate": LIVE_RATE,
            "latency": {
                name: percentiles_ms(loop.latency([start for start in starts if start.id in loop.due_ms]))
                for name, loop in zip(_PHASES, (alone, beside, behind), strict=True) if loop.due_ms
            },
            "fairness": _spread_of_promotion(samples, len(herd) // sizes.tenants), "samples": samples,
        }  # fmt: skip

    async def _watch(self, start_at: float, samples: list[tuple[float, list[int]]], promoted: trio.Event) -> None:
        """Note how many tasks of each tenant are still delayed, a few times per second, until none is."""
        with trio.fail_after(self.sizes.limit):
            left = [self.sizes.herd]
            while any(left):
                rows = (await self.operator.request("tenants", {"queue": QUEUE}))["tenants"]
                left = [int(row["delayed"]) for row in rows if row["tenant"].startswith("herd-")]
                samples.append((round(time.time() - start_at, 3), left))
                self.progress.say(f"delayed: promoting, {sum(left):,} to go")
                await trio.sleep(0.1)
        promoted.set()


def _spread_of_promotion(samples: Sequence[tuple[float, list[int]]], each: int) -> float:
    """Return the largest difference between two tenants' promoted parts at any moment after all were due: 0 is fair."""
    spreads = [(max(left) - min(left)) / each for at, left in samples if at > 1.0]
    return round(max(spreads, default=0.0), 3)


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    progress.say("delayed: starting a server")
    async with (
        running_server(directory / "delayed", fsync=fsync) as server,
        fairq.open_client(server.url, token="dev-operator") as operator,
    ):
        scenario = Delayed(server, operator, sizes, progress)
        ordinary, herd = await scenario.ordinary(), await scenario.herd()
    return {"ordinary_tasks": sizes.ordinary, "ordinary": ordinary, "herd": herd, "verdicts": scenario.verdicts}


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    herd, ordinary = part["herd"], part["ordinary"]
    return [
        Table(
            f"lateness of {part['ordinary_tasks']:,} delayed tasks in ms, from their start time to their handler",
            ["", "min", "p50", "p90", "p99", "max"],
            [["ordinary delayed tasks", *(ordinary[name] for name in ("min", "p50", "p90", "p99", "max"))]],
        ),
        Table(
            f"{herd['tasks']:,} tasks of {herd['tenants']} tenants due in the same second, beside live traffic of"
            f" {herd['live_rate']:g} tasks/s: latency of the live tasks in ms",
            ["", "p50", "p90", "p99", "p99.9", "max"],
            [[name, *(ms[p] for p in ("p50", "p90", "p99", "p99.9", "max"))] for name, ms in herd["latency"].items()],
            f"promoted in {herd['promotion_s']:g} s ({herd['promoted_per_s']:,}/s); tenants never differ by more than"
            f" {herd['fairness']:.1%} of their tasks",
        ),
    ]


def draw(part: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw how the tenants' delayed tasks become ready."""
    figure, axes = new_figure(
        "A herd is promoted: delayed tasks left, one line per tenant", "s after the first is due", ""
    )
    samples = part["herd"]["samples"]
    for n in range(len(samples[0][1])):
        axes.plot([at for at, _ in samples], [left[n] for _, left in samples], linewidth=0.8, alpha=0.6)
    axes.set_ylim(bottom=0)
    return [save(figure, directory / "delayed.png")]
