"""The app of the workers under faults: each start and end is on the disk before the task goes on.

FAULTS_RECORD names the file. A payload has `ms`, how long the handler works, and `fails`, how many attempts fail.
"""

from __future__ import annotations

import os
import time

import trio

import fairq

QUEUE = "work"

app = fairq.Worker()
_file = os.open(os.environ.get("FAULTS_RECORD", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _note(task: fairq.Task, event: str) -> None:
    os.write(_file, f"{task.id} {task.attempt} {event} {time.time():.6f}\n".encode("ascii"))


@app.task(QUEUE)
async def work(task: fairq.Task) -> None:
    """Work, and fail as often as the payload says."""
    _note(task, "start")
    await trio.sleep(task.payload["ms"] / 1000)
    if task.attempt <= task.payload["fails"]:
        raise fairq.Retry("it fails, as its payload says", delay=0.05)
    _note(task, "end")
