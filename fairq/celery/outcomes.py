"""What fairq does to a task or worker, as Celery and its result backend know it."""

from __future__ import annotations

from celery import current_app
from celery.worker import state

from fairq.log import Log

log = Log("fairq.celery")


def cancelled(task_id: str) -> None:
    """Note the result of a task that was cancelled while it waited."""
    current_app.backend.mark_as_revoked(task_id, "revoked")


def expired(task_id: str | None) -> None:
    """Note the result of a task that had expired when it was sent."""
    if task_id:
        current_app.backend.mark_as_revoked(task_id, "expired")


def revoke(task_id: str) -> None:
    """Let a task that was cancelled not begin; one that runs goes on."""
    state.revoked.add(task_id)


def stop() -> None:
    """Begin a warm shutdown."""
    log.info("an operator drains this worker")
    state.should_stop = 0
