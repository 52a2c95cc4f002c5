"""The handlers of the workers that the pages show."""

from __future__ import annotations

import asyncio

import fairq

app = fairq.Worker()


@app.task("mail")
async def send(task: fairq.Task) -> str:
    """Take a little time, or fail."""
    await asyncio.sleep(0.02)
    if task.payload == "fail":
        raise ValueError("no such mailbox")
    return "sent"
