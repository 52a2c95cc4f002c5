"""A real server inside the test, and a bare client that sends exactly the given frames."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
import trio
from attrs import define, field

from fairq.client.channel import Target
from fairq.client.connect import connect
from fairq.client.transport import ClientTransport
from fairq.errors import Unavailable
from fairq.model.checks import bare_id
from fairq.server.run import Served, running_server
from fairq.server.settings import Settings
from fairq.store import keys
from fairq.store.store import Store
from fairq.tokens import hash_token, make_token
from fairq.wire.connection_errors import Disconnected
from fairq.wire.terms import Role
from tests.frames import read_frame, write_frame
from tests.sending import send_message

WORKER, OPERATOR, PRODUCER, VIEWER = "dev-worker", "dev-operator", "dev-producer", "dev-viewer"


def tenant(name: str) -> str:
    """The development token of a tenant."""
    return f"dev-tenant:{name}"


@asynccontextmanager
async def running(store: str, **settings: Any) -> AsyncIterator[Served]:
    """A server on a store, on a free port, with development tokens by default."""
    chosen = {"host": "127.0.0.1", "port": 0, "store": store, "dev": True, "unsafe_store": True, **settings}
    async with running_server(Settings(**chosen).check()) as served:
        yield served


def url_of(served: Served) -> str:
    return f"ws://{served.host}:{served.port}"


def daily(now_ms: int, begins_in: int, ends_in: int) -> str:
    """Spell opening hours of every day, from so many minutes from now to so many, in UTC."""
    minutes = now_ms // 60_000
    begin, end = (minutes + begins_in) % 1440, (minutes + ends_in - 1) % 1440 + 1  # midnight is an end as 24:00
    return f"mon-sun {begin // 60:02}:{begin % 60:02}-{end // 60:02}:{end % 60:02} UTC"


@define(eq=False)
class Calls:
    """What calls were made with, and how many of them were under way at once."""

    args: list[tuple[Any, ...]] = field(factory=list)
    under_way: int = 0
    most: int = 0


def noted_calls(monkeypatch: pytest.MonkeyPatch, method: str) -> Calls:
    """Note the calls of a method of the store from now on."""
    calls, real = Calls(), getattr(Store, method)

    async def note(self: Store, *args: Any, **more: Any) -> Any:
        calls.args.append(args)
        calls.under_way += 1
        calls.most = max(calls.most, calls.under_way)
        try:
            return await real(self, *args, **more)
        finally:
            calls.under_way -= 1

    monkeypatch.setattr(Store, method, note)
    return calls


def open_fds() -> int:
    """Count this process's open file descriptors."""
    return len(os.listdir("/proc/self/fd"))


class Refused(Exception):
    """The server answered a request with an error frame."""

    def __init__(self, frame: dict[str, Any]) -> None:
        super().__init__(f"{frame['code']} {frame.get('field')}: {frame['message']}")
        self.code: str = frame["code"]
        self.field: str | None = frame.get("field")
        self.frame = frame


def lease_of(task: dict[str, Any], queue: str = "q") -> dict[str, Any]:
    """Spell the lease of a pushed task, as frames have it that are not of one queue."""
    return {"queue": queue, "id": task["full_id"], "lease": task["lease"]}


@define(eq=False)
class Raw:
    """One connection. Pushes that come while an answer is waited for are kept in `pushes`."""

    transport: ClientTransport
    welcome: dict[str, Any] = field(factory=dict)
    pushes: list[dict[str, Any]] = field(factory=list)
    ref: int = 0

    async def send(self, type: str, **body: Any) -> None:
        await send_message(self.transport, write_frame({"type": type, **body}))

    async def receive(self) -> dict[str, Any]:
        """Wait for a frame other than a ping."""
        with trio.fail_after(30):
            while True:
                frame = read_frame(await self.transport.receive())
                if frame["type"] == "push":
                    self.pushes.append(frame)
                if frame["type"] != "ping":
                    return frame

    async def ask(self, type: str, **body: Any) -> dict[str, Any]:
        """Send a request and return the reply's body, with the ends sent before it. Raises: Refused."""
        self.ref += 1
        ref = self.ref
        await self.send(type, ref=ref, **body)
        seen: list[dict[str, Any]] = []
        while True:
            frame = await self.receive()
            if frame.get("ref") != ref:
                continue
            if frame["type"] == "error":
                raise Refused(frame)
            if frame["type"] == "reply":
                reply: dict[str, Any] = frame["body"]
                return {**reply, "tasks": seen + reply["tasks"]} if seen else reply
            seen += frame["tasks"]

    async def enqueue(self, queue: str, ids: Sequence[str], **options: Any) -> list[str]:
        """Enqueue tasks whose payload is their id."""
        tasks = [{"id": id, "payload": id, **options} for id in ids]
        outcomes: list[str] = (await self.ask("enqueue", queue=queue, tasks=tasks))["outcomes"]
        return outcomes

    async def attach(
        self, *queues: str, credit: int = 1, name: str = "w", leases: Sequence[Any] = (), **more: Any
    ) -> list[str]:
        """Begin to work."""
        body = await self.ask("attach", worker=name, queues=list(queues), credit=credit, leases=list(leases), **more)
        outcomes: list[str] = body["leases"]
        return outcomes

    async def create_token(self, role: Role, **more: Any) -> tuple[str, str]:
        """Create a token, a tenant's for ada; returns its id and text."""
        id, text = make_token(role)
        owner = {"tenant": "ada"} if role is Role.TENANT else {}
        await self.ask("create_token", id=id, role=role.value, hash=hash_token(text), **owner, **more)
        return id, text

    async def settle(self, queue: str, action: str, *tasks: dict[str, Any], **more: Any) -> list[str]:
        """End the leases of pushed tasks, all in one way."""
        ended = [{"action": action, "id": task["full_id"], "lease": task["lease"], **more} for task in tasks]
        outcomes: list[str] = (await self.ask("settle", queue=queue, settlements=ended))["outcomes"]
        return outcomes

    async def pushed(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait until `count` tasks were pushed, and hand them out: `id` as its tenant chose it, and `full_id`."""
        while sum(len(push["tasks"]) for push in self.pushes) < count:
            await self.receive()
        tasks = [
            {**task, "id": bare_id(task["id"]), "full_id": task["id"]} for push in self.pushes for task in push["tasks"]
        ]
        self.pushes.clear()
        return tasks

    async def quiet(self) -> None:
        """Check that nothing was pushed, and that one more tick and claim of each queue finds nothing; needs credit."""
        is_idle = False
        while not is_idle:  # a claim that took too long is not known to have found nothing
            is_idle = (await self.ask("idle"))["is_idle"]
            assert not self.pushes, f"unexpected: {self.pushes}"

    async def closed(self) -> tuple[int, str]:
        """Wait until the server closes; returns its code and reason."""
        with trio.fail_after(30):
            while True:
                try:
                    await self.transport.receive()
                except Disconnected:
                    return self.transport.websocket.end


@asynccontextmanager
async def raw(served: Served | str, token: str) -> AsyncIterator[Raw]:
    """A bare connection that the server has welcomed."""
    url = served if isinstance(served, str) else url_of(served)
    with closing(ClientTransport.of(await connect(Target.parse(url), token))) as transport:
        client = Raw(transport)
        client.welcome = await client.receive()
        assert client.welcome["type"] == "welcome"
        yield client


def lose(served: Served, monkeypatch: pytest.MonkeyPatch, *lost: str) -> None:
    """Let the store refuse all commands for these places, or keys, as if their primaries were away."""
    call, prefixes = served.app.store.connection.call, tuple(map(keys.queue_prefix, lost)) + lost

    async def answer(*words: Any, **options: Any) -> Any:
        if any(str(word).startswith(prefixes) for word in words[1:4]):
            raise Unavailable("no connection to the store")
        return await call(*words, **options)

    monkeypatch.setattr(
        type(served.app.store.connection), "call", lambda _, *words, **options: answer(*words, **options)
    )
