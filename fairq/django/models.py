"""The outbox: tasks that were committed with what they are about, and that are to be enqueued."""

from __future__ import annotations

import orjson
from django.db import models
from django.utils import timezone

from fairq.model.tasks import OPTIONS, NewTask


class OutboxTask(models.Model):
    """A task that the relay has yet to enqueue; one that the service refused says why, and when it is tried again."""

    queue = models.CharField(max_length=64)
    task_id = models.CharField(max_length=129)
    payload = models.TextField()
    options = models.JSONField(default=dict)
    send_at = models.DateTimeField(default=timezone.now, db_index=True)
    refusals = models.PositiveIntegerField(default=0)
    error = models.TextField(default="", blank=True)

    class Meta:
        """Its table."""

        db_table = "fairq_outbox"

    def __str__(self) -> str:
        return f"{self.queue} {self.task_id}"

    @classmethod
    def of(cls, queue: str, task: NewTask) -> OutboxTask:
        """Make the row of a task."""
        values = task._asdict()
        options = {name: values[name] for name, default in OPTIONS.items() if values[name] != default}
        return cls(queue=queue, task_id=task.id, payload=task.payload.decode(), options=options)

    @property
    def task(self) -> NewTask:
        """The task. Raises: ValueError if its payload is not JSON; TypeError for an option that is unknown here."""
        orjson.loads(self.payload)  # else it would break the frame, and with it the connection
        return NewTask(self.task_id, self.payload.encode(), **self.options)
