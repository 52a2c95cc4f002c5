"""What tenants and operators see and change, and what is no frame; test_refusals.py has what is refused."""

from __future__ import annotations

from fairq.server.verbs import table
from fairq.wire.verbs import VERBS

from .harness import Raw


def test_one_function_carries_out_each_request() -> None:
    found = [frame.type for frame, _ in table.find() if frame in VERBS]
    assert sorted(found) == sorted(frame.type for frame, verb in VERBS.items() if verb.reply is not None)


NO_FRAMES: list[str] = ["", "[]", "1", "{", '{"type":"queues"}', '{"ref":1}', '{"a":1,"a":2}', "[" * 5000]


async def test_what_is_no_frame_is_told_so_and_the_connection_lives(operator: Raw) -> None:
    for text in NO_FRAMES:
        await operator.transport.send(text)
        assert (await operator.receive())["type"] == "error"
        assert (await operator.ask("queues"))["queues"] == []
