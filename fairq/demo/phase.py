"""Runs one phase: enqueues the arriving tasks, and follows the executions until all are done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import trio
from attrs import define, field

from fairq.client.client import Client, open_client
from fairq.client.operator import OperatorClient, open_operator
from fairq.demo.executions import Execution, Follower
from fairq.demo.processes import WORKERS, Service
from fairq.demo.scenario import WEIGHTS, Arrival, Phase
from fairq.errors import FairqError, Unavailable
from fairq.io.scopes import background
from fairq.model.simulation.run import percentile

Row = Mapping[str, Any]

_SAMPLE_S = 0.2
_ATTACH_LIMIT_S = 30.0


@define(eq=False)
class Progress:
    """The progress of a phase: its executions so far, and the last report of its tenants by the service (`rows`).

    `backlogged_rows` is the last such report while every tenant had tasks waiting: only then must delivered shares
    follow the weights.
    """

    phase: Phase
    began: float = 0.0
    seconds: float = 0.0
    executions: list[Execution] = field(factory=list)
    rows: list[Row] = field(factory=list)
    backlogged_rows: list[Row] = field(factory=list)
    settled: trio.Event = field(factory=trio.Event)
    _waits: dict[str, list[float]] = field(factory=lambda: defaultdict(list), init=False)

    @property
    def done(self) -> int:
        """How many tasks were executed."""
        return len({execution.id for execution in self.executions})

    @property
    def total(self) -> int:
        """How many tasks the phase has."""
        return len(self.phase.tasks)

    @property
    def is_settled(self) -> bool:
        """True if all tasks were executed, and the service reports so."""
        return self.done >= self.total and not any(row["ready"] + row["delayed"] + row["leased"] for row in self.rows)

    def wait_times(self, *owners: str) -> list[float]:
        """Return how long the tasks of these owners waited, in ms."""
        return [wait for owner in owners for wait in self._waits[owner]]

    def wait_ms(self, percent: int, *owners: str) -> int | None:
        """Return how long `percent` % of the tasks of these owners waited at most; None without tasks."""
        return percentile(sorted(self.wait_times(*owners)), percent)

    def saw_execution(self, execution: Execution) -> None:
        """Add one execution."""
        self.executions.append(execution)
        self._waits[execution.owner].append(execution.wait_ms)

    def saw_rows(self, rows: list[Row]) -> None:
        """Store the service's report of the tenants."""
        self.rows = rows
        if len(rows) == len(self.phase.tenants) and all(row["ready"] > 0 for row in rows):
            self.backlogged_rows = rows


@define(eq=False)
class Stage:
    """The stage of the phases: the service, connections to it, and the progress of each phase by queue."""

    operator: OperatorClient
    tenants: Mapping[str, Client]
    follower: Follower
    show: Callable[[Progress], None]
    progress: dict[str, Progress] = field(factory=dict)

    async def prepare(self, phases: list[Phase]) -> None:
        """Set the weights, and wait until the workers are attached."""
        for phase in phases:
            self.progress[phase.queue] = Progress(phase)
            for tenant in phase.tenants:
                await self.operator.set_weight(phase.queue, tenant, WEIGHTS.get(tenant, 1))
        with trio.move_on_after(_ATTACH_LIMIT_S):
            while True:
                if all(queue.workers >= WORKERS for queue in await self.operator.queues()):
                    return
                await trio.sleep(0.05)
        raise Unavailable(f"the workers did not attach within {_ATTACH_LIMIT_S:g} seconds")

    async def run(self, phase: Phase) -> None:
        """Run one phase to its end, or for `limit_s`."""
        progress = self.progress[phase.queue]
        if phase.is_held:
            await self.operator.pause(phase.queue)
        progress.began = trio.current_time()
        with trio.move_on_after(phase.limit_s):
            async with background(partial(self._watch, progress)):
                for arrival in phase.arrivals:
                    await trio.sleep_until(progress.began + arrival.at_s)
                    await self._enqueue(phase, arrival)
                if phase.is_held:
                    progress.began = trio.current_time()
                    await self.operator.resume(phase.queue)
                await progress.settled.wait()
        progress.seconds = trio.current_time() - progress.began

    async def _enqueue(self, phase: Phase, arrival: Arrival) -> None:
        client = self.tenants[phase.tenant_of(arrival.owner)]
        payloads = [{"path": task.path, "owner": task.owner} for task in arrival.tasks]
        await client.enqueue_many(phase.queue, payloads, ids=[task.id for task in arrival.tasks])

    async def _watch(self, progress: Progress) -> None:
        while True:
            self.follow()
            try:
                page = await self.operator.request("tenants", {"queue": progress.phase.queue}, timeout=5)
                progress.saw_rows(page["tenants"])
            except FairqError:  # this sample is skipped; longer trouble ends with the phase's limit
                await trio.sleep(_SAMPLE_S)
            self.show(progress)
            if progress.is_settled:
                progress.settled.set()
            await trio.sleep(_SAMPLE_S)

    def follow(self) -> None:
        """Read the executions that the workers have written since the last call."""
        for execution in self.follower.read_new():
            self.progress[execution.queue].saw_execution(execution)


@asynccontextmanager
async def open_stage(service: Service, phases: list[Phase], show: Callable[[Progress], None]) -> AsyncIterator[Stage]:
    """Connect as the operator and as every tenant, and prepare the queues."""
    async with AsyncExitStack() as stack:
        operator = await stack.enter_async_context(open_operator(service.url, token="dev-operator"))
        names = dict.fromkeys(tenant for phase in phases for tenant in phase.tenants)
        tenants = {
            name: await stack.enter_async_context(open_client(service.url, token=f"dev-tenant:{name}"))
            for name in names
        }
        stage = Stage(operator, tenants, Follower(service.executions), show)
        await stage.prepare(phases)
        yield stage
