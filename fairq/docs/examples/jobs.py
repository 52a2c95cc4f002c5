"""The handlers that all examples here enqueue for: `fairq worker jobs:app`."""

import asyncio

import fairq

app = fairq.Worker(concurrency=4)


@app.task("thumbnails")
async def shrink(task: fairq.Task) -> str:
    await asyncio.sleep(0.02)  # stands for the work
    return f"{task.payload} is smaller"


@app.task("invoices")
async def send(task: fairq.Task) -> None:
    if "@" not in task.payload["to"]:
        raise fairq.Reject(f"{task.payload['to']} is no address")
    if task.attempt == 1:
        raise fairq.Retry("the mail server is busy", delay=0.1)
    task.then("audit", f"sent to {task.payload['to']}")


@app.task("audit")
def note(task: fairq.Task) -> None:  # a plain function runs in a thread
    print(task.payload, flush=True)


@app.task("reports")
async def report(task: fairq.Task) -> str:
    return f"a report on {task.payload['of']}"
