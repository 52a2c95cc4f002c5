"""How long a worker waits to connect again: not for its leases to end."""

from __future__ import annotations

import pytest

from fairq.wire.client_session import RECONNECT_CAP_S

from .test_worker_session import WorkerEnd


def wait_after_ten_failures(end: WorkerEnd) -> float:
    """Lose the connection, and fail to make one; returns the longest next wait."""
    end.session.jitter = lambda: 1.0
    for _ in range(10):
        end.disconnect()
        end.now = end.session.reconnect_at
    end.disconnect()
    return end.session.reconnect_at - end.now


@pytest.mark.parametrize(("lease_s", "most_s"), [(0.3, 0.1), (2.0, 0.2), (30.0, 3.0), (3600.0, RECONNECT_CAP_S)])
@pytest.mark.parametrize("is_settled", [False, True])
def test_while_a_lease_is_held_or_settled_a_worker_waits_for_a_tenth_of_it(
    lease_s: float, most_s: float, is_settled: bool
) -> None:
    end = WorkerEnd().attach()
    end.push("a", lease_s=lease_s)
    end.push("b", lease_s=4000.0)
    if is_settled:
        end.ack("a", "b")
        end.sent()
    assert wait_after_ten_failures(end) == pytest.approx(most_s)


def test_a_worker_that_holds_nothing_waits_as_clients_do() -> None:
    end = WorkerEnd().attach()
    end.push("a", lease_s=1.0)
    end.ack("a")
    end.stored(end.only())
    assert wait_after_ten_failures(end) == pytest.approx(RECONNECT_CAP_S)
    end.attach()
    end.push("b", lease_s=20.0)
    assert wait_after_ten_failures(end) == pytest.approx(2.0)
