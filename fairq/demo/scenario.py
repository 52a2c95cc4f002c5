"""The scenario: which owner enqueues which tasks, and when.

FIFO and FAIR are the contrast, with identical arrivals: first a flood at once, then the quiet tenants in turn with a
few files each, several times. In FIFO all tasks are enqueued as one tenant, so that the service serves them in order of
arrival; in FAIR every owner is a tenant. SHARES shows the weights: every tenant has a backlog almost until the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen

FIFO, FAIR, SHARES = "fifo", "fair", "shares"
QUEUES = (FIFO, FAIR, SHARES)
FLOOD = "flood"
EVERYONE = "everyone"  # the one tenant of the fifo phase
WEIGHTS = {FLOOD: 1, "ada": 1, "bob": 1, "cleo": 2, "dan": 2, "eve": 4, "fay": 4}
QUIET = tuple(name for name in WEIGHTS if name != FLOOD)

_FILES_AT_ONCE = 2
_QUIET_PART = 0.1  # of all files
_QUIET_BEGIN, _QUIET_END = 0.1, 0.6  # of the expected length of the phase


@frozen
class Planned:
    """A planned task: its id, its file and its owner."""

    id: str
    path: str
    owner: str


@frozen
class Arrival:
    """Tasks that one owner enqueues at once, `at_s` seconds after the phase began."""

    at_s: float
    owner: str
    tasks: Sequence[Planned] = field(repr=False)


@frozen
class Phase:
    """One way of serving. `is_held`: the queue is paused until everything has been enqueued."""

    queue: str
    title: str
    arrivals: Sequence[Arrival] = field(repr=False)
    expected_s: float
    is_held: bool = False

    @property
    def tasks(self) -> list[Planned]:
        """All tasks of the phase, in order of arrival."""
        return [task for arrival in self.arrivals for task in arrival.tasks]

    @property
    def limit_s(self) -> float:
        """The time (s) after which unfinished tasks count as lost."""
        return 15 + 4 * self.expected_s

    def tenant_of(self, owner: str) -> str:
        """Return the tenant as which an owner enqueues."""
        return EVERYONE if self.queue == FIFO else owner

    @property
    def tenants(self) -> list[str]:
        """All tenants of the phase."""
        return [EVERYONE] if self.queue == FIFO else list(WEIGHTS)


def _flood_and_waves(queue: str, title: str, files: Sequence[str], expected_s: float) -> Phase:
    waves = max(2, round(_QUIET_PART * len(files) / len(QUIET) / _FILES_AT_ONCE))
    comers = list(QUIET) * waves
    flood_count = len(files) - len(comers) * _FILES_AT_ONCE
    tasks = [
        Planned(f"{queue}-{i:05}", path, FLOOD if i < flood_count else comers[(i - flood_count) // _FILES_AT_ONCE])
        for i, path in enumerate(files)
    ]
    arrivals = [Arrival(0.0, FLOOD, tasks[:flood_count])]
    for i, owner in enumerate(comers):
        at_s = expected_s * (_QUIET_BEGIN + (_QUIET_END - _QUIET_BEGIN) * i / len(comers))
        start = flood_count + i * _FILES_AT_ONCE
        arrivals.append(Arrival(at_s, owner, tasks[start : start + _FILES_AT_ONCE]))
    return Phase(queue, title, arrivals, expected_s)


def _everyone_floods(queue: str, title: str, files: Sequence[str], expected_s: float) -> Phase:
    unit, arrivals, start = len(files) // sum(WEIGHTS.values()), [], 0
    for owner, weight in WEIGHTS.items():
        some = files[start : start + unit * weight]
        tasks = [Planned(f"{queue}-{start + i:05}", path, owner) for i, path in enumerate(some)]
        arrivals.append(Arrival(0.0, owner, tasks))
        start += unit * weight
    return Phase(queue, title, arrivals, expected_s, is_held=True)


def plan_phases(files: Sequence[str], expected_s: float) -> list[Phase]:
    """Plan the three phases; `expected_s` is how long the workers should need for all the files once."""
    quiet = f"{len(QUIET)} quiet tenants come later with {_FILES_AT_ONCE} files at a time"
    return [
        _flood_and_waves(FIFO, f"first in, first out: one tenant floods, {quiet}", files, expected_s),
        _flood_and_waves(FAIR, f"fair: the same arrivals, every owner a tenant ({quiet})", files, expected_s),
        _everyone_floods(
            SHARES,
            "shares: every tenant has a backlog, and the weights decide",
            files[: len(files) // 2],
            expected_s / 2,
        ),
    ]
