"""The verbs. A verb does the checks that need more than the frame, then calls the store.

The rules of queues are in lua/; the verbs only check permissions and translate requests and replies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from inspect import iscoroutinefunction
from typing import Any, get_args, get_type_hints

from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs import (
    admin,
    audit,
    batches,
    cancel_all,
    dead_letters,
    declared,
    explain,
    follow_ups,
    limits,
    schedules,
    tasks,
    waits,
    webhooks,
    workers,
)
from fairq.server.engine.verbs.request_scope import Body, check_request
from fairq.wire.verbs import VERBS

VerbFunction = Callable[..., Awaitable[Body]]
_FILES = (
    tasks, waits, batches, follow_ups, workers, dead_letters, schedules, declared, cancel_all, explain,
    limits, admin, webhooks, audit,
)  # fmt: skip


def find() -> Iterator[tuple[Any, VerbFunction]]:
    """Find the function that handles each frame: a public one with a `request` of that class, or a union with it."""
    for file in _FILES:
        for name, function in vars(file).items():
            if iscoroutinefunction(function) and function.__module__ == file.__name__ and name[0] != "_":
                frame = get_type_hints(function).get("request")
                yield from ((each, function) for each in get_args(frame) or [frame])


FUNCTIONS: dict[type[Any], VerbFunction] = {frame: function for frame, function in find() if frame in VERBS}


def handle_request(app: App, connection: Connection, request: Any) -> Awaitable[Body]:
    """Do what a request asks; a change goes into the audit. Raises: FairqError."""
    if audit.is_noted(connection, request):
        return audit.handle_noted(app, connection, request, _handle)
    return _handle(app, connection, request)


def _handle(app: App, connection: Connection, request: Any) -> Awaitable[Body]:
    check_request(connection, request)
    return FUNCTIONS[type(request)](app, connection, request)
