"""taskiq with taskiq-redis: its stream broker, the one that acknowledges."""

from __future__ import annotations

import asyncio
import os
import sys

import peerlib
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(f"redis://127.0.0.1:{peerlib.SETTINGS['port']}")


@broker.task(task_name="handle")
async def handle(payload: str) -> None:
    """Do a task."""
    await peerlib.handle_async(payload)


class Client:
    """Enqueues tasks; there is no bulk call, so 50 callers share a chunk."""

    async def one(self, payload: str) -> None:
        """Enqueue a task."""
        await handle.kiq(payload)

    async def many(self, payloads: list[str]) -> None:
        """Enqueue tasks by concurrent callers."""
        await peerlib.concurrently(self.one, payloads, 50)

    async def left(self) -> int:
        """Count the messages not handed out and those not acknowledged."""
        from redis.asyncio import Redis

        async with Redis(connection_pool=broker.connection_pool) as redis:
            groups = await redis.xinfo_groups(broker.queue_name)
        return sum(group["pending"] + (group["lag"] or 0) for group in groups)


async def produce() -> None:
    """Take orders."""
    await broker.startup()
    await peerlib.serve(Client())


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        asyncio.run(produce())
    else:
        slots = str(peerlib.SETTINGS["slots"])
        options = ["--workers", "1", "--max-async-tasks", slots, "--max-prefetch", slots, "--log-level", "WARNING"]
        os.execv(sys.executable, [sys.executable, "-m", "taskiq", "worker", "peer_taskiq:broker", *options])
