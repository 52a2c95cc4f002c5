"""RQ: SimpleWorker, which runs jobs in its own process."""

from __future__ import annotations

import asyncio
import sys

import peerlib
from redis import Redis
from rq import Queue, SimpleWorker

HANDLER = "peerlib.handle"


class Client:
    """Enqueues jobs whose results are not kept."""

    def __init__(self) -> None:
        self.queue = Queue(connection=Redis(port=peerlib.SETTINGS["port"]))

    def one(self, payload: str) -> None:
        """Enqueue a job."""
        self.queue.enqueue(HANDLER, payload, result_ttl=0)

    def many(self, payloads: list[str]) -> None:
        """Enqueue jobs through one pipeline."""
        self.queue.enqueue_many([Queue.prepare_data(HANDLER, (payload,), result_ttl=0) for payload in payloads])

    def left(self) -> int:
        """Count what is queued and what is under way."""
        return len(self.queue) + self.queue.started_job_registry.count


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        asyncio.run(peerlib.serve(Client()))
    else:
        queue = Client().queue
        SimpleWorker([queue], connection=queue.connection).work(logging_level="WARNING")
