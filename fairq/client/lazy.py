"""Lazy imports: modules that the SDK's public classes use when they are called, imported at their first use.

Programs import the SDK at their top, also those that open no client this time: the commands of a web framework, tests.
A client or a worker that is opened has loaded what its calls need (`load`). A process that is forked off while a thread
imports would wait for that thread for ever, so a fork waits until no thread imports (`importing`).
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairq.client import bodies as bodies
    from fairq.client import typed as typed
    from fairq.model import attempts as attempts
    from fairq.model import audit as audit
    from fairq.model import batches as batches
    from fairq.model import cancelling as cancelling
    from fairq.model import dead_letters as dead_letters
    from fairq.model import events as events
    from fairq.model import history as history
    from fairq.model import limits as limits
    from fairq.model import operator_views as operator_views
    from fairq.model import options as options
    from fairq.model import outcomes as outcomes
    from fairq.model import places as places
    from fairq.model import queues as queues
    from fairq.model import rules as rules
    from fairq.model import schedules as schedules
    from fairq.model import tasks as tasks
    from fairq.model import tenants as tenants
    from fairq.model import texts as texts
    from fairq.model import versions as versions
    from fairq.model import waiting as waiting
    from fairq.model import webhooks as webhooks
    from fairq.model import why_text as why_text
    from fairq.model import workers as workers

_OF_CLIENT = ("bodies", "typed")
_OF_CALLS = (
    *("encodings.idna", "cattrs", "fairq.wire.websocket"),  # idna: of `getaddrinfo`
    *("fairq.client.bodies", "fairq.client.typed", "fairq.client.json_types", "fairq.client.dead_letters"),
    *("fairq.model.options", "fairq.model.batches", "fairq.model.events", "fairq.model.waiting"),
)

importing = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release)


def load() -> None:
    """Import what the calls of a client use."""
    with importing:
        for name in _OF_CALLS:
            import_module(name)


def __getattr__(name: str) -> Any:
    with importing:
        module = import_module(f"fairq.{'client' if name in _OF_CLIENT else 'model'}.{name}")
    return globals().setdefault(name, module)
