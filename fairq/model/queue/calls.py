"""The state of a queue, and how a call begins and ends: its time, and what it leaves."""

from __future__ import annotations

import math

from attrs import asdict

from fairq.model.queue.fair_pick import FairPick
from fairq.model.queue.feeds import Feeds
from fairq.model.queue.sorted_set import SortedSet
from fairq.model.queue.tasks import Batch, Death, Run, Task
from fairq.model.queues import QueueSettings, stored_setting

CLOCK_BACK_MS = 60_000
SETTINGS = {name: stored_setting(name, value) for name, value in asdict(QueueSettings()).items()}


class Calls(FairPick):
    """A queue between calls. `now` is the time of the last call that changed anything."""

    def __init__(self) -> None:
        super().__init__()
        self.now: float = 0
        self.stored_clock: float = 0
        self.stored_level: float = 0
        self.call_origin: float = 0
        self.goes_back = False
        self.mending = 0  # the step that ticks are at, after the time has gone back
        self.ahead: float = 0  # by how much the clock is ahead of what the caller's own clock confirms
        self.settings = dict(SETTINGS)
        self.last_lease: int = 0
        self.hungry = 0
        self.readied = False
        self.dropped = {"delivered": 0.0, "entitled": 0.0}  # by tenants that are not there any more
        self.counts = dict.fromkeys(("enqueued", "done", "buried", "expired", "cancelled"), 0)
        self.records: dict[str, Task] = {}
        self.runs: dict[str, Run] = {}
        self.leases: dict[str, float] = {}  # id -> deadline, since the origin
        self.expiring = SortedSet[str]()
        self.due: dict[str, float] = {}
        self.dead: dict[str, Death] = {}
        self.deaths = SortedSet[str]()
        self.bundles: dict[int, list[str]] = {}  # number of a claim -> its tasks
        self.claims: dict[str, int] = {}  # its name -> its number
        self.claimed_bytes = 0
        self.sequence = 0  # the last order given to a ready task
        self.returned: list[str] = []  # by a claim with a full reply
        self.marks: dict[str, tuple[int, str]] = {}  # id -> its owner's lease or 0, how it ended
        self.ended: dict[int, list[str]] = {}  # minute -> ids that ended in it
        self.minute = 0
        self.ends = SortedSet[bytes]()  # results and dedupe keys that are kept for a time, as the store names them
        self.holders: dict[tuple[str, str], tuple[float, str]] = {}  # (tenant, dedupe key) -> until (0: its end), id
        self.batches: dict[str, Batch] = {}
        self.cancelling: dict[str, float] = {}
        self.results: dict[str, tuple[float, str]] = {}  # id -> until, result
        self.kept_until: float = 0  # the last of results and dedupe keys that outlive their tasks
        self.incoming_bytes = 0.0  # of new tasks that have room, and are not stored yet
        self.feeds = Feeds()

    def open(self, now: float, witness: float = math.inf) -> float:
        """Begin a call: time never goes back. `witness` is the caller's own time."""
        self.touched, self.woken, self.readied, self.freed, self.cost = {}, [], False, False, 0
        self.incoming_bytes = 0
        self.lowered_from, self.lowered_by = None, []
        back = self.now - now
        self.goes_back = back > CLOCK_BACK_MS
        is_late = self.leases and -back > self.settings["lease_ms"]  # the longest step is no shorter
        jump = max(0, -back - self.longest_step(self.now)) if is_late else 0
        last = now if self.goes_back else self.now + jump
        self.call_now = max(now, last)
        self.ahead = max(0, self.call_now - witness - CLOCK_BACK_MS)
        self.call_origin = (self.origin or self.call_now) - (back if self.goes_back else 0) + jump
        self.clock, self.level = self.stored_clock, self.stored_level
        if not self.share and self.weight_sum > 0:
            moved = (self.call_now - last) * self.running / self.weight_sum
            self.clock, self.level = self.clock + moved, self.level + moved
        self.at = self.call_now - self.call_origin
        self.mean = self.estimate_sq / self.estimate if self.estimate > 0 else 0
        return self.call_now

    def longest_step(self, since: float) -> float:
        """Return how long nothing may happen while leases run."""
        return max(self.settings["lease_ms"], CLOCK_BACK_MS, *(at + self.origin - since for at in self.leases.values()))

    def close(self, now: float, *, notify: bool = True) -> None:
        """End a call that changes something; without `notify` its caller claims the tasks that it made ready."""
        self.bound_level()
        self.seat_all()
        self.write_idle()
        has_room = self.freed and self.reserve > 0 and self.servable > 0 and not self.is_full()
        self.stored_clock, self.stored_level, self.origin = self.clock, self.level, self.call_origin
        self.sweeping = 3 if self.goes_back else self.sweeping
        self.wake.extend(self.woken)
        if self.hungry and (self.readied or has_room) and not self.blocked and notify:
            self.hungry = 0
        self.now = now
