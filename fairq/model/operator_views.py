"""Replies to operators, apart from the states of queues and tenants."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

from fairq.model.limits import Limits
from fairq.model.places import AwayPartition
from fairq.model.queues import QueueState
from fairq.model.workers import SilentWorker

Takers = Literal["", "some", "none", "unknown"]


@frozen
class PartitionRow:
    """A partition of a queue: its name, the primary that has it, and its counts; `weight`: of tenants that compete.

    `lag_s`: by how much worker time it is behind its part, at all servers; negative: it is ahead. `store_cpu_s`: CPU
    time of its primary's main thread since it began. None: not known.
    """

    partition: str
    primary: str
    weight: float
    ready: int
    pending: int
    delayed: int
    leased: int
    dead: int
    lag_s: float | None = None
    store_cpu_s: float | None = None


@frozen(kw_only=True)
class QueueRow(QueueState):
    """A queue in the list of all queues: its state, and its workers.

    `workers`: attached to any server. `slots`: theirs; of these `kept` for tenants that have nothing running, and
    `idle`; `shared`: those of workers with several queues, which `shared_by` queues share. `takers`: whether
    workers of any server take its tasks; empty: none waits. `silent`: workers that are silent, at most ten.
    `places`: its partitions, if it has several and was asked for by its name. `away`: those that do not answer; the
    counts are those of the others. `is_unavailable`: none answers; counts and settings are those of a new queue.
    """

    workers: int
    slots: int
    kept: int
    idle: int
    shared: int = 0
    shared_by: int = 0
    silent: list[SilentWorker] = field(factory=list)
    takers: Takers = ""
    version: str = ""  # of its settings
    places: list[PartitionRow] = field(factory=list)
    is_unavailable: bool = False
    away: list[AwayPartition] = field(factory=list)


@frozen
class OpenState:
    """When the `queue` or the `tenant` is open, and whether it is now; until `changes_at_ms`."""

    of: str
    text: str
    is_open: bool
    changes_at_ms: int


@frozen
class HeldLimits:
    """The limits set for a tenant (or for all), the limits in force, and its opening hours."""

    limits: Limits
    holds: Limits
    opening_hours: list[OpenState]
    now_ms: int
    version: str = ""  # of the limits that are set
    hours_version: str = ""  # of its own opening hours


@frozen
class Deletion:
    """The progress of a queue's deletion: `ok`, `more` or `gone`; and the queue's contents when it began."""

    outcome: str
    contents: dict[str, int] = field(factory=dict)


@frozen
class TokenRow:
    """A token as operators see it. `used_at_ms`: when it was last used, to a minute; 0: never, as far as known."""

    id: str
    role: str
    tenant: str | None = None
    queues: list[str] | None = None
    created_at_ms: int = 0
    label: str = ""
    expires_at_ms: int = 0
    used_at_ms: int = 0
