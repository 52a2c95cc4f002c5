"""What operators are told of a queue's last hours, by any server."""

from __future__ import annotations

from typing import Any

import trio

from fairq.server.run import Served

from .harness import OPERATOR, WORKER, Raw, raw, tenant


async def ask(operator: Raw, **body: Any) -> Any:
    """Ask for the history of the queue."""
    return await operator.ask("history", queue="q", **body)


async def test_what_happened_is_told_once_it_was_added(served: Served) -> None:
    with trio.fail_after(30):
        async with (
            raw(served, tenant("ada")) as ada,
            raw(served, OPERATOR) as operator,
            raw(served, WORKER) as worker,
        ):
            assert (await ask(operator))["times_ms"] == []
            await worker.attach("q")
            await ada.enqueue("q", ["a", "b", "c"])
            await worker.settle("q", "ack", *await worker.pushed())
            await served.app.recorder.flush()
            told = await ask(operator)
    assert told["step_ms"] == 10_000
    assert len(told["times_ms"]) in (1, 2)
    assert {name: told["totals"][name] for name in ("enqueued", "started", "done")} == {
        "enqueued": 3, "started": 2, "done": 1,
    }  # fmt: skip
    (row,) = told["tenants"]
    assert (row["tenant"], sum(row["started"]), row["totals"]["delivered_part"]) == ("ada", 2, 1.0)
