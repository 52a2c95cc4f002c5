"""Every verb: what it refuses, with which code and field; that nothing is changed, and that the connections serve.

The values are in refusals.py. They are complete: PROTOCOL.md says which fields have which rules, and for each of them
there must be values beyond its bounds.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, get_args, get_origin, get_type_hints

import orjson
import pytest
import redis
import trio
from attrs import asdict, define

from fairq.model.waiting import Report
from fairq.server.run import Served
from fairq.tokens import hash_token, make_token
from fairq.wire.messages import CLIENT_FRAMES
from fairq.wire.terms import Role
from tests import stores
from tests.test_documents import INPUTS, PROTOCOL, fields_in_code, section, table_after

from . import harness
from .harness import Raw, Refused, raw, tenant
from .refusals import GOOD, LEASED, OF_TENANTS, REQUESTS, RULES, Row, good, put, rows_of

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


@define(eq=False)
class World:
    """A queue with something of each kind in it, a connection of each role, and one on which nobody has attached."""

    served: Served
    client: redis.Redis
    by_role: dict[Role, Raw]
    attaching: Raw
    lease: int

    def connection(self, verb: str, role: Role) -> Raw:
        """Return the connection on which a request is made."""
        return self.attaching if verb == "attach" else self.by_role[role]

    def contents(self) -> dict[bytes, bytes]:
        """Dump the store's keys, but for what connections leave there."""
        names = [name for name in self.client.scan_iter(count=1000) if not name.startswith(LEFT_BY_CONNECTIONS)]
        with self.client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.dump(name)
            return dict(zip(names, pipeline.execute(), strict=True))

    def spell(self, value: Any) -> Any:
        """Put the lease's number where LEASED stands for it."""
        if isinstance(value, list):
            return [self.spell(each) for each in value]
        return {**value, "lease": self.lease} if isinstance(value, dict) and value.get("lease") == LEASED else value

    async def answer(self, row: Row) -> dict[str, Any]:
        """Send a request and return the whole frame that answers it."""
        client = self.connection(row.verb, row.role)
        body = row.body if row.field == "ref" else {"ref": 7, **row.body}
        await client.send(row.verb, **{name: self.spell(value) for name, value in body.items()})
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
        await worker.attach("q", credit=1)
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
        yield World(served, client, by_role, attaching, leased["lease"])
    client.close()


async def check(world: World, rows: list[Row]) -> None:
    """Have all of them refused, each for its own fault, with nothing changed."""
    before = world.contents()
    wrong: list[tuple[Row, object]] = []
    for row in rows:
        frame = await world.answer(row)
        said = [frame.get(name) for name in ("type", "code", "field", "ref")]
        is_told = 0 < len(frame.get("message", "")) <= 400
        if said != ["error", row.code, row.field, None if row.field == "ref" else 7] or not is_told:
            wrong.append((row, frame))
        elif world.contents() != before:
            wrong.append((row, "changes something"))
            before = world.contents()
    assert not wrong, "\n".join(f"{row!r:.250} ... {frame!r:.250}" for row, frame in wrong)
    for role, verb in ((TENANT, "tasks"), (WORKER, "extend"), (OPERATOR, "queues")):  # the connections serve
        assert (await world.answer(Row(verb, role, good(verb, role), "", "")))["type"] == "reply"


@pytest.mark.parametrize("verb", REQUESTS)
async def test_what_breaks_a_rule_is_refused_and_changes_nothing(served: Served, server_store: str, verb: str) -> None:
    rows = [row for rule in RULES if verb in rule.verbs for row in rows_of(rule._replace(verbs={verb}))]
    with trio.fail_after(30):
        async with open_world(served, server_store) as world:
            await check(world, rows)


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


def parts_of(verb: str) -> dict[str, type[Any]]:
    """Return the classes whose fields a verb takes: the frame's under "", those in its lists under their names."""
    hints = get_type_hints(REQUESTS[verb])
    inner = {name: get_args(kind)[0] for name, kind in hints.items() if get_origin(kind) is list}
    return {"": REQUESTS[verb], **{name: kind for name, kind in inner.items() if kind in INPUTS.values()}}


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


@pytest.mark.parametrize("verb", REQUESTS)
async def test_what_is_missing_unknown_or_of_a_wrong_type_is_refused(
    served: Served, server_store: str, verb: str
) -> None:
    rows = [row for role in CLIENT_FRAMES[REQUESTS[verb]][0] for row in malformed(verb, role)]
    with trio.fail_after(30):
        async with open_world(served, server_store) as world:
            await check(world, rows)


@pytest.mark.parametrize("role", Role)
async def test_the_good_bodies_are_taken(served: Served, server_store: str, role: Role) -> None:
    with trio.fail_after(30):
        async with open_world(served, server_store) as world:
            for verb in GOOD:
                if role in CLIENT_FRAMES[REQUESTS[verb]][0]:
                    frame = await world.answer(Row(verb, role, good(verb, role), "", ""))
                    assert frame["type"] == "reply", (verb, frame)


def documented(verb: str) -> list[tuple[str, dict[str, str]]]:
    """Read the tables of PROTOCOL.md: (place, row) of all fields of a verb."""
    tables = {"": table_after(section(f"`{verb}` (client)"), "")}
    for outer, cls in parts_of(verb).items():
        if outer:
            words = next(words for words, known in INPUTS.items() if known is cls)
            tables[outer] = table_after(PROTOCOL, f"Each *{words}*")
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


@pytest.mark.parametrize("verb", REQUESTS)
def test_every_rule_of_the_document_has_a_refused_value_beyond_each_bound(verb: str) -> None:
    for place, row in documented(verb):
        values, bounds = refused_at(verb, place), bounds_of(row)
        assert values, f"{verb}.{place} has no row in refusals.py: {row['range']}"
        if bounds:
            low, high = bounds
            sizes = {size_of(value, row) for value in values if is_of(value, row["type"])}
            is_number = row["type"].endswith("number")
            assert max(sizes) > high if row["type"] == "number" else high + 1 in sizes, f"{verb}.{place}"
            assert min(sizes) < low or (low == 0 and not is_number), f"{verb}.{place}"
            assert low - 1 in sizes or row["type"] != "whole number", f"{verb}.{place}"


# Fields that wait, and those that are nothing by themselves.
NOT_ALONE = {"timeout_ms", "after", "every_ms", "dedupe_period_ms", "tasks.dedupe_period_ms"}


@pytest.mark.parametrize("verb", REQUESTS)
async def test_whole_numbers_at_their_bounds_are_taken(served: Served, server_store: str, verb: str) -> None:
    with trio.fail_after(30):
        async with open_world(served, server_store) as world:
            for place, row in documented(verb):
                if (bounds := bounds_of(row)) and row["type"] == "whole number" and place not in NOT_ALONE:
                    for role in CLIENT_FRAMES[REQUESTS[verb]][0]:
                        for bound in map(int, bounds):
                            body = put(good(verb, role), place, bound)
                            frame = await world.answer(Row(verb, role, body, "", ""))
                            is_taken = frame.get("code") != "bad_request" or frame["field"] == "type"
                            assert is_taken, frame  # `type`: it is attached by now


@pytest.mark.parametrize("role", Role)
async def test_a_verb_of_another_role_is_forbidden(served: Served, server_store: str, role: Role) -> None:
    verbs = [verb for verb, frame in REQUESTS.items() if role not in CLIENT_FRAMES[frame][0] and verb != "attach"]
    async with open_world(served, server_store) as world:
        await check(world, [Row(verb, role, good(verb, role), "forbidden", "type") for verb in verbs])


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
    "batches": {"batches": [], "cursor": None},
    "close_batch": ("not_found", "id"),
    "cancel_batch": ("not_found", "id"),
    "dead": {"dead": [], "cursor": None, "left": 0},
    "dead_letter": ("not_found", "id"),
    "replay": GONE,
    "purge": GONE,
    "pause_schedule": ("not_found", "name"),
    "resume_schedule": ("not_found", "name"),
    "schedules": ("not_found", "name"),
    "unschedule": {"previous": False},
    "events": {"oldest": 1, "newest": 0, "events": []},
}
HIS_OWN = {"enqueue", "open_batch", "schedule", "limits"}  # of which the first three make something


async def test_what_is_another_tenants_looks_as_if_it_were_not_there(served: Served, server_store: str) -> None:
    assert set(NOT_YOURS) | HIS_OWN == OF_TENANTS
    async with open_world(served, server_store) as world, raw(served, tenant("bob")) as bob:
        before = world.contents()
        for verb, answer in NOT_YOURS.items():
            assert await told(bob, verb, good(verb, TENANT)) == answer, verb
        in_adas_batch = put(good("enqueue", TENANT), "tasks.batch", "open")
        assert await told(bob, "enqueue", in_adas_batch) == ("not_found", "batch")
        after = world.contents()
        assert {name for name in after if after[name] != before.get(name)} <= {b"fq:{q/0}:queue"}  # its clock
        assert after.keys() == before.keys()


async def told(client: Raw, verb: str, body: dict[str, Any]) -> Answer:
    """Return the body of a reply, or code and field of a refusal."""
    try:
        return await client.ask(verb, **body)
    except Refused as refused:
        return refused.code, refused.field or ""


UNLIMITED = {"create_token", "list_tokens", "revoke_token", "drain_worker"}
OF_NO_QUEUE = {"credit", "idle"}
EMPTY: dict[str, Answer] = {
    "queues": {"queues": []},
    "workers": {"workers": []},
    "worker_tasks": ("not_found", "worker"),  # it sees none
}


@pytest.mark.parametrize("role", Role)
async def test_a_token_for_other_queues_has_no_say_over_this_one(served: Served, server_store: str, role: Role) -> None:
    async with open_world(served, server_store) as world:
        id, token = make_token(role)
        more = {"tenant": "ada"} if role is TENANT else {}
        body = {"id": id, "role": role.value, "hash": hash_token(token), "queues": ["other"], **more}
        await world.by_role[OPERATOR].ask("create_token", **body)
        before = world.contents()
        async with raw(served, token) as limited:
            if role is WORKER:
                assert await told(limited, "attach", good("attach", role)) == ("forbidden", "queues")
                await limited.attach("other")
            for verb in REQUESTS:
                if role not in CLIENT_FRAMES[REQUESTS[verb]][0] or verb in {"attach", *OF_NO_QUEUE}:
                    continue
                expected: Answer = EMPTY.get(verb) or ("forbidden", "type" if verb in UNLIMITED else "queue")
                if role is WORKER and verb not in ("webhooks", "enqueue_from"):
                    expected = ("bad_request", "queue")  # it is not attached to it
                assert await told(limited, verb, good(verb, role)) == expected, verb
        left = {name for name in world.contents() if not name.startswith(b"fq:{other/0}")}
        assert {name: world.contents()[name] for name in left} == before
