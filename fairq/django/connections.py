"""Django's connections in a worker: closed around each task as they are around each request, where its handler runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections

from fairq.client.task import Task
from fairq.client.worker import Worker


class TransactionLeftOpen(Exception):
    """A handler returned inside an open transaction: it was rolled back."""


def install(app: Worker) -> None:
    """Close the connections that are old or broken around each task of an app; `manage.py fairq_worker` does it itself.

    A plain handler that leaves a transaction open has failed, and the transaction is rolled back.
    """

    def is_async(task: Task) -> bool:
        return app.handlers[task.queue].find(task.name).is_async

    @app.middleware
    def in_the_thread(task: Task) -> Iterator[None]:
        if is_async(task):
            yield
            return
        close_old_connections()
        outer = _in_transaction()  # of a test
        try:
            yield
        finally:
            left = _in_transaction() - outer
            for alias in left:
                connections[alias].close()
                del connections[alias]  # else its next user would be inside the transaction still
            close_old_connections()
        if left:
            raise TransactionLeftOpen(f"the handler left a transaction open, which is rolled back: {', '.join(left)}")

    @app.middleware
    async def in_the_loop(task: Task) -> AsyncIterator[None]:
        if not is_async(task):
            yield
            return
        await sync_to_async(close_old_connections)()  # in the thread of Django's async calls
        try:
            yield
        finally:
            await sync_to_async(close_old_connections)()


def _in_transaction() -> set[str]:
    return {each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block}
