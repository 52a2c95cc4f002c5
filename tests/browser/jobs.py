"""The handlers of the workers that the pages show."""

from __future__ import annotations

import asyncio
import os
import time

import fairq

app, imports = fairq.Worker(), fairq.Worker()


@app.task("mail")
async def send(task: fairq.Task) -> str:
    """Take a little time, or fail, or end the process."""
    await asyncio.sleep(0.02)
    if task.payload == "die":
        os._exit(9)
    if str(task.payload).startswith("fail"):
        raise ValueError("no such mailbox")
    return "sent"


@imports.task("imports")
async def bring_in(task: fairq.Task) -> None:
    """Take long; or block the event loop."""
    if task.payload == "stuck":
        time.sleep(600)  # noqa: ASYNC251 - the fault that is to be seen
    await asyncio.sleep(600)
