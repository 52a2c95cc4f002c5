"""A worker's account: free credit, reserved places, leases that leave by themselves."""

from __future__ import annotations

from fairq.model.tasks import Lease, Settlement
from fairq.server.engine.dispatch.worker_account import OVER_S, Terms, WorkerAccount


def leases(*ids: str) -> list[Lease]:
    """Make leases as a claim brings them."""
    return [Lease(id, 70, 1, 5, "acme", 10, 0, 0, b"{}") for id in ids]


def test_free_credit_is_what_is_neither_held_nor_reserved() -> None:
    account = WorkerAccount(5)
    assert account.free == 5
    account.reserved = 2
    assert account.free == 3
    account.lease("q", leases("a", "b"), 1.0, 0.0)
    account.reserved = 0
    assert account.free == 3
    assert account.held == {("q", "a"): 70, ("q", "b"): 70}
    account.lease("other", leases("a"), 1.0, 0.0)
    assert account.free == 2
    assert account.held_of("q") == {"a": 70, "b": 70}
    assert account.has(("other", "a"), 70)
    assert not account.has(("other", "a"), 71)


def test_leases_whose_settlement_failed_take_no_room_as_many_as_there_is_credit() -> None:
    """Their primary is away: meanwhile the worker runs tasks of others."""
    charged: list[tuple[str, int]] = []
    account = WorkerAccount(2)
    account.charge_to(lambda place, leases, _: charged.append((place, leases)))
    for round, ids in enumerate(("ab", "cd")):
        account.lease("q/2.0", leases(*ids), 10.0, 0.0)
        assert account.free == 0
        ended = account.end("q", [Settlement("ack", id, 70) for id in ids])
        for key, (lease, terms) in ended.items():
            account.add_unsettled(key, lease, terms, 0.0)
        assert account.free == (2, 0)[round]
    assert account.busy == 4, "they are given back if the worker goes"
    account.end("q", [Settlement("ack", "a", 70)])  # again, as its worker does
    assert account.free == 1
    account.end("q", [Settlement("ack", "b", 70), Settlement("ack", "c", 70)])
    assert account.free == 2
    account.expire(11.0)
    assert (account.busy, account.free) == (0, 2)
    assert sum(leases for place, leases in charged if place) == 0


def test_less_credit_than_is_held_leaves_nothing_free() -> None:
    account = WorkerAccount(3)
    account.lease("q", leases("a", "b"), 1.0, 0.0)
    account.credit = 1
    assert account.free == 0


def test_a_lease_that_was_not_renewed_in_its_time_leaves_its_place() -> None:
    account = WorkerAccount(3)
    account.lease("q", leases("a", "b", "c"), 10.0, 100.0)
    assert account.over_at == 110 + OVER_S
    account.renewed(("q", "b"), 70, 105.0)
    account.drop(("q", "c"))
    account.expire(109.9 + OVER_S)
    assert not account.is_freed
    account.expire(110 + OVER_S)
    assert account.is_freed
    assert account.held == {("q", "b"): 70}
    assert account.free == 2
    assert account.over_at == 115 + OVER_S
    account.add(("other", "d"), 71, Terms(1.0), 112.0)
    assert account.over_at == 113 + OVER_S
    account.expire(120.0)
    assert account.held == {}
    account.expire(130.0)
    assert account.over_at > 1e9


def test_the_owner_of_a_lease_is_known_until_it_is_dropped() -> None:
    owners: dict[tuple[str, str], object] = {}
    here, there = WorkerAccount(3, owner="here", owners=owners), WorkerAccount(3, owner="there", owners=owners)
    here.lease("q", leases("a"), 10.0, 0.0)
    there.add(("q", "a"), 70, Terms(10.0, taken=1), 0.0)
    here.drop(("q", "a"))
    assert owners == {("q", "a"): "there"}
    assert there.drop_all() == {"q": [("a", 70, 1)]}
    assert owners == {}


def test_a_lease_that_is_pushed_again_for_the_same_task_counts_once() -> None:
    """The first was lost and reaped: its fence goes with it."""
    account = WorkerAccount(3)
    account.lease("q", leases("a"), 10.0, 0.0)
    account.terms["q", "a"].taken = 4
    account.lease("q", [leases("a")[0]._replace(lease=71)], 10.0, 5.0)
    assert account.held == {("q", "a"): 71}
    assert account.drop_all() == {"q": [("a", 71, 0)]}


def test_a_brought_lease_that_was_renewed_ends_by_time_too() -> None:
    account = WorkerAccount(3)
    account.add(("q", "a"), 70, Terms(10.0), 0.0)
    account.renewed(("q", "a"), 70, 5.0)
    assert account.over_at == 10 + OVER_S
    account.expire(14.9 + OVER_S)
    assert account.held
    account.expire(16 + OVER_S)
    assert not account.held


def test_a_lease_lasts_as_long_as_was_announced_to_its_worker_whatever_is_changed() -> None:
    account = WorkerAccount(3)
    account.lease("q", leases("a"), 20.0, 100.0)
    account.lease("q", leases("b"), 2.0, 100.0)  # lease_ms was lowered
    for id in "ab":
        account.renewed(("q", id), 70, 110.0)
    account.expire(112.1 + OVER_S)
    assert account.held == {("q", "a"): 70}
    account.expire(129.9 + OVER_S)
    assert account.held
    account.expire(131 + OVER_S)
    assert not account.held
    account.lease("q", leases("c"), 2.0, 200.0)
    account.lease("q", leases("d"), 20.0, 200.0)  # it was raised
    account.renewed(("q", "c"), 70, 201.0)
    account.expire(219.0 + OVER_S)
    assert account.held == {("q", "c"): 70, ("q", "d"): 70}
