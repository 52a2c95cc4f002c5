"""Idle clients in a process of their own: `python -m loadtest.idle URL tenants|workers COUNT`, until it is ended.

They would otherwise share an event loop with the traffic whose latency is measured. One line is printed when GROUP more
are connected.
"""

from __future__ import annotations

import sys

import structlog
import trio

import fairq

GROUP = 50  # that connect at once; more would wait for each other in this one process
QUEUE = "idle"


async def _tenant(url: str, n: int, *, task_status: trio.TaskStatus[None]) -> None:
    async with fairq.open_client(url, token=f"dev-tenant:idle-{n}") as client:
        await client.tasks(QUEUE, ["none"])  # answered, so it is connected
        task_status.started()
        await trio.sleep_forever()


async def _worker(url: str, n: int, *, task_status: trio.TaskStatus[None]) -> None:
    worker = fairq.Worker(url, token="dev-worker", name=f"idle-{n}", concurrency=1)
    worker.task(QUEUE)(_never)
    await worker.run(task_status=task_status)


async def _never(task: fairq.Task) -> None:
    raise AssertionError("an idle worker got a task")


async def main(url: str, kind: str, count: int) -> None:
    """Connect and stay."""
    connect = {"tenants": _tenant, "workers": _worker}[kind]
    async with trio.open_nursery() as nursery:
        for first in range(0, count, GROUP):
            numbers = range(first, min(first + GROUP, count))
            async with trio.open_nursery() as group:
                for n in numbers:
                    group.start_soon(nursery.start, connect, url, n)
            print(numbers.stop, flush=True)


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
