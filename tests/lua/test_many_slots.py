"""The bound of lua/pick/README.md with many slots, where many leases begin before anybody knows how long they are."""

from __future__ import annotations

import pytest

from .calls import Queue
from .fleet import Fleet, about


@pytest.mark.parametrize(
    ("newcomers", "others", "first_ms", "claimed_slots"),
    [(1, 1, 1, ()), (3, 3, 1, (1000, 0)), (10, 1, 10_000, ()), (1, 1, 10_000, (20,))],
)
def test_tasks_of_unknown_length_leave_others_their_shares_of_the_slots(
    queue: Queue, newcomers: int, others: int, first_ms: int, claimed_slots: tuple[int, ...]
) -> None:
    fleet = Fleet(queue, 100, claimed_slots=claimed_slots)
    honest = [fleet.tenant(f"t{n}", about(50), endless=True) for n in range(others)]
    for n in range(newcomers):
        fleet.tenant(f"new{n}", lambda n, _: first_ms if n < 20 else 10_000, 120, at=60)
    fleet.run(260)
    assert sum(len(sender.running) for sender in fleet.senders.values()) == 100
    due = 100 / (newcomers + others)
    assert min(len(sender.running) for sender in honest) >= int(due) - 1, "behind by two of the longest leases at most"
