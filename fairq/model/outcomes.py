"""What became of a task that was enqueued, as one text.

It is `ok`, `replaced`, `expired`, `refused` or `duplicate`. Behind `duplicate` comes, after a space, the id of the task
that holds the dedupe key, if that is why; and, after a line feed, which no id has, the state of the task that it is a
duplicate of. Frames have the states apart, since older clients take all behind the space for the id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Sent(NamedTuple):
    """What became of a task; of a duplicate, the id of the task with its dedupe key, and the other task's state."""

    word: str
    holder: str = ""
    state: str = ""


def read_sent(outcome: str) -> Sent:
    """Read an outcome."""
    told, _, state = outcome.partition("\n")
    word, _, holder = told.partition(" ")
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
