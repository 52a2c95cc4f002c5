"""arq: one asyncio worker."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import peerlib
from arq import ArqRedis, create_pool, func
from arq.connections import RedisSettings
from arq.constants import default_queue_name
from arq.worker import Worker

STORE = RedisSettings(port=peerlib.SETTINGS["port"])


async def handle(_: dict[str, Any], payload: str) -> None:
    """Do a job."""
    await peerlib.handle_async(payload)


class Client:
    """Enqueues jobs; there is no bulk call, so 50 callers share a chunk."""

    def __init__(self, pool: ArqRedis) -> None:
        self.pool = pool

    async def one(self, payload: str) -> None:
        """Enqueue a job."""
        await self.pool.enqueue_job("handle", payload)

    async def many(self, payloads: list[str]) -> None:
        """Enqueue jobs by concurrent callers."""
        await peerlib.concurrently(self.one, payloads, 50)

    async def left(self) -> int:
        """Count what is queued and what is under way: a job leaves the queue when it is done."""
        return int(await self.pool.zcard(default_queue_name))


async def produce() -> None:
    """Take orders."""
    await peerlib.serve(Client(await create_pool(STORE)))


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        asyncio.run(produce())
    else:
        asyncio.set_event_loop(asyncio.new_event_loop())
        slots = peerlib.SETTINGS["slots"]
        Worker([func(handle, keep_result=0)], redis_settings=STORE, max_jobs=slots, poll_delay=0.01).run()
