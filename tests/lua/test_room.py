"""Room in tenants' shares is seen by leases: no number of slots that claims tell, right or wrong, starves a tenant.

Virtual time on the real library. One tenant's weight is far above the others', whose shares are below one slot.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from .calls import Queue
from .fleet import Fleet

HEAVY, LIGHT = 100, 10  # the weight of one tenant, and how many others of weight 1 there are
LONGEST = 90


def crowd(queue: Queue, claimed_slots: tuple[int, ...], slots: int = 10) -> Fleet:
    """Ten slots that fall free one by one, while all tenants have tasks of 10 to 90 ms."""
    fleet = Fleet(queue, slots, claimed_slots=claimed_slots)
    for n in range(LIGHT + 1):
        fleet.tenant(f"t{n}", lambda _, source: source.uniform(10, LONGEST), weight=1 if n else HEAVY, endless=True)
    return fleet


def off(fleet: Fleet, got: dict[str, float], slack: float) -> dict[str, float]:
    """Return what parts of their due those tenants got that are more than 5 % and the slack from it."""
    unit = sum(got.values()) / sum(sender.weight for sender in fleet.senders.values())
    due = {name: unit * sender.weight for name, sender in fleet.senders.items()}
    return {
        name: round(got[name] / each, 2)
        for name, each in due.items()
        if abs(got[name] - each) > max(0.05 * each, slack)
    }


@pytest.mark.parametrize("claimed_slots", [(5,), (10,), (11,), (20,), (100,), (0,), (11, 100), (100, 5, 0)], ids=str)
def test_all_get_their_due_whatever_number_of_slots_is_claimed(queue: Queue, claimed_slots: tuple[int, ...]) -> None:
    fleet = crowd(queue, claimed_slots)
    fleet.run(3500)
    assert off(fleet, {name: sender.held(fleet.now) for name, sender in fleet.senders.items()}, 3 * LONGEST) == {}


def test_all_get_their_due_where_tasks_are_counted(queue: Queue) -> None:
    queue.configure(share=1)
    fleet = crowd(queue, (11, 100))
    fleet.run(2000)
    assert off(fleet, {name: sender.started for name, sender in fleet.senders.items()}, 3) == {}


def test_all_get_their_due_where_the_slots_that_a_queue_gets_change_all_the_time(queue: Queue) -> None:
    """As those of workers with several queues do."""
    fleet, source = crowd(queue, (10,)), random.Random(5)
    for now in range(0, 5000, 40):
        fleet.run(now)
        slots = source.randint(2, 10)
        fleet.free, fleet.slots = fleet.free + slots - fleet.slots, slots
    assert off(fleet, {name: sender.held(fleet.now) for name, sender in fleet.senders.items()}, 3 * LONGEST) == {}


def test_all_get_their_due_where_replies_are_full_before_claims_have_what_they_ask_for(queue: Queue) -> None:
    """A claim asks for a hundred, gets ten that fill its reply, and these end before the next one."""
    senders, counts = {"heavy": 300.0, "t1": 1.0, "t2": 1.0}, Counter[str]()
    for name, weight in senders.items():
        queue.call("set_weight", name, 1000 * weight)
        queue.enqueue(name, *(f"{name}/{n}" for n in range(110 if weight > 1 else 30)), payload=b"x" * 120_000)
    for n in range(90):
        taken = queue.claim(100, slots=100)
        assert len(taken) < 12
        queue.advance(1)
        queue.settle(*(("ack", lease.id, lease.lease) for lease in taken))
        counts.update(lease.id.split("/")[0] for lease in taken)
        queue.enqueue("heavy", *(f"heavy/{n}/{m}" for m in range(len(taken))), payload=b"x" * 120_000)
    due = counts.total() / 302
    assert [counts[name] for name in ("t1", "t2")] == [pytest.approx(due, abs=1)] * 2
