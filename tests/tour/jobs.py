"""The tour's worker."""

from __future__ import annotations

import time

import fairq

app = fairq.Worker()
_refused: set[str] = set()


@app.task("tour")
async def work(task: fairq.Task) -> object:
    """Add numbers up, tell the time, or refuse a task once."""
    match task.payload:
        case {"add": numbers}:
            return sum(numbers)
        case {"ask": "time"}:
            return time.time()
        case {"refuse": "once"} if task.tenant not in _refused:
            _refused.add(task.tenant)
            raise fairq.Reject("not now")
        case _:
            return "done"
