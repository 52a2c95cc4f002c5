"""What tenants and operators see and change, and what is no frame; test_refusals.py has what is refused."""

from __future__ import annotations

from fairq.server.verbs import table
from fairq.wire.verbs import VERBS

from .harness import Raw


def test_one_function_carries_out_each_request() -> None:
    found = [frame.type for frame, _ in table.find() if frame in VERBS]
    assert sorted(found) == sorted(frame.type for frame, verb in VERBS.items() if verb.reply is not None)


async def test_operators_see_and_change_what_there_is(ada: Raw, operator: Raw, worker: Raw) -> None:
    assert (await operator.ask("queues"))["queues"] == []
    await ada.enqueue("q", ["a"])
    assert (await operator.ask("set_weight", queue="q", tenant="ada", weight=3))["previous"] == 1
    assert (await operator.ask("set_weight", queue="q", tenant="ada", weight=0.5))["previous"] == 3
    assert (await operator.ask("set_paused", paused=True, queue="q"))["previous"] is False
    assert (await operator.ask("set_paused", paused=False, queue="q"))["previous"] is True
    await operator.ask("configure", queue="q", settings={"share": "count", "lease_ms": 5000})
    await worker.attach("q", credit=1)
    await worker.pushed()
    (row,) = (await operator.ask("queues"))["queues"]
    assert (row["queue"], row["leased"], row["workers"]) == ("q", 1, 1)
    assert (row["settings"]["share"], row["settings"]["lease_ms"]) == ("count", 5000)


NO_FRAMES: list[str] = ["", "[]", "1", "{", '{"type":"queues"}', '{"ref":1}', '{"a":1,"a":2}', "[" * 5000]


async def test_what_is_no_frame_is_told_so_and_the_connection_lives(operator: Raw) -> None:
    for text in NO_FRAMES:
        await operator.transport.send(text)
        assert (await operator.receive())["type"] == "error"
        assert (await operator.ask("queues"))["queues"] == []
