"""Tasks that kill their worker's process, with real processes; in virtual time: tests/server/test_running_alone.py."""

from __future__ import annotations

import pytest
import trio

from .harness import World, operating, producing, wait_drained

pytestmark = pytest.mark.deep("kills")

GOOD, POISON = 20, 2


async def test_tasks_that_kill_their_process_take_no_other_with_them(world: World) -> None:
    with trio.fail_after(120):
        url = await world.serve("--data-dir", world.directory / "data").wait_url()
        async with producing(url) as producer, operating(url) as operator:
            await operator.request("configure", {"queue": "q", "settings": {"max_attempts": 3, "retry_base_ms": 1}})
            for number in range(POISON):
                await producer.enqueue(f"poison-{number}", first="die", then="die")
            for number in range(GOOD):
                await producer.enqueue(f"good-{number}", first=0.5, then=0.5)
            worker = world.run(
                "worker", "tests.system.app:app", "-c", "10", "--processes", "2", "--queue", "q",
                "--token", "dev-worker", "--url", url,
            )  # fmt: skip
            await wait_drained(operator)
            poison = await producer.client.tasks("q", [f"poison-{number}" for number in range(POISON)])
        assert [(each.state, each.reason, each.lost_leases) for each in poison] == [("dead", "lease_lost", 3)] * POISON
        assert {row.id for row in world.journal("end")} == {f"good-{number}" for number in range(GOOD)}
        assert worker.printed.count("worker process died") <= 3 * POISON
