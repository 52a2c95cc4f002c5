"""What `fairq simulate` predicts, beside what the real library then does of the same arrivals and run times.

Time is on the test clock. A prediction is made of the history that was kept and of nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import redis
from attrs import evolve, frozen

from fairq.model.simulation.comparison import compare
from fairq.model.simulation.setup import Proposal

from .fleet import Length, about
from .recorded import RecordedFleet, Traffic

SECONDS = 900
SHARE_POINTS, FACTOR = 0.05, 2.0
MANY = 300  # starts; a 99th percentile of fewer is the luck of two or three tasks
NO_MATTER_MS = 200.0  # waiting times that are that short say how many slots were free, not how they were shared


def uneven(ms: float) -> Length:
    """Tasks of very different lengths."""
    return lambda _, source: ms * source.expovariate(1)


@frozen
class Scenario:
    """What comes, on how many slots; and the change to it."""

    slots: int
    traffic: Mapping[str, Traffic]
    weights: Mapping[str, float] = {}
    max_running: Mapping[str, int] = {}
    new_slots: int | None = None

    @property
    def proposal(self) -> Proposal:
        """The change as it is proposed."""
        return Proposal(
            self.weights, {n: {"max_running": m} for n, m in self.max_running.items()}, slots=self.new_slots
        )

    @property
    def changed(self) -> dict[str, Traffic]:
        """The tenants under the change."""
        return {
            name: evolve(
                each, weight=self.weights.get(name, each.weight),
                max_running=self.max_running.get(name, each.max_running),
            )
            for name, each in self.traffic.items()
        }  # fmt: skip


SCENARIOS = {
    "a weight is raised beside a flood": Scenario(
        8,
        {
            "acme": Traffic(about(900), 250),
            "globex": Traffic(about(500), 4000, at_once=100),
            "quiet": Traffic(about(300), 5000),
        },
        weights={"acme": 4},
    ),
    "a limit on running tasks": Scenario(
        10,
        {"acme": Traffic(about(600), 150), "globex": Traffic(about(2000), 350), "initech": Traffic(about(400), 400)},
        max_running={"globex": 3},
    ),
    "fewer slots, too few for all": Scenario(
        12,
        {
            "acme": Traffic(about(700), 250, weight=2),
            "globex": Traffic(about(700), 200),
            "quiet": Traffic(about(200), 3000),
        },
        new_slots=6,
    ),
    "run times of all kinds": Scenario(
        8,
        {
            "acme": Traffic(uneven(1500), 700),
            "globex": Traffic(uneven(200), 60),
            "long": Traffic(uneven(8000), 4000),
        },
        weights={"long": 0.25},
    ),
}


def check(client: redis.Redis, scenario: Scenario, seed: int, seconds: int = SECONDS) -> None:
    """Predict a change, then have it happen."""
    today = RecordedFleet(client, scenario.slots, dict(scenario.traffic), seconds, seed)
    today.record(seconds)
    found = compare(today.observed(), scenario.proposal)
    then = RecordedFleet(client, scenario.new_slots or scenario.slots, scenario.changed, seconds, seed)
    then.record(seconds)
    got = then.got()
    for row in found.tenants:
        real = got[row.tenant]
        assert row.proposed.share is not None
        assert row.proposed.p99_ms is not None
        assert abs(row.proposed.share - real.share) <= SHARE_POINTS, row
        if real.started < MANY:
            continue
        low, high = sorted((row.proposed.p99_ms + NO_MATTER_MS, real.p99_ms + NO_MATTER_MS))
        assert high <= FACTOR * low, row


def test_a_prediction_is_near_to_what_then_happens(redis_client: redis.Redis) -> None:
    check(redis_client, SCENARIOS["fewer slots, too few for all"], 1, seconds=90)


@pytest.mark.deep("fairness")
@pytest.mark.one_store
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", SCENARIOS)
def test_many_predictions_are_near_to_what_then_happens(redis_client: redis.Redis, name: str, seed: int) -> None:
    check(redis_client, SCENARIOS[name], seed)
