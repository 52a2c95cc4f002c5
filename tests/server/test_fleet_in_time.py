"""Servers that share a queue with partitions: shares, a primary that stands still, servers that come and go."""

from __future__ import annotations

import random
import traceback
from collections.abc import Awaitable, Callable

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from fairq.server.engine.dispatch.dispatcher import Dispatcher
from fairq.server.engine.dispatch.queue_accounts import QueueAccounts
from fairq.server.engine.dispatch.worker_account import WorkerAccount

from .fleet_in_time import Cluster

LENGTH_S = 0.1
QUIET = 80
BAD_S = 20.0  # for which primaries may be away: when a lease of 30 s has run out, a task that was done runs again
DEEDS = ("freeze", "thaw", "cut", "return", "move", "join", "leave", "enqueue")
Scene = Callable[[Cluster], Awaitable[None]]


def in_time(play: Scene, **options: object) -> None:
    """Play a scene with a cluster in virtual time."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await play(Cluster(nursery, **options))  # type: ignore[arg-type]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0), strict_exception_groups=True)


def crowd(cluster: Cluster, *counts: int, tasks: int = 500) -> list[str]:
    """Enqueue tasks of so many tenants in each partition; returns their names."""
    names = [name for place, count in enumerate(counts) for name in cluster.tenants(place, count)]
    for name in names:
        cluster.add(name, tasks)
    return names


def test_tenants_of_all_partitions_have_equal_shares_at_two_servers() -> None:
    """Whatever their tasks take."""

    async def play(cluster: Cluster) -> None:
        cluster.lengths = dict.fromkeys(cluster.tenants(1, 3), 3 * LENGTH_S)
        cluster.start_server(8)
        cluster.start_server(4, 4)
        names = crowd(cluster, 1, 3, 5, 7)
        await trio.sleep(5)
        given = await cluster.shares(10, names)
        due = sum(given.values()) / len(names)
        assert sum(given.values()) > 0.95 * 10 * cluster.slots
        assert all(abs(each - due) < 3 * LENGTH_S * (3 + 2) for each in given.values()), given
        assert max(cluster.begun.values()) == 1

    in_time(play)


def test_a_primary_that_stands_still_holds_up_its_own_tenants_alone() -> None:
    """One of three for 12 s: the others have its slots within a moment, and its tenants their part after its return."""

    async def play(cluster: Cluster) -> None:
        cluster.start_server(12)
        cluster.start_server(12)
        names = crowd(cluster, 6, 6, 6, 6, tasks=600)
        await trio.sleep(5)
        cluster.primaries[0].thawed = trio.Event()
        used = [await cluster.used(1) for _ in range(12)]
        cluster.primaries[0].thawed.set()
        assert used[0] > 0.5, used
        assert min(used[1:]) > 0.9, used
        await trio.sleep(1)
        given = await cluster.shares(10, names)
        due = sum(given.values()) / len(names)
        assert all(0.8 * due < each < 1.2 * due for each in given.values()), given
        assert max(cluster.begun.values()) == 1

    in_time(play)


def test_slots_that_a_server_brings_or_takes_along_change_no_shares() -> None:
    async def play(cluster: Cluster) -> None:
        cluster.start_server(8)
        names = crowd(cluster, 2, 3, 4, 3, tasks=1_000)
        for change in (lambda: cluster.start_server(16), lambda: cluster.start_server(4), cluster.servers[0].leave):
            change()
            await trio.sleep(3)
            given = await cluster.shares(10, names)
            due = sum(given.values()) / len(names)
            assert sum(given.values()) > 0.95 * 10 * cluster.slots
            assert all(abs(each - due) < LENGTH_S * (3 + len(cluster.servers)) for each in given.values()), given

    in_time(play)


@pytest.mark.parametrize("partitions", [4, 12])
def test_a_guarantee_holds_against_the_tenants_of_all_partitions(partitions: int) -> None:
    """The others share the rest, those in its own partition as well."""

    async def play(cluster: Cluster) -> None:
        cluster.start_server(5)
        cluster.start_server(5)
        names = crowd(cluster, *([24 // partitions] * partitions), tasks=200)
        (guaranteed,) = cluster.tenants(0, 24 // partitions + 1)[-1:]
        cluster.set_limits(guaranteed, guaranteed=5)
        cluster.add(guaranteed, 1_000)
        await trio.sleep(2)
        given = await cluster.shares(8, [*names, guaranteed])
        assert 4.6 * 8 < given.pop(guaranteed) < 5.1 * 8
        due = sum(given.values()) / len(names)
        assert all(abs(each - due) < LENGTH_S * (3 + 2) for each in given.values()), given
        assert max(cluster.begun.values()) == 1

    in_time(play, partitions=partitions)


def test_a_guaranteed_tenant_alone_in_its_partition_gets_its_share_if_that_is_more() -> None:
    """And no share beside its guarantee if it is less."""

    async def play(cluster: Cluster) -> None:
        cluster.start_server(10)
        names = crowd(cluster, 0, 2, 2, 2, tasks=500)
        (alone,) = cluster.tenants(0, 1)
        cluster.add(alone, 1_000)
        for guaranteed, weight, slots in ((3, 1, 3.0), (1, 6, 5.0)):
            cluster.set_limits(alone, guaranteed=guaranteed)
            cluster.set_weight(alone, weight)
            await trio.sleep(2)
            given = await cluster.shares(8, [*names, alone])
            assert given[alone] == pytest.approx(8 * slots, rel=0.08)

    in_time(play)


def test_tenants_that_return_beside_a_guaranteed_one_take_no_more_than_their_part() -> None:
    """The guaranteed one is alone in its partition."""

    async def play(cluster: Cluster) -> None:
        cluster.start_server(5)
        cluster.start_server(5)
        names = [*crowd(cluster, 0, 2, 2, tasks=500), *cluster.tenants(3, 2)]
        (guaranteed,) = cluster.tenants(0, 1)
        cluster.set_limits(guaranteed, guaranteed=3)
        cluster.add(guaranteed, 1_000)
        await trio.sleep(20)
        for name in names[-2:]:
            cluster.add(name, 500)
        given = await cluster.shares(8, names)
        due = sum(given.values()) / len(names)
        assert all(abs(each - due) < LENGTH_S * (3 + 2) for each in given.values()), given

    in_time(play)


def quiet_waits(wakes: bool, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return how long the tasks of quiet tenants wait in a full queue; `wakes`: their partition is served sooner."""
    waits: list[float] = []

    async def play(cluster: Cluster) -> None:
        for _ in range(4):
            server = cluster.start_server(2)
            if not wakes:
                monkeypatch.setattr(type(server.queues.accounts), "serve_soon", lambda self, queue: None)
        names = crowd(cluster, *([2] * 16), tasks=300)
        quiet = [cluster.tenants(place, 3)[2] for place in range(16)]
        source = random.Random(4)
        await trio.sleep(5)
        before = cluster.given()
        for _ in range(QUIET):
            cluster.add(source.choice(quiet), 1, server=source.randrange(4))
            await trio.sleep(0.2)
        await trio.sleep(5)
        waits.extend(wait for name in quiet for wait in cluster.waits_s[name])
        given = cluster.given()
        given.subtract(before)
        due = sum(given[name] for name in names) / len(names)
        assert all(abs(given[name] - due) < LENGTH_S * (3 + 4) for name in names), given

    in_time(play, partitions=16)
    monkeypatch.undo()
    return sorted(waits)


def test_a_quiet_tenants_partition_is_served_out_of_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    sooner, later = quiet_waits(True, monkeypatch), quiet_waits(False, monkeypatch)
    assert len(sooner) == len(later) == QUIET
    assert sum(sooner) < 0.8 * sum(later), (sum(sooner), sum(later))


def test_tenants_that_begin_to_wait_again_and_again_gain_nothing_for_their_partition() -> None:
    """Each of them puts in its next task when the last has begun, at both servers; the others always have tasks."""

    async def play(cluster: Cluster) -> None:
        cluster.start_server(8)
        cluster.start_server(8)
        names = crowd(cluster, 0, 4, 4, 4, tasks=700)
        blinking = cluster.tenants(0, 4)

        async def blink(name: str, n: int) -> None:
            while True:
                begun = len(cluster.waits_s[name])
                cluster.add(name, 1, server=n % 2)
                while len(cluster.waits_s[name]) == begun:
                    await cluster.moved.park()
                n += 1

        for name in blinking:
            for n in range(3):
                cluster.nursery.start_soon(blink, name, n)
        await trio.sleep(5)
        given = await cluster.shares(10, [*names, *blinking])
        due = sum(given.values()) / len(given)
        assert all(given[name] < due + LENGTH_S * (3 + 2) for name in blinking), given
        assert all(abs(given[name] - due) < 0.1 * due for name in names), given

    in_time(play)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 99),
    st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(0, 2), st.sampled_from([0.01, 0.3, 6.0])), max_size=12),
)
@example(
    0,
    [
        ("freeze", 1, 0.3),
        ("leave", 0, 0.01),
        *(("freeze", 0, after_s) for after_s in (6.0, 0.01, 6.0, 0.3, 0.3, 0.01, 6.0, 0.01, 6.0, 6.0)),
    ],
)
def test_whatever_happens_all_tasks_run_once_and_no_slot_is_lost(
    seed: int, deeds: list[tuple[str, int, float]]
) -> None:
    """Primaries stand still or are away, partitions move to others, servers come and go; then all is well again."""

    async def play(cluster: Cluster) -> None:
        random.seed(seed)
        for credit in (2, 3):
            cluster.start_server(credit)
        names, ends_at = crowd(cluster, 2, 1, 3, 2, tasks=5), trio.current_time() + BAD_S
        for deed, which, after_s in deeds:
            primary, count = cluster.primaries[which], len(cluster.servers)
            if deed == "freeze":
                primary.thawed = trio.Event()
            elif deed in ("thaw", "return", "cut"):
                primary.is_away = deed == "cut"
                primary.thawed.set()
            elif deed == "move":
                place = cluster.places[which]
                cluster.home[place] = cluster.primaries[(cluster.primaries.index(cluster.home[place]) + 1) % 3]
            elif deed == "join" and count < 4:
                cluster.start_server(2)
            elif deed == "leave" and count > 1:
                cluster.servers[which % count].leave()
            elif deed == "enqueue":
                cluster.add(names[which], 10, server=which % count)
            await trio.sleep_until(min(trio.current_time() + after_s, ends_at))
        for primary in cluster.primaries:
            primary.is_away = False
            primary.thawed.set()
        with trio.fail_after(90):
            while cluster.ended != cluster.added.keys():
                await cluster.moved.park()
        assert max(cluster.begun.values()) == 1
        await trio.sleep(7)
        for name in names:
            cluster.add(name, 100)
        await trio.sleep(1)
        assert await cluster.used(2) > 0.9

    in_time(play)


def _ignore(*_: object) -> None:
    """Do nothing."""


def _weigh_alike(accounts: QueueAccounts, place: str, *_: float, **__: bool) -> None:
    accounts._queues[place].competing = 1.0


def _begin_at_nothing(accounts: QueueAccounts, queue: str, is_waiting: bool, now: float) -> None:
    account = accounts._queues[queue]
    accounts.changes += 1
    account.waits = next(accounts._beginnings) if is_waiting else 0


PLANTED = {
    "a partition's weight is not heard": (
        QueueAccounts,
        "set_weight",
        _weigh_alike,
        test_tenants_of_all_partitions_have_equal_shares_at_two_servers,
    ),
    "what a partition was given is not charged": (
        QueueAccounts,
        "charge",
        _ignore,
        test_tenants_of_all_partitions_have_equal_shares_at_two_servers,
    ),
    "slots are kept for a primary that is late": (
        Dispatcher,
        "_set_late",
        _ignore,
        test_a_primary_that_stands_still_holds_up_its_own_tenants_alone,
    ),
    "tasks that have ended take slots": (
        WorkerAccount,
        "add_unsettled",
        WorkerAccount.add,
        test_a_primary_that_stands_still_holds_up_its_own_tenants_alone,
    ),
    "a partition saves up while it does not wait": (
        QueueAccounts,
        "set_waiting",
        _begin_at_nothing,
        test_a_primary_that_stands_still_holds_up_its_own_tenants_alone,
    ),
}


@pytest.mark.deep("mutants")
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, attribute, instead, find = PLANTED[name]
    monkeypatch.setattr(target, attribute, instead)
    with pytest.raises(ExceptionGroup) as found:
        find()
    assert "AssertionError" in "".join(traceback.format_exception(found.value))
