"""An older SDK on today's server, today's SDK on an older server, and on a later one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any, NotRequired, get_origin

import orjson
import pytest
import trio

from fairq.model.tasks import TaskState
from fairq.model.waiting import Why
from fairq.server.run import Served
from fairq.wire.codec import CLIENT_TYPES
from fairq.wire.decode import decode_server, structure
from fairq.wire.frames import SERVER_FRAMES
from fairq.wire.verbs import VERBS
from tests.frames import read_frame
from tests.sending import send_message
from tests.server.conftest import no_polls, server_store
from tests.server.harness import OPERATOR, PRODUCER, VIEWER, WORKER, Raw, raw, running, tenant
from tests.server.test_schemas import faults

from .frames import LIMIT_S, Row, head_of, normalised, read, record
from .make import FOLDER

__all__ = ["no_polls", "server_store"]

FILES = sorted(FOLDER.glob("frames-*.jsonl.gz"))
each_file = pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
TOKENS = {"tenant": tenant("ada"), "producer": PRODUCER, "worker": WORKER, "operator": OPERATOR, "viewer": VIEWER}
THE_SAME = {"code", "field", "outcome", "outcomes", "state", "type", "reason"}  # fields whose values are compared
OPAQUE = {"lease", "cursor", "version", "number"}  # values of a server that a client sends back
ANY_NAMES = {"payload", "result", "refusals", "contents"}  # what holds a user's values, or is keyed by names

READ_AS_IT_IS = {"enqueue", "enqueue_from", "wait_tasks"}  # the SDK makes no objects of their replies


def message_of(text: str) -> str | bytes:
    return text.encode() if "\n" in text else text


@cache
def conversation(file: Path) -> list[Row]:
    """Read a recording."""
    return read(file)


def answered(rows: list[Row]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Go through the requests of a recording, each with its answer."""
    asked: dict[tuple[int, int], dict[str, Any]] = {}
    for number, side, text in rows:
        head = head_of(text) if text else {}
        if side == ">" and "ref" in head:
            asked[number, head["ref"]] = head
        elif head.get("type") in ("reply", "error"):
            yield asked[number, head["ref"]], head


def missing(recorded: Any, real: Any, place: str = "") -> list[str]:
    """Return where a server's frame has less than the recorded one had, or something else."""
    if recorded is None:
        return []
    if isinstance(recorded, dict) and isinstance(real, dict):
        return [
            fault
            for name, value in recorded.items()
            for fault in (
                missing(value, real[name], f"{place}.{name}")
                if name in real
                else [f"{place}.{name} is gone"] * (value is not None)
            )
        ]
    if isinstance(recorded, list) and isinstance(real, list):
        if place.rpartition(".")[2] in THE_SAME and recorded != real:
            return [f"{place} is {real}, not {recorded}"]
        pairs = enumerate(zip(recorded, real, strict=False))
        return [f"{place} is empty"] * (bool(recorded) and not real) + [
            fault for number, pair in pairs for fault in missing(*pair, f"{place}[{number}]")
        ]
    kinds = {type(recorded), type(real)}
    if len(kinds) > 1 and kinds != {int, float}:
        return [f"{place} is {real!r}, not {recorded!r}"]
    if place.rpartition(".")[2] in THE_SAME and recorded != real:
        return [f"{place} is {real!r}, not {recorded!r}"]
    return []


def grown(value: Any) -> Any:
    """Add a field that this version does not know to every object of a frame."""
    if isinstance(value, list):
        return [grown(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: each if name in ANY_NAMES else grown(each) for name, each in value.items()} | {"later": {"is": [1]}}


def grown_ways(frame: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Add such a field to a client's frame, or to one of its parts."""
    yield frame | {"later": 1}
    for name in ("tasks", "settlements", "reports", "leases"):
        if parts := frame.get(name):
            yield frame | {name: [parts[0] | {"later": 1}, *parts[1:]]}


class Replay:
    """Sends what a recorded SDK sent to a server of today, and compares the answers."""

    def __init__(self, served: Served, nursery: trio.Nursery, rows: list[Row]) -> None:
        self.served, self.nursery, self.rows = served, nursery, rows
        self.roles = {number: head_of(text)["role"] for number, _, text in rows if '"type":"welcome"' in text}
        self.done = {(number, head_of(text)["ref"]) for number, _, text in rows if text.startswith('{"type":"reply"')}
        self.connections: dict[int, Raw] = {}
        self.unread: dict[int, list[dict[str, Any]]] = {}
        self.stands_for: dict[tuple[str, Any], Any] = {}  # the name and value of a field -> the value of today
        self.dismissed = set[int]()  # the server closes their connections, sooner or later
        self.faults = list[str]()

    async def play(self) -> None:
        """Play all of it; at the end of the connection's time another one takes its place."""
        async with AsyncExitStack() as all_of_them:
            stacks: dict[int, AsyncExitStack] = {}
            for number, side, text in self.rows:
                if not text:
                    if number in stacks:
                        await stacks[number].aclose()
                    stacks[number] = await all_of_them.enter_async_context(AsyncExitStack())
                    opened = await stacks[number].enter_async_context(raw(self.served, TOKENS[self.roles[number]]))
                    self.connections[number], self.unread[number] = opened, [opened.welcome]
                    self.dismissed.discard(number)
                elif number in self.dismissed:
                    continue
                elif side == ">":
                    await self._say(number, text)
                else:
                    await self._hear(number, read_frame(message_of(text)))

    async def _say(self, number: int, text: str) -> None:
        head, feed, beside = text.partition("\n")
        frame = self._real(orjson.loads(head))
        for later in grown_ways(frame) if (number, frame["ref"]) in self.done else ():
            await self._send(number, later, feed + beside)
            refusal = await self._next(number, "error", frame["ref"], "")
            assert (refusal["code"], refusal["field"]) == ("bad_request", "later"), (later, refusal)
        await self._send(number, frame, feed + beside)

    async def _send(self, number: int, frame: dict[str, Any], beside: str) -> None:
        await send_message(self.connections[number].transport, message_of(orjson.dumps(frame).decode() + beside))

    async def _hear(self, number: int, recorded: dict[str, Any]) -> None:
        kind = recorded["type"]
        if kind == "drain" and not self.served.app.is_draining:
            self.nursery.start_soon(self.served.app.drain, 1.0)
        if kind == "dismiss":
            self.dismissed.add(number)
        id = recorded["tasks"][0]["id"] if kind == "push" else ""
        frame = await self._next(number, kind, recorded.get("ref"), id)
        self._pair(recorded, frame)
        if id:
            self.stands_for["id", id] = frame["tasks"][0]["id"]  # that of a callback task has a time in it
        self.faults += missing(recorded, frame, kind)

    async def _next(self, number: int, kind: str, ref: int | None, id: str) -> dict[str, Any]:
        """Return the next frame of a type, the answer to a request, or the push of a task."""
        unread, answers = self.unread[number], ("reply", "error")
        while True:
            for frame in unread:
                is_one = frame["type"] == kind or (kind in answers and frame["type"] in answers)
                if is_one and frame.get("ref") == ref and (not id or normalised(frame["tasks"][0]["id"]) == id):
                    unread.remove(frame)
                    return frame
            unread.append(await self.connections[number].receive())

    def _pair(self, recorded: Any, real: Any) -> None:
        """Note which values of today stand for the recorded ones."""
        if isinstance(recorded, dict) and isinstance(real, dict):
            for name in recorded.keys() & real.keys():
                if name in OPAQUE:
                    self.stands_for[name, recorded[name]] = real[name]
                else:
                    self._pair(recorded[name], real[name])
        if isinstance(recorded, list) and isinstance(real, list):
            for pair in zip(recorded, real, strict=False):
                self._pair(*pair)

    def _real(self, value: Any) -> Any:
        """Put today's values into a recorded frame."""
        if isinstance(value, list):
            return [self._real(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            name: self.stands_for.get((name.removeprefix("if_"), each), each)
            if name.removeprefix("if_") in {*OPAQUE, "id"}
            else self._real(each)
            for name, each in value.items()
        }


def test_every_verb_and_every_kind_of_frame_is_recorded() -> None:
    """To make another one: `python -m tests.upgrade.frames`."""
    said = {head_of(text)["type"] for _, _, text in conversation(FILES[-1]) if text}
    assert said >= ({*CLIENT_TYPES} | {frame.type for frame in SERVER_FRAMES}) - {"ping"}


@each_file
async def test_an_older_sdk_is_served_as_before_and_a_later_one_learns_what_is_not_known(
    file: Path, server_store: str
) -> None:
    with trio.fail_after(LIMIT_S):
        async with running(server_store, reconnect_grace=60) as served, trio.open_nursery() as nursery:
            replay = Replay(served, nursery, conversation(file))
            await replay.play()
    assert replay.faults == []


@each_file
def test_todays_sdk_reads_an_older_server(file: Path) -> None:
    """What a later version adds to a server's frames is optional there: in the schemas, and in the SDK's classes."""
    for _, side, text in conversation(file):
        if side == "<":
            assert decode_server(message_of(text)) is not None
            assert faults(f"server.{head_of(text)['type']}", head_of(text)) == []
    for request, answer in answered(conversation(file)):
        if answer["type"] == "reply":
            assert faults(f"reply.{request['type']}", answer["body"]) == []
            if request["type"] in READ_AS_IT_IS:
                continue
            kinds = VERBS[CLIENT_TYPES[request["type"]]].reply
            parts: list[tuple[str, Any]] = [*kinds.items()] if isinstance(kinds, dict) else [("", kinds)]
            for name, kind in parts:
                if get_origin(kind) is not NotRequired:
                    structure(answer["body"][name] if name else answer["body"], kind)


@each_file
def test_todays_server_reads_an_older_sdk(file: Path) -> None:
    for request, answer in answered(conversation(file)):
        if answer["type"] == "reply":
            assert faults(f"client.{request['type']}", request) == []


async def test_todays_sdk_works_with_a_later_server(server_store: str) -> None:
    """All of its calls do, although each object that it receives has a new field, and each frame follows a new one."""

    def later(message: str | bytes) -> list[Any]:
        head, feed, beside = (message.encode() if isinstance(message, str) else message).partition(b"\n")
        text = orjson.dumps(grown(orjson.loads(head)))
        return ['{"type":"later","of":[1]}', text + feed + beside if feed else text.decode()]

    assert len(await record(server_store, later)) > 200


def test_todays_sdk_reads_a_word_of_a_later_server() -> None:
    """It hands on a state, an outcome or a reason that it does not know."""
    assert str(structure({"id": "a", "state": "resting"}, TaskState).state) == "resting"
    found = {"id": "a", "state": "ready", "now_ms": 1, "causes": ["moon"]}
    assert [str(cause) for cause in structure(found, Why).causes] == ["moon"]


def places(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Go through the fields of all objects of a frame."""
    if isinstance(value, list):
        for each in value:
            yield from places(each)
    elif isinstance(value, dict):
        for name, each in list(value.items()):
            if each is not None:
                yield value, name
            yield from places(each)


def test_a_field_that_is_gone_renamed_or_of_another_type_is_found() -> None:
    count = 0
    for _, answer in answered(conversation(FILES[-1])):
        real = copy.deepcopy(answer)
        assert missing(answer, real) == []
        for holder, name in places(real):
            held = holder.pop(name)
            assert missing(answer, real)
            holder["new_" + name] = held
            assert missing(answer, real)
            del holder["new_" + name]
            holder[name] = {"is": held}
            assert missing(answer, real) or isinstance(held, dict)
            holder[name] = held
            count += 1
    assert count > 500
