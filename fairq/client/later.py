"""Modules that the SDK's public classes use when they are called, imported when something of them is first used.

Programs import the SDK at their top, also those that open no client this time: the commands of a web framework, tests.
A client or a worker that is opened has all of them loaded by then, so that no call of it waits for an import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairq.client import operator_verbs as operator_verbs
    from fairq.client import verbs as verbs
    from fairq.model import options as options
    from fairq.model import purges as purges
    from fairq.model import tasks as tasks
else:

    class Later:
        """Stands for a module."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    operator_verbs, verbs = Later("fairq.client.operator_verbs"), Later("fairq.client.verbs")
    options, purges, tasks = (Later(f"fairq.model.{name}") for name in ("options", "purges", "tasks"))
