"""Plays transcripts of the documents against servers: `<name> > <frame>` is sent, `<name> < <frame>` must come.

Over HTTP `<name> > <method> <path> <body>` is sent, and `<name> < <status> <body>` must come.

A line that begins with `--` is something else that happens (`_EVENTS`). A name is a role's, or begins with one
(`worker-2`); without a name the role is that of the words above the block ("A tenant:"). A connection is opened by an
event, or when its welcome is expected. The queue `emails` has a clock that stands until the transcript says that time
passes, so times are compared exactly. Lease numbers and names of connections differ each time: each stands for one.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest
import trio
from attrs import Factory, define

from fairq.client.channel import Target
from fairq.client.connect import connect
from fairq.client.transport import ClientTransport
from fairq.server.run import Served

from .clock import StoreClock
from .harness import OPERATOR, PRODUCER, WORKER, Raw, running, tenant, url_of
from .web.http.harness import api

BEGIN_MS = 1_763_683_200_000  # 2025-11-21 00:00 UTC
QUEUE = "emails"
TOKENS = {"tenant": tenant("acme"), "worker": WORKER, "operator": OPERATOR, "producer": PRODUCER}
STANDING_FOR = {"lease", "session", "server"}  # fields whose values differ each time
_HTTP = r"[A-Z]+ /\S*|\d+"  # a method and a path, or a status
_LINE = re.compile(rf"(?:(?P<name>[a-z]+(?:-\d)?) +)?(?P<side>[<>]) (?P<http>{_HTTP})? ?(?P<frame>\{{.*\}})?")
_EVENT = re.compile(r"-- (?P<event>.+)")
_FOREVER = 60.0  # seconds: longer than a transcript takes


class Line(NamedTuple):
    """A line of a transcript: a frame and who sends or gets it, or an event."""

    text: str
    name: str
    side: str  # empty: an event
    frame: dict[str, Any]  # over HTTP a body; empty if there is none
    http: str


def transcripts(document: str) -> dict[str, list[Line]]:
    """Find the transcripts of a document, by the heading above; blocks below one heading follow each other."""
    found: dict[str, list[Line]] = {}
    for part in re.split(r"^##+ ", document, flags=re.MULTILINE)[1:]:
        heading = part.splitlines()[0]
        for above, block in re.findall(r"([^\n]*)\n\n```\n(.*?)^```$", part, re.DOTALL | re.MULTILINE):
            if re.search(r"^(?:[a-z0-9-]+ +)?[<>] [{A-Z]", block, re.MULTILINE):
                found.setdefault(heading, []).extend(_lines(block, above))
    return found


def _lines(block: str, above: str) -> Iterator[Line]:
    role = next((role for role in TOKENS if f"A {role}:" in above), "")
    for text in block.splitlines():
        if event := _EVENT.fullmatch(text):
            yield Line(event["event"], "", "", {}, "")
        else:
            line = _LINE.fullmatch(text)
            assert line, f"no line of a transcript: {text}"
            frame = json.loads(line["frame"] or "{}")
            yield Line(text, line["name"] or role, line["side"], frame, line["http"] or "")


@define(eq=False)
class Stage:
    """Two servers on one store, the connections that are open, and what stands for what."""

    servers: list[Served]
    clock: StoreClock
    nursery: trio.Nursery
    connections: dict[str, Raw] = Factory(dict)
    tokens: dict[str, str] = Factory(dict)  # of names that have one of their own
    _answers: dict[str, httpx.Response] = Factory(dict)  # over HTTP, to the last request of each name
    _unread: dict[str, list[dict[str, Any]]] = Factory(dict)
    _stands_for: dict[Any, Any] = Factory(dict)

    async def play(self, line: Line) -> None:
        if not line.side:
            await self._happen(line.text)
        elif line.http:
            await self._play_http(line)
        elif line.side == ">":
            await self.connections[line.name].send(**self._real(line.frame))
        else:
            frame = await self._next(line.name, line.frame)
            assert self._as_documented(line.frame, frame) == line.frame, f"{line.text}\nbut it is\n{json.dumps(frame)}"

    async def _play_http(self, line: Line) -> None:
        if line.side == ">":
            method, path = line.http.split()
            async with api(self.servers[0], self._token_of(line.name)) as client:
                self._answers[line.name] = await client.request(method, path, json=self._real(line.frame) or None)
        else:
            answer = self._answers.pop(line.name)
            assert answer.status_code == int(line.http), f"{line.text}\nbut it is\n{answer.text}"
            found = answer.json()
            assert self._as_documented(line.frame, found) == line.frame, f"{line.text}\nbut it is\n{answer.text}"

    async def _next(self, name: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Return the next frame of a type, with a ref if it has one; others may come first, and are kept."""
        if wanted["type"] == "welcome":
            if name not in self.connections:
                await self.open(name)
            welcome = await self.connections[name].receive()  # before all else
            return {field: each for field, each in welcome.items() if field != "warning"}  # of tokens for development
        unread = self._unread[name]
        while True:
            for frame in unread:
                if all(frame.get(field) == wanted.get(field) for field in ("type", "ref")):
                    unread.remove(frame)
                    return frame
            unread.append(await self.connections[name].receive())

    async def open(self, name: str) -> None:
        """Connect to the first server that does not stop."""
        served = next(served for served in self.servers if not served.app.is_draining)
        opened = await connect(Target.parse(url_of(served)), self._token_of(name))
        self.connections[name], self._unread[name] = Raw(ClientTransport.of(opened)), []

    def _token_of(self, name: str) -> str:
        return self.tokens.get(name) or TOKENS[name.partition("-")[0]]

    async def _happen(self, event: str) -> None:
        for words, happen in _EVENTS.items():
            if found := re.fullmatch(words, event):
                await happen(self, *found.groups())
                return
        raise AssertionError(f"no transcript can say: {event}")

    async def name_token(self, name: str, token: str) -> None:
        """Use a token that the transcript has created."""
        self.tokens[name] = token

    async def connect(self, name: str) -> None:
        """Connect, and pass the welcome over."""
        await self.open(name)
        await self._next(name, {"type": "welcome"})

    async def lose(self, name: str) -> None:
        """Break a connection off."""
        assert self._unread.pop(name) == []
        self.connections.pop(name).transport.close()

    async def lose_before(self, name: str, ref: str) -> None:
        """Break a connection off when a request was carried out, and its reply not read."""
        await self._next(name, {"type": "reply", "ref": int(ref)})
        await self.lose(name)

    async def closed(self, name: str, code: str) -> None:
        """Check that the server closes a connection, and how."""
        assert (await self.connections[name].closed())[0] == int(code)
        await self.lose(name)

    async def pass_time(self, seconds: str) -> None:
        """Let the queue's clock go on, until a server has done what is due then."""
        self.clock.move(self.clock.now_ms + int(seconds) * 1000, *self.servers)
        await self.servers[-1].app.ticker._tick(QUEUE)

    async def stop(self) -> None:
        """Have the first server stop, as for SIGTERM, once it has read all that was sent."""
        for name in self.connections:
            await self._catch_up(name)
        self.nursery.start_soon(self.servers[0].app.drain, _FOREVER)

    async def end(self) -> None:
        """Check that nothing has come but what the transcript tells, and close all."""
        for name in list(self.connections):
            await self._catch_up(name)
            await self.lose(name)

    async def _catch_up(self, name: str) -> None:
        """Wait until the server has read all frames of a connection: it answers one that it does not know."""
        await self.connections[name].send("catch_up", ref=0)
        assert (await self._next(name, {"type": "error", "ref": 0}))["code"] == "unknown_verb"

    def _real(self, value: Any) -> Any:
        """Put into a frame of the transcript the values that its own stand for."""
        if isinstance(value, list):
            return [self._real(each) for each in value]
        if isinstance(value, dict):
            return {
                name: self._stands_for.get(each, each) if name in STANDING_FOR else self._real(each)
                for name, each in value.items()
            }
        return value

    def _as_documented(self, wanted: Any, real: Any) -> Any:
        """Put into a server's frame the transcript's own values, each for one value only."""
        if isinstance(wanted, list) and isinstance(real, list):
            return [self._as_documented(*pair) for pair in zip(wanted, real, strict=False)] + real[len(wanted) :]
        if not isinstance(wanted, dict) or not isinstance(real, dict):
            return real
        return {
            name: wanted.get(name, each)
            if name == "attached_ms"
            else self._stand_for(wanted.get(name), each)
            if name in STANDING_FOR
            else self._as_documented(wanted.get(name), each)
            for name, each in real.items()
        }

    def _stand_for(self, wanted: Any, real: Any) -> Any:
        if type(wanted) is not type(real) or (wanted not in self._stands_for and real in self._stands_for.values()):
            return real
        return wanted if self._stands_for.setdefault(wanted, real) == real else real


_EVENTS: dict[str, Callable[..., Awaitable[None]]] = {
    r"(\S+) connects(?: again)?(?:, to another server)?": Stage.connect,
    r"(\S+) has the token (\S+)": Stage.name_token,
    r"(\S+) connects, and does not wait for the welcome": Stage.open,
    r"(\S+): the connection is lost": Stage.lose,
    r"(\S+): the connection is lost before the reply to request (\d+)": Stage.lose_before,
    r"(\S+): the server closes the connection with (\d+)": Stage.closed,
    r"(\d+) s pass": Stage.pass_time,
    r"the server is asked to stop": Stage.stop,
}


@asynccontextmanager
async def open_stage(store: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """Two servers on an empty store, and a clock that stands."""
    clock = StoreClock(monkeypatch, QUEUE)
    clock.govern(store)
    clock.now_ms = BEGIN_MS
    async with (
        running(store, reconnect_grace=_FOREVER, http_port=0) as one,
        running(store, reconnect_grace=_FOREVER) as two,
        trio.open_nursery() as nursery,
    ):
        stage = Stage([one, two], clock, nursery)
        yield stage
        await stage.end()
        nursery.cancel_scope.cancel()
