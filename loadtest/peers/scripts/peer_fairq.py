"""fairq itself, through the public SDK; tasks of a tenant go over a connection with the tenant's token."""

from __future__ import annotations

import signal
import sys
from contextlib import AsyncExitStack

import peerlib
import trio

import fairq

URL, QUEUE = peerlib.SETTINGS["url"], "work"


class Client:
    """Enqueues tasks."""

    has_tenants = True
    sleep = staticmethod(trio.sleep)

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._clients: dict[str, fairq.Client] = {}

    async def _of(self, tenant: str) -> fairq.Client:
        if tenant not in self._clients:
            client = fairq.open_client(URL, token=f"dev-tenant:{tenant}")
            self._clients[tenant] = await self._stack.enter_async_context(client)
        return self._clients[tenant]

    async def one(self, payload: str, tenant: str) -> None:
        """Enqueue a task."""
        await (await self._of(tenant)).enqueue(QUEUE, payload)

    async def many(self, payloads: list[str], tenant: str) -> None:
        """Enqueue tasks by one call."""
        await (await self._of(tenant)).enqueue_many(QUEUE, payloads)

    async def left(self) -> int:
        """Count what is queued, delayed and under way."""
        async with fairq.open_client(URL, token="dev-operator") as operator:
            rows = (await operator.request("queues"))["queues"]
        return sum(row["ready"] + row["delayed"] + row["leased"] for row in rows)


async def produce() -> None:
    """Take orders."""
    async with AsyncExitStack() as stack:
        client = Client(stack)
        await client.many([], "t")
        await peerlib.serve(client, lambda: trio.to_thread.run_sync(sys.stdin.readline))


async def handle(task: fairq.Task) -> None:
    """Do a task."""
    if seconds := peerlib.note(task.payload):
        await trio.sleep(seconds)


async def work() -> None:
    """Work until SIGTERM."""
    app = fairq.Worker(url=URL, token="dev-worker", concurrency=peerlib.SETTINGS["slots"])
    app.task(QUEUE)(handle)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(app.run)
            await anext(signals)
            app.stop()


if __name__ == "__main__":
    trio.run(produce if sys.argv[1] == "produce" else work)
