"""The app that `fairq worker` runs for the load test. It notes what it did, and writes that down when it ends.

LOADTEST_QUEUES names its queues, LOADTEST_RECORD the file to write: one line per task that was started,
`id tenant dwell_ms started_ms worked_ms`. Queues whose name begins with `sleep` sleep as long as the payload says.
"""

from __future__ import annotations

import atexit
import os
import time
from pathlib import Path

import trio

import fairq

app = fairq.Worker()
_noted: list[tuple[str, str, float, float, float]] = []


async def do_nothing(task: fairq.Task) -> None:
    """Take note of the task, and nothing else: what is measured is the service."""
    _noted.append((task.id, task.tenant, 0.0, 0.0, 0.0))


async def sleep(task: fairq.Task) -> None:
    """Be busy for `payload["ms"]` milliseconds."""
    started = time.time() * 1000
    began = time.perf_counter()
    try:
        await trio.sleep(task.payload["ms"] / 1000)
    finally:
        worked_ms = (time.perf_counter() - began) * 1000
        _noted.append((task.id, task.tenant, max(0.0, started - task.enqueued_at_ms), started, worked_ms))


def _write_down() -> None:
    if path := os.environ.get("LOADTEST_RECORD"):
        text = "".join(f"{id} {tenant} {dwell:.2f} {at:.2f} {ms:.3f}\n" for id, tenant, dwell, at, ms in _noted)
        Path(path).write_text(text, encoding="ascii")


atexit.register(_write_down)
for _queue in os.environ.get("LOADTEST_QUEUES", "noop").split(","):
    app.task(_queue)(sleep if _queue.startswith("sleep") else do_nothing)
