"""The room of a queue's workers: shared out evenly, in turn, and without asking all of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fairq.server.engine.dispatch.capacity import Capacity, Pool, QueueCapacity, Worker, free_of
from fairq.server.engine.dispatch.queue_accounts import QueueAccounts
from fairq.server.engine.dispatch.worker_account import WorkerAccount

from .fake_worker import FakeWorker


class Counted(WorkerAccount):
    """An account that notes when its room is looked at."""

    asked = 0

    @property
    def free(self) -> int:
        """How many more tasks the worker may be given."""
        Counted.asked += 1
        return max(0, self.credit - len(self.held) - self.reserved)


def idler(credit: int, held: int = 0) -> FakeWorker:
    """A worker with so much credit, and so many tasks."""
    account = Counted(credit)
    account.held.update({("q", f"t/{n}"): 1 for n in range(held)})
    return FakeWorker(account)


def room_of(*workers: FakeWorker) -> Capacity:
    """The room of these workers."""
    room = Capacity()
    for worker in workers:
        room.join(worker)
    return room


IS = st.sampled_from(["here", "here", "here, and may take nothing", "gone"])


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), IS), max_size=12), st.integers(1, 40))
def test_places_are_shared_out_as_evenly_as_there_is_room(sizes: list[tuple[int, int, str]], tasks: int) -> None:
    """A worker has some credit and some tasks when it comes, and other credit afterwards."""
    workers = [idler(held, held) for _, held, _ in sizes]
    room, frees, offered = room_of(*workers), dict[Worker, int](), 0
    for worker, (credit, held, is_) in zip(workers, sizes, strict=True):
        worker.may_take = is_ != "here, and may take nothing"
        if is_ == "gone":
            room.leave(worker)
        else:
            offered += credit
        worker.account.credit = credit
        room.changed(worker)
        frees[worker] = max(0, credit - held) if is_ == "here" else 0
        assert is_ == "gone" or free_of(worker) == frees[worker]
    assert room.offered == offered
    assert min(room.free(tasks), tasks) == min(sum(frees.values()), tasks)
    shares = room.share(tasks)
    assert sum(shares.values()) == min(tasks, sum(frees.values()))
    assert all(0 < share <= frees[worker] for worker, share in shares.items())
    most = max(shares.values(), default=0)
    assert all(share >= most - 1 or share == frees[worker] for worker, share in shares.items())
    assert most <= 1 or shares.keys() == {worker for worker, free in frees.items() if free}


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


async def test_slots_that_are_owed_are_counted_once_by_pools_and_until_they_are_released() -> None:
    """Each pool of workers may have some of them."""
    accounts, places = QueueAccounts(), ("many/2.0", "many/2.1")
    room = QueueCapacity(places[0], accounts)
    for served in (places, (*places, "other")):
        pool = Pool(served, accounts)
        accounts.join(served)
        room.shared.append(pool)
        pool.join(idler(4))
    accounts.set_waiting(places[0], True, 0.0)
    accounts.owe(places[0], 3)
    room.reserve(8)
    assert (sum(room.reserved.values()), room.owed) == (8, 3)
    room.release()
    assert (room.reserved, room.owed) == ({}, 0)
