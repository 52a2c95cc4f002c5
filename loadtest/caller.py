"""A program that enqueues, as a product would: under trio, under asyncio, with threads, or over HTTP.

`python -m loadtest.caller KIND URL QUEUE`. Each line of its input is a job, as a JSON object: how many `tasks` by how
many `callers`, or (`rate`) so many a second by one. Each answer is a line: the ids, how long each call took (ms), the
seconds in all and those of CPU. It prints `ready` when its connection stands.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Awaitable, Callable
from http.client import HTTPConnection
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import anyio
import orjson
from attrs import define, field, frozen

import fairq
import fairq.sync
from loadtest.throughput import PAYLOAD

TOKEN = "dev-tenant:acme"


@frozen
class Job:
    """What to do: `rate` is a number of tasks a second, 0: as many as go."""

    tasks: int
    callers: int = 1
    rate: float = 0.0


@define(eq=False)
class Taken:
    """The ids and times of a job."""

    job: Job
    ids: list[str] = field(factory=list)
    took_ms: list[float] = field(factory=list)
    began: float = field(factory=time.perf_counter)
    _cpu: float = field(factory=time.process_time)
    _numbers: Any = field(factory=count)

    def next(self) -> float | None:
        """Return when the next task is due; None: there is none."""
        number = next(self._numbers)
        if number >= self.job.tasks:
            return None
        return self.began + number / self.job.rate if self.job.rate else 0.0

    def note(self, id: str, called: float) -> None:
        """Note a task that was taken."""
        self.ids.append(id)
        self.took_ms.append((time.perf_counter() - called) * 1000)

    def tell(self) -> None:
        """Print the ids and times."""
        found = {
            "ids": self.ids,
            "took_ms": self.took_ms,
            "seconds": time.perf_counter() - self.began,
            "cpu_s": time.process_time() - self._cpu,
        }
        sys.stdout.buffer.write(orjson.dumps(found) + b"\n")
        sys.stdout.buffer.flush()


def read_job() -> Job | None:
    """Wait for the next job; None at the end."""
    line = sys.stdin.readline()
    return Job(**orjson.loads(line)) if line else None


async def call_async(url: str, queue: str) -> None:
    """Do jobs with `fairq.open_client`."""

    async def do(taken: Taken, client: fairq.Client) -> None:
        while (due := taken.next()) is not None:
            if due:
                await anyio.sleep(max(0.0, due - time.perf_counter()))
            called = time.perf_counter()
            taken.note((await client.enqueue(queue, PAYLOAD)).id, called)

    async with fairq.open_client(url, token=TOKEN) as client:
        await client.tasks(queue, ["none"])
        print("ready", flush=True)
        while job := await anyio.to_thread.run_sync(read_job):
            taken = Taken(job)
            async with anyio.create_task_group() as group:
                for _ in range(job.callers):
                    group.start_soon(do, taken, client)
            taken.tell()


def call_in_threads(connect: Callable[[], Callable[[], str]]) -> None:
    """Do jobs with functions that enqueue and block, one for each caller of a job, who is a thread."""

    def do(taken: Taken) -> None:
        enqueue = connect()
        while (due := taken.next()) is not None:
            if due:
                time.sleep(max(0.0, due - time.perf_counter()))
            called = time.perf_counter()
            taken.note(enqueue(), called)

    print("ready", flush=True)
    while job := read_job():
        taken = Taken(job)
        threads = [threading.Thread(target=do, args=(taken,)) for _ in range(job.callers - 1)]
        for thread in threads:
            thread.start()
        do(taken)
        for thread in threads:
            thread.join()
        taken.tell()


def call_sync(url: str, queue: str) -> None:
    """Do jobs with `fairq.sync`."""
    with fairq.sync.open_client(url, token=TOKEN) as client:
        client.tasks(queue, ["none"])
        call_in_threads(lambda: lambda: client.enqueue(queue, PAYLOAD).id)


def call_over_http(url: str, queue: str) -> None:
    """Do jobs over HTTP, each caller over a connection of its own that stays open until the job is done."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

    def connect() -> Callable[[], str]:
        connection = HTTPConnection(urlsplit(url).netloc)

        def enqueue() -> str:
            connection.request("POST", f"/v1/queues/{queue}/tasks", orjson.dumps({"payload": PAYLOAD}), headers)
            answer = connection.getresponse()
            reply = orjson.loads(answer.read())
            assert answer.status == 201, reply
            id: str = reply["id"]
            return id

        return enqueue

    call_in_threads(connect)


KINDS: dict[str, Callable[[str, str], Awaitable[None] | None]] = {
    "trio": lambda url, queue: anyio.run(call_async, url, queue, backend="trio"),
    "asyncio": lambda url, queue: anyio.run(call_async, url, queue, backend="asyncio"),
    "sync": call_sync,
    "HTTP": call_over_http,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](*sys.argv[2:])
