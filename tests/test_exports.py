"""The public surface: what `import fairq` promises."""

from __future__ import annotations

import inspect

import fairq
import fairq.testing
from fairq.errors import BY_CODE


def test_public_names_are_these_and_no_others() -> None:
    assert [name for name in fairq.__all__ if not _is_error(name)] == [
        "Batch", "Client", "EnqueuedTask", "EventStream", "OperatorClient", "Postpone", "Reject", "Retry", "Task",
        "Worker",
        "open_client", "open_operator",
    ]  # fmt: skip
    assert fairq.testing.__all__ == ["MemoryClient", "MemoryService", "TrackedTask", "run"]


def _is_error(name: str) -> bool:
    found = getattr(fairq, name)
    return isinstance(found, type) and issubclass(found, fairq.FairqError)


def test_errors_that_users_meet_are_public() -> None:
    inside = {"bad_frame", "unknown_verb", "store_refused"}  # of the protocol, and of the server
    public = {getattr(fairq, name).code for name in fairq.__all__ if _is_error(name)}
    assert public - {fairq.FairqError.code} == set(BY_CODE) - inside


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for module in (fairq, fairq.testing):
        for name in module.__all__:
            assert inspect.getdoc(getattr(module, name)), name
