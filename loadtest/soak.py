"""Soak: minutes of mixed traffic, to see that memory stays flat and every task runs once.

Work is of all kinds: plain tasks, delayed ones, and ones whose first attempt fails. Kills and other faults are done by
the scenario `faults`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

import fairq
from loadtest.figures import judge, read_records
from loadtest.pictures import new_figure, save
from loadtest.processes import RunFailed, resident_bytes, running_server, running_worker
from loadtest.report import Progress, Table
from loadtest.throughput import PAYLOAD
from loadtest.watch import queue_state, wait_until

TENANTS, WORKERS, CREDIT = 4, 2, 50
PLAIN, FLAKY = "soak", "flaky"
SAMPLE_S = 2.0
SETTLING_S = 130.0  # for two periods the store remembers the ids of tasks that are done
FLAT = 1.2  # memory may differ by that factor between two moments when it should be the same


@frozen
class Sizes:
    """Tasks per second, for how many seconds, and how long the drain may take."""

    rate: float = 400.0
    seconds: float = 300.0
    limit: float = 180.0


QUICK = Sizes(rate=100.0, seconds=4.0, limit=60.0)


@define(eq=False)
class Soak:
    """One run: the traffic, and the memory of the processes under it, by their names."""

    sizes: Sizes
    progress: Progress
    pids: Mapping[str, int]
    enqueued: list[str] = field(factory=list, init=False)
    samples: list[dict[str, float]] = field(factory=list, init=False)
    _numbers: itertools.count[int] = field(factory=itertools.count, init=False)

    async def send_all(self, clients: list[fairq.Client]) -> None:
        """Let all tenants send, and sample memory meanwhile."""
        async with trio.open_nursery() as watching:
            watching.start_soon(self._watch)
            async with trio.open_nursery() as sending:
                for client in clients:
                    sending.start_soon(self._send, client)
            watching.cancel_scope.cancel()

    async def _send(self, client: fairq.Client) -> None:
        """Enqueue tasks of all kinds at random moments; returns when the last of them is acknowledged."""
        draws, end = random.Random(next(self._numbers)), trio.current_time() + self.sizes.seconds
        async with trio.open_nursery() as nursery:
            while (now := trio.current_time()) < end:
                nursery.start_soon(self._send_one, client, f"s{next(self._numbers)}", draws.random())
                await trio.sleep_until(now + draws.expovariate(self.sizes.rate / TENANTS))

    async def _send_one(self, client: fairq.Client, id: str, kind: float) -> None:
        queue, delay = (FLAKY if kind < 0.05 else PLAIN), (kind * 10 if kind < 0.3 else None)
        await client.enqueue(queue, PAYLOAD, id=id, delay=delay, timeout=10)
        self.enqueued.append(id)

    async def _watch(self) -> None:
        """Sample memory."""
        began = trio.current_time()
        while True:
            sizes = {name: resident_bytes(pid) for name, pid in self.pids.items()}
            self.samples.append({"at": round(trio.current_time() - began, 1), **sizes})
            self.progress.say(f"soak: {len(self.enqueued):,} tasks acknowledged")
            await trio.sleep(min(SAMPLE_S, self.sizes.seconds / 8))

    async def until_empty(self, operator: fairq.Client) -> None:
        """Wait until no task is left."""

        async def is_empty() -> float:
            states = [await queue_state(operator, queue) for queue in (PLAIN, FLAKY)]
            left = sum(state.get(place, 0) for state in states for place in ("ready", "delayed", "leased"))
            return 1.0 if left == 0 else 1 / (1 + left)

        await wait_until("soak: working off what is left", self.sizes.limit, is_empty)

    def growth(self) -> dict[str, float]:
        """Return, per process, its memory at the end over its memory when it had settled."""
        settled = [sample for sample in self.samples if sample["at"] >= min(SETTLING_S, self.sizes.seconds / 2)]
        return {name: round(settled[-1][name] / settled[0][name], 3) for name in self.pids}


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report. Raises: RunFailed if memory grows."""
    sizes, records = QUICK if quick else Sizes(), [directory / f"soak-{n}.record" for n in range(WORKERS)]
    progress.say("soak: starting a server and workers")
    async with running_server(directory / "soak", fsync=fsync) as server, AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                running_worker(server, [PLAIN, FLAKY], CREDIT, record, name=record.stem, buffered=False)
            )
            for record in records
        ]
        scenario = Soak(sizes, progress, {"server": server.pid, "store": server.store_pid, "worker": workers[0]})
        operator = await stack.enter_async_context(fairq.open_client(server.url, token="dev-operator"))
        tenants = [fairq.open_client(server.url, token=f"dev-tenant:t{n}") for n in range(TENANTS)]
        await scenario.send_all([await stack.enter_async_context(tenant) for tenant in tenants])
        await scenario.until_empty(operator)
    growth = scenario.growth()
    if not quick and max(growth.values()) > FLAT:
        raise RunFailed(f"memory grew in {sizes.seconds:g} s of steady traffic: {growth}")
    return {
        "rate": sizes.rate, "seconds": sizes.seconds, "tasks": len(scenario.enqueued), "growth": growth,
        "samples": scenario.samples,
        "verdicts": {"soak": judge(scenario.enqueued, [entry.id for path in records for entry in read_records(path)])},
    }  # fmt: skip


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    return [
        Table(
            f"soak: {part['tasks']:,} tasks of all kinds at {part['rate']:g}/s for {part['seconds']:g} s; memory at the"
            " end over memory when it had settled",
            ["process", "memory"],
            [[name, f"x{ratio:.2f}"] for name, ratio in part["growth"].items()],
        )
    ]


def draw(part: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw memory over time."""
    figure, axes = new_figure("Soak: resident memory", "s", "MiB")
    for name in part["growth"]:
        axes.plot([s["at"] for s in part["samples"]], [s[name] / 2**20 for s in part["samples"]], label=name)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return [save(figure, directory / "soak.png")]
