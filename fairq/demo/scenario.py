"""Who enqueues what, and when: the same arrivals for every way of serving them.

FIFO and FAIR are the contrast: a flood at once, then small waves of the quiet tenants' files, identical in both. In
the first all tasks are enqueued as one tenant, so that the service serves them in order of arrival; in the second
every owner is a tenant. SHARES shows the weights: everybody has a backlog from the first to (nearly) the last moment.
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

_WAVES = 5
_FILES_PER_WAVE = 2
_FIRST_WAVE, _LAST_WAVE = 0.06, 0.45  # of the expected length of the phase


@frozen
class Planned:
    """A task to be: its id, its file, and whose it is."""

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
        """When to give up, and count what has not come as lost."""
        return 15 + 4 * self.expected_s

    def tenant_of(self, owner: str) -> str:
        """Name the tenant as whom an owner enqueues."""
        return EVERYONE if self.queue == FIFO else owner

    @property
    def tenants(self) -> list[str]:
        """All tenants of the phase."""
        return [EVERYONE] if self.queue == FIFO else list(WEIGHTS)


def _flood_and_waves(queue: str, title: str, files: Sequence[str], expected_s: float) -> Phase:
    quiet_count = len(QUIET) * _WAVES * _FILES_PER_WAVE
    flood, quiet = files[:-quiet_count], iter(files[-quiet_count:])
    numbers = iter(range(len(files)))

    def planned(paths: Sequence[str], owner: str) -> list[Planned]:
        return [Planned(f"{queue}-{next(numbers):05}", path, owner) for path in paths]

    arrivals = [Arrival(0.0, FLOOD, planned(flood, FLOOD))]
    for wave in range(_WAVES):
        at_s = expected_s * (_FIRST_WAVE + (_LAST_WAVE - _FIRST_WAVE) * wave / (_WAVES - 1))
        for owner in QUIET:
            arrivals.append(Arrival(at_s, owner, planned([next(quiet) for _ in range(_FILES_PER_WAVE)], owner)))
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
    quiet = f"{len(QUIET)} quiet tenants come later with {_FILES_PER_WAVE} files at a time"
    return [
        _flood_and_waves(FIFO, f"first in, first out: one tenant floods, {quiet}", files, expected_s),
        _flood_and_waves(FAIR, f"fair: the same arrivals, every owner a tenant ({quiet})", files, expected_s),
        _everyone_floods(
            SHARES, "shares: everybody has a backlog, and the weights decide", files[: len(files) // 2], expected_s / 2
        ),
    ]
