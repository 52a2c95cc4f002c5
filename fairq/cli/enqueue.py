"""`fairq enqueue`: a task from the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import orjson
from cyclopts import Parameter

from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import print_json
from fairq.errors import BadRequest

if TYPE_CHECKING:
    from fairq.client.client import Client, EnqueuedTask


def enqueue(
    queue: str,
    payload: Annotated[str, Parameter(allow_leading_hyphen=True)],
    *,
    id: str | None = None,
    delay: float | None = None,
    expires_in: float | None = None,
    max_attempts: int | None = None,
    priority: int | None = None,
    dedupe_key: str | None = None,
    dedupe_window: float | None = None,
    json: Json = False,
    server: Server | None = None,
) -> None:
    """Enqueue one task and print its id.

    Parameters
    ----------
    queue
        The queue.
    payload
        Any JSON value; `-` reads it from standard input.
    id
        Your own id for the task: repeating the command then makes no second one.
    delay
        Seconds before it may start.
    expires_in
        Seconds after which it shall not start any more.
    max_attempts
        Attempts before it becomes a dead letter (default: the queue's).
    priority
        0 (most urgent) to 99 among the tenant's own tasks (default: 50).
    dedupe_key
        While a task with this key waits or runs, no second one is made, and the first one's id is printed.
    dedupe_window
        Hold the key for so many seconds instead, whatever becomes of the task.
    """
    try:
        value = orjson.loads(sys.stdin.buffer.read() if payload == "-" else payload)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the payload is not JSON ({error}); text needs quotes: '\"text\"'", field="payload") from None

    async def work(client: Client) -> EnqueuedTask:
        return await client.enqueue(
            queue, value, id=id, delay=delay, expires_in=expires_in, max_attempts=max_attempts, priority=priority,
            dedupe_key=dedupe_key, dedupe_window=dedupe_window,
        )  # fmt: skip

    task = run_with(server or Server(), work)
    if json:
        print_json({"id": task.id, "queue": task.queue, "duplicate": task.is_duplicate})
    else:
        print(task.id)
