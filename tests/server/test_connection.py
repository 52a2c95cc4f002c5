"""One connection's reader and senders, in memory and in virtual time: clients that read slowly, or not to the end."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import orjson
import pytest
import trio
import trio.testing
from attrs import define, field
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import OPEN, Protocol, Side

from fairq.io.auto_reset_event import AutoResetEvent
from fairq.io.taskless import Wait
from fairq.io.transport import PIECE_BYTES
from fairq.model.rates import Rate
from fairq.model.tasks import Lease
from fairq.server.engine.dispatch.capacity import free_of
from fairq.server.engine.net.admission import Usage
from fairq.server.engine.net.auth import Identity
from fairq.server.engine.net.connection import (
    ENDS_AT_ONCE,
    LONG_TEXT_S,
    MAX_LONG_ANSWERS,
    MAX_REQUESTS,
    MAX_TENANT_REQUESTS,
    RESTS,
    Connection,
)
from fairq.server.engine.net.socket_connection import (
    END_S,
    MAX_HELD_BYTES,
    MAX_UNREAD_BYTES,
    MAX_UNSENT_BYTES,
    SocketConnection,
)
from fairq.server.engine.net.transport import ServerTransport
from fairq.wire.server_session import ServerSession
from fairq.wire.terms import CLOSE_SILENT, TIMEOUT_S, Role, State
from fairq.wire.websocket import WebSocket
from tests.frames import read_frame


@define(eq=False)
class SlowClient(trio.abc.Stream):
    """A client's end of the socket: it takes `send_s` for each piece, and asks what stands in `asks`."""

    send_s: float
    asks: list[str]
    got: list[dict[str, Any]] = field(factory=list)
    pieces: int = 0
    asked: int = 0
    closed: tuple[int, str] | None = None
    protocol: Protocol = field(factory=lambda: Protocol(Side.CLIENT, state=OPEN, max_size=None))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Take one piece."""
        await trio.sleep(self.send_s)
        self.pieces += 1
        self.protocol.receive_data(bytes(data))
        for frame in self.protocol.events_received():
            assert isinstance(frame, Frame)
            if frame.opcode is Opcode.TEXT:
                self.got.append(read_frame(bytes(frame.data).decode()))
            if frame.opcode is Opcode.BINARY:
                self.got.append(read_frame(bytes(frame.data)))
            if frame.opcode is Opcode.CLOSE:
                close = Close.parse(frame.data)
                self.closed = (close.code, close.reason)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Ask the next thing, or answer the other end's good-bye."""
        await trio.lowlevel.checkpoint()
        while self.asked == len(self.asks) and not self.closed:  # noqa: ASYNC110 - in virtual time
            await trio.sleep(0.1)
        if self.asked == len(self.asks):
            return Frame(Opcode.CLOSE, b"").serialize(mask=True)
        self.asked += 1
        return Frame(Opcode.TEXT, self.asks[self.asked - 1].encode()).serialize(mask=True)

    async def wait_send_all_might_not_block(self) -> None:
        """Not called in these tests."""

    async def aclose(self) -> None:
        """Not called in these tests."""


KINDS: dict[str, dict[str, Any]] = {
    "tasks": {"ids": ["a"]},
    "enqueue": {"tasks": [{"id": "a", "payload": 1}]},  # only calls the store: it has no task
}
of_each_kind = pytest.mark.parametrize("kind", KINDS)


def ask(count: int, kind: str = "tasks") -> list[str]:
    """Ask for the state of tasks, or enqueue some, so many times."""
    return [orjson.dumps({"type": kind, "ref": n, "queue": "q", **KINDS[kind]}).decode() for n in range(1, count + 1)]


@define(eq=False)
class SlowStore:
    """Answers its callers when the test says so."""

    waits: list[Wait] = field(factory=list)
    begun: list[int] = field(factory=list)
    ended: list[int] = field(factory=list)

    async def handle_request(self, _: Connection, request: Any) -> dict[str, Any]:
        """Wait for the store."""
        self.begun.append(request.ref)
        self.waits.append(wait := Wait(trio.current_time()))
        try:
            await wait
        finally:
            self.ended.append(request.ref)
        return {}

    def answer(self) -> None:
        """Answer all waiting requests, also on connections that have ended."""
        waits, self.waits = self.waits, []
        for wait in waits:
            wait.end(b"")


def connected(client: SlowClient, answer: str = "") -> SocketConnection:
    """A connection whose requests are all answered at once."""

    async def handle_request(_peer: Connection, request: Any) -> dict[str, Any]:
        if request.type != "enqueue":
            await trio.lowlevel.checkpoint()
        return {"text": answer}

    now = trio.current_time()
    session = ServerSession(
        role=Role.TENANT, state=State.OPEN, last_received_at=now, last_sent_at=now, heartbeat_jitter=0.5
    )
    websocket, woken = WebSocket.of_server(1 << 20), AutoResetEvent(trio.Event)
    transport = ServerTransport.of(client, websocket, "test", b"", session.outgoing, woken.set)  # type: ignore[arg-type]
    identity = Identity(Role.TENANT, "acme")
    return SocketConnection("test", identity, session, handle_request, transport=transport, woken=woken)


async def test_a_client_that_reads_slowly_is_sent_no_pings_while_answers_are_on_their_way(
    autojump_clock: object,
) -> None:
    client = SlowClient(4.0, ask(12))
    with trio.move_on_after(49):  # in which a ping is due every few seconds
        await connected(client, "x" * (PIECE_BYTES - 100)).run()
    assert client.pieces == 12
    assert [frame["type"] for frame in client.got] == ["reply"] * 12


@of_each_kind
async def test_nothing_is_read_while_too_much_waits_to_be_sent(kind: str, autojump_clock: object) -> None:
    client = SlowClient(4.0, ask(40, kind))
    with trio.move_on_after(3):
        await connected(client, "x" * (MAX_UNREAD_BYTES // 4)).run()
    assert client.asked < 12
    client = SlowClient(0.0, ask(40, kind))
    with trio.move_on_after(3):
        await connected(client, "x" * (MAX_UNREAD_BYTES // 4)).run()
    assert len(client.got) == 40


@of_each_kind
async def test_no_more_is_read_while_requests_without_an_answer_hold_too_many_bytes(
    kind: str, autojump_clock: object
) -> None:
    store, long = SlowStore(), (MAX_HELD_BYTES >> 3) + 1
    client = SlowClient(0.0, [text + " " * long for text in ask(20, kind)])
    connection = connected(client)
    connection.handle_request = store.handle_request
    with trio.move_on_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            for begun in (8, 16, 20):
                await trio.sleep(1)
                assert store.begun == list(range(1, begun + 1))
                store.answer()
    assert len(client.got) == 20


@of_each_kind
async def test_requests_under_way_end_with_their_connection(kind: str, autojump_clock: object) -> None:
    store, usage = SlowStore(), Usage(Rate(1e6, 1e6), Rate(1e9, 1e9))
    client = SlowClient(0.0, ask(5, kind))
    connection = connected(client)
    connection.handle_request, connection.usage = store.handle_request, usage
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await trio.sleep(1)
        assert (connection.requests, usage.under_way, store.ended) == (5, 5, [])
        client.closed = (1000, "")  # it says good-bye
    assert sorted(store.ended) == [1, 2, 3, 4, 5]
    assert (connection.requests, usage.under_way) == (0, 0)
    store.answer()
    assert not connection.session.has_outgoing


@of_each_kind
async def test_a_request_that_fails_is_answered_and_the_others_go_on(kind: str, autojump_clock: object) -> None:
    store = SlowStore()

    async def fail_once(connection: Connection, request: Any) -> dict[str, Any]:
        await store.handle_request(connection, request)
        if request.ref == 2:
            raise ZeroDivisionError("a bug")
        return {}

    client = SlowClient(0.0, ask(3, kind))
    connection = connected(client)
    connection.handle_request = fail_once
    with trio.move_on_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            await trio.sleep(1)
            store.answer()
    assert sorted((frame["ref"], frame.get("code", "")) for frame in client.got) == [(1, ""), (2, "internal"), (3, "")]
    assert "bug" not in str(client.got)
    assert connection.requests == 0


async def test_a_long_message_that_moves_keeps_its_connection(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    connection = connected(SlowClient(0.0, []))
    connection.transport.stream = ours  # type: ignore[assignment]
    message = Frame(Opcode.TEXT, (ask(1)[0] + " " * (10 * PIECE_BYTES)).encode()).serialize(mask=True)
    with trio.move_on_after(1_000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            for start in range(0, len(message), PIECE_BYTES):
                await theirs.send_all(message[start : start + PIECE_BYTES])
                await trio.sleep(TIMEOUT_S - 1)
            assert connection.requests == 0
            assert connection.session.last_received_at > 10 * (TIMEOUT_S - 1) - 1
            assert not connection.session.is_timed_out
            await theirs.send_all(message[:1_000])
            await trio.sleep(TIMEOUT_S + 1)
            assert connection.session.is_timed_out, "it has stopped half way"
            nursery.cancel_scope.cancel()


async def test_a_worker_that_takes_nothing_is_given_no_more_until_it_does(autojump_clock: object) -> None:
    client = SlowClient(1.0, [])
    connection = connected(client)
    connection.session.state, connection.account.credit = State.ATTACHED, 100
    drained: list[int] = []
    connection.room_changed = lambda worker: drained.append(free_of(worker))
    with trio.move_on_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            given = 0
            while free_of(connection):
                given += 1
                lease = Lease(f"t{given}", given, 1, 5, "ada", 1, 0, 0, b'"' + b"x" * (1 << 20) + b'"', False)
                connection.push("q", 30_000, [lease], 0, 0.0)
                await trio.sleep(0.01)
            assert given == MAX_UNSENT_BYTES >> 20
            assert not drained
            await trio.sleep(50)
            nursery.cancel_scope.cancel()
    assert drained == [100 - given, 100], "when it has taken all, and when its leases have expired"
    assert len(client.got) == given


async def test_what_is_asked_while_the_connection_ends_is_not_carried_out(autojump_clock: object) -> None:
    client = SlowClient(0.8, ask(1))
    connection = connected(client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await trio.sleep(0.5)
        connection.close(4001, "the token was revoked")
        client.asks += ask(3)
    assert client.closed == (4001, "the token was revoked")
    assert len(client.got) == 1


async def test_what_is_read_long_after_it_came_is_not_carried_out(autojump_clock: object) -> None:
    """The server was frozen: the client has gone on at another one, and ids may have been forgotten meanwhile."""
    client = SlowClient(0.0, ask(1, "enqueue"))
    connection = connected(client)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(client.got) == 1
        connection.session.last_received_at -= TIMEOUT_S + 1
        client.asks += ask(3, "enqueue")
    assert [frame["type"] for frame in client.got] == ["reply"]
    assert client.closed == (CLOSE_SILENT, f"nothing was received for {TIMEOUT_S:g} s")


async def test_a_connection_that_is_to_end_does_so_however_slowly_the_client_reads(autojump_clock: object) -> None:
    client = SlowClient(4.0, ask(200))
    connection = connected(client, "x" * PIECE_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await trio.sleep(5)
        began = trio.current_time()
        connection.close(4001, "the token was revoked")
    assert trio.current_time() - began <= END_S
    assert 0 < len(client.got) < 10
    assert MAX_REQUESTS > 200, "else they were refused, not sent slowly"


async def test_a_connection_that_breaks_while_answers_are_sent_ends_its_peer(autojump_clock: object) -> None:
    class Breaking(SlowClient):
        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            await trio.lowlevel.checkpoint()
            raise trio.BrokenResourceError

    with trio.fail_after(5):
        await connected(Breaking(0.0, ask(3))).run()


async def test_answers_that_nobody_reads_are_bounded(autojump_clock: object) -> None:
    """A client sends 250 requests and takes no answer, each a quarter of what may be unread, has a few made."""
    size, made = MAX_UNREAD_BYTES // 4, 0
    asks = [orjson.dumps({"type": "peek", "ref": n, "queue": "q", "count": 100}).decode() for n in range(1, 251)]
    client = SlowClient(send_s=3_600, asks=asks)
    connection = connected(client, "x" * size)
    handle_request = connection.handle_request

    async def count(*args: Any) -> Any:
        nonlocal made
        made += 1
        return await handle_request(*args)

    connection.handle_request = count
    with trio.move_on_after(30):
        await connection.run()
    assert connection.unread_bytes < MAX_UNREAD_BYTES + (MAX_LONG_ANSWERS + 1) * size
    assert made <= 4 + MAX_LONG_ANSWERS + 1


@of_each_kind
async def test_requests_of_a_tenant_are_counted_over_its_connections(kind: str, autojump_clock: object) -> None:
    store, usage = SlowStore(), Usage(Rate(1e6, 1e6), Rate(1e9, 1e9))
    usage.under_way = MAX_TENANT_REQUESTS - 2  # elsewhere
    client = SlowClient(0.0, ask(5, kind))
    connection = connected(client)
    connection.usage, connection.handle_request = usage, store.handle_request
    with trio.move_on_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            await trio.sleep(1)
            refused = [(frame["ref"], frame["code"], frame["retry_in_ms"] > 0) for frame in client.got]
            assert refused == [(3, "too_many", True), (4, "too_many", True), (5, "too_many", True)]
            assert usage.under_way == MAX_TENANT_REQUESTS
            store.answer()
    assert usage.under_way == MAX_TENANT_REQUESTS - 2
    assert len(client.got) == 5


async def test_an_address_that_sends_slow_messages_rests_over_all_its_connections(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = count(0.0, 0.9 * LONG_TEXT_S)  # each look at the clock is so much later: a text takes nearly what it may
    monkeypatch.setattr("fairq.server.engine.net.connection.thread_time", lambda: next(cpu))
    monkeypatch.setattr("fairq.server.engine.net.connection.SHORT_BYTES", 0)
    usage = Usage(Rate(1e6, 1e6), Rate(1e9, 1e9))
    began = trio.current_time()

    async def ask_many() -> None:
        client = SlowClient(0.0, ask(20))
        connection = connected(client)
        connection.usage = usage
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            while len(client.got) < 20:  # noqa: ASYNC110 - in virtual time
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    await ask_many()
    assert trio.current_time() - began < 0.1
    cpu = count(0.0, 2 * LONG_TEXT_S)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_many)
        nursery.start_soon(ask_many)
    assert trio.current_time() - began >= 19 * RESTS * 2 * LONG_TEXT_S


class Turns(trio.abc.Instrument):
    """Counts the turns of the scheduler."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_requests_that_wait_end_a_few_at_a_time(autojump_clock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several hundred wait when their client goes; in no turn of the scheduler do more than a few end."""
    monkeypatch.setattr("fairq.server.engine.net.connection.MAX_REQUESTS", 10_000)
    turns, ended = Turns(), list[int]()
    trio.lowlevel.add_instrument(turns)
    client = SlowClient(0.0, ask(10 * ENDS_AT_ONCE))
    connection = connected(client)

    async def wait(connection: Connection, _: Any) -> dict[str, Any]:
        try:
            with connection.waiting(["a"]):
                await trio.sleep_forever()
        finally:
            ended.append(turns.count)
        raise AssertionError

    connection.handle_request = wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        while len(connection._waits) < 10 * ENDS_AT_ONCE:  # noqa: ASYNC110 - in virtual time
            await trio.sleep(1)
        client.closed = (1000, "")  # it says good-bye
    assert len(ended) == 10 * ENDS_AT_ONCE
    assert max(Counter(ended).values()) <= 2 * ENDS_AT_ONCE
    assert connection.requests == 0
