"""Finds the tenant of a message that a program sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from celery import current_task

HEADER = "tenant"

_tenant: ContextVar[str] = ContextVar("fairq_celery_tenant", default="")


@contextmanager
def tenant(name: str) -> Iterator[None]:
    """Send what the block sends for this tenant; a middleware puts it around each request."""
    token = _tenant.set(name)
    try:
        yield
    finally:
        _tenant.reset(token)


def tenant_of(headers: Mapping[str, Any], default: str) -> str:
    """Return the tenant of a message: of its header, the block of `tenant`, the task that sends it, or the default.

    Empty if none of them names one: then the token must be a tenant's.
    """
    named = headers.get(HEADER), _tenant.get(), _of_running_task(), default
    return next((str(name) for name in named if name is not None and name != ""), "")


def _of_running_task() -> str:
    task = current_task._get_current_object() if current_task else None
    return (task.request.get(HEADER) if task else None) or ""
