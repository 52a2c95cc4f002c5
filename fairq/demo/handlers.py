"""The worker app of the demonstration: `fairq worker fairq.demo.handlers:app`."""

from __future__ import annotations

import time

from fairq.client.task import Task
from fairq.client.worker import Worker
from fairq.demo.corpus import digest_file
from fairq.demo.executions import Execution, append_execution
from fairq.demo.scenario import QUEUES

app = Worker()


def tokenize_and_hash(task: Task) -> None:
    """Do one task's work and record its execution. A plain function: it runs in a thread."""
    wait_ms = int(time.time() * 1000) - task.enqueued_at_ms
    path, owner = task.payload["path"], task.payload["owner"]
    digest = digest_file(path)
    append_execution(Execution(task.id, task.queue, task.tenant, owner, path, digest, task.attempt, wait_ms))


for _queue in QUEUES:
    app.task(_queue)(tokenize_and_hash)
