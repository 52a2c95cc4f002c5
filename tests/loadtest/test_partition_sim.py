"""The simulation of a queue with partitions, by the code that serves: nobody is far from its due, nothing goes idle."""

from __future__ import annotations

import pytest

from loadtest.partition_sim import Case, Simulation


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 1, 40, tenants=60, seconds=4.0),
        Case(4, 1, 40, tenants=60, seconds=4.0),
        Case(12, 2, 120, tenants=60, seconds=4.0),
        Case(12, 4, 48, tenants=30, seconds=4.0),
    ],
    ids=str,
)
def test_tenants_are_within_ten_tasks_of_their_due(case: Case) -> None:
    """From the beginning on, when no length and no weight is known; promised are three and one a server and place."""
    run = Simulation(case)
    run.run()
    assert run.lag <= 10
    assert run.begun > 0.9 * case.slots * case.seconds * 10, "no slot goes idle"
    assert len(run.waits_ms) > 30
