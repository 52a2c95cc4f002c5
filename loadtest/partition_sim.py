"""`python -m loadtest.partition_sim [P,S,K,N ...]`: one queue of P partitions, S servers, K slots and N tenants.

In virtual time, and by the code that serves: each partition is the exact model of the library's fair pick, each server
has the dispatcher's account of partitions (queue_accounts.py) and its timing (claiming.py). What is simulated is the
rest: a call takes RTT_S, tasks take TASK_MS and a little more, all but the quiet tenants always have tasks.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from random import Random
from typing import Any

from attrs import define, field, frozen

from fairq.model.simulation.queue import SimulatedQueue, Start
from fairq.model.simulation.setup import Setup, Terms
from fairq.server.engine.dispatch.claiming import Claiming, Step
from fairq.server.engine.dispatch.queue_accounts import QueueAccounts
from fairq.store.partitions import Places, place_in, places_of
from loadtest.figures import spread

RTT_S, TASK_MS, QUIET_MS, QUIET_EVERY_S = 0.001, 100.0, 20.0, 0.7
QUIET_TENANTS, MOMENTS = 10, 20  # a quiet one has a fifth of its due at most, so for many tenants there are more
_QUEUE = "q"


@frozen
class Case:
    """What is simulated."""

    partitions: int
    servers: int
    slots: int
    tenants: int = 200
    seconds: float = 20.0


@define(eq=False)
class _Tenant:
    weight: float
    is_quiet: bool
    given_s: float = 0.0  # by the tasks that have ended
    running: int = 0
    starts: float = 0.0

    def given(self, now: float) -> float:
        return self.given_s + self.running * now - self.starts


@define(eq=False)
class _Server:
    slots: int
    places: Places
    used: int = field(default=0, init=False)  # by tasks and by claims that are under way
    accounts: QueueAccounts = field(factory=QueueAccounts, init=False)
    claims: dict[str, Claiming] = field(init=False)
    has_turn: bool = field(default=False, init=False)  # soon

    def __attrs_post_init__(self) -> None:
        self.claims = {place: Claiming() for place in self.places}
        self.accounts.join(self.places)
        for claiming in self.claims.values() if len(self.places) > 1 else ():
            claiming.shared = self.accounts.pace


@define(eq=False)
class Simulation:
    """One run."""

    case: Case
    seed: int = 0
    now: float = field(default=0.0, init=False)
    claimed: int = field(default=0, init=False)  # how often
    quiet_every_s: float = field(default=0.0, init=False)
    waits_ms: list[float] = field(factory=list, init=False)  # of the quiet tenants
    lag: float = field(default=0.0, init=False)  # the worst at any moment, in tasks
    error: float = field(default=0.0, init=False)  # the worst at the end, as a part of the due
    _draws: Random = field(init=False)
    _events: list[tuple[float, int, Callable[[], None]]] = field(factory=list, init=False)
    _order: count[int] = field(factory=count, init=False)
    _tenants: dict[str, _Tenant] = field(factory=dict, init=False)
    _queues: dict[str, SimulatedQueue] = field(factory=dict, init=False)
    _servers: list[_Server] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        case = self.case
        self._draws = Random(self.seed)
        places = places_of(_QUEUE, case.partitions)
        weight = sum(1.0 + n % 10 for n in range(case.tenants))
        self.quiet_every_s = max(QUIET_EVERY_S, 5 * QUIET_MS / 1000 * weight / case.slots)
        count = round(QUIET_TENANTS * self.quiet_every_s / QUIET_EVERY_S)
        quiet = {f"quiet-{n}": _Tenant(1.0, True) for n in range(count)}
        self._tenants = {f"t{n}": _Tenant(1.0 + n % 10, False) for n in range(case.tenants)} | quiet
        homes: dict[str, dict[str, Terms]] = {place: {} for place in places}
        for name, tenant in self._tenants.items():
            homes[place_in(places, name)][name] = Terms(weight=tenant.weight)
        for place, terms in homes.items():
            self._queues[place] = SimulatedQueue(Setup(case.slots, terms), Random(f"{self.seed} {place}"))
        self._servers = [_Server(case.slots // case.servers, places) for _ in range(case.servers)]

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def run(self) -> None:
        """Run it to its end."""
        share = self.case.slots / sum(tenant.weight for tenant in self._tenants.values())
        for name, tenant in self._tenants.items():
            if tenant.is_quiet:
                self._at(self._draws.expovariate(1 / self.quiet_every_s), partial(self._arrive_again, name))
            else:
                slots = share * tenant.weight
                ahead = 20 + 2 * slots  # more than it is ever behind: idling saves nothing up
                for _ in range(round(min(ahead, 3 + 2 * slots * self.case.seconds * 1000 / TASK_MS))):
                    self._arrive(name)
        for moment in range(MOMENTS // 5, MOMENTS + 1):
            self._at(self.case.seconds * moment / MOMENTS, self._look)
        while self._events and self._events[0][0] <= self.case.seconds:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def _arrive(self, name: str) -> None:
        place = place_in(self._servers[0].places, name)
        queue = self._queues[place]
        was_empty = not queue.servable
        queue.arrive(Start(name, self.now, 1), self.now * 1000)
        for server in self._servers if was_empty else ():
            server.claims[place].notify()
            server.accounts.set_waiting(place, True, self.now)
            self._give_turn(server)

    def _arrive_again(self, name: str) -> None:
        self._arrive(name)
        self._wake(self._draws.choice(self._servers), place_in(self._servers[0].places, name))
        self._at(self.now + self._draws.expovariate(1 / self.quiet_every_s), partial(self._arrive_again, name))

    def _wake(self, server: _Server, place: str) -> None:
        """Have the server whose call it was serve the partition out of turn."""
        server.accounts.set_weight(place, 1.0, self.now, self._queues[place].weight_sum / 1000)
        if server.claims[place].phase.name != "CLAIMING":
            server.accounts.serve_soon(place)
            self._give_turn(server)

    def _give_turn(self, server: _Server) -> None:
        if not server.has_turn:
            server.has_turn = True
            self._at(self.now, partial(self._take_turn, server))

    def _take_turn(self, server: _Server) -> None:
        """Begin the claims for which there are slots."""
        server.has_turn, free = False, server.slots - server.used
        places = server.accounts.waiting(server.places)
        parts, _ = server.accounts.divide(free, server.slots, places, self.now)
        for place, part in parts.items() if free else ():
            claiming = server.claims[place]
            if claiming.phase.name == "CLAIMING":
                continue
            step, until = claiming.step(part, server.slots, self.now)
            if step is Step.CLAIM:
                wanted = min(part, claiming.wanted(server.slots))
                server.used += wanted
                server.accounts.reserve(place, wanted, self.now)
                claiming.sent()
                self._at(self.now + RTT_S / 2, partial(self._claim, server, place, wanted))
            elif until < self.case.seconds:
                self._at(until, partial(self._give_turn, server))

    def _claim(self, server: _Server, place: str, wanted: int) -> None:
        """Carry out a claim in the store."""
        queue, starts = self._queues[place], list[Start]()
        while len(starts) < wanted and (some := queue.claim(wanted - len(starts), self.now * 1000)):
            starts += some
        for start in starts:
            if not self._tenants[start.tenant].is_quiet:
                self._arrive(start.tenant)
        self.claimed += 1
        weight = queue.weight_sum / 1000
        self._at(self.now + RTT_S / 2, partial(self._begin, server, place, wanted, starts, self.now, weight))

    def _begin(
        self, server: _Server, place: str, wanted: int, starts: Sequence[Start], began: float, weight: float
    ) -> None:
        """Hand out what a claim has brought."""
        server.accounts.reserve(place, 0, self.now)
        server.used -= wanted - len(starts)
        server.accounts.charge(place, len(starts), began, self.now)
        server.accounts.set_weight(place, 1.0, self.now, weight)
        claiming = server.claims[place]
        claiming.answered(len(starts) < wanted, self.now)
        server.accounts.set_waiting(place, not claiming.is_empty, self.now)
        for start in starts:
            tenant = self._tenants[start.tenant]
            tenant.running += 1
            tenant.starts += began
            if tenant.is_quiet:
                self.waits_ms.append((self.now - start.came_at) * 1000)
            took = (QUIET_MS if tenant.is_quiet else TASK_MS) * self._draws.uniform(1, 1.05) / 1000
            self._at(self.now + took, partial(self._end, server, place, start.tenant, began))
        self._give_turn(server)

    def _end(self, server: _Server, place: str, name: str, began: float) -> None:
        tenant = self._tenants[name]
        tenant.given_s += self.now - began
        tenant.running -= 1
        tenant.starts -= began
        server.used -= 1
        server.accounts.charge(place, -1, began, self.now)
        self._queues[place].end(name, began * 1000, self.now * 1000)
        self._give_turn(server)

    def _look(self) -> None:
        """Look how far each tenant is from its due."""
        loud = [tenant for tenant in self._tenants.values() if not tenant.is_quiet]
        given = [tenant.given(self.now) for tenant in loud]
        unit = sum(given) / sum(tenant.weight for tenant in loud)
        off = [abs(got - unit * tenant.weight) for got, tenant in zip(given, loud, strict=True)]
        self.lag = max(self.lag, max(off) * 1000 / TASK_MS)
        self.error = max(each / unit / tenant.weight for each, tenant in zip(off, loud, strict=True))

    @property
    def begun(self) -> int:
        """Return how many tasks have begun."""
        return round(sum(tenant.given(self.now) for tenant in self._tenants.values()) * 1000 / TASK_MS)


def main(arguments: Sequence[str]) -> None:
    """Simulate and print one row after the other."""
    cases = [Case(*map(int, words.split(","))) for words in arguments] or [
        Case(p, s, k) for k in (100, 500) for s in (1, 4) for p in (1, 12)
    ]
    print("| partitions | servers | slots | tenants | s | lag | error | quiet p50 ms | p99 | tasks a claim |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for case in cases:
        run = Simulation(case)
        run.run()
        waits = spread(run.waits_ms)
        row: list[Any] = [case.partitions, case.servers, case.slots, f"{case.tenants:,}", f"{case.seconds:g}"]
        row += [f"{run.lag:.2f}", f"{run.error:.1%}", waits["p50"], waits["p99"], f"{run.begun / run.claimed:.1f}"]
        print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
