"""What the scripts of all peers share. It runs in a peer's own environment, so it needs the standard library alone.

A script is started as `script.py produce` or `script.py work`, with its settings as JSON in LOADTEST_PEER. A producer
reads orders from standard input and answers on standard output, one JSON object per line (`serve`). A worker works
until SIGTERM; its handler appends a line of fixed width to the record file as each task starts, so that the file's
size tells how many have, and nothing is missing in it however the worker ends.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

SETTINGS: dict[str, Any] = json.loads(os.environ.get("LOADTEST_PEER", "{}"))
CHUNK = 1_000  # tasks in one call of a bulk enqueue
# payload: id (12), when it was made in us (16), how many ms to work (4), padding up to 200 characters
PADDING = "x" * 168
_record = os.open(SETTINGS["record"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if "record" in SETTINGS else -1


def payload_of(prefix: str, number: int, ms: int) -> str:
    """Make the payload of a task; `prefix` has four characters."""
    return f"{prefix}{number:08d}{time.time_ns() // 1000:016d}{ms:04d}{PADDING}"


def note(payload: str) -> float:
    """Note that a task starts: its id, when, and when it was enqueued, in us. Returns how long to work, in s."""
    line = f"{payload[:12]} {time.time_ns() // 1000:016d} {payload[12:28]}\n"
    os.write(_record, line.encode())
    return int(payload[28:32]) / 1000


def handle(payload: str) -> None:
    """Do a task in a thread or process of its own."""
    if seconds := note(payload):
        time.sleep(seconds)


async def handle_async(payload: str) -> None:
    """Do a task in asyncio."""
    if seconds := note(payload):
        await asyncio.sleep(seconds)


async def concurrently(call: Callable[[str], Awaitable[None]], payloads: list[str], callers: int) -> None:
    """Divide payloads among concurrent callers; each waits for one of its own before the next."""
    left = iter(payloads)

    async def caller() -> None:
        for payload in left:
            await call(payload)

    await asyncio.gather(*(caller() for _ in range(callers)))


async def _read_line() -> str:
    return await asyncio.to_thread(sys.stdin.readline)


async def _called(function: Callable[..., Any], *args: Any) -> Any:
    result = function(*args)
    return await result if inspect.isawaitable(result) else result


async def _enqueue(
    client: Any, *, do: str, prefix: str, count: int, ms: int = 0, tenant: str = "t", every_s: float = 0.0
) -> dict[str, Any]:
    for_tenant = (tenant,) if getattr(client, "has_tenants", False) else ()
    sleep = getattr(client, "sleep", asyncio.sleep)
    began_at, began, cpu = time.time_ns() // 1000, time.perf_counter(), time.process_time()
    if do == "one":
        for i in range(count):
            if pause := began + i * every_s - time.perf_counter() if every_s else 0.0:
                await sleep(max(pause, 0.0))
            await _called(client.one, payload_of(prefix, i, ms), *for_tenant)
    else:
        for start in range(0, count, CHUNK):
            chunk = [payload_of(prefix, i, ms) for i in range(start, min(start + CHUNK, count))]
            await _called(client.many, chunk, *for_tenant)
    seconds = time.perf_counter() - began
    return {"began_us": began_at, "seconds": seconds, "cpu_s": time.process_time() - cpu}


async def serve(client: Any, read_line: Callable[[], Awaitable[str]] = _read_line) -> None:
    """Do what the orders on standard input say until it ends.

    `client` has `one(payload)`, `many(payloads)` and `left()` (tasks that are not acknowledged), coroutines or plain
    functions; `sleep`, where it does not run under asyncio. Orders: {"do": "one" | "many", "prefix", "count", "ms",
    "tenant", "every_s" (of one: from one to the next)} and {"do": "left"}.
    """
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    print(json.dumps({"ready": True}), file=out)
    while line := await read_line():
        order = json.loads(line)
        if order["do"] == "left":
            answer = {"left": await _called(client.left)}
        else:
            answer = await _enqueue(client, **order)
        print(json.dumps(answer), file=out)
    out.close()
