"""The public surface: what `import fairq` promises."""

from __future__ import annotations

import inspect

import fairq


def test_public_names_are_these_and_no_others() -> None:
    assert fairq.__all__ == ["Client", "EnqueuedTask", "FairqError", "Reject", "Retry", "Task", "Worker", "open_client"]


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for name in fairq.__all__:
        assert inspect.getdoc(getattr(fairq, name)), name
