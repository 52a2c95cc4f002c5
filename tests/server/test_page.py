"""What PROTOCOL.md says of scopes, unknown names, attempts and the order of refusals, tried on a server."""

from __future__ import annotations

import json
from typing import Any

from fairq.server.run import Served
from fairq.server.verbs import table
from fairq.wire.terms import Role
from fairq.wire.verbs import VERBS

from .harness import Raw, raw, tenant
from .refusals import good
from .test_refusals import NOT_YOURS, told

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
            assert await told(bob, verb, good(verb, Role.TENANT) | {"queue": "nowhere"}) == answer, verb
    for verb, (body, expected) in NOBODY.items():
        answer = await told(operator, verb.partition(",")[0], body)
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
        await ada.transport.send(json.dumps({"ref": 1, **body}))
        frame = await ada.receive()
        assert (frame["code"], frame.get("ref")) == (code, None if code == "bad_frame" else 1), body


def test_one_function_carries_out_each_request() -> None:
    found = [frame.type for frame, _ in table.find() if frame in VERBS]
    assert sorted(found) == sorted(frame.type for frame, verb in VERBS.items() if verb.reply is not None)
