"""Fairness between the queues of one worker: what each gets of its slots, and how long quiet tenants wait beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio
from attrs import define, field, frozen

import fairq
from loadtest.figures import Record, Verdict, judge, read_records, share_error, spread
from loadtest.processes import RunFailed, Server, running_worker
from loadtest.report import Progress, Table
from loadtest.watch import queue_state, stop_handing_out, wait_attached

SLOTS = 10
LONG_MS, QUICK_MS, QUICK_EVERY_S, QUICK_TENANTS = 3_000, 10, 0.05, 5
# suffix of a queue: its weight, and the length of its tasks in ms
LENGTHS = {"a": (1.0, 10), "b": (1.0, 40), "c": (1.0, 100), "d": (1.0, 300), "e": (1.0, 1_000)}
WEIGHTS = {"a": (1.0, 20), "b": (2.0, 200)}


@frozen
class Sizes:
    """How long each part takes."""

    seconds: float = 15.0
    long_tasks: int = 20


QUICK = Sizes(seconds=3.0)


@define(eq=False)
class QueueShares:
    """The measurements against a real server and worker."""

    server: Server
    operator: fairq.Client
    sizes: Sizes
    progress: Progress
    verdicts: dict[str, Verdict] = field(factory=dict, init=False)

    def _client(self, tenant: str) -> Any:
        return fairq.open_client(self.server.url, token=f"dev-tenant:{tenant}")

    @asynccontextmanager
    async def _worker(self, name: str, queues: Sequence[str], ids: list[str]) -> AsyncIterator[list[Record]]:
        """Serve these queues by one worker while the context lasts; then gives the starts, and judges them."""
        record, starts = self.server.directory / f"queues-{name}.record", list[Record]()
        left = 0
        async with running_worker(self.server, queues, SLOTS, record):
            for queue in queues:
                await wait_attached(self.operator, queue)
            yield starts
            for queue in queues:
                left += await stop_handing_out(self.operator, queue, 60.0)
        starts += read_records(record)
        self.verdicts[f"queues of a worker, {name}"] = judge(ids, [entry.id for entry in starts], left=left)

    async def _given(self, queue: str) -> float:
        """Return how much worker time a queue's tenants have had, in s."""
        states = (await self.operator.request("tenants", {"queue": queue}))["tenants"]
        return sum(float(state["delivered"]) for state in states)

    async def parts(self, name: str, queues: Mapping[str, tuple[float, int]]) -> dict[str, Any]:
        """Measure each queue's part of a worker's time while all of them have tasks, one tenant in each."""
        names = {f"sleep-{name}-{key}": each for key, each in queues.items()}
        weight_sum, ids = sum(weight for weight, _ in queues.values()), list[str]()
        for queue, (weight, ms) in names.items():
            self.progress.say(f"queues of a worker, {name}: filling {queue}")
            await self.operator.request("set_paused", {"paused": True, "queue": queue})
            if weight != 1.0:
                await self.operator.request("configure", {"queue": queue, "settings": {"queue_weight": weight}})
            count = int(2 * self.sizes.seconds * SLOTS * weight / weight_sum / ms * 1000) + 100
            async with self._client(queue) as client:
                ids += [task.id for task in await client.enqueue_many(queue, [{"ms": ms}] * count)]
        async with self._worker(name, list(names), ids) as _:
            for queue in names:
                await self.operator.request("set_paused", {"paused": False, "queue": queue})
            self.progress.say(f"queues of a worker, {name}: {self.sizes.seconds:g} s")
            await trio.sleep(self.sizes.seconds)
            given = {queue: await self._given(queue) for queue in names}
            for queue in names:
                if not (await queue_state(self.operator, queue))["ready"]:
                    raise RunFailed(f"queues of a worker, {name}: {queue} ran out of tasks")
        weights = {queue: weight for queue, (weight, _) in names.items()}
        rows = [
            {
                "queue": queue, "weight": weight, "task_ms": ms, "due": weight / weight_sum,
                "part": given[queue] / sum(given.values()),
            }
            for queue, (weight, ms) in names.items()
        ]  # fmt: skip
        return {"rows": rows, "error": share_error(weights, given)}

    async def quick(self) -> dict[str, float]:
        """Measure how long short tasks of quiet tenants wait beside another queue's long ones."""
        ids, quick, long = list[str](), "sleep-quick", "sleep-long"
        self.progress.say("queues of a worker: quiet tenants of one beside long tasks of the other")
        async with self._worker("quick", [quick, long], ids) as starts, AsyncExitStack() as stack:
            loud = await stack.enter_async_context(self._client("loud"))
            quiet = [await stack.enter_async_context(self._client(f"quiet-{n}")) for n in range(QUICK_TENANTS)]
            ids += [task.id for task in await loud.enqueue_many(long, [{"ms": LONG_MS}] * self.sizes.long_tasks)]
            ends_at = trio.current_time() + self.sizes.seconds
            for n in range(round(self.sizes.seconds / QUICK_EVERY_S)):
                await trio.sleep_until(ends_at - self.sizes.seconds + n * QUICK_EVERY_S)
                ids.append((await quiet[n % QUICK_TENANTS].enqueue(quick, {"ms": QUICK_MS})).id)
                if n % 4 == 3:  # more than the slots can do
                    ids.append((await loud.enqueue(long, {"ms": LONG_MS})).id)
        return spread([entry.dwell_ms for entry in starts if entry.tenant != "loud"])


async def measure(
    server: Server, operator: fairq.Client, sizes: Sizes, progress: Progress
) -> tuple[dict[str, Any], dict[str, Verdict]]:
    """Measure all of it; returns its part of the report, and what became of every task."""
    of = QueueShares(server, operator, sizes, progress)
    part = {"quick": await of.quick(), "lengths": await of.parts("lengths", LENGTHS)}
    return {**part, "weights": await of.parts("weights", WEIGHTS), "seconds": sizes.seconds}, of.verdicts


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show it to people."""
    quick = part["quick"]
    return [
        Table(
            f"one worker of several queues, {SLOTS} slots, {part['seconds']:g} s: what each gets of its time",
            ["queue", "weight", "task ms", "due", "received"],
            [
                [row["queue"], row["weight"], row["task_ms"], f"{row['due']:.1%}", f"{row['part']:.1%}"]
                for name in ("lengths", "weights") for row in part[name]["rows"]
            ],
            f"largest error: {part['lengths']['error']:.1%} of a queue's due; with weights:"
            f" {part['weights']['error']:.1%}",
        ),
        Table(
            f"dwell in ms of tasks of {QUICK_MS} ms in one queue, beside tasks of {LONG_MS} ms in the other",
            ["p50", "p90", "p99", "max"],
            [[quick["p50"], quick["p90"], quick["p99"], quick["max"]]],
        ),
    ]  # fmt: skip
