"""Both sides of the SDK have the same names, options, defaults and docstrings."""

from __future__ import annotations

import inspect

import fairq
import fairq.sync
import fairq.testing.sync
from fairq.client.dead_letters import DeadLetters
from tests.store.cases import case

PAIRS = [
    (fairq.Client, fairq.sync.Client),
    (fairq.OperatorClient, fairq.sync.OperatorClient),
    (fairq.EnqueuedTask, fairq.sync.EnqueuedTask),
    (fairq.Batch, fairq.sync.Batch),
    (fairq.EventStream, fairq.sync.EventStream),
    (DeadLetters, fairq.sync.DeadLetters),
]
IN_MEMORY = [
    (fairq.testing.service.MemoryService, fairq.testing.sync.MemoryService),
    (fairq.testing.service.MemoryClient, fairq.testing.sync.MemoryClient),
    (fairq.testing.service.TrackedTask, fairq.testing.sync.TrackedTask),
]
INSIDE = {"ask_of_each", "request_until", "of"}  # what parts of the SDK ask of a client
OWN = {"close"}  # the async client is closed by its context


def public(kind: type) -> set[str]:
    """Name what a class offers."""
    return {name for name in dir(kind) if not name.startswith("_")}


def fields(kind: type) -> set[str]:
    """Name the public fields of an attrs class."""
    return {each.name for each in kind.__attrs_attrs__ if not each.name.startswith("_")}  # type: ignore[attr-defined]


def test_both_sides_have_the_same_names() -> None:
    for one, other in PAIRS + IN_MEMORY:
        with case(one, other):
            own = OWN if issubclass(other, fairq.sync.Client) else set()
            assert (public(one) | fields(one)) - INSIDE == public(other) - own


def test_both_sides_have_the_same_options_and_docstrings() -> None:
    for one, other in PAIRS:
        with case(one, other):
            for name in public(one) - INSIDE - fields(one):
                theirs, ours = getattr(one, name), getattr(other, name)
                assert inspect.signature(theirs).parameters == inspect.signature(ours).parameters, name
                assert ours.__doc__ == theirs.__doc__, name
                assert inspect.iscoroutinefunction(inspect.unwrap(ours)) == inspect.iscoroutinefunction(theirs), name
                assert not inspect.iscoroutinefunction(ours)
                assert not inspect.isasyncgenfunction(ours)


def test_both_sides_are_opened_alike() -> None:
    for name in ["open_client", "open_operator"]:
        with case(name):
            theirs, ours = inspect.signature(getattr(fairq, name)), inspect.signature(getattr(fairq.sync, name))
            assert list(theirs.parameters.values()) == list(ours.parameters.values())
