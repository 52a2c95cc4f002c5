"""Rates through the server; test_wake.py has limits on what runs."""

from __future__ import annotations

import pytest
import trio

from .harness import Raw

IDS = [f"id-{number}" for number in range(20)]


@pytest.mark.usefixtures("no_polls")
async def test_a_rate_holds_and_the_next_token_wakes_the_worker(operator: Raw, worker: Raw, ada: Raw) -> None:
    """The ticker learns from the claim when tokens come: its next round would be in an hour."""
    await operator.ask("set_limits", queue="q", tenant="ada", limits={"rate": 100, "burst": 1})
    await worker.attach("q", credit=20)
    began = trio.current_time()
    await ada.enqueue("q", IDS)
    tasks = await worker.pushed(20)
    assert trio.current_time() - began >= 19 / 100 - 0.01, "a hundred a second"
    assert await worker.settle("q", "ack", *tasks) == ["ok"] * 20
