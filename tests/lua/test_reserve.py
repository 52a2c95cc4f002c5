"""The reserve: who comes finds a slot, weights hold, and it follows the workers."""

from __future__ import annotations

import pytest

from .calls import Queue
from .fleet import Fleet, Sender, about

MINUTE = 60_000


@pytest.fixture
def fleet(queue: Queue) -> Fleet:
    """Ten slots, two of them kept."""
    fleet = Fleet(queue, 10)
    fleet.keep(20)
    return fleet


def quiet_ones(fleet: Fleet, count: int, since: int, until: int) -> list[Sender]:
    """Add tenants that send a task of 100 ms a second."""
    quiet = [fleet.tenant(f"quiet{n}", about(100)) for n in range(count)]
    for sender in quiet:
        fleet.arrive_by_chance(sender, 1000, since, until)
    return quiet


def waits_of(senders: list[Sender]) -> tuple[float, float]:
    """Return how long 99 of 100 tasks waited at most, and the longest wait."""
    waits = sorted(wait for sender in senders for wait in sender.waits)
    assert len(waits) > 100
    assert not any(sender.arrived for sender in senders)
    return waits[len(waits) * 99 // 100], waits[-1]


def running_by_slots(fleet: Fleet, flooder: Sender, *sizes: int) -> list[tuple[int, int]]:
    """Return how many of a tenant's tasks run with each number of slots: at once, and two minutes later."""
    counts = []
    for slots in sizes:
        fleet.resize(slots)
        fleet.run(fleet.now)
        at_once = len(flooder.running)
        fleet.run(fleet.now + 2 * MINUTE)
        counts.append((at_once, len(flooder.running)))
    return counts


@pytest.mark.parametrize(("count", "share"), [(1, 0), (5, 1)])
def test_who_has_nothing_running_does_not_wait_for_long_tasks(fleet: Fleet, count: int, share: int) -> None:
    fleet.queue.configure(share=share)
    fleet.queue.tick()
    flooder = fleet.tenant("flooder", about(MINUTE), endless=True)
    seconds = 135 // count
    quiet = quiet_ones(fleet, count, 30_000, 30_000 + 1000 * seconds)
    fleet.run(30_000)
    assert fleet.share(flooder, seconds) == pytest.approx(8, abs=0.02)
    assert waits_of(quiet) <= (200, 500)


def test_without_a_reserve_it_does(queue: Queue) -> None:
    fleet = Fleet(queue, 10)
    flooder = fleet.tenant("flooder", about(MINUTE), endless=True)
    quiet = quiet_ones(fleet, 1, 30_000, 165_000)
    fleet.run(30_000)
    assert fleet.share(flooder, 135) > 9.8
    fleet.run(10 * MINUTE)
    assert waits_of(quiet)[0] > 10_000
    assert not queue.client.exists(queue.key("idle"))


def test_many_with_long_tasks_do_not_get_kept_slots_for_good(fleet: Fleet) -> None:
    """A loan is repaid when the fair pick has come to its tenant, though its task runs for a minute."""
    first = fleet.tenant("flooder0", about(MINUTE), endless=True)
    fleet.run(20_000)
    for n in range(1, 5):
        fleet.tenant(f"flooder{n}", about(MINUTE), endless=True, at=20_000)
    quiet = quiet_ones(fleet, 1, MINUTE, 4 * MINUTE)
    fleet.run(8 * MINUTE)
    assert first.held(fleet.now) > 0
    p99, _ = waits_of(quiet)
    assert p99 <= 300


@pytest.mark.parametrize(("heavy", "others", "due", "share"), [(10, 12, 10 * 10 / 22, 1), (90, 10, 8, 0)])
def test_weights_hold(fleet: Fleet, heavy: float, others: int, due: float, share: int) -> None:
    """Loans are repaid, or given: else each that waits would get one slot. All that the heavy one can get is 8."""
    fleet.queue.configure(share=share)
    fleet.queue.tick()
    sender = fleet.tenant("heavy", about(500), weight=heavy, endless=True)
    for n in range(others):
        fleet.tenant(f"t{n}", about(500), endless=True)
    fleet.run(15_000)
    assert fleet.share(sender, 30) == pytest.approx(due, rel=0.04)


def test_a_tenant_that_was_given_slots_does_not_pay_for_them(fleet: Fleet) -> None:
    """What the light ones get ahead of the level is not charged: beside another one they have their due at once."""
    fleet.tenant("heavy", about(100), weight=90, endless=True)
    lights = [fleet.tenant(f"t{n}", about(100), endless=True) for n in range(10)]
    fleet.run(12_000)
    newcomer = fleet.tenant("newcomer", about(100), weight=90, endless=True, at=12_000)
    before = [each.held(12_000) for each in lights]
    assert fleet.share(newcomer, 8) == pytest.approx(4, rel=0.1)
    got = [each.held(20_000) - since for each, since in zip(lights, before, strict=True)]
    assert min(got) >= 8_000 * 10 / 190 - 110, "no more than a task behind"


def test_when_the_reserve_ends_nobody_pays_for_what_it_gave(fleet: Fleet) -> None:
    """The light ones had twice their share in kept slots. Charged for it, they would now have nothing for 12 s."""
    heavy = fleet.tenant("heavy", about(100), weight=90, endless=True)
    lights = [fleet.tenant(f"t{n}", about(100), endless=True) for n in range(10)]
    fleet.run(12_000)
    before = [each.held(12_000) for each in lights]
    assert sum(before) > 1.9 * 12_000
    fleet.keep(0)
    assert fleet.share(heavy, 8) == pytest.approx(9, rel=0.05)
    got = [each.held(20_000) - since for each, since in zip(lights, before, strict=True)]
    assert min(got) >= 10 * 8_000 / 100 - 330, "no more than three tasks behind"


def test_the_reserve_follows_the_workers(fleet: Fleet) -> None:
    flooder = fleet.tenant("flooder", about(MINUTE), endless=True)
    assert running_by_slots(fleet, flooder, 10, 20, 5, 1, 2) == [(8, 8), (16, 16), (16, 4), (4, 1), (1, 1)]


def test_a_guarantee_goes_before_the_reserve(fleet: Fleet) -> None:
    flooder = fleet.tenant("flooder", about(MINUTE), endless=True)
    fleet.run(30_000)
    guaranteed = fleet.tenant("guaranteed", about(3000), endless=True, at=30_000, guaranteed=2)
    assert fleet.share(guaranteed, 10) == pytest.approx(2, abs=0.02)
    assert len(flooder.running) == 8
    fleet.run(3 * MINUTE)  # by now what it has is among the eight
    quiet = quiet_ones(fleet, 1, 3 * MINUTE, 5 * MINUTE + 30_000)
    fleet.run(6 * MINUTE)
    assert waits_of(quiet)[0] <= 200
    assert fleet.queue.queue_state()["leased"] <= 9


def test_it_can_be_set_and_unset_while_tasks_run(queue: Queue) -> None:
    fleet = Fleet(queue, 10)
    flooder = fleet.tenant("flooder", about(MINUTE), endless=True)
    quiet = fleet.tenant("quiet", about(1000), 1)
    fleet.run(0)
    assert len(flooder.running) == 9
    fleet.keep(20)
    fleet.run(2 * MINUTE)
    assert len(flooder.running) == 8
    fleet.arrive(fleet.now, quiet, 5)
    fleet.run(fleet.now)
    assert len(quiet.running) == 1, "one of the two slots; the other one is kept for others"
    assert queue.queue_state()["loans"] == 1
    fleet.keep(0)
    assert len(flooder.running) + len(quiet.running) == 10
    fleet.run(5 * MINUTE)
    assert queue.queue_state()["loans"] == 0
    assert len(flooder.running) == 10
    assert not queue.client.exists(queue.key("idle"))
