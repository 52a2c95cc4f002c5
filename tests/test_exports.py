"""The public surface: what `import fairq` promises."""

from __future__ import annotations

import inspect

import fairq
import fairq.testing


def test_public_names_are_these_and_no_others() -> None:
    assert fairq.__all__ == [
        "Batch", "Client", "EnqueuedTask", "FairqError", "Reject", "Retry", "Task", "Worker", "open_client",
    ]  # fmt: skip
    assert fairq.testing.__all__ == ["MemoryClient", "MemoryService", "TrackedTask", "run"]


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for module in (fairq, fairq.testing):
        for name in module.__all__:
            assert inspect.getdoc(getattr(module, name)), name
