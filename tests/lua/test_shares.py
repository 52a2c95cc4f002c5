"""Worker time follows the weights, whatever tasks tenants send: the cases of the design's simulation, and an adversary.

Virtual time on the real library; each case tells what a tenant gets of the slots. The bound that all of them keep: a
tenant that waits gets no less than its share, less three of the longest leases (lua/pick/README.md).
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
import redis
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from .calls import LEASE_MS, Queue
from .fleet import Fleet, Length, about


def honest(fleet: Fleet, count: int, ms: float = 100) -> None:
    """Add tenants whose backlogs never end."""
    for n in range(count):
        fleet.tenant(f"t{n}", about(ms), endless=True)


def thirty_rounds(queue: Queue) -> Counter[str]:
    """Run tasks of a second in four slots; returns how many of each tenant; names have three letters."""
    counts = Counter[str]()
    for _ in range(30):
        taken = queue.claim(4)
        queue.advance(1000)
        queue.settle(*(("ack", lease.id, lease.lease) for lease in taken))
        counts.update(lease.id[:3] for lease in taken)
    return counts


@pytest.fixture
def fleet(queue: Queue) -> Fleet:
    """Ten slots."""
    return Fleet(queue, 10)


def test_short_tasks_first_do_not_buy_long_ones_a_larger_share(fleet: Fleet) -> None:
    honest(fleet, 10, 500)
    gamer = fleet.tenant("gamer", lambda n, r: r.uniform(1, 3) if n < 100 else 5000, 100, at=3000)
    fleet.run(8000)
    assert gamer.started == 100
    fleet.arrive(8000, gamer, 200)
    assert fleet.share(gamer, 30) == pytest.approx(10 / 11, rel=0.1)


@pytest.mark.parametrize("ends", ["nack", "release"])
def test_leases_handed_back_at_once_do_not_buy_a_larger_share(fleet: Fleet, ends: str) -> None:
    honest(fleet, 10, 500)
    gamer = fleet.tenant("gamer", lambda *_: 1, 100, at=1000, ends=ends)
    fleet.run(1500)
    assert gamer.started > 50
    gamer.length, gamer.ends = about(5000), "ack"
    assert fleet.share(gamer, 20) == pytest.approx(10 / 11, rel=0.2)


def test_a_newcomer_whose_tasks_are_long_gets_its_share(fleet: Fleet) -> None:
    honest(fleet, 10, 500)
    newcomer = fleet.tenant("newcomer", about(5000), 200, at=3000)
    fleet.run(3000)
    assert fleet.share(newcomer, 30) == pytest.approx(10 / 11, rel=0.1)


@pytest.mark.deep("fairness")
def test_a_tenant_whose_tasks_were_long_and_are_short_now_does_not_starve(fleet: Fleet) -> None:
    honest(fleet, 50)
    tenant = fleet.tenant("tenant", lambda n, r: 6000 if n < 10 else 100.0, 10)
    fleet.run(400_000)  # by then the clock has passed what it had too much
    tenant.endless = True
    fleet.arrive(400_000, tenant, 0)
    assert fleet.share(tenant, 20) == pytest.approx(10 / 51, rel=0.1)


def test_who_joins_beside_a_limited_tenant_gets_no_more_than_the_other(fleet: Fleet) -> None:
    fleet.tenant("capped", about(1000), endless=True, max_running=1)
    other = fleet.tenant("other", about(1000), endless=True)
    fleet.run(30_000)
    fleet.tenant("newcomer", about(1000), endless=True, at=30_000)
    assert fleet.share(other, 60) == pytest.approx(4.5, rel=0.04)


@pytest.mark.parametrize(
    ("share", "joins_at"), [(0, 15_000), (1, 5_000), pytest.param(0, 40_000, marks=pytest.mark.deep("fairness"))]
)
def test_who_joins_beside_a_guarantee_gets_as_much_as_the_others(fleet: Fleet, share: int, joins_at: int) -> None:
    fleet.queue.configure(share=share)
    fleet.tenant("guaranteed", about(100), endless=True, guaranteed=5)
    honest(fleet, 9)
    fleet.run(joins_at)
    newcomer = fleet.tenant("newcomer", about(100), endless=True, at=joins_at)
    assert fleet.share(newcomer, 8) == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("others", [3, pytest.param(30, marks=pytest.mark.deep("fairness"))])
def test_who_joins_where_quiet_tenants_come_and_go_gets_no_more_than_the_others(queue: Queue, others: int) -> None:
    fleet = Fleet(queue, 10)
    honest(fleet, others)
    source = random.Random(3)
    for n in range(4):
        quiet, at = fleet.tenant(f"quiet{n}", about(20)), 0.0
        while (at := at + source.expovariate(1 / 100)) < 10_000:
            fleet.arrive(round(at), quiet, 1)
    fleet.run(5_000)
    newcomer = fleet.tenant("newcomer", about(100), endless=True, at=5_000)
    other = fleet.senders["t0"]
    before = other.held(5_000)
    share = fleet.share(newcomer, 4)
    lease_s = 0.11
    assert abs(share * 4 - (other.held(9_000) - before) / 1000) <= 3 * lease_s


def test_tasks_of_no_time_take_no_more_than_their_share_of_the_dispatches(queue: Queue) -> None:
    """They end in the millisecond in which they began; what they are charged moves the clock, where newcomers start."""
    for name in ("a", "b"):
        queue.enqueue(name, *(f"{name}/{n}" for n in range(400)))
    for _ in range(60):
        for lease in queue.claim(10):
            queue.end("ack", lease)
    queue.enqueue("newcomer", *(f"newcomer/{n}" for n in range(100)))
    got = []
    for _ in range(9):
        leases = queue.claim(10)
        got += [lease.id.split("/")[0] for lease in leases]
        queue.settle(*(("ack", lease.id, lease.lease) for lease in leases))
    assert abs(got.count("newcomer") - 30) <= 6


def largest_error(fleet: Fleet, longest: list[float]) -> float:
    """Return how far a tenant is from its share at most, as a part of it, beyond one of its longest tasks."""
    whole = sum(sender.held(fleet.now) for sender in fleet.senders.values())
    weights = sum(sender.weight for sender in fleet.senders.values())
    errors = []
    for sender, ms in zip(fleet.senders.values(), longest, strict=True):
        due = whole * sender.weight / weights
        errors.append(max(0.0, abs(sender.held(fleet.now) - due) - ms) / due)
    return max(errors)


def spread(ms: float) -> Length:
    """Tasks that take so long, half as much more or less."""
    return lambda _, source: ms * source.uniform(0.5, 1.5)


@pytest.mark.deep("fairness")
@pytest.mark.one_store
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_thirty_tenants_with_lengths_of_all_kinds_are_within_five_per_cent_after_a_minute(
    queue: Queue, seed: int
) -> None:
    lengths = [1, 2, 5, 20, 50, 100, 200, 500, 1000, 2000] * 3
    fleet = Fleet(queue, 20, seed)
    for n, ms in enumerate(lengths):
        fleet.tenant(f"t{n}", spread(ms), weight=1 + n % 3, endless=True)
    fleet.run(60_000)
    assert largest_error(fleet, [1.5 * ms for ms in lengths]) <= 0.05


@pytest.mark.deep("fairness")
@pytest.mark.timeout(600)
def test_one_of_weight_ten_among_twenty_gets_its_share(queue: Queue) -> None:
    fleet, lengths = Fleet(queue, 20), [200, 5, 50, 500] * 5 + [200]
    for n, ms in enumerate(lengths):
        fleet.tenant(f"t{n}", spread(ms), weight=1 if n else 10, endless=True)
    fleet.run(60_000)
    assert largest_error(fleet, [0] * 21) <= 0.05


@pytest.mark.parametrize("seconds", [300, pytest.param(1000, marks=pytest.mark.deep("fairness"))])
@pytest.mark.parametrize(("one", "nine"), [(34_000, 1_000), (1_000, 34_000)])
def test_worker_seconds_follow_the_weights_whatever_the_tasks_take(
    fleet: Fleet, one: int, nine: int, seconds: int
) -> None:
    """Ten equal tenants on ten slots, one of them with tasks 34 times as long, or as short: each gets a tenth."""
    for n in range(10):
        fleet.tenant(f"t{n}", lambda *_, ms=nine if n else one: ms, endless=True)
    fleet.run(1000 * seconds)
    shares = [sender.held(fleet.now) / (10_000 * seconds) for sender in fleet.senders.values()]
    assert shares == [pytest.approx(0.1, abs=0.002 if seconds >= 1000 else 0.005)] * 10


LENGTHS = st.sampled_from([1, 20, 200, 1000])
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["ack", "ack", "nack", "release"]),  # how the leases of what comes now end
        LENGTHS,
        st.integers(1, 40),  # tasks
        st.integers(0, 800),  # until the next move, ms
    ),
    min_size=1,
    max_size=12,
)


def play(client: redis.Redis, others: int, ms: int, weight: float, moves: list[tuple[str, int, int, int]]) -> None:
    """Have one tenant do what it likes beside honest ones; none of them may be further behind than the bound."""
    client.flushall()
    fleet = Fleet(Queue(client), 4)
    honest(fleet, others, ms)
    adversary = fleet.tenant("adversary", lambda *_: 1, weight=weight)
    fleet.follow_lags()
    source, now = random.Random(1), 0
    for ends, length, count, pause in moves:
        adversary.ends, adversary.length = ends, about(length)
        fleet.arrive(now, adversary, count)
        now += pause + source.randrange(10)
        fleet.run(now)
    adversary.ends = "ack"
    fleet.run(now + 4000)
    longest = 1.1 * max(ms, *(length for _, length, _, _ in moves))
    assert fleet.worst_lag <= 3 * longest, f"{fleet.worst_lag:.0f} ms behind, leases of {longest:.0f}"


def games(client: redis.Redis, count: int, *, are_fixed: bool = False) -> None:
    """Play so many games, always the same ones if they are fixed."""
    contest = given(
        others=st.sampled_from([2, 9, 20]),
        ms=st.sampled_from([50, 200]),
        weight=st.sampled_from([0.5, 1, 4]),
        moves=MOVES,
    )
    settings(max_examples=count, phases=[Phase.generate], derandomize=are_fixed, database=None)(
        contest(lambda others, ms, weight, moves: play(client, others, ms, weight, moves))
    )()


def test_no_tenant_can_push_others_below_their_share(redis_client: redis.Redis) -> None:
    games(redis_client, 5, are_fixed=True)


@pytest.mark.deep("fairness")
@pytest.mark.one_store
@pytest.mark.timeout(1200)
def test_no_tenant_can_push_others_below_their_share_in_many_games(redis_client: redis.Redis) -> None:
    games(redis_client, 400)


@pytest.mark.parametrize(("times", "ms"), [(20, LEASE_MS), (1, 3_600_000)], ids=["workers die", "the clock jumps"])
def test_who_comes_after_leases_were_lost_gets_its_share(queue: Queue, times: int, ms: int) -> None:
    for name in ("ada", "bob"):
        queue.enqueue(name, *(f"{name}{n}" for n in range(200)), max_attempts=0)
    for _ in range(times):
        assert len(queue.claim(4)) == 4
        queue.advance(ms)
        assert queue.tick().reaped == 4
    queue.enqueue("cyd", *(f"cyd{n}" for n in range(100)))
    assert thirty_rounds(queue)["cyd"] == pytest.approx(40, abs=3)


def test_lost_leases_leave_the_level_no_lower_than_their_tenants(queue: Queue) -> None:
    for name in ("ada", "bob"):
        queue.enqueue(name, *(f"{name}-old{n}" for n in range(40)))
    while taken := queue.claim(8):
        queue.advance(60_000)
        queue.settle(*(("ack", lease.id, lease.lease) for lease in taken))
    queue.enqueue("ada", *(f"ada{n}" for n in range(400)), max_attempts=0)
    assert len(queue.claim(400)) == 400, "none of hers is left: they do not move the level"
    queue.advance(LEASE_MS)
    while queue.tick().reaped:
        pass
    for name in ("bob", "cyd"):
        queue.enqueue(name, *(f"{name}{n}" for n in range(200)))
    counts = thirty_rounds(queue)
    assert min(counts[name] for name in ("ada", "bob", "cyd")) >= 37


def test_leases_that_last_longer_than_new_ones_are_no_jump_of_the_clock(queue: Queue) -> None:
    queue.configure(lease_ms=3_600_000)
    queue.enqueue("ada", "a1", "a2")
    extended, other = queue.claim(2)
    queue.settle(("extend", extended.id, extended.lease))
    queue.configure(lease_ms=LEASE_MS)
    for _ in range(6):
        queue.advance(1_200_000)
        queue.settle(*(("extend", lease.id, lease.lease) for lease in (extended, other)))
    assert queue.tenant("ada").delivered == 2 * 6 * 1_200_000


def test_who_loses_leases_to_a_jump_of_the_clock_pays_for_what_ran(queue: Queue) -> None:
    queue.enqueue("ada", "a1", "a2", max_attempts=0)
    taken = queue.claim(2)
    for _ in range(720):
        queue.advance(10_000)
        queue.settle(*(("extend", lease.id, lease.lease) for lease in taken))
    queue.advance(7_200_000)
    assert queue.tick().reaped == 2
    assert queue.tenant("ada").delivered == pytest.approx(2 * 7_200_000, abs=2 * LEASE_MS)


def test_a_clock_that_jumps_ahead_charges_nobody_for_it(queue: Queue) -> None:
    names = [f"t{n}" for n in range(8)]
    for name in names:
        queue.enqueue(name, *(f"{name}-{n}" for n in range(100)))
    taken = queue.claim(4)
    queue.advance(3_600_000)
    assert set(queue.settle(*(("extend", lease.id, lease.lease) for lease in taken))) == {"ok"}, "they work on"
    queue.enqueue("new", *(f"new-{n}" for n in range(100)))
    served = Counter[str]()
    for _ in range(120):
        queue.advance(1000)
        queue.settle(*(("ack", lease.id, lease.lease) for lease in taken))
        taken = queue.claim(4)
        served.update(lease.id.partition("-")[0] for lease in taken)
    assert min(served[name] for name in [*names, "new"]) > 480 / 9 - 45, "a minute, or a lease, is not noticed"
    assert served["new"] == pytest.approx(480 / 9, abs=3)
