"""What the SDK refuses before anything is sent: what servers refuse of the same call, by the argument's name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NoReturn

import pytest

import fairq
from fairq.client.links import Links
from fairq.errors import BadRequest, TooLarge
from fairq.model.batches import CALLBACKS
from fairq.model.checks import DEFAULT_PAYLOAD_BYTES
from fairq.model.tasks import MAX_LINKS_BYTES, OPTIONS, SCHEDULED
from fairq.wire.terms import Role
from tests.server.refusals import LINK, LINKS, RULES, Row, rows_of
from tests.store.cases import case, raises_for


class Unsent:
    """A connection on which nothing is sent."""

    max_payload_bytes = DEFAULT_PAYLOAD_BYTES

    def now(self) -> float:
        return 0.0

    def request(self, *_: object) -> NoReturn:
        raise AssertionError("it was sent")

    enqueue = request


Asked = dict[str, Any]
CLIENT: Any = fairq.OperatorClient(Unsent())  # type: ignore[arg-type]


def arguments_of(row: Row) -> Asked:
    """Spell the fields of a request as the SDK's arguments; those of its last task are among them."""
    fields = {**row.body, **row.body.get("tasks", [{}])[-1]}
    if row.verb == "schedule":
        fields |= {"schedule": fields.pop("name"), "name": fields.pop("task_name", None)}
    spans = {name.removesuffix("_ms"): ms / 1000 for name, ms in fields.items() if name.endswith("_ms")}
    return fields | spans


def method(name: str) -> Callable[[Asked], Any]:
    """Call a method of a client with the arguments that it takes."""
    call = getattr(CLIENT, name)
    taken = inspect.signature(call).parameters
    return lambda asked: call(**{name: value for name, value in asked.items() if name in taken})


def page(asked: Asked) -> Any:
    which = ("tenant", "reason", "error", "older_than", "younger_than")
    return CLIENT.dead_letters(asked["queue"]).page(**{name: asked[name] for name in which if name in asked})


# By verb: its call, and the fields that are checked before anything is sent. The server checks the others.
CALLS: dict[str, tuple[Callable[[Asked], Any], set[str]]] = {
    "enqueue": (method("enqueue"), {"queue", "id", "payload", "tenant", *OPTIONS} - {"events", "trace"}),
    "schedule": (method("schedule"), {"queue", "payload", "tenant", "every_ms", *SCHEDULED} - {"events"}),
    "unschedule": (method("unschedule"), {"queue", "name", "tenant"}),
    "set_schedule_paused": (method("pause_schedule"), {"queue", "name", "tenant"}),
    "schedules": (method("read_schedule"), {"queue", "name", "tenant"}),
    "tasks": (method("tasks"), {"queue"}),
    "cancel": (method("cancel"), {"queue"}),
    "reschedule": (method("reschedule"), {"queue", "delay_ms", "start_at_ms"}),
    "open_batch": (method("open_batch"), {"queue", "id", "max_running", *(f"{on}_name" for on in CALLBACKS)}),
    "cancel_all": (method("cancel_all"), {"queue", "tenant", "older_than_ms", "error"}),
    "events": (method("read_events"), {"queue", "tenant", "count"}),
    "dead": (page, {"queue", "tenant", "reason", "error", "older_than_ms", "younger_than_ms"}),
    "tenants": (method("tenants"), {"queue", "tenant"}),
    "set_weight": (method("set_weight"), {"weight", "if_version"}),
    "set_paused": (method("pause"), {"queue", "tenant"}),
    "history": (method("history"), {"queue", "period", "tenants"}),
    "add_webhook": (method("add_webhook"), {"queue", "url", "name", "secrets"}),
    "remove_webhook": (method("remove_webhook"), {"queue", "url", "name"}),
    "set_webhook_paused": (method("pause_webhook"), {"queue", "url", "name"}),
    "audit": (method("audit"), {"token", "verb", "since_ms"}),
}


LEFT_TO_SERVERS = (None, "from", "from-a")  # what is missing, and ids that workers may give


@pytest.mark.parametrize("verb", CALLS)
async def test_what_a_server_refuses_is_refused_before_it_is_sent(verb: str) -> None:
    call, fields = CALLS[verb]
    tried = set[str]()
    rows = [row for rule in RULES if verb in rule.verbs for row in rows_of(rule) if row.verb == verb]
    for row in (row for row in rows if row.field in fields and row.code in ("bad_request", "too_large")):
        asked = arguments_of(row)
        if asked.get(row.field) in LEFT_TO_SERVERS:
            continue
        if (row.verb, row.role) == ("open_batch", Role.PRODUCER):  # the SDK has the tenant beside the id
            continue
        tried.add(row.field)
        field = row.field if row.field == "since_ms" else row.field.removesuffix("_ms")
        with case(row), raises_for(field, TooLarge if row.code == "too_large" else BadRequest):
            await call(asked)
    assert tried == fields


def enqueue(**asked: Any) -> Any:
    return CLIENT.enqueue("q", **{"payload": 1, **asked})


def schedule(**asked: Any) -> Any:
    return CLIENT.schedule("q", "nightly", 1, **{"every": 60, "dedupe_key": "k", **asked})


def replay(**asked: Any) -> Any:
    return anext(CLIENT.dead_letters("q").replay_all(**asked))


NAN, INF = float("nan"), float("inf")
OF_OTHER_TYPES: list[tuple[Callable[..., Any], str, tuple[Any, ...]]] = [  # a call, an argument, and values of it
    (enqueue, "payload", ({1, 2}, NAN, 1 << 70)),
    (enqueue, "start_at", (datetime(2030, 1, 1), NAN)),  # in no time zone
    (enqueue, "expires_at", (INF,)),
    (enqueue, "delay", (timedelta(seconds=-1), timedelta(days=401), NAN, "5m", True)),
    (enqueue, "max_attempts", (1.5,)),
    (enqueue, "events", ("yes",)),
    (partial(enqueue, dedupe_payload=True), "dedupe_key", ("k",)),
    (partial(CLIENT.enqueue_many, "q", [1, 2]), "ids", (["a"],)),
    (partial(CLIENT.open_batch, "q", on_death=1), "on_death_name", ("x" * 65,)),
    (schedule, "every", (NAN, "1", True)),
    (schedule, "events", ("yes",)),
    *((schedule, name.removesuffix("_ms"), (5,)) for name in OPTIONS if name not in (*SCHEDULED, "name", "trace")),
    (replay, "rate", (0, -1, INF, NAN, True, "fast")),
    (replay, "older_than", (NAN, "7d")),
    (replay, "error", (5,)),
]


@pytest.mark.parametrize(("call", "field", "values"), OF_OTHER_TYPES)
async def test_what_no_frame_has_is_refused_as_well(
    call: Callable[..., Any], field: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        with case(value), raises_for(field):
            await call(**{field: value})


OF_LINKS: list[tuple[list[Asked], str, str]] = [
    *((links, code, field) for links, code, field in LINKS if field in ("queue", "id", "batch") or len(links) > 16),
    ([{**LINK, "queue": "q", "id": "own"}], "bad_request", "id"),
    ([{**LINK, "payload": object()}], "bad_request", "payload"),
    ([{**LINK, "delay": -1}], "bad_request", "delay"),
    ([{**LINK, "payload": "x" * MAX_LINKS_BYTES}], "too_large", "payload"),
    ([{**LINK, "id": f"l-{n}", "payload": "x" * (MAX_LINKS_BYTES // 2)} for n in range(2)], "too_large", "links"),
]


def test_a_handler_is_refused_what_an_acknowledgement_cannot_have() -> None:
    for (*before, bad), code, field in OF_LINKS:
        task = fairq.Task("own", "q", "ada", 1, 5, None, 0, links=Links("q", "ada/own"))
        for link in before:
            task.then(**link)
        with case(bad), raises_for(field, TooLarge if code == "too_large" else BadRequest):
            task.then(**bad)
