"""The app that `fairq worker` runs for the load test. It notes what it did, and writes that down when it ends.

LOADTEST_QUEUES names its queues, LOADTEST_RECORD the file to write: one line per task that was started,
`id tenant dwell_ms started_ms worked_ms`. Handlers go by the first word of a queue's name: `sleep`
sleeps as long as the payload says (and first hands the task back as often as it says, or rejects it), `flaky` fails
once, all others do nothing.
With LOADTEST_UNBUFFERED set each line is written at once: for workers whose memory is measured.
"""

from __future__ import annotations

import atexit
import os
import time
from array import array

import trio

import fairq

app = fairq.Worker()
# In few objects: a garbage collection that looks at a tuple for each of a million tasks stops the worker for 0.1 s.
_names: list[str] = []  # the id and the tenant of each task
_times = array("d")  # its dwell, start and work
_file = os.open(os.environ.get("LOADTEST_RECORD", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
_unbuffered = "LOADTEST_UNBUFFERED" in os.environ


def _note(task: fairq.Task, started: float, worked_ms: float) -> None:
    _names.extend((task.id, task.tenant))
    _times.extend((max(0.0, started - task.enqueued_at_ms), started, worked_ms))
    if _unbuffered:
        _write_down()


async def do_nothing(task: fairq.Task) -> None:
    """Take note of the task, and nothing else: what is measured is the service."""
    _note(task, time.time() * 1000, 0.0)


async def sleep(task: fairq.Task) -> None:
    """Be busy for `payload["ms"]` milliseconds, after `payload["hand_backs"]` attempts that end at once."""
    if task.attempt <= task.payload.get("hand_backs", 0):
        raise fairq.Retry("handed back", delay=0)
    if task.payload.get("fails"):
        raise fairq.Reject("it fails, as its payload says")
    started = time.time() * 1000
    began = time.perf_counter()
    try:
        await trio.sleep(task.payload["ms"] / 1000)
    finally:
        _note(task, started, (time.perf_counter() - began) * 1000)


async def fail_first(task: fairq.Task) -> None:
    """Fail the first attempt; the next is like `do_nothing`."""
    if task.attempt == 1:
        raise fairq.Retry("the first attempt fails", delay=0.05)
    await do_nothing(task)


def _write_down() -> None:
    names, times = iter(_names), iter(_times)
    rows = zip(names, names, times, times, times, strict=True)
    lines = [f"{id} {tenant} {dwell:.2f} {at:.2f} {ms:.3f}\n" for id, tenant, dwell, at, ms in rows]
    os.write(_file, "".join(lines).encode("ascii"))
    _names.clear()
    del _times[:]


atexit.register(_write_down)
for _queue in os.environ.get("LOADTEST_QUEUES", "noop").split(","):
    _handlers = {"sleep": sleep, "flaky": fail_first}
    app.task(_queue)(_handlers.get(_queue.partition("-")[0], do_nothing))
