"""The handlers of the worker processes: every start and every end is a line in a file, written at once."""

from __future__ import annotations

import os

import trio

import fairq

_JOURNAL = os.open(os.environ.get("FAIRQ_TEST_JOURNAL", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

app = fairq.Worker()


def _note(event: str, task: fairq.Task) -> None:
    os.write(_JOURNAL, f"{event} {task.id} {task.attempt} {os.getpid()}\n".encode())


@app.task("q")
async def work(task: fairq.Task) -> None:
    """Sleep as long as the payload says: `first` seconds in the first attempt, `then` in later ones."""
    _note("start", task)
    await trio.sleep(task.payload["first" if task.attempt == 1 else "then"])
    _note("end", task)
