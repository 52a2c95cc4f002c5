"""A worker of several queues, all of them backlogged: what the tenants of one of them get of the time that it gets.

Slots fall free one by one, and each goes to one of the queues: no queue has as many as claims tell. In the first queue
the shares of all tenants but one are far below a slot.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import trio

import fairq
from loadtest.cases import CREDIT
from loadtest.figures import Verdict, judge, read_records
from loadtest.processes import Server, running_worker
from loadtest.report import Progress, Table
from loadtest.watch import stop_handing_out, wait_attached

QUEUES = [f"sleep-several-{n}" for n in range(5)]
WEIGHTS = {"heavy": 100.0, **{f"light-{n}": 1.0 for n in range(10)}}
SHORTEST_MS, LONGEST_MS = 10, 90


async def _fill(
    server: Server, operator: fairq.Client, queue: str, tenants: Mapping[str, float], seconds: float
) -> list[str]:
    """Give each tenant more than it can get, a light one of its queue's slots a tenth at most."""
    ids, most, draws = list[str](), int(seconds * CREDIT * 1000 / SHORTEST_MS / 4) + 100, random.Random(queue)
    await operator.request("set_paused", {"paused": True, "queue": queue})
    for tenant, weight in tenants.items():
        await operator.request("set_weight", {"queue": queue, "tenant": tenant, "weight": weight})
        count = most if weight == max(tenants.values()) else most // 10
        async with fairq.open_client(server.url, token=f"dev-tenant:{tenant}") as client:
            tasks = [{"ms": draws.uniform(SHORTEST_MS, LONGEST_MS)} for _ in range(count)]
            ids += [task.id for task in await client.enqueue_many(queue, tasks)]
    return ids


async def measure(
    server: Server, operator: fairq.Client, seconds: float, limit: float, progress: Progress
) -> tuple[dict[str, Any], Verdict]:
    """Let the worker work for so long; returns what part of its due each tenant of the first queue got."""
    ids, record = list[str](), server.directory / "several.record"
    for queue in QUEUES:
        progress.say(f"several queues: filling {queue}")
        ids += await _fill(server, operator, queue, WEIGHTS if queue == QUEUES[0] else {"other": 1.0}, seconds)
    async with running_worker(server, QUEUES, CREDIT, record):
        for queue in QUEUES:
            await wait_attached(operator, queue)
        progress.say(f"several queues: {seconds:g} s")
        for queue in reversed(QUEUES):
            await operator.request("set_paused", {"paused": False, "queue": queue})
        await trio.sleep(seconds)
        left = sum([await stop_handing_out(operator, queue, limit) for queue in QUEUES])
        states = (await operator.request("tenants", {"queue": QUEUES[0]}))["tenants"]
    starts = read_records(record)
    tasks, got = Counter(start.tenant for start in starts), {s["tenant"]: float(s["delivered"]) for s in states}
    unit = sum(got.values()) / sum(WEIGHTS.values())
    rows = [
        {"tenant": tenant, "weight": weight, "tasks": tasks[tenant], "of_due": round(got[tenant] / unit / weight, 3),
         "slack": round(3 * LONGEST_MS / 1000 / unit / weight, 3)}
        for tenant, weight in WEIGHTS.items()
    ]  # fmt: skip
    part = {"seconds": seconds, "credit": CREDIT, "queues": len(QUEUES), "tenants": rows}
    return part, judge(ids, [start.id for start in starts], left=left)


def table(part: Mapping[str, Any]) -> Table:
    """Show what part of its due each tenant got, and how far three of the longest leases may put it from that."""
    return Table(
        f"one of {part['queues']} queues of a worker: {part['seconds']:g} s, {part['credit']} slots, tasks of"
        f" {SHORTEST_MS} to {LONGEST_MS} ms",
        ["tenant", "weight", "tasks", "of its due", "three leases"],
        [[t["tenant"], t["weight"], t["tasks"], f"{t['of_due']:.1%}", f"{t['slack']:.1%}"] for t in part["tenants"]],
    )
