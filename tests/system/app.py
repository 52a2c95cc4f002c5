"""The handlers of the worker processes: every start and every end is a line in a file, written at once."""

from __future__ import annotations

import os
from pathlib import Path

import anyio

import fairq

_DIRECTORY = Path(os.environ.get("FAIRQ_TEST_JOURNAL", os.devnull)).parent
_JOURNAL = os.open(os.environ.get("FAIRQ_TEST_JOURNAL", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

app = fairq.Worker()


def _note(event: str, task: fairq.Task) -> None:
    os.write(_JOURNAL, f"{event} {task.id} {task.attempt} {os.getpid()}\n".encode())


@app.task("q")
async def work(task: fairq.Task) -> None:
    """Do what the payload says, in the first attempt `first`, in later ones `then`: so many seconds, or till a file is.

    Files are named as in the journal's directory. `die`: end this process after a moment.
    """
    _note("start", task)
    until = task.payload["first" if task.attempt == 1 else "then"]
    if until == "die":
        await anyio.sleep(0.1)
        os._exit(9)
    if isinstance(until, str):
        while not (_DIRECTORY / until).exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(0.01)
    else:
        await anyio.sleep(until)
    _note("end", task)


@app.task("chain-1")
async def chain(task: fairq.Task) -> None:
    """Begin a chain of three queues."""
    task.then("chain-2", task.payload)


@app.task("chain-2")
async def go_on(task: fairq.Task) -> None:
    """Enqueue the end at once, in each attempt."""
    await task.enqueue("chain-3", task.payload)


@app.task("chain-3")
async def arrive(task: fairq.Task) -> None:
    """Note that the chain has ended."""
    _note(f"chain-3:{task.payload}", task)
