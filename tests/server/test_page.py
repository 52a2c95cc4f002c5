"""What PROTOCOL.md says of scopes, unknown names, attempts and the order of refusals, tried on a server."""

from __future__ import annotations

import json
from typing import Any

from .harness import Raw, Refused

NOWHERE: dict[str, tuple[dict[str, Any], Any]] = {
    "tasks": ({"ids": ["a"]}, {"tasks": [{"id": "a", "state": "unknown"}]}),
    "wait_tasks": ({"ids": ["a"]}, {"tasks": [{"id": "a", "state": "unknown"}]}),
    "cancel": ({"ids": ["a"]}, {"outcomes": ["gone"]}),
    "cancel_all": ({}, {"cursor": None, "found": 0, "cancelled": 0, "looked": 0, "waiting": 0}),
    "reschedule": ({"ids": ["a"]}, {"outcomes": ["gone"]}),
    "peek": ({}, {"tasks": []}),
    "dead": ({}, {"dead": [], "cursor": None, "left": 0}),
    "replay": ({"ids": ["a"]}, {"outcomes": ["gone"]}),
    "purge": ({"ids": ["a"]}, {"outcomes": ["gone"]}),
    "events": ({}, {"oldest": 1, "newest": 0, "events": []}),
    "schedules": ({}, {"schedules": []}),
    "unschedule": ({"name": "n"}, {"previous": False}),
    "why": ({"id": "a"}, "not_found"),
    "dead_letter": ({"id": "a"}, "not_found"),
    "batch": ({"id": "a"}, "not_found"),
    "close_batch": ({"id": "a"}, "not_found"),
    "cancel_batch": ({"id": "a"}, "not_found"),
    "set_schedule_paused": ({"name": "n", "paused": True}, "not_found"),
}
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


async def said(client: Raw, verb: str, **body: Any) -> Any:
    """Return the body of an answer, or the code of a refusal."""
    try:
        return await client.ask(verb, **body)
    except Refused as refused:
        return refused.code


async def test_names_that_nothing_has_are_answered_as_the_page_says(ada: Raw, operator: Raw) -> None:
    for verb, (body, expected) in NOWHERE.items():
        assert (verb, await said(ada, verb, queue="nowhere", **body)) == (verb, expected)
    for verb, (body, expected) in NOBODY.items():
        assert (verb, await said(operator, verb.partition(",")[0], **body)) == (verb, expected)
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
