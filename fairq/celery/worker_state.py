"""What a cancellation or a drain means to the Celery worker of this process."""

from __future__ import annotations

from celery.worker import state

from fairq.log import Log

log = Log("fairq.celery")


def revoke(task_id: str) -> None:
    """Let a task that was cancelled not begin; one that runs goes on."""
    state.revoked.add(task_id)


def stop() -> None:
    """Begin a warm shutdown."""
    log.info("an operator drains this worker")
    state.should_stop = 0
