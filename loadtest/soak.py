"""Soak: hours of mixed traffic. First undisturbed, to see memory stay flat; then with kills, to see nothing get lost.

Work is of all kinds: plain tasks, delayed ones, and ones whose first attempt fails. In the second half worker, server
and store are killed (SIGKILL) in turn. What is enqueued while the service is away is sent again with the same id until
it is acknowledged. Every acknowledged task must have run at the end; a kill may make it run again, which is counted.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

import fairq
from fairq.errors import OutcomeUnknown, Unavailable
from loadtest.figures import judge, read_records, spread
from loadtest.pictures import new_figure, save
from loadtest.processes import (
    RunFailed,
    Server,
    children,
    free_port,
    resident_bytes,
    running_server,
    start_worker,
    stop,
)
from loadtest.report import Progress, Table
from loadtest.throughput import PAYLOAD
from loadtest.watch import queue_state, wait_until

TENANTS, WORKERS, CREDIT = 4, 2, 50
PLAIN, FLAKY = "soak", "flaky"
VICTIMS = ("worker", "server", "store")
SAMPLE_S = 2.0
SETTLING_S = 130.0  # for two periods the store remembers the ids of tasks that are done
FLAT = 1.2  # memory may differ by that factor between two moments when it should be the same


@frozen
class Sizes:
    """Tasks per second, seconds of each half, and how often something is killed."""

    rate: float = 400.0
    seconds: float = 300.0
    kill_every: float = 12.0
    limit: float = 180.0


QUICK = Sizes(rate=100.0, seconds=4.0, kill_every=1.0, limit=60.0)


@define(eq=False)
class Soak:
    """One run: the traffic, the processes under it, and who kills them."""

    directory: Path
    port: int
    fsync: str
    sizes: Sizes
    progress: Progress
    server: Server | None = field(default=None, init=False)
    workers: dict[int, trio.Process] = field(factory=dict, init=False)
    enqueued: list[str] = field(factory=list, init=False)
    samples: list[dict[str, float]] = field(factory=list, init=False)
    recovery_s: dict[str, list[float]] = field(factory=lambda: {victim: [] for victim in VICTIMS}, init=False)
    _numbers: itertools.count[int] = field(factory=itertools.count, init=False)

    @property
    def url(self) -> str:
        """Where the server always is."""
        return f"ws://127.0.0.1:{self.port}"

    async def keep_serving(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run a server, and another on the same data when it was killed."""
        for lives in itertools.count():
            async with running_server(self.directory, fsync=self.fsync, port=self.port) as server:
                self.server = server
                if lives == 0:
                    task_status.started()
                await server.process.wait()

    async def keep_working(self, n: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run a worker, and another when it was killed."""
        record = self.directory / f"worker-{n}.record"
        for lives in itertools.count():
            process = await start_worker(self.url, [PLAIN, FLAKY], CREDIT, record, name=f"w{n}", buffered=False)
            try:
                self.workers[n] = process
                if lives == 0:
                    task_status.started()
                await process.wait()
            finally:
                await stop(process)

    async def send(self, client: fairq.Client, seconds: float) -> None:
        """Enqueue tasks of all kinds at random moments; returns when the last of them is acknowledged."""
        draws, end = random.Random(next(self._numbers)), trio.current_time() + seconds
        async with trio.open_nursery() as nursery:
            while (now := trio.current_time()) < end:
                nursery.start_soon(self._send_one, client, f"s{next(self._numbers)}", draws.random())
                await trio.sleep_until(now + draws.expovariate(self.sizes.rate / TENANTS))

    async def _send_one(self, client: fairq.Client, id: str, kind: float) -> None:
        queue, delay = (FLAKY if kind < 0.05 else PLAIN), (kind * 10 if kind < 0.3 else None)
        with trio.fail_after(self.sizes.limit):
            while True:
                try:
                    await client.enqueue(queue, PAYLOAD, id=id, delay=delay, timeout=10)
                except (Unavailable, OutcomeUnknown):
                    await trio.sleep(0.1)
                else:
                    self.enqueued.append(id)
                    return

    async def watch(self, operator: fairq.Client) -> None:
        """Sample memory and the queue's state."""
        began = trio.current_time()
        while True:
            if self.server and (stores := children(self.server.pid)):
                sizes = {"server": self.server.pid, "store": stores[0], "worker": self.workers[0].pid}
                self.samples.append(
                    {
                        "at": round(trio.current_time() - began, 1),
                        **{name: resident_bytes(pid) for name, pid in sizes.items()},
                    }
                )
            self.progress.say(
                f"soak: {len(self.enqueued):,} tasks acknowledged, {sum(map(len, self.recovery_s.values()))} kills"
            )
            await trio.sleep(min(SAMPLE_S, self.sizes.seconds / 8))

    async def kill_in_turn(self, seconds: float) -> None:
        """Kill a worker, the server, the store, a worker, and so on; each when the one before has recovered."""
        end = trio.current_time() + seconds
        for victim in itertools.cycle(VICTIMS):
            await trio.sleep(self.sizes.kill_every)
            if trio.current_time() > end and all(self.recovery_s.values()):
                return
            assert self.server
            began = trio.current_time()
            if victim == "worker":
                self.workers[len(self.recovery_s["worker"]) % WORKERS].kill()
            elif victim == "server":
                self.server.process.kill()
            else:
                os.kill(children(self.server.pid)[0], signal.SIGKILL)
            await self._until_served()
            self.recovery_s[victim].append(trio.current_time() - began)

    async def _until_served(self) -> None:
        """Wait until a task that is enqueued now is done."""
        id = f"probe-{next(self._numbers)}"
        async with fairq.open_client(self.url, token="dev-tenant:probe") as client:
            await self._send_one(client, id, 0.9)
            with trio.fail_after(self.sizes.limit):
                while True:
                    try:
                        (state,) = await client.tasks(PLAIN, [id])
                    except (Unavailable, OutcomeUnknown):
                        state = None
                    if state and state.state == "done":
                        return
                    await trio.sleep(0.02)

    async def traffic(self, clients: list[fairq.Client], seconds: float) -> None:
        """Have all tenants send for so long."""
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(self.send, client, seconds)

    async def until_empty(self, operator: fairq.Client) -> None:
        """Wait until no task is left."""

        async def is_empty() -> float:
            states = [await queue_state(operator, queue) for queue in (PLAIN, FLAKY)]
            left = sum(state.get(place, 0) for state in states for place in ("ready", "delayed", "leased"))
            return 1.0 if left == 0 else 1 / (1 + left)

        await wait_until("soak: working off what is left", self.sizes.limit, is_empty)

    def records(self) -> list[str]:
        """Return the ids of all starts."""
        return [entry.id for n in range(WORKERS) for entry in read_records(self.directory / f"worker-{n}.record")]

    def growth(self) -> dict[str, float]:
        """Return, per process, its memory at the end of the undisturbed half over that when it had settled."""
        calm = [sample for sample in self.samples if sample["at"] <= self.sizes.seconds]
        settled = [sample for sample in calm if sample["at"] >= min(SETTLING_S, self.sizes.seconds / 2)]
        return {name: round(settled[-1][name] / settled[0][name], 3) for name in ("server", "store", "worker")}


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report. Raises: RunFailed if memory grows."""
    sizes = QUICK if quick else Sizes()
    scenario = Soak(directory / "soak", free_port(), fsync, sizes, progress)
    progress.say("soak: starting a server and workers")
    async with trio.open_nursery() as nursery:
        await nursery.start(scenario.keep_serving)
        for n in range(WORKERS):
            await nursery.start(scenario.keep_working, n)
        async with AsyncExitStack() as stack:
            operator = await stack.enter_async_context(fairq.open_client(scenario.url, token="dev-operator"))
            clients = [
                await stack.enter_async_context(fairq.open_client(scenario.url, token=f"dev-tenant:t{n}"))
                for n in range(TENANTS)
            ]
            nursery.start_soon(scenario.watch, operator)
            await scenario.traffic(clients, sizes.seconds)
            await scenario.until_empty(operator)
            undisturbed = len(scenario.enqueued)
            async with trio.open_nursery() as inner:
                inner.start_soon(scenario.traffic, clients, sizes.seconds)
                inner.start_soon(scenario.kill_in_turn, sizes.seconds)
            await scenario.until_empty(operator)
        nursery.cancel_scope.cancel()
    growth = scenario.growth()
    if not quick and max(growth.values()) > FLAT:
        raise RunFailed(f"memory grew in {sizes.seconds:g} s of steady traffic: {growth}")
    calm, disturbed = set(scenario.enqueued[:undisturbed]), set(scenario.enqueued[undisturbed:])
    seen = scenario.records()
    seen_disturbed = [id for id in seen if id not in calm]
    kills = {victim: {"count": len(times), **spread(times)} for victim, times in scenario.recovery_s.items()}
    return {
        "rate": sizes.rate, "seconds": sizes.seconds, "tasks": len(scenario.enqueued), "kills": kills,
        "repeated": len(seen_disturbed) - len(set(seen_disturbed)), "growth": growth, "samples": scenario.samples,
        "verdicts": {
            "soak, undisturbed": judge(calm, [id for id in seen if id in calm]),
            "soak, with kills": judge(disturbed, set(seen_disturbed)),
        },
    }  # fmt: skip


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    growth = part["growth"]
    return [
        Table(
            f"soak: {part['tasks']:,} tasks of all kinds at {part['rate']:g}/s, {part['seconds']:g} s undisturbed, then"
            " as long with kills; s from a kill until a task enqueued after it is done",
            ["killed", "times", "p50", "max"],
            [[victim, kills["count"], kills["p50"], kills["max"]] for victim, kills in part["kills"].items()],
            f"run again after a kill: {part['repeated']:,}; memory at the end of the undisturbed half over that when it"
            " had settled: " + ", ".join(f"{name} x{ratio:.2f}" for name, ratio in growth.items()),
        )
    ]


def draw(part: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw memory over time."""
    figure, axes = new_figure("Soak: resident memory", "s", "MiB")
    for name in ("server", "store", "worker"):
        axes.plot([s["at"] for s in part["samples"]], [s[name] / 2**20 for s in part["samples"]], label=name)
    axes.axvline(part["seconds"], color="grey", linestyle=":", label="kills begin")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return [save(figure, directory / "soak.png")]
