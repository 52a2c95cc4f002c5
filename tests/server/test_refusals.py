"""Every verb: what it refuses, with which code and field; that nothing is changed, and that the connections serve.

The values are in refusals.py. They are complete: the pages of the protocol say which fields have which rules, and for
each of them there must be values beyond its bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson
import pytest
import redis
from attrs import asdict, define

from fairq.errors import FairqError
from fairq.model.waiting import Report
from fairq.server.run import Served
from fairq.wire.codec import decode_client
from fairq.wire.terms import Role
from fairq.wire.verbs import VERBS
from tests import stores
from tests.test_documents import INPUTS, PROTOCOL, fields_in_code, table_after, tables_after
from tests.test_documents import rows_of as rows_in_page

from . import harness
from .harness import Raw, Refused, raw, tenant
from .refusals import CALLING, LEASED, OF_TENANTS, REQUESTS, RULES, Row, good, parts_of, put, rows_of

TENANT, WORKER, OPERATOR, PRODUCER = Role.TENANT, Role.WORKER, Role.OPERATOR, Role.PRODUCER
TOKENS = {
    TENANT: tenant("ada"),
    WORKER: harness.WORKER,
    OPERATOR: harness.OPERATOR,
    PRODUCER: harness.PRODUCER,
    Role.VIEWER: harness.VIEWER,
}
LEFT_BY_CONNECTIONS = (b"fq:servers", b"fq:workers:", b"fq:{audit}:", b"fq:{audit-of-tenants}:")
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def quiet_server(monkeypatch: pytest.MonkeyPatch, no_polls: None) -> None:
    """Servers that write nothing by themselves, however long a test takes."""
    monkeypatch.setattr("fairq.server.engine.stats.recorder.INTERVAL_S", 3600.0)


@define(eq=False)
class World:
    """A queue with something of each kind in it, a connection of each role, and one on which nobody has attached."""

    served: Served
    client: redis.Redis
    by_role: dict[Role, Raw]
    attaching: Raw
    lease: int
    callback: dict[str, Any]

    def connection(self, verb: str, role: Role) -> Raw:
        """Return the connection on which a request is made."""
        return self.attaching if verb == "attach" else self.by_role[role]

    def contents(self, but: bytes = b"fq:servers") -> dict[bytes, bytes]:
        """Dump the store's keys, but for what connections leave there, and keys with these prefixes."""
        left_out = (but, *LEFT_BY_CONNECTIONS)
        names = [name for name in self.client.scan_iter(count=1000) if not name.startswith(left_out)]
        with self.client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.dump(name)
            return dict(zip(names, pipeline.execute(), strict=True))

    def spell(self, value: Any) -> Any:
        """Put the numbers of leases where LEASED and CALLING stand for them."""
        if isinstance(value, list):
            return [self.spell(each) for each in value]
        if not isinstance(value, dict):
            return value
        if value.get("lease") == CALLING:
            id = self.callback["full_id"] if value.get("id") == "ada/called" else value.get("id")
            return {**value, "id": id, "lease": self.callback["lease"]}
        return {**value, "lease": self.lease} if value.get("lease") == LEASED else value

    async def answer(self, row: Row) -> dict[str, Any]:
        """Send a request and return the whole frame that answers it."""
        client = self.connection(row.verb, row.role)
        body = row.body if row.field == "ref" else {"ref": 7, **row.body}
        await client.send(row.verb, **self.spell({name: self.spell(value) for name, value in body.items()}))
        while True:
            frame = await client.receive()
            if frame["type"] in ("reply", "error"):
                return frame


@asynccontextmanager
async def open_world(served: Served, url: str) -> AsyncIterator[World]:
    """Fill a store: ada's tasks are named after their states, and bob has as much as she that matters."""
    client = stores.connect(url)
    async with AsyncExitStack() as stack:
        by_role = {role: await stack.enter_async_context(raw(served, token)) for role, token in TOKENS.items()}
        ada, worker, operator = by_role[TENANT], by_role[WORKER], by_role[OPERATOR]
        await operator.ask("configure", queue="q", settings={"lease_ms": HOUR_MS})
        await operator.ask("create_token", id="abcd", role="worker", hash="1" * 64)
        await worker.attach("q", credit=2)
        await ada.ask("open_batch", queue="q", id="called", on_complete=1)
        await ada.ask("close_batch", queue="q", id="called")
        (callback,) = await worker.pushed()
        await ada.enqueue("q", ["dead"])
        await worker.settle("q", "reject", *await worker.pushed())
        await ada.enqueue("q", ["leased"], result_ttl_ms=HOUR_MS)
        (leased,) = await worker.pushed()
        await ada.enqueue("q", ["ready"])
        await ada.enqueue("q", ["delayed"], delay_ms=HOUR_MS)
        for name in ("open", "closed", "complete"):
            await ada.ask("open_batch", queue="q", id=name)
        await ada.enqueue("q", ["in-open"], batch="open")
        await ada.enqueue("q", ["in-closed"], batch="closed")
        for name in ("closed", "complete"):
            await ada.ask("close_batch", queue="q", id=name)
        await ada.ask("schedule", queue="q", name="nightly", payload=1, cron="0 3 * * *")
        await operator.ask("add_webhook", queue="q", url="https://a.example/in")
        attaching = await stack.enter_async_context(raw(served, harness.WORKER))
        yield World(served, client, by_role, attaching, leased["lease"], callback)
    client.close()


async def check(world: World, rows: Iterable[Row]) -> None:
    """Have all of them refused, each for its own fault, with nothing changed and the connections still serving."""
    before = world.contents()
    for row in rows:
        frame = await world.answer(row)
        said = [frame.get(name) for name in ("type", "code", "field", "ref")]
        assert said == ["error", row.code, row.field, None if row.field == "ref" else 7], f"{row!r:.250} ... {frame}"
        assert 0 < len(frame["message"]) <= 400, frame
    assert world.contents() == before, f"one of {row.verb} changes something"
    for role, verb in ((TENANT, "tasks"), (WORKER, "credit"), (OPERATOR, "queues")):
        assert (await world.answer(Row(verb, role, good(verb, role), "", "")))["type"] == "reply"


def refusal_by_codec(row: Row) -> tuple[str, str | None] | None:
    """Return code and field if a frame is refused when it is read, before any verb sees it."""
    body = row.body if row.field == "ref" else {"ref": 7, **row.body}
    try:
        decode_client(json.dumps({"type": row.verb, **body}))
    except FairqError as error:
        return error.code, error.field
    return None


async def test_what_breaks_a_rule_is_refused_and_changes_nothing(served: Served, server_store: str) -> None:
    """Through a socket go those that the codec takes, and one per verb that it refuses."""
    async with open_world(served, server_store) as world:
        for verb in REQUESTS:
            rows = [row for rule in RULES if verb in rule.verbs for row in rows_of(rule) if row.verb == verb]
            sent = [Row(verb, role, good(verb, role) | {"colour": 1}, "bad_request", "colour") for role in of(verb)]
            for row in rows:
                if (refusal := refusal_by_codec(row)) is None:
                    sent.append(row)
                else:
                    assert refusal == (row.code, row.field), f"{row!r:.250}"
            await check(world, sent)


WRONG: dict[str, tuple[Any, ...]] = {
    "whole number": ("1", True, False, 1.5, 1.0, [], {}, None),
    "number": ("1", True, False, [], {}, None),
    "text": (5, 0, True, False, [], {}, None),
    "boolean": (1, 0, "true", None),
    "object": ([], "x", 5, None),
    "held lease": ([], "x", 5, None),
    "list": ({}, "x", 5, None, [None], [[]]),
    "any": (),
}


def of(verb: str) -> list[Role]:
    return sorted(VERBS[REQUESTS[verb]].roles, key=str)


def malformed(verb: str, role: Role) -> list[Row]:
    """Return requests with a field that is missing, unknown, or of a wrong type."""
    rows = []
    for outer, cls in parts_of(verb).items():
        for name, kind in {**fields_in_code(cls), "colour": None}.items():
            place = f"{outer}.{name}".lstrip(".")
            values: list[Any] = [1]
            if kind is not None:
                word = "any" if name in ("payload", "result") else "list" if kind.type.startswith("list") else kind.type
                values = [value for value in WRONG[word] if not (value is None and not kind.required)]
                values += [...] if kind.required else []
            rows += [Row(verb, role, put(good(verb, role) | {"ref": 7}, place, v), "bad_request", name) for v in values]
    return rows


def test_what_is_missing_unknown_or_of_a_wrong_type_is_refused() -> None:
    for verb in REQUESTS:
        for row in malformed(verb, of(verb)[0]):
            assert refusal_by_codec(row) == (row.code, row.field), f"{row!r:.250}"


def documented(verb: str) -> list[tuple[str, dict[str, str]]]:
    """Read the tables of the pages: (place, row) of all fields of a verb."""
    tables = {"": rows_in_page(verb, "client")}
    for outer, cls in parts_of(verb).items():
        if outer:
            words = next(words for words, known in INPUTS.items() if known is cls)
            tables[outer] = tables_after(PROTOCOL, f"Each *{words}*")
    if verb == "configure":
        tables["settings"] = [{**row, "field": row["setting"]} for row in table_after(PROTOCOL, "| setting |")]
    places = [(f"{outer}.{row['field'].strip('`')}".lstrip("."), row) for outer, rows in tables.items() for row in rows]
    return [(place, row) for place, row in places if row["type"] != "boolean"]


def number(text: str) -> float:
    """Read a number as PROTOCOL.md writes it."""
    base, _, power = text.removesuffix("−1").partition("^")
    return (float(base) ** float(power) if power else float(base)) - text.endswith("−1")


def bounds_of(row: dict[str, str]) -> tuple[float, float] | None:
    """Return the lowest and highest value, or length, that a field's range begins with or has in it."""
    if found := re.match(r"([\d.]+) to (2\^\d+(?:−1)?|[\d.]+)", row["range"]):
        return number(found[1]), number(found[2])
    if found := re.search(r"at most (\d+) ?(KiB|MiB)?", row["range"]):
        return 0, int(found[1]) * {"KiB": 1 << 10, "MiB": 1 << 20}.get(found[2], 1)
    return None


def size_of(value: Any, row: dict[str, str]) -> float:
    """Measure a value as the bounds of its field do."""
    if isinstance(value, int | float):
        return float(value)
    if row["type"] == "any":
        return len(orjson.dumps(value))
    return len(value.encode() if "bytes" in row["range"] else value)


def is_of(value: Any, kind: str) -> bool:
    """Tell whether a value is of the right type, and only its size is wrong."""
    kinds = (int, float) if kind.endswith("number") and not kind.startswith("list") else (str, list)
    return kind == "any" or isinstance(value, kinds)


def refused_at(verb: str, place: str) -> list[Any]:
    """Return the values that the table has for a place."""
    name = place.rpartition(".")[2]
    values = [value for rule in RULES if verb in rule.verbs and rule.place == place for value in rule.values]
    return [value.get(name) if isinstance(value, dict) and place != "settings" else value for value in values]


def test_every_rule_of_the_document_has_a_refused_value_beyond_each_bound() -> None:
    for verb, (place, row) in [(each, field) for each in REQUESTS for field in documented(each)]:
        values, bounds = refused_at(verb, place), bounds_of(row)
        assert values, f"{verb}.{place} has no row in refusals.py: {row['range']}"
        if bounds:
            low, high = bounds
            sizes = {size_of(value, row) for value in values if is_of(value, row["type"])}
            is_number = row["type"].endswith("number")
            assert max(sizes) > high if row["type"] == "number" else high + 1 in sizes, f"{verb}.{place}"
            assert min(sizes) < low or (low == 0 and not is_number), f"{verb}.{place}"
            assert low - 1 in sizes or row["type"] != "whole number", f"{verb}.{place}"


Answer = dict[str, Any] | tuple[str, str]
GONE: Answer = {"outcomes": ["gone"]}
NOT_YOURS: dict[str, Answer] = {  # what bob hears who names what is ada's
    "tasks": {"tasks": [{"id": "ready", "state": "unknown"}]},
    "cancel": GONE,
    "cancel_all": {"cursor": None, "found": 0, "cancelled": 0, "looked": 0, "waiting": 0},
    "reschedule": GONE,
    "peek": {"tasks": []},
    "why": ("not_found", "id"),
    "report": {"report": asdict(Report("bob"))},
    "wait_tasks": {"tasks": [{"id": "ready", "state": "unknown"}]},
    "batch": ("not_found", "id"),
    "batches": {"batches": [], "cursor": None, "away": []},
    "close_batch": ("not_found", "id"),
    "cancel_batch": ("not_found", "id"),
    "dead": {"dead": [], "cursor": None, "left": 0, "away": []},
    "dead_letter": ("not_found", "id"),
    "replay": GONE,
    "purge": GONE,
    "set_schedule_paused": ("not_found", "name"),
    "schedules": ("not_found", "name"),
    "unschedule": {"previous": False},
    "events": {"oldest": 1, "newest": 0, "events": []},
}
HIS_OWN = {"enqueue", "open_batch", "schedule", "limits"}  # the first three make something


async def test_what_is_another_tenants_looks_as_if_it_were_not_there(served: Served, server_store: str) -> None:
    assert set(NOT_YOURS) | HIS_OWN == OF_TENANTS
    async with open_world(served, server_store) as world, raw(served, tenant("bob")) as bob:
        before = world.contents()
        for verb, answer in NOT_YOURS.items():
            assert await answer_to(bob, verb, good(verb, TENANT)) == answer, verb
        in_adas_batch = put(good("enqueue", TENANT), "tasks.batch", "open")
        assert await answer_to(bob, "enqueue", in_adas_batch) == ("not_found", "batch")
        after = world.contents()
        assert {name for name in after if after[name] != before.get(name)} <= {b"fq:{q/0}:queue"}  # its clock
        assert after.keys() == before.keys()


async def answer_to(client: Raw, verb: str, body: dict[str, Any]) -> Answer:
    """Return the body of a reply, or code and field of a refusal."""
    try:
        return await client.ask(verb, **body)
    except Refused as refused:
        return refused.code, refused.field or ""


UNLIMITED = {"create_token", "list_tokens", "revoke_token", "drain_worker"}
OF_NO_QUEUE = {"credit", "idle"}
EMPTY: dict[str, Answer] = {
    "queues": {"queues": []},
    "workers": {"workers": [], "unanswered": []},
    "worker_tasks": ("not_found", "worker"),  # it sees none
}


async def test_a_token_for_other_queues_has_no_say_over_this_one(served: Served, server_store: str) -> None:
    async with open_world(served, server_store) as world:
        for role in Role:
            await check_limited(served, world, role)


async def check_limited(served: Served, world: World, role: Role) -> None:
    """Check that a token of a role for the queue `other` sees and changes nothing of q."""
    _, token = await world.by_role[OPERATOR].create_token(role, queues=["other"])
    before = world.contents(but=b"fq:{other/0}")
    async with raw(served, token) as limited:
        if role is WORKER:
            assert await answer_to(limited, "attach", good("attach", role)) == ("forbidden", "queues")
            await limited.attach("other")
        for verb in REQUESTS:
            if role not in of(verb) or verb in {"attach", *OF_NO_QUEUE}:
                continue
            expected: Answer = EMPTY.get(verb) or ("forbidden", "type" if verb in UNLIMITED else "queue")
            if role is WORKER and verb not in ("webhooks", "enqueue_from", "batch_results"):
                expected = ("bad_request", "queue")  # it is not attached to it
            assert await answer_to(limited, verb, good(verb, role)) == expected, verb
    assert world.contents(but=b"fq:{other/0}") == before
