"""huey: one consumer with threads. It has no acknowledgement: what a worker has taken is gone with the worker."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import peerlib
from huey import RedisHuey

app = RedisHuey("work", port=peerlib.SETTINGS["port"], results=False)


@app.task()
def handle(payload: str) -> None:
    """Do a task."""
    peerlib.handle(payload)


class Client:
    """Enqueues tasks; there is no bulk call, so 8 threads share a chunk."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(8)
        app.pending_count()

    def one(self, payload: str) -> None:
        """Enqueue a task."""
        handle(payload)

    def many(self, payloads: list[str]) -> None:
        """Enqueue tasks by threads."""
        for _ in self.threads.map(handle, payloads):
            pass

    def left(self) -> int:
        """Count what is queued."""
        return int(app.pending_count())


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        asyncio.run(peerlib.serve(Client()))
    else:
        slots = peerlib.SETTINGS["slots"]
        app.create_consumer(workers=slots, worker_type="thread", periodic=False, initial_delay=0.01).run()
