"""Bare Redis commands: LPUSH, LMOVE to a list of tasks under way, LREM from it. `pipeline` of them go in one write."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import peerlib
import redis

BATCH = peerlib.SETTINGS["pipeline"]


def connect() -> redis.Redis:
    """Connect to the store."""
    return redis.Redis(port=peerlib.SETTINGS["port"], decode_responses=True)


class Client:
    """Pushes tasks."""

    def __init__(self) -> None:
        self.redis = connect()
        self.redis.ping()

    def one(self, payload: str) -> None:
        """Push a task."""
        self.redis.lpush("ready", payload)

    def many(self, payloads: list[str]) -> None:
        """Push tasks, a pipeline at a time."""
        for start in range(0, len(payloads), BATCH):
            pipe = self.redis.pipeline(transaction=False)
            for payload in payloads[start : start + BATCH]:
                pipe.lpush("ready", payload)
            pipe.execute()

    def left(self) -> int:
        """Count what is in both lists."""
        return int(self.redis.llen("ready")) + int(self.redis.llen("busy"))


def work() -> None:
    """Take, do and remove tasks; waits for the first of a batch only."""
    client = connect()
    while True:
        tasks: list[Any] = [client.blmove("ready", "busy", 5, "RIGHT", "LEFT")]
        if tasks[0] is None:
            continue
        if BATCH > 1:
            pipe = client.pipeline(transaction=False)
            for _ in range(BATCH - 1):
                pipe.lmove("ready", "busy", "RIGHT", "LEFT")
            tasks += [task for task in pipe.execute() if task is not None]
        for task in tasks:
            peerlib.handle(task)
        pipe = client.pipeline(transaction=False)
        for task in tasks:
            pipe.lrem("busy", -1, task)
        pipe.execute()


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        asyncio.run(peerlib.serve(Client()))
    else:
        work()
