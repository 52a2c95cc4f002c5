"""streaq: one asyncio worker on Redis streams."""

from __future__ import annotations

import asyncio
import sys

import peerlib
from streaq import Worker

app: Worker = Worker(
    redis_url=f"redis://127.0.0.1:{peerlib.SETTINGS['port']}",
    concurrency=peerlib.SETTINGS["slots"],
    handle_signals=True,
)


@app.task(ttl=0, silent=True)
async def handle(payload: str) -> None:
    """Do a task."""
    await peerlib.handle_async(payload)


class Client:
    """Enqueues tasks whose results are not kept."""

    async def one(self, payload: str) -> None:
        """Enqueue a task."""
        await handle.enqueue(payload)

    async def many(self, payloads: list[str]) -> None:
        """Enqueue tasks by one call."""
        await app.enqueue_many([handle.enqueue(payload) for payload in payloads])

    async def left(self) -> int:
        """Count what is queued and what is under way: a stream's entry is deleted when its task is done."""
        return int(await app.queue_size())


async def produce() -> None:
    """Take orders."""
    async with app:
        await peerlib.serve(Client())


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        asyncio.run(produce())
    else:
        app.run_sync()
