"""Modules that the SDK's public classes use when they are called, imported when something of them is first used.

Programs import the SDK at their top, also those that open no client this time: the commands of a web framework, tests.
A client or a worker that is opened has loaded what tasks need, so that no call of theirs waits for an import.
"""

from __future__ import annotations

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
    from fairq.model import operating as operating
    from fairq.model import options as options
    from fairq.model import queues as queues
    from fairq.model import rules as rules
    from fairq.model import schedules as schedules
    from fairq.model import tasks as tasks
    from fairq.model import tenants as tenants
    from fairq.model import versions as versions
    from fairq.model import waiting as waiting
    from fairq.model import webhooks as webhooks
    from fairq.model import why_text as why_text
    from fairq.model import workers as workers

_OF_CLIENT = ("bodies", "typed")


def __getattr__(name: str) -> Any:
    module = import_module(f"fairq.{'client' if name in _OF_CLIENT else 'model'}.{name}")
    return globals().setdefault(name, module)
