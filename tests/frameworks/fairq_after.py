"""The tasks of celery_before.py under fairq: `fairq worker tests.frameworks.fairq_after:app`.

`max_retries`: `max_attempts` where it is enqueued. `self.retry`: `fairq.Retry`. A chain: `task.then`, which leaves with
the acknowledgement. A backend for results: `result_ttl`. `task_id`: `id`, which also makes a repeated call one task.
"""

from __future__ import annotations

from typing import Any

import fairq
import fairq.sync

app = fairq.Worker()


@app.task("shop", name="charge")
def charge(task: fairq.Task) -> dict[str, Any]:
    """Charge a card; a bank that is busy is tried again."""
    if task.attempt == 1:
        raise fairq.Retry("the bank is busy", delay=0)
    task.then("shop", task.payload, name="receipt", id=f"{task.id}-receipt", result_ttl=60)
    return dict(task.payload)


@app.task("shop", name="receipt")
def receipt(task: fairq.Task) -> str:
    """Write the receipt of a charge."""
    return f"{task.payload['order']}: {task.payload['cents'] / 100:.2f}"


def buy(client: fairq.sync.Client, order: str, cents: int) -> fairq.sync.EnqueuedTask:
    """Charge, and then write the receipt."""
    payload = {"order": order, "cents": cents}
    return client.enqueue("shop", payload, name="charge", id=order, max_attempts=6, result_ttl=60)
