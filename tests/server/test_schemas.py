"""frames.schema.json: what the classes of the frames make of it, and valid for all that is really sent."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import trio

from fairq.errors import FairqError
from fairq.model.checks import MAX_INLINE_BYTES
from fairq.server.run import Served
from fairq.server.web.http.schema import hints_of
from fairq.wire import frames
from fairq.wire import messages as wire
from fairq.wire.codec import CLIENT_TYPES, decode_client
from fairq.wire.raw_payloads import Message
from fairq.wire.server_session import ServerSession
from fairq.wire.terms import Role
from fairq.wire.verbs import VERBS
from tests.cli.harness import environment
from tests.server.harness import WORKER, raw, running, tenant, url_of
from tests.server.refusals import GOOD as GOOD_OF_VERBS
from tests.server.refusals import REQUESTS, RULES, Row, Together, good, put, rows_of
from tests.server.test_refusals import bounds_of, documented, open_world
from tests.server.test_transcripts import PLAYED
from tests.wire import schemas
from tests.wire.test_codec import GOOD as GOOD_OF_CODEC

PATH = Path(wire.__file__).with_name("frames.schema.json")
TOUR = Path(__file__).parents[1] / "tour"
KINDS = [kind.type for kind in VERBS]
Conversation = list[tuple[str, dict[str, Any]]]  # of one connection: the side that sent, and the frame


def closed(schema: Any) -> Any:
    """Return a schema that allows no fields but those that it names."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(each) for name, each in schema.items()}
    return {"additionalProperties": False} | inner if "properties" in inner else inner


@cache
def validator(name: str, is_closed: bool = False) -> jsonschema_rs.Draft202012Validator:
    """Return what validates by a definition; closed: fields that it does not name are faults."""
    document = json.loads(PATH.read_text())
    defs = closed(document["$defs"]) if is_closed else document["$defs"]
    return jsonschema_rs.Draft202012Validator({"$defs": defs, "$ref": f"#/$defs/{name}"})


def faults(name: str, value: Any, is_closed: bool = False) -> list[str]:
    return [f"{each.instance_path}: {each.message}"[:300] for each in validator(name, is_closed).iter_errors(value)]


def test_the_file_is_what_the_code_makes_and_a_schema() -> None:
    """To make it anew: `python -m tests.wire.schemas > fairq/wire/frames.schema.json`."""
    assert PATH.read_text() == schemas.page()
    document = json.loads(PATH.read_text())
    jsonschema_rs.meta.validate(document)
    assert document["$defs"] == schemas.definitions()


def test_every_frame_part_and_body_has_a_definition() -> None:
    defs = set(json.loads(PATH.read_text())["$defs"])
    sent = {f"client.{kind}" for kind in KINDS} | {f"server.{kind.type}" for kind in frames.SERVER_FRAMES}
    assert {name for name in defs if "." in name} == sent | {f"reply.{verb}" for verb in REQUESTS}
    assert defs >= {*schemas.GIVEN, *schemas.SENT, "client", "server"}


def test_good_frames_are_valid() -> None:
    for kind in KINDS:
        frame = CLIENT_TYPES[kind]
        bodies = [good(kind, role) for role in sorted(VERBS[frame].roles, key=str)] if kind in REQUESTS else [{}]
        for body in bodies:
            sent = {"type": kind, **({"ref": 1} if kind in REQUESTS else {}), **body}
            assert faults(f"client.{kind}", sent) == [], sent
            assert faults("client", sent) == [], sent


def is_refused(sent: dict[str, Any]) -> bool:
    """Tell whether the codec refuses a frame."""
    try:
        decode_client(json.dumps(sent))
    except FairqError:
        return True
    return False


PROBES: tuple[Any, ...] = (5, 1.5, "abcd", True, None, {}, [])


def probes(frame: dict[str, Any], names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Put a value of each type into each field in turn."""
    return ({**frame, name: probe} for name in names for probe in PROBES)


def test_the_schemas_refuse_every_shape_that_the_codec_refuses() -> None:
    for kind in KINDS:
        good = {"type": kind, **GOOD_OF_CODEC[kind]}
        for name in good:
            left = {field: value for field, value in good.items() if field != name}
            assert bool(faults(f"client.{kind}", left)) == is_refused(left) or name == "ref", left
        assert faults(f"client.{kind}", {**good, "unknown": 1}), kind
        assert faults(f"client.{kind}", {**good, "type": "none"}), kind
        for sent in probes(good, hints_of(CLIENT_TYPES[kind])):
            assert faults(f"client.{kind}", sent) or not is_refused(sent), sent


BEYOND = {  # places whose rules a schema cannot state: grammars, bytes, and what there is
    *("cron", "zone", "opening_hours", "cursor", "after", "queue", "ids", "id", "leases", "leases.queue", "tenant"),
    *("tasks", "tasks.payload", "payload", "name", "group"),
    *("dedupe_key", "dedupe_period_ms", "tasks.name", "tasks.group", "tasks.dedupe_key"),
    *("tasks.dedupe_period_ms", "tasks.replace", "on_complete", "on_success", "on_death"),
    *("on_complete_name", "on_success_name", "on_death_name", "task_name", "app", "schedules.name"),
    *("schedules.task_name", "schedules.group", "schedules.dedupe_key"),
    *("schedules", "schedules.payload", "schedules.queue", "schedules.cron", "schedules.zone"),
    "schedules.dedupe_period_ms",
    *("prefetch", "tasks.id", "tasks.batch"),  # of the ids, those that only workers give
}


def test_the_schemas_refuse_every_value_beyond_a_rule_but_where_they_cannot_state_it() -> None:
    missed = set()
    for rule in RULES:
        alone = tuple(value for value in rule.values if type(value) is not Together and type(value) is not float)
        if rule.code in ("bad_request", "too_large"):
            rows = rows_of(rule._replace(values=alone))
            missed |= {rule.place for row in rows if not faults(f"client.{row.verb}", sent_of(row.verb, row.body))}
    assert missed == BEYOND


def sent_of(verb: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a body as a whole frame."""
    return {"type": verb, "ref": 1, **body}


def test_frames_of_transcripts_are_valid_but_those_that_are_refused() -> None:
    broken = ("bad_request", "too_large")
    for lines in PLAYED.values():
        said = [(line, line.frame) for line in lines if line.frame and not line.http]
        refused = {(line.name, frame["ref"]) for line, frame in said if frame.get("code") in broken}
        for line, frame in said:
            side = "client" if line.side == ">" else "server"
            is_refused = side == "client" and (line.name, frame.get("ref")) in refused
            assert bool(faults(f"{side}.{frame['type']}", frame, is_closed=True)) == is_refused, line.text


@pytest.fixture
def conversations(monkeypatch: pytest.MonkeyPatch) -> dict[ServerSession, Conversation]:
    """All frames that the servers of this test read and write, by connection."""
    found: dict[ServerSession, Conversation] = defaultdict(list)
    receive, outgoing = ServerSession.receive, ServerSession.outgoing

    def record(session: ServerSession, side: str, message: Message) -> None:
        text = message if isinstance(message, str) else message.partition(b"\n")[0]
        with suppress(ValueError):
            found[session].append((side, json.loads(text)))

    def receiving(session: ServerSession, message: Message, now: float) -> Any:
        record(session, "client", message)
        return receive(session, message, now)

    def sending(session: ServerSession, now: float) -> list[Message]:
        messages = outgoing(session, now)
        for message in messages:
            record(session, "server", message)
        return messages

    monkeypatch.setattr(ServerSession, "receive", receiving)
    monkeypatch.setattr(ServerSession, "outgoing", sending)
    return found


def faults_of(conversation: Conversation) -> list[Any]:
    """Return the faults of the server's frames of one connection, and of the bodies of its replies."""
    asked: dict[int, str] = {}
    found: list[Any] = []
    for side, frame in conversation:
        kind = frame["type"]
        if side == "client":
            asked[frame.get("ref", -1)] = kind
            continue
        wrong = faults(f"server.{kind}", frame, is_closed=True)
        if kind == "reply":
            wrong += faults(f"reply.{asked[frame['ref']]}", frame["body"], is_closed=True)
        if wrong:
            found.append((frame, wrong))
    return found


# Fields that wait, and those that are nothing by themselves.
NOT_ALONE = {"timeout_ms", "after", "every_ms", "dedupe_period_ms", "tasks.dedupe_period_ms"} | {
    "schedules.dedupe_period_ms"
}


def at_bounds(verb: str, role: Role) -> Iterator[tuple[str, dict[str, Any]]]:
    """Put the lowest and the highest of each whole number of PROTOCOL.md into a good body: the place, and the body."""
    for place, row in documented(verb):
        if (bounds := bounds_of(row)) and row["type"] == "whole number" and place not in NOT_ALONE:
            for bound in map(int, bounds):
                yield place, put(good(verb, role), place, bound)


@pytest.mark.parametrize("role", Role)
async def test_a_server_takes_what_is_good_and_within_bounds_refuses_nonsense_and_sends_valid_replies(
    served: Served, server_store: str, conversations: dict[ServerSession, Conversation], role: Role
) -> None:
    """A field that the schema does not know, of a frame or a body, is a fault too."""
    theirs = [verb for verb in GOOD_OF_VERBS if role in VERBS[REQUESTS[verb]].roles]
    async with open_world(served, server_store) as world:
        for verb in theirs:
            for sent in probes(sent_of(verb, good(verb, role)), hints_of(REQUESTS[verb])):
                is_unused = verb == "batches" and bool(sent.get("ids"))  # with ids the other fields are not read
                if faults(f"client.{verb}", sent) and not is_refused(sent) and not is_unused:
                    del sent["type"]
                    frame = await world.answer(Row(verb, role, sent, "", ""))
                    assert frame["type"] == "error", (sent, frame)
        for verb in theirs:
            frame = await world.answer(Row(verb, role, good(verb, role), "", ""))
            assert frame["type"] == "reply", frame
        for verb in theirs:
            for place, body in at_bounds(verb, role):
                if place not in BEYOND:
                    assert not faults(f"client.{verb}", sent_of(verb, body)), (place, body)
                frame = await world.answer(Row(verb, role, body, "", ""))
                is_attached = frame.get("field") == "type"
                assert frame.get("code") != "bad_request" or is_attached, (place, frame)
    assert {frame["type"] for each in conversations.values() for _, frame in each} >= {"welcome", "push", *theirs}
    assert [fault for each in conversations.values() for fault in faults_of(each)] == []


async def test_frames_with_payloads_beside_them_are_valid(
    served: Served, conversations: dict[ServerSession, Conversation]
) -> None:
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        tasks = [{"id": "long", "payload": "x" * MAX_INLINE_BYTES, "tenant": None}]
        await ada.ask("enqueue", queue="q", tasks=tasks)
        await ada.ask("peek", queue="q")
        await worker.attach("q")
        await worker.settle("q", "reject", *await worker.pushed())
        await ada.ask("dead", queue="q")
        await ada.ask("dead_letter", queue="q", id="long")
    sent = [frame for each in conversations.values() for side, frame in each if side == "client"]
    assert [fault for frame in sent for fault in faults("client", frame)] == []
    assert [fault for each in conversations.values() for fault in faults_of(each)] == []
    assert str(conversations.values()).count("'payload_bytes'") == 5


@pytest.mark.deep("guides")
@pytest.mark.parametrize("runtime", ["trio", "asyncio"])
async def test_all_frames_of_the_tour_are_valid(
    server_store: str, conversations: dict[ServerSession, Conversation], runtime: str
) -> None:
    run = partial(trio.run_process, cwd=TOUR, capture_stdout=True, capture_stderr=True)
    async with running(server_store) as served, trio.open_nursery() as nursery:
        at = {"FAIRQ_URL": url_of(served)}
        worker = [sys.executable, "-m", "fairq", "worker", "jobs:app"]
        nursery.start_soon(partial(run, worker, env=environment({**at, "FAIRQ_TOKEN": "dev-worker"})))
        tour = [sys.executable, "async_tour.py", runtime]
        await run(tour, env=environment({**at, "FAIRQ_TOKEN": "dev-tenant:ada"}))
        nursery.cancel_scope.cancel()
    sent = [frame for each in conversations.values() for side, frame in each if side == "client"]
    assert {frame["type"] for frame in sent} >= {"attach", "settle", "enqueue", "wait_tasks", "open_batch", "schedule"}
    assert [fault for frame in sent for fault in faults("client", frame)] == []
    assert [fault for each in conversations.values() for fault in faults_of(each)] == []
