"""Names of tasks, and typed payloads, with the service in memory."""

from __future__ import annotations

from typing import Any

import fairq
import fairq.testing
from tests.client.typed_app import Point, make_app


async def test_names_and_types_work_as_in_the_service() -> None:
    seen = list[Any]()
    async with fairq.testing.run(make_app(fairq.Worker(), seen)) as service:
        good = await service.enqueue("typed", {"x": 1}, name="point")
        misfit = await service.enqueue("typed", {"x": "1"}, name="point")
        unknown = await service.enqueue("typed", {"x": 1}, name="unknown", max_attempts=2)
        await service.drain()
    assert (good.outcome, seen) == ("done", [Point(1)])
    assert (misfit.outcome, misfit.reason, misfit.attempts) == ("dead", "rejected", 1)
    assert misfit.error.endswith("expected a whole number @ payload.x")
    assert (unknown.outcome, unknown.reason, unknown.attempts) == ("dead", "exhausted", 2)
    assert "no handler for tasks named 'unknown'" in unknown.error
