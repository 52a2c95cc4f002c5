"""Which queue gets a shared worker's next slot, in virtual time: exact parts, no wait but the next free slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairq.server.engine.dispatch.capacity import Pool, QueueCapacity
from fairq.server.engine.dispatch.queue_accounts import QueueAccounts
from fairq.server.engine.dispatch.slot_account import GRAIN_S
from fairq.server.engine.dispatch.worker_account import WorkerAccount

from .fake_worker import FakeWorker
from .slots_in_time import CLAIM_S, Queue, Slots, Workers, always


def random_lengths(low: float, high: float) -> Iterator[float]:
    """Return lengths between two, the same in each run."""
    chance = Random(1)
    while True:
        yield chance.uniform(low, high)


def shared(slots: int, queues: dict[str, Queue], weights: dict[str, float] | None = None) -> Slots:
    """Return workers that all serve these queues."""
    of = Slots(queues, [Workers(tuple(queues), slots)])
    for name, weight in (weights or {}).items():
        of.accounts.set_weight(name, weight, 0.0)
    return of


def errors(of: Slots, weights: dict[str, float], seconds: float) -> float:
    """Return how much worker time (s) a queue has at most more or less than its part, at any time from now on."""
    before, worst, until = {name: queue.given_s for name, queue in of.queues.items()}, 0.0, of.now + seconds
    while of.now < until:
        of.run(of.now + 0.25)
        given = {name: queue.given_s - before[name] for name, queue in of.queues.items()}
        due = sum(given.values()) / sum(weights.values())
        worst = max(worst, *(abs(given[name] - due * weight) for name, weight in weights.items()))
    return worst


@pytest.mark.parametrize("slots", [1, 2, 3, 10, 30])
@pytest.mark.parametrize("weight", [1.0, 2.0, 0.5, 100.0])
def test_queues_that_wait_get_their_weight_of_the_time_whatever_their_tasks_take(slots: int, weight: float) -> None:
    of = shared(slots, {"long": Queue(always(3.0)), "quick": Queue(always(0.03))}, {"long": weight})
    of.run(30.0)
    assert errors(of, {"long": weight, "quick": 1.0}, 30.0) < 3.0
    assert of.idle_s < 0.01 * slots * of.now


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 1_000)), min_size=1, max_size=12))
def test_a_partitions_lag_is_its_part_of_the_time_less_what_it_was_given(of: list[tuple[float, float]]) -> None:
    accounts, names = QueueAccounts(), [f"q/{n}" for n in range(len(of))]
    accounts.join([*names, "other"])
    for name, (weight, _) in zip(names, of, strict=True):
        accounts.set_waiting(name, True, 0.0)
        accounts.charge(name, 1, 0.0, 0.0)
        accounts.set_weight(name, 1.0, 0.0, weight)
    for name, (weight, _) in zip(names, of, strict=True):
        accounts.set_weight(name, 1.0, 0.0, weight)  # its part is known when all weights are
    for name, (_, given_s) in sorted(zip(names, of, strict=True), key=lambda each: each[1][1]):
        accounts.charge(name, -1, 0.0, given_s)
    whole_s, weights = sum(s for _, s in of), sum(weight for weight, _ in of)
    due = {name: whole_s * weight / weights - s for name, (weight, s) in zip(names, of, strict=True)}
    assert accounts.lags("q", 1_000.0) == pytest.approx(due, abs=1e-6)


@pytest.mark.parametrize("slots", [1, 4, 10])
def test_five_queues_from_10_ms_to_1_s(slots: int) -> None:
    lengths = {"a": 0.01, "b": 0.04, "c": 0.1, "d": 0.3, "e": 1.0}
    of = shared(slots, {name: Queue(always(length)) for name, length in lengths.items()})
    of.run(10.0)
    assert errors(of, dict.fromkeys(lengths, 1.0), 30.0) < 1.0


@pytest.mark.parametrize("slots", [1, 3, 10])
def test_lengths_that_nobody_can_guess(slots: int) -> None:
    """A hundred tasks of 1 ms and then one of 5 s, again and again, gain no more than what runs at once."""
    of = shared(slots, {"odd": Queue(cycle([0.001] * 100 + [5.0])), "even": Queue(random_lengths(0.1, 2.0))})
    of.run(30.0)
    assert errors(of, {"odd": 1.0, "even": 1.0}, 60.0) < 5.0 * max(2, slots / 2)


@pytest.mark.parametrize("slots", [1, 2, 10])
def test_a_queue_that_begins_to_wait_gets_the_next_slot_that_falls_free(slots: int) -> None:
    long, quick = Queue(random_lengths(2.0, 4.0)), Queue(always(0.01), tasks=0)
    of = shared(slots, {"long": long, "quick": quick})
    for begins_at in (10.2, 100.2, 120.1, 150.2):
        of.run(begins_at)
        of.add("quick", 1)
        of.run(begins_at + 5.0)
        (started,) = [at for at in quick.starts if at >= begins_at]
        assert started - min(at for at in long.ends if at >= begins_at) == pytest.approx(CLAIM_S)
        assert not [at for at in long.starts if begins_at + CLAIM_S < at < started]


def test_an_idle_queue_saves_nothing_up() -> None:
    of = shared(4, {"busy": Queue(always(0.1)), "idle": Queue(always(0.1), tasks=0)})
    of.run(100.0)
    of.add("idle", 10**6)
    assert errors(of, {"busy": 1.0, "idle": 1.0}, 10.0) < 0.4 + 0.1


def test_a_queue_that_returns_is_still_charged() -> None:
    """It held all slots for long tasks while the other one waited, and stops waiting for a moment."""
    of = shared(2, {"long": Queue(always(10.0), tasks=2), "quick": Queue(always(0.1), tasks=0)})
    of.run(1.0)
    of.add("quick", 10**6)
    of.run(9.9)
    of.add("long", 2)
    of.run(10.5)
    assert of.queues["long"].running == 0
    assert of.queues["quick"].running == 2


def test_workers_that_differ_in_their_queues() -> None:
    """All three queues get as much, also the one that has both workers."""
    queues = {name: Queue(always(0.5)) for name in ("a", "b", "c")}
    of = Slots(queues, [Workers(("a", "b"), 10), Workers(("b", "c"), 10)])
    of.run(10.0)
    assert errors(of, dict.fromkeys(queues, 1.0), 20.0) < 1.0


def test_a_queue_does_not_wait_because_it_had_more_of_workers_that_have_gone() -> None:
    queues = {name: Queue(always(0.5)) for name in ("a", "b", "c")}
    small, large = Workers(("a", "b"), 10), Workers(("b", "c"), 100)
    of = Slots(queues, [small, large])
    of.run(20.0)
    assert queues["b"].given_s > 4 * queues["a"].given_s, "the small worker is all a's"
    large.slots = 0
    of.accounts.shrink(large.names, of.now)
    of.run(22.0)
    del queues["c"]
    assert errors(of, {"a": 1.0, "b": 1.0}, 10.0) < 1.0


def test_a_queue_that_joins_workers_long_since_busy_takes_no_more_than_its_part() -> None:
    of = shared(4, {"a": Queue(always(0.1)), "b": Queue(always(0.1)), "new": Queue(always(0.1), tasks=0)})
    of.run(1_000.0)
    of.add("new", 10**6)
    assert errors(of, {"a": 1.0, "b": 1.0, "new": 1.0}, 10.0) < 1.0


def test_nobody_starves_at_the_smallest_weight() -> None:
    of = shared(1, {"a": Queue(always(0.05)), "b": Queue(always(0.05)), "c": Queue(always(0.05))}, {"a": 100, "c": 0.1})
    of.run(10.0)
    assert errors(of, {"a": 100.0, "b": 1.0, "c": 0.1}, 100.0) < 0.1


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.floats(0.001, 10_000), st.booleans(), st.integers(0, 5)), min_size=1, max_size=6),
    st.integers(0, 200),
    st.floats(0, 1e6),
)
def test_all_free_slots_go_to_queues_that_wait(rows: list[tuple[float, bool, int]], free: int, now: float) -> None:
    accounts, names = QueueAccounts(), [f"q{n}" for n in range(len(rows))]
    accounts.join(names)
    for name, (weight, is_waiting, running) in zip(names, rows, strict=True):
        accounts.set_weight(name, weight, now)
        accounts.charge(name, running, now, now)
        accounts.set_waiting(name, is_waiting, now)
    waiting = accounts.waiting(names)
    parts, _ = accounts.divide(free, 0, waiting, now + 1.0)
    assert parts.keys() == set(waiting)
    assert sum(parts.values()) == (free if waiting else 0)
    assert min(parts.values(), default=0) >= 0
    if free >= len(rows) and len({weight for weight, *_ in rows}) == 1 and not any(running for *_, running in rows):
        assert max(parts.values(), default=0) - min(parts.values(), default=0) <= 1


@pytest.mark.parametrize("slots", [1, 4, 30])
def test_partitions_get_the_part_of_their_tenants_beside_another_queue(slots: int) -> None:
    """The queue has half of the time; its places get parts by the weight of the tenants that compete there."""
    weights = {"many/3.0": 1_000, "many/3.1": 4_000, "many/3.2": 15_000}
    queues = {
        name: Queue(always(length)) for name, length in zip((*weights, "one"), (0.03, 0.1, 0.3, 1.0), strict=True)
    }
    of = shared(slots, queues)
    for name, competing in weights.items():
        of.accounts.set_weight(name, 1.0, 0.0, competing)
    for name, competing in weights.items():  # as each claim says
        of.accounts.set_weight(name, 1.0, 0.0, competing)
    of.run(10.0)
    assert errors(of, {"one": 1.0, **{name: weight / 20_000 for name, weight in weights.items()}}, 60.0) < 1.0


@pytest.mark.parametrize("slots", [4, 30])
def test_partitions_whose_tenants_share_tasks_get_as_many_as_they_weigh(slots: int) -> None:
    """And their queue still has half of the time."""
    lengths = {"many/3.0": 0.03, "many/3.1": 0.1, "many/3.2": 0.3}
    weights = {"many/3.0": 1_000, "many/3.1": 2_000, "many/3.2": 1_000}
    of = shared(slots, {name: Queue(always(length)) for name, length in [*lengths.items(), ("one", 1.0)]})

    def weigh() -> None:
        for name, competing in weights.items():  # as each claim says
            of.accounts.set_weight(name, 1.0, of.now, competing, is_by_count=True)
        of.at(of.now + 0.5, weigh)

    weigh()
    of.run(10.0)
    before = {name: queue.given_s for name, queue in of.queues.items()}
    of.run(110.0)
    given = {name: queue.given_s - before[name] for name, queue in of.queues.items()}
    assert given["one"] == pytest.approx(sum(given.values()) / 2, rel=0.02)
    tasks = [given[name] / length / weights[name] for name, length in lengths.items()]
    assert max(tasks) / min(tasks) < 1.05


def test_a_partition_whose_tenants_come_and_go_is_owed_nothing() -> None:
    """Its weight changes as it is served; what it was given counts as it was when it was given."""
    of = shared(4, {"many/2.0": Queue(always(0.1)), "many/2.1": Queue(always(0.1))})
    of.accounts.set_weight("many/2.1", 1.0, 0.0, 1_000)
    for n in range(1, 40):
        of.accounts.set_weight("many/2.0", 1.0, of.now, 1_000 if n % 2 else 9_000)
        of.accounts.set_weight("many/2.1", 1.0, of.now, 1_000)
        of.run(n * 0.5)
    given = {name: queue.given_s for name, queue in of.queues.items()}
    due = {"many/2.0": 4 * of.now * (0.5 + 0.9) / 2, "many/2.1": 4 * of.now * (0.5 + 0.1) / 2}
    assert all(abs(given[name] - due[name]) < 0.05 * due[name] for name in due), (given, due)


@pytest.mark.parametrize("active", [1, 3, 12])
def test_a_queue_has_its_part_beside_another_however_many_of_its_partitions_wait(active: int) -> None:
    names = [f"many/12.{n}" for n in range(12)]
    queues = {name: Queue(always(0.1), tasks=None if n < active else 0) for n, name in enumerate(names)}
    of = shared(12, {**queues, "one": Queue(always(0.1))})
    for n, name in enumerate(names):
        of.accounts.set_weight(name, 1.0, 0.0, 1_000 if n < active else 0)
    assert errors(of, {"one": 1.0, **dict.fromkeys(names[:active], 1 / active)}, 30.0) < 0.5


def test_a_partition_that_tells_of_its_tenants_alone_leaves_the_queue_its_weight() -> None:
    """What another partition has said of it holds, and no account begins anew."""
    accounts, places = QueueAccounts(), ["many/a", "many/b"]
    accounts.join([*places, "one"])
    accounts.set_weight("many/a", 3.0, 0.0, 1_000)
    for place in (*places, "one"):
        accounts.set_weight(place, None, 0.0)
        accounts.set_waiting(place, True, 0.0)
        accounts.charge(place, 1, 0.0, 0.0)
    accounts.charge("many/a", 1, 0.0, 0.0)
    accounts.set_weight("many/b", None, 10.0, 1_000)
    assert accounts.lags("many", 10.0) == {"many/a": -5.0, "many/b": 5.0}
    assert accounts._wholes["many"].weight == 3.0


def owing(**owed: int) -> QueueAccounts:
    """Return accounts of a queue with three partitions that wait, and are owed so many slots."""
    accounts, places = QueueAccounts(), ["many/a", "many/b", "many/c"]
    accounts.join(places)
    for place in places:
        accounts.set_waiting(place, True, 0.0)
        accounts.owe(place, owed.get(place[-1], 0))
    return accounts


def give(accounts: QueueAccounts, free: int) -> tuple[dict[str, int], dict[str, int]]:
    """Divide slots and reserve them; returns how many each place got, and how many of these are owed."""
    places = accounts.waiting(["many/a", "many/b", "many/c"])
    parts, owed = accounts.divide(free, free, places, 0.0)
    for place, slots in parts.items():
        accounts.reserve(place, slots, 0.0, owed[place])
    return parts, +Counter(owed)


def test_slots_that_are_owed_go_first_but_for_an_eighth_of_the_leases() -> None:
    parts, due = give(owing(a=20), 16)
    assert (sum(parts.values()), due["many/a"]) == (16, 14)
    accounts, others = owing(a=20), 0
    for n in range(16):
        parts, due = give(accounts, 1)
        others += sum(parts.values()) - sum(due.values())
        assert others == (n + 1) // 8
        for place in parts:
            accounts.reserve(place, 0, 0.0)
        accounts.forget_owed("many/a")
        accounts.owe("many/a", 20)


@pytest.mark.parametrize(
    ("guaranteed", "others", "free", "owed"), [(0, 2, 6, 6), (7, 0, 1, 0), (6, 1, 1, 1), (7, 8, 9, 9), (20, 0, 4, 1)]
)
def test_others_that_have_their_eighth_of_the_leases_get_no_slot_that_is_owed(
    guaranteed: int, others: int, free: int, owed: int
) -> None:
    accounts = owing(a=20)
    accounts.charge("many/a", guaranteed, 0.0, 0.0, is_guaranteed=True)
    accounts.charge("many/b", others, 0.0, 0.0)
    assert sum(give(accounts, free)[1].values()) == owed


def test_of_partitions_that_are_owed_slots_the_one_with_the_fewest_gets_the_next() -> None:
    accounts = owing(a=9, b=9, c=1)
    accounts.charge("many/a", 2, 0.0, 0.0, is_guaranteed=True)
    accounts.charge("many/c", 1, 0.0, 0.0)
    assert give(accounts, 7)[1] == {"many/a": 2, "many/b": 4, "many/c": 1}


async def test_each_pools_slots_are_owed_by_its_own_division() -> None:
    """A claim takes slots of several pools. They were divided one after the other, before any was reserved."""
    accounts, places = QueueAccounts(), ("many/a", "many/b")
    capacity = QueueCapacity("many/a", accounts)
    for credit, more in ((3, ()), (1, ("one",))):
        pool = Pool((*places, *more), accounts)
        accounts.join(pool.places)
        pool.join(FakeWorker(WorkerAccount(credit)))
        capacity.shared.append(pool)
    for place in places:
        accounts.set_waiting(place, True, 0.0)
        accounts.reserve(place, 7, 0.0)  # the next slot goes by the accounts
        accounts.reserve(place, 0, 0.0)
    accounts.reserve("many/b", 1, 0.0)
    accounts.charge("many/b", 9, 0.0, 0.0)
    accounts.owe("many/a", 2)
    assert capacity.free(4) == 4
    capacity.reserve(4)
    assert (sum(capacity.reserved.values()), capacity.owed) == (4, 2)


def test_a_lease_within_a_guarantee_is_charged_to_the_queue_and_due_again_when_it_ends() -> None:
    accounts = owing()
    accounts.join(["many/a", "many/b", "many/c", "one"])
    accounts.set_waiting("one", True, 0.0)
    accounts.charge("many/a", 4, 0.0, 0.0, is_guaranteed=True)
    assert set(accounts.lags("many", 8.0).values()) == {0.0}
    assert accounts.divide(4, 4, ["many/a", "many/b", "one"], 8.0)[0] == {"many/a": 0, "many/b": 0, "one": 4}
    accounts.charge("many/a", -1, 0.0, 1.0, is_guaranteed=True)
    assert accounts.divide(1, 4, ["many/a", "many/b"], 1.0)[0] == {"many/a": 1, "many/b": 0}


def test_a_partition_saves_nothing_up_beside_one_with_guaranteed_tenants_alone() -> None:
    """Such a one is exempt: its account stands still, and is no measure for the others, until it begins anew."""
    accounts = owing(a=3)
    accounts.charge("many/a", 3, 0.0, 0.0, is_guaranteed=True)
    for place, competing in (("many/a", 0), ("many/b", 1_000), ("many/c", 1_000)):
        accounts.set_weight(place, 1.0, 0.0, competing)
    accounts.set_waiting("many/c", False, 0.0)
    accounts.charge("many/b", 4, 0.0, 0.0)
    accounts.set_waiting("many/c", True, 60.0)
    assert accounts.lags("many", 60.0) == {"many/b": 0.0, "many/c": 0.0}
    accounts.charge("many/a", -3, 0.0, 60.0, is_guaranteed=True)
    accounts.forget_owed("many/a")
    accounts.set_weight("many/a", 1.0, 60.0, 0)
    assert set(accounts.lags("many", 60.0).values()) == {0.0}


def test_partitions_of_which_nothing_is_known_get_equally_many_slots() -> None:
    accounts, places = QueueAccounts(), [f"many/12.{n}" for n in range(12)]
    accounts.join(places)
    for place in places:
        accounts.set_waiting(place, True, 0.0)
    assert set(accounts.divide(120, 120, places, 0.0)[0].values()) == {10}


def test_a_partition_of_unknown_weight_counts_as_the_mean_of_the_others() -> None:
    accounts, places = QueueAccounts(), [f"many/4.{n}" for n in range(4)]
    accounts.join(places)
    assert [accounts.part(place) for place in places] == [0.25] * 4
    accounts.set_weight(places[0], 1.0, 0.0, 2_000)
    accounts.set_weight(places[1], 1.0, 0.0, 4_000)
    assert [accounts.part(place) for place in places] == pytest.approx([1 / 6, 1 / 3, 1 / 4, 1 / 4])
    for place in places:
        accounts.set_weight(place, 1.0, 0.0, 2_000, is_by_count=True)
    accounts.charge(places[0], 1, 0.0, 0.0)
    accounts.charge(places[0], -1, 0.0, 3.0)
    assert [accounts.part(place) for place in places] == pytest.approx([0.25] * 4), "so does one of unknown lengths"
    accounts.charge(places[1], 1, 3.0, 3.0)
    accounts.charge(places[1], -1, 3.0, 4.0)
    assert [accounts.part(place) for place in places] == pytest.approx([3 / 8, 1 / 8, 2 / 8, 2 / 8])


@pytest.mark.parametrize("slots", [1, 4, 30])
@pytest.mark.parametrize("length", [0.002, 0.1, 1.0])
def test_a_partition_in_which_tenants_begin_to_wait_all_the_time_gets_no_more_than_its_part(
    slots: int, length: float
) -> None:
    """It is served a lease sooner, or what it gets in a row, and is charged for that: so it gains that once."""
    names = [f"many/4.{n}" for n in range(4)]
    of = shared(slots, {name: Queue(always(length)) for name in names})
    for name in names:
        of.accounts.set_weight(name, 1.0, 0.0, 1_000)

    def wake() -> None:
        of.accounts.serve_soon(names[0])
        of.at(of.now + length / 10, wake)

    of.run(10 * length)
    of.at(of.now, wake)
    assert errors(of, dict.fromkeys(names, 1.0), 100 * length) < max(3 * length, 3 * slots * GRAIN_S)


def test_a_partition_in_which_a_tenant_begins_to_wait_is_next_once() -> None:
    """It is having a slot, and is charged for the next one too: then the others have theirs first."""
    names = [f"many/4.{n}" for n in range(4)]
    of = shared(1, {name: Queue(always(1.0)) for name in names})
    of.run(4.5)
    (last,) = [name for name in names if of.queues[name].running]
    of.accounts.serve_soon(last)
    of.run(5.5)
    assert (of.queues[last].running, len(of.queues[last].starts)) == (1, 3)
    of.accounts.serve_soon(last)  # it is ahead by two leases now
    of.run(8.4)
    assert sorted(len(of.queues[name].starts) for name in names) == [2, 2, 2, 3]


def test_a_partition_that_waits_no_more_is_owed_no_turn() -> None:
    accounts = QueueAccounts()
    accounts.join(["a", "b"])
    accounts.serve_soon("a")
    for name in ("b", "a"):
        accounts.set_waiting(name, True, 0.0)
    assert accounts.divide(1, 1, ["a", "b"], 0.0)[0] == {"a": 0, "b": 1}
    accounts.serve_soon("a")
    assert accounts.divide(1, 1, ["a", "b"], 0.0)[0] == {"a": 1, "b": 0}
    accounts.set_waiting("a", False, 0.0)
    accounts.set_waiting("a", True, 0.0)
    assert accounts.divide(1, 1, ["a", "b"], 0.0)[0] == {"a": 0, "b": 1}
    accounts.serve_soon("a")
    accounts.reserve("a", 1, 0.0)
    accounts.reserve("a", 0, 0.0)
    assert accounts.divide(1, 1, ["a", "b"], 0.0)[0] == {"a": 0, "b": 1}
