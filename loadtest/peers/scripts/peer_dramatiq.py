"""dramatiq: one worker process with threads."""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import dramatiq
import peerlib
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(host="127.0.0.1", port=peerlib.SETTINGS["port"])
dramatiq.set_broker(broker)


@dramatiq.actor
def handle(payload: str) -> None:
    """Do a message's work."""
    peerlib.handle(payload)


class Client:
    """Enqueues messages; there is no bulk call, so 8 threads share a chunk."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(8)
        broker.client.ping()

    def one(self, payload: str) -> None:
        """Enqueue a message."""
        handle.send(payload)

    def many(self, payloads: list[str]) -> None:
        """Enqueue messages by threads."""
        for _ in self.threads.map(handle.send, payloads):
            pass

    def left(self) -> int:
        """Count the messages that are kept: one goes when it is acknowledged."""
        return int(broker.client.hlen("dramatiq:default.msgs"))


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        asyncio.run(peerlib.serve(Client()))
    else:
        options = ["--processes", "1", "--threads", str(peerlib.SETTINGS["slots"])]
        os.execv(sys.executable, [sys.executable, "-m", "dramatiq", "peer_dramatiq", *options])
