"""SAQ: one asyncio worker."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import peerlib
from saq import Queue, Worker


async def handle(_: dict[str, Any], *, payload: str) -> None:
    """Do a job."""
    await peerlib.handle_async(payload)


class Client:
    """Enqueues jobs whose results are not kept (ttl=-1); there is no bulk call, so a chunk goes concurrently."""

    def __init__(self) -> None:
        self.queue = Queue.from_url(f"redis://127.0.0.1:{peerlib.SETTINGS['port']}")

    async def one(self, payload: str) -> None:
        """Enqueue a job."""
        await self.queue.enqueue("handle", payload=payload, ttl=-1)

    async def many(self, payloads: list[str]) -> None:
        """Enqueue jobs at once; SAQ lets 20 of them go at a time."""
        await asyncio.gather(*(self.one(payload) for payload in payloads))

    async def left(self) -> int:
        """Count what is queued and what is under way."""
        return int(await self.queue.count("incomplete"))


async def produce() -> None:
    """Take orders."""
    client = Client()
    await client.queue.connect()
    await peerlib.serve(client)


async def work() -> None:
    """Work until SIGTERM."""
    worker: Worker[Any] = Worker(Client().queue, functions=[handle], concurrency=peerlib.SETTINGS["slots"])
    worker.SIGNALS = [signal.SIGTERM]
    await worker.start()


if __name__ == "__main__":
    asyncio.run(produce() if sys.argv[1] == "produce" else work())
