"""The room of a queue's workers: shared out evenly, in turn, and without asking all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define
from hypothesis import given, settings
from hypothesis import strategies as st

from fairq.model.tasks import Lease
from fairq.server.engine.dispatch.capacity import Capacity, Worker, free_of
from fairq.server.engine.dispatch.worker_account import WorkerAccount


@define(eq=False)
class Idler:
    """A worker that counts how often it is asked."""

    account: WorkerAccount
    name: str = "w"
    may_take: bool = True
    tracks_leases: bool = True

    def push(self, queue: str, lease_ms: int, leases: Sequence[Lease], run_timeout_ms: int, claimed_at: float) -> None:
        """Send nothing."""

    def stop_tasks(self, queue: str, leases: Mapping[str, int]) -> None:
        """Send nothing."""


class Counted(WorkerAccount):
    """An account that notes when its room is looked at."""

    asked = 0

    @property
    def free(self) -> int:
        """How many more tasks the worker may be given."""
        Counted.asked += 1
        return max(0, self.credit - len(self.held) - self.reserved)


def idler(credit: int, held: int = 0) -> Idler:
    """A worker with so much credit, and so many tasks."""
    account = Counted(credit)
    account.held.update({("q", f"t/{n}"): 1 for n in range(held)})
    return Idler(account)


def room_of(*workers: Idler) -> Capacity:
    """The room of these workers."""
    room = Capacity()
    for worker in workers:
        room.join(worker)
    return room


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12), st.integers(1, 40))
def test_places_are_shared_out_as_evenly_as_there_is_room(sizes: list[tuple[int, int]], tasks: int) -> None:
    workers = [idler(credit, min(held, credit)) for credit, held in sizes]
    room = room_of(*workers)
    frees: dict[Worker, int] = {worker: worker.account.free for worker in workers}
    assert room.offered == sum(credit for credit, _ in sizes)
    assert min(room.free(tasks), tasks) == min(sum(frees.values()), tasks)
    shares = room.share(tasks)
    assert sum(shares.values()) == min(tasks, sum(frees.values()))
    assert all(0 < share <= frees[worker] for worker, share in shares.items())
    even = -(-tasks // max(1, sum(map(bool, frees.values()))))
    assert all(share >= min(frees[worker], even) or sum(shares.values()) == tasks for worker, share in shares.items())


def test_each_worker_has_its_turn() -> None:
    workers = [idler(1) for _ in range(10)]
    room = room_of(*workers)
    turns = [room.share(5) for _ in range(4)]
    assert [set(turn) for turn in turns[:2]] == [set(workers[:5]), set(workers[5:])]
    assert turns[2:] == turns[:2]


def test_thousands_of_idle_workers_are_not_asked_for_every_claim() -> None:
    room = room_of(*(idler(1) for _ in range(1000)))
    Counted.asked = 0
    assert (room.free(150), len(room.share(150)), room.offered) == (150, 150, 1000)
    assert Counted.asked <= 2 * (150 + 1) * 2, "once by the room, once by the account"


def test_thousands_of_full_workers_are_asked_once() -> None:
    full = [idler(1, held=1) for _ in range(1000)]
    room = room_of(*full)
    assert room.free(150) == 0
    Counted.asked = 0
    assert (room.free(150), room.share(150), Counted.asked) == (0, {}, 0)
    full[7].account.held.clear()
    room.changed(full[7])
    assert room.share(150) == {full[7]: 1}


def test_a_worker_that_may_take_nothing_has_no_room() -> None:
    worker = idler(3)
    assert free_of(worker) == 3
    worker.may_take = False
    assert free_of(worker) == 0
    assert room_of(worker).free(150) == 0


def test_who_has_left_has_no_room_and_offers_none() -> None:
    here, gone = idler(3), idler(5)
    room = room_of(here, gone)
    room.leave(gone)
    room.changed(gone)
    here.account.credit = 4
    room.changed(here)
    assert (room.offered, room.free(10), room.share(10)) == (4, 4, {here: 4})
