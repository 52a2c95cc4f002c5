"""A claim that is repeated, since its answer was lost: the same leases again, renewed."""

from __future__ import annotations

import pytest

from .calls import Leased, Queue, leased_in

STALL = 200_000


def repeat(queue: Queue) -> list[Leased]:
    """Repeat the claim of the worker w1."""
    return leased_in(queue.call("claim", "w1", 2, "again", "", ""))


@pytest.mark.parametrize("by_ms", [STALL, -STALL])
def test_leases_given_again_after_a_stall_last_as_long_as_new_ones(queue: Queue, by_ms: int) -> None:
    """The store stood still, or its clock was set; the repeated claim is the first call afterwards."""
    queue.enqueue("ada", "a", "b")
    given = queue.claim(2)
    queue.advance(by_ms)
    assert repeat(queue) == given
    queue.advance(1_000)
    queue.tick()
    assert [queue.state(id) for id in "ab"] == ["leased", "leased"]
    assert queue.end("ack", given[0]) == "ok"
    queue.advance(40_000)
    queue.tick()
    assert [queue.state(id) for id in "ab"] == ["done", "ready"], "the other one runs out"
