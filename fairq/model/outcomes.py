"""The outcome of enqueueing a task, as one text.

It is `ok`, `replaced`, `expired`, `refused` or `duplicate`. `duplicate` may be followed by a space and the id of the
task that holds the dedupe key, and by a line feed (no id contains one) and the state of that other task. Frames carry
the states apart, since older clients take everything behind the space for the id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Sent(NamedTuple):
    """The outcome of a task; for a duplicate, the id of the task with its dedupe key, and the other task's state."""

    word: str
    holder: str = ""
    state: str = ""


def read_sent(outcome: str) -> Sent:
    """Read an outcome."""
    first, _, state = outcome.partition("\n")
    word, _, holder = first.partition(" ")
    return Sent(word, holder, state)


def part_states(outcomes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return outcomes without states, and the states; empty if there are none."""
    parted = [outcome.partition("\n") for outcome in outcomes]
    states = [state for _, _, state in parted]
    return [outcome for outcome, _, _ in parted], states if any(states) else []


def sent_in(body: Mapping[str, Any]) -> list[str]:
    """Return the outcomes in a reply's body, with their states."""
    outcomes = body["outcomes"]
    return with_states(outcomes, body.get("duplicate_of_states") or [""] * len(outcomes))


def with_states(outcomes: Sequence[str], states: Sequence[str]) -> list[str]:
    """Return outcomes with their states."""
    return [f"{outcome}\n{state}" if state else outcome for outcome, state in zip(outcomes, states, strict=True)]
