"""Attempts at tasks, for operators: the running ones, and how the last ones ended."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from attrs import frozen

from fairq.model.checks import owner_of
from fairq.model.dead_letters import SEARCH
from fairq.model.rules import TENANT, one_of
from fairq.model.tasks import SHORT_NAME

AttemptState = Literal["running", "done", "failed", "dead", "released", "cancelled", "lost"]
STATES: tuple[AttemptState, ...] = get_args(AttemptState)
STATE = one_of(*STATES)


@frozen
class AttemptFilter:
    """A filter of attempts: all its conditions must hold."""

    state: Annotated[str | None, STATE] = None
    tenant: Annotated[str | None, TENANT] = None
    name: Annotated[str | None, SHORT_NAME] = None
    error: Annotated[str | None, SEARCH] = None

    def has(self, state: str, id: str, name: str, error: str = "") -> bool:
        """True if an attempt matches."""
        return (
            self.state in (None, state)
            and self.tenant in (None, owner_of(id))
            and self.name in (None, name)
            and (self.error is None or self.error in error)
        )


@frozen
class Attempt:
    """One attempt at a task: a lease, and how it ended; `ran_ms` counts from the lease to its end, or until now.

    `failed`: the task is tried again, if it has attempts left. `dead`: it is a dead letter. `released`: given back, and
    it does not count. `lost`: its worker did not settle it in time, or its connection broke. If another server gave
    the task out, `attempt` is 0 and `name` empty: they are unknown.
    """

    id: str
    state: AttemptState
    tenant: str
    leased_at_ms: int
    ran_ms: int
    server: str
    attempt: int = 0
    name: str = ""
    worker: str = ""  # of one that runs
    error: str = ""  # its first characters


@frozen
class Attempts:
    """The attempts at a queue's tasks that run, the oldest first, and those that ended, the newest first.

    `unanswered`: servers that did not answer; the attempts of their workers are missing.
    """

    running: list[Attempt]
    ended: list[Attempt]
    unanswered: list[str]
