"""What PROTOCOL.md says of scopes, unknown names and the order of refusals, and its worker, tried on a server."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import trio
import websockets.exceptions

from fairq.server.engine.verbs import table
from fairq.server.run import Served
from fairq.wire.terms import Role
from fairq.wire.verbs import VERBS
from tests.sending import send_message
from tests.test_documents import PROTOCOL

from .harness import WORKER, Raw, raw, tenant, url_of
from .refusals import good
from .test_refusals import NOT_YOURS, answer_to

NOBODY: dict[str, tuple[dict[str, Any], Any]] = {
    "tenants": ({"queue": "none"}, "not_found"),
    "repair": ({"queue": "none"}, "not_found"),
    "repair, with a wrong number": ({"queue": "none", "number": -1}, "bad_request"),
    "delete_queue": ({"queue": "none"}, {"outcome": "gone", "contents": {}}),
    "drop_tenant": ({"queue": "q", "tenant": "nobody"}, {"outcome": "gone"}),
    "queues": ({"queue": "none"}, {"queues": []}),
    "webhooks": ({"queue": "none"}, {"webhooks": []}),
    "remove_webhook": ({"queue": "none", "url": "https://a.example/"}, {"previous": False}),
    "set_webhook_paused": ({"queue": "none", "url": "https://a.example/", "paused": True}, "not_found"),
    "set_paused": ({"queue": "q", "tenant": "nobody", "paused": True}, {"previous": False}),
    "set_weight": ({"queue": "q", "tenant": "nobody", "weight": 2}, {"previous": 1}),
    "drain_worker": ({"worker": "nobody"}, {"workers": 0}),
    "revoke_token": ({"id": "nobody"}, "not_found"),
    "configure": ({"queue": "q", "settings": {"colour": 1}}, "bad_request"),
    "set_limits": ({"queue": "q", "limits": {"colour": 1}}, "bad_request"),
}


async def test_names_that_nothing_has_are_answered_as_the_page_says(served: Served, operator: Raw) -> None:
    async with raw(served, tenant("bob")) as bob:
        for verb, answer in NOT_YOURS.items():
            assert await answer_to(bob, verb, good(verb, Role.TENANT) | {"queue": "nowhere"}) == answer, verb
    for verb, (body, expected) in NOBODY.items():
        answer = await answer_to(operator, verb.partition(",")[0], body)
        assert (answer if isinstance(answer, dict) else answer[0]) == expected, verb
    assert (await operator.ask("audit", token="nobody"))["cursor"] is None


IN_ORDER: list[tuple[dict[str, Any], str]] = [
    ({"type": "attach", "x": float("nan"), "worker": 5}, "bad_frame"),
    ({"type": "dance", "worker": 5}, "unknown_verb"),
    ({"type": "attach", "worker": 5}, "bad_request"),  # though a tenant may not attach
    ({"type": "attach", "worker": "", "queues": [], "credit": -1}, "forbidden"),  # though values break rules
]


async def test_refusals_come_in_the_order_of_the_page(ada: Raw) -> None:
    for body, code in IN_ORDER:
        await send_message(ada.transport, json.dumps({"ref": 1, **body}))
        frame = await ada.receive()
        assert (frame["code"], frame.get("ref")) == (code, None if code == "bad_frame" else 1), body


def test_one_function_carries_out_each_request() -> None:
    found = [frame.type for frame, _ in table.find() if frame in VERBS]
    assert sorted(found) == sorted(frame.type for frame, verb in VERBS.items() if verb.reply is not None)


async def test_its_worker_works_until_a_later_one_takes_its_name(served: Served, ada: Raw) -> None:
    space: dict[str, Any] = {}
    exec(re.findall(r"^```python\n(.*?)^```$", PROTOCOL, re.MULTILINE | re.DOTALL)[0], space)
    tried: list[str] = []

    def handle(payload: str) -> object:
        tried.append(payload[:9])
        if payload == "fails once" and tried.count("fails onc") == 1:
            raise ValueError(payload)
        return "x" * 300_000 if payload == "says much" else len(payload)

    async def work() -> None:
        with pytest.raises(websockets.exceptions.ConnectionClosed):
            await trio.to_thread.run_sync(space["work"], url_of(served), WORKER, "emails", handle)

    async with raw(served, WORKER) as heir, trio.open_nursery() as nursery:
        nursery.start_soon(work)
        payloads = ["short", "x" * 100_000, "fails once", "says much"]
        tasks = [{"id": f"t{n}", "payload": each, "result_ttl_ms": 60_000} for n, each in enumerate(payloads)]
        await ada.ask("enqueue", queue="emails", tasks=tasks)
        ended = await ada.ask("wait_tasks", queue="emails", ids=[task["id"] for task in tasks], timeout_ms=30_000)
        ends = {end["id"]: end.get("result", end.get("reason")) for end in ended["tasks"]}
        assert ends == {"t0": 5, "t1": 100_000, "t2": 10, "t3": "rejected"}
        await heir.attach("emails", credit=0, name="worker-1", started_at_ms=1 << 50)
