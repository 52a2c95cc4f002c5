"""Workers' accounts under any order of pushes, settlements, renewals and time, beside a plain list of leases."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import count
from math import inf

from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairq.model.places import queue_of
from fairq.model.tasks import Action, Lease, Settlement
from fairq.server.engine.dispatch.worker_account import OVER_S, Ended, TaskKey, Terms, WorkerAccount

PLACES, IDS = ("q", "p/2.0", "p/2.1"), "ab"
SOME = st.lists(st.sampled_from(IDS), min_size=1, max_size=2, unique=True)
KEYS = [(queue, id) for queue in ("q", "p") for id in IDS]
SIDE, WHICH = st.integers(0, 1), st.integers(0, 3)
HOW = ["is done", "fails at once", "fails later", "extend", "old"]


@define
class Held:
    """A lease on an account, as it should be."""

    lease: int
    lasts_s: float
    over_at: float
    began_at: float
    place: str = ""  # that pays for it
    taken: int = 0
    is_pushed: bool = False
    is_unsettled: bool = False
    is_guaranteed: bool = False


@define(eq=False)
class Side:
    """A worker's account, and what should be on it, in the order of pushes."""

    name: str
    account: WorkerAccount
    held: dict[TaskKey, Held] = field(factory=dict)
    most_begun: int = field(init=False)
    lasts_s: dict[str, float] = field(factory=lambda: defaultdict(float))  # the last push's, by queue
    charged: Counter[tuple[str, float, bool]] = field(factory=Counter)  # by place, beginning, and whether guaranteed
    lost: int = 0

    def __attrs_post_init__(self) -> None:
        self.most_begun = self.account.most_begun
        self.account.charge_to(self.charge)

    def charge(self, terms: Terms, leases: int) -> None:
        self.charged[terms.place, terms.began_at, terms.is_guaranteed] += leases

    def over_at(self, queue: str, lasts_s: float, now: float) -> float:
        """Say when a lease is over whose time begins now: it never gets shorter than those that are pushed."""
        return now + (max(lasts_s, self.lasts_s[queue]) or inf) + OVER_S


class AccountMachine(RuleBasedStateMachine):
    """Two workers of a server, with tasks of two queues; one of these has two partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.numbers = count(1)
        self.owners: dict[TaskKey, str] = {}
        self.owned: dict[TaskKey, str] = {}
        here, there = (WorkerAccount(owner=name, owners=self.owners) for name in ("here", "there"))
        here.prefetch = 3
        here.set_credit(4)
        there.set_credit(1)
        self.sides = [Side("here", here), Side("there", there)]
        self.ended: list[tuple[Side, TaskKey, Ended]] = []  # whose settlement is under way

    def put(self, side: Side, key: TaskKey, held: Held) -> None:
        side.held[key], self.owned[key] = held, side.name

    def pick(self, side: Side, which: int) -> tuple[TaskKey, Held]:
        """Return a lease that a side holds, or one of a task that nobody has."""
        held = list(side.held.items()) or [(("q", "none"), Held(0, 0.0, 0.0, 0.0))]
        return held[which % len(held)]

    def remove(self, side: Side, *keys: TaskKey) -> None:
        for key in keys:
            del side.held[key]
            if self.owned.get(key) == side.name:
                del self.owned[key]

    @rule(of=SIDE, credit=st.integers(0, 5), reserved=st.integers(0, 2))
    def offer(self, of: int, credit: int, reserved: int) -> None:
        side = self.sides[of]
        side.account.reserved = reserved
        side.account.set_credit(credit)
        side.most_begun = max(side.most_begun, credit - side.account.prefetch)

    @rule(
        of=SIDE,
        place=st.sampled_from(PLACES),
        ids=SOME,
        lasts=st.integers(1, 9),
        guaranteed=st.sets(st.sampled_from(IDS)),
    )
    def push(self, of: int, place: str, ids: list[str], lasts: int, guaranteed: set[str]) -> None:
        side, queue, number = self.sides[of], queue_of(place), next(self.numbers)
        leases = [Lease(id, number, 1, 5, "acme", 0, 0, 0, b"{}", is_guaranteed=id in guaranteed) for id in ids]
        side.account.lease(place, leases, lasts, self.now)
        self.remove(side, *({(queue, id) for id in ids} & side.held.keys()))
        side.lasts_s[queue] = lasts
        for id in ids:
            held = Held(number, lasts, self.now + lasts + OVER_S, self.now, place, is_pushed=True)
            held.is_guaranteed = id in guaranteed
            self.put(side, (queue, id), held)

    @rule(of=SIDE, key=st.sampled_from(KEYS), lasts=st.integers(0, 9), taken=st.integers(0, 2))
    def bring(self, of: int, key: TaskKey, lasts: int, taken: int) -> None:
        """Take over a lease that another connection had, perhaps of a task of which this one has an older lease."""
        side, number = self.sides[of], next(self.numbers)
        side.account.add(key, number, Terms(lasts, taken=taken), self.now)
        self.put(side, key, Held(number, lasts, side.over_at(key[0], lasts, self.now), self.now, taken=taken))

    @rule(of=SIDE, which=WHICH, how=st.sampled_from(HOW))
    def settle(self, of: int, which: int, how: str) -> None:
        """Send a settlement to the store: of a lease that is held, or of an older one of its task."""
        side = self.sides[of]
        action: Action = "extend" if how == "extend" else "ack"
        key, held = self.pick(side, which)
        ended = side.account.end(key[0], [Settlement(action, key[1], held.lease - (how == "old"))])
        is_ended = key in side.held and how not in ("extend", "old")
        assert list(ended) == [key] * is_ended
        if is_ended:
            self.remove(side, key)
            self.ended += [(side, key, ended[key])] * how.startswith("fails")
        if how == "fails at once":
            self.fail()

    @rule()
    def fail(self) -> None:
        """The store is away: leases whose settlements are under way come back, unless their tasks came again."""
        for side, key, (number, terms) in self.ended:
            if key not in side.held:
                side.account.add_unsettled(key, number, terms, self.now)
                over_at = side.over_at(key[0], terms.lasts_s, self.now)
                held = Held(number, terms.lasts_s, over_at, self.now, taken=terms.taken, is_unsettled=True)
                self.put(side, key, held)
        self.ended.clear()

    @rule(of=SIDE, which=WHICH, is_old=st.booleans())
    def renew(self, of: int, which: int, is_old: bool) -> None:
        side = self.sides[of]
        key, held = self.pick(side, which)
        side.account.renewed(key, held.lease - is_old, self.now)
        if key in side.held and not is_old:
            held.over_at = side.over_at(key[0], held.lasts_s, self.now)

    @rule(of=SIDE, which=WHICH, has_ended=st.booleans(), seconds=st.integers(1, 12))
    def renew_late(self, of: int, which: int, has_ended: bool, seconds: int) -> None:
        """The answer to a renewal comes when the lease may have expired here, or has ended."""
        side = self.sides[of]
        key, held = self.pick(side, which)
        if key not in side.held:
            return
        with side.account.renewing({key: held.lease}):
            if has_ended:
                self.drop(of, which)
            self.pass_time(seconds)
            side.account.renewed(key, held.lease, self.now)
        if key in side.held:
            held.over_at = side.over_at(key[0], held.lasts_s, self.now)
        elif not has_ended:
            self.put(side, key, Held(held.lease, 0.0, side.over_at(key[0], 0.0, self.now), self.now))

    @rule(of=SIDE, which=WHICH)
    def drop(self, of: int, which: int) -> None:
        side = self.sides[of]
        key, _ = self.pick(side, which)
        if key in side.held:
            side.account.drop(key)
            self.remove(side, key)

    @rule(of=SIDE)
    def change_pool(self, of: int) -> None:
        """All that is held is charged to another account from now on."""
        side = self.sides[of]
        side.account.charge_to(None)
        assert not any(side.charged.values())
        side.account.charge_to(side.charge)

    @rule(of=SIDE)
    def leave(self, of: int) -> None:
        """The worker goes: all its leases are to be given back."""
        side = self.sides[of]
        wanted: dict[str, list[tuple[str, int, int]]] = {}
        for (queue, id), held in side.held.items():
            wanted.setdefault(queue, []).append((id, held.lease, held.taken))
        assert side.account.drop_all() == wanted
        self.remove(side, *list(side.held))

    @rule(seconds=st.integers(1, 3))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        for side in self.sides:
            is_look = self.now >= side.account.over_at
            over = [key for key, held in side.held.items() if held.over_at <= self.now - (0 if is_look else OVER_S / 4)]
            assert is_look or not over, "it looks again soon enough"
            side.account.expire(self.now)
            assert side.account.is_freed == bool(over)
            side.account.is_freed = False
            self.remove(side, *over)
            side.lost += len(over)

    @invariant()
    def holds(self) -> None:
        assert self.owners == self.owned
        for side in self.sides:
            account, held = side.account, side.held
            assert account.held == {key: each.lease for key, each in held.items()}
            assert account.held_of("p") == {id: each.lease for (queue, id), each in held.items() if queue == "p"}
            assert (account.busy, account.lost) == (len(held), side.lost)
            assert {key: terms.over_at for key, terms in account.terms.items()} == {
                key: each.over_at for key, each in held.items()
            }
            assert account.over_at <= min((each.over_at for each in held.values()), default=inf) + OVER_S / 4
            assert side.charged == Counter((each.place, each.began_at, each.is_guaranteed) for each in held.values())

    @invariant()
    def counts_room(self) -> None:
        """Leases whose settlement failed take no room, as many as there is credit."""
        for side in self.sides:
            account = side.account
            unsettled = min(sum(each.is_unsettled for each in side.held.values()), account.credit)
            assert account.free == max(0, account.credit - account.reserved - len(side.held) + unsettled)

    @invariant()
    def knows_what_has_begun(self) -> None:
        """The worker begins tasks in the order of their pushes; those that were not pushed here may have begun."""
        for side in self.sides:
            pushed = [key for key, each in side.held.items() if each.is_pushed]
            waiting = set(pushed[side.most_begun :]) if side.account.prefetch else set()
            assert side.account.not_begun() == waiting
            assert side.account.died_alone() == (len(side.held) - len(waiting) == 1)


TestAccounts = AccountMachine.TestCase
TestAccounts.settings = settings(max_examples=100)


def test_leases_whose_settlement_failed_take_no_room_as_many_as_there_is_credit() -> None:
    """The machine seldom has so many of them."""
    account = WorkerAccount(1)
    account.add_unsettled(("q", "a"), 7, Terms(10.0), 0.0)
    assert account.free == 1
    account.add_unsettled(("q", "b"), 7, Terms(10.0), 0.0)
    assert account.free == 0
    account.drop(("q", "b"))
    assert account.free == 1
    account.add(("q", "a"), 8, Terms(10.0), 0.0)
    assert account.free == 0, "a later lease of the task is one that runs"
