"""The listener: nothing that a client does reaches beyond its own connection, and nothing of it stays behind."""

from __future__ import annotations

import gc
import os
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from socket import SHUT_WR, create_connection

import pytest
import trio
import trio.testing

from fairq.errors import Forbidden, Unavailable
from fairq.server import listener as module
from fairq.server.engine.net.admission import TLS_PER_TURN
from fairq.server.engine.net.auth import Auth, Identity
from fairq.server.run import Served, running_server
from fairq.server.settings import Settings
from fairq.wire.connection_errors import Disconnected
from fairq.wire.raw_payloads import to_message
from tests.sending import send_message
from tests.server.web.http.harness import read_all, read_until
from tests.store.waiting import wait_until

from .harness import OPERATOR, WORKER, Raw, open_fds, raw, running, tenant, url_of
from .test_connection import Turns

KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def handshake(**headers: str | None) -> bytes:
    """A websocket handshake of ours, with headers changed or (None) left out."""
    given = {
        "Host": "127.0.0.1", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY, "Sec-WebSocket-Protocol": "fairq.v1", "Authorization": f"Bearer {WORKER}",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }  # fmt: skip
    lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
    return ("GET / HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode()


@asynccontextmanager
async def socket(served: Served) -> AsyncIterator[trio.SocketStream]:
    """A plain TCP connection to the server."""
    stream = await trio.open_tcp_stream(served.host, served.port)
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


def frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    """A masked websocket frame, as clients send them."""
    mask = os.urandom(4)
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    return bytes([(0x80 if final else 0) | opcode]) + size + mask + masked


def tasks_living() -> int:
    """Count the tasks of this trio run."""
    return trio.lowlevel.current_statistics().tasks_living


async def check_healthy(served: Served) -> None:
    """Check that others are still served."""
    async with raw(served, tenant("ada")) as client:
        assert await client.enqueue("q", [os.urandom(8).hex()]) == ["ok"]


NO_HANDSHAKES: list[bytes] = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # a TLS hello
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 100_000 + b"\r\n\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"\r\n\r\n\r\n",
    os.urandom(4096),
    handshake(Sec_WebSocket_Key=None),
    handshake(Sec_WebSocket_Version="12"),
]


async def test_a_request_that_is_no_handshake_ends_only_its_own_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for request_ in NO_HANDSHAKES:
        with monkeypatch.context() as patch:
            patch.setattr(module, "HANDSHAKE_S", 0.3)
            async with socket(served) as stream:
                await stream.send_all(request_)
                assert b"101 Switching" not in await read_all(stream), request_
        await check_healthy(served)


async def test_many_clients_that_connect_and_leave_leave_nothing_behind(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_healthy(served)
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.5)
    await trio.testing.wait_all_tasks_blocked(0.05)
    tasks, fds = tasks_living(), open_fds()
    for pieces in (b"", b"GET / HT", handshake(), b"\xff" * 100):
        for _ in range(15):
            async with socket(served) as stream:
                if pieces:
                    await stream.send_all(pieces)
    await wait_until(lambda: tasks_living() <= tasks and open_fds() <= fds)
    assert not served.app.connections


async def test_a_setting_that_is_read_when_its_client_has_gone_is_not_made(served: Served) -> None:
    """As by a server that was frozen: the client has made it at another one, and perhaps a newer one since."""
    async with raw(served, OPERATOR) as left, raw(served, OPERATOR) as operator:
        await operator.ask("configure", queue="q", settings={"lease_ms": 60_000})
        late = {"type": "configure", "ref": 1, "queue": "q", "settings": {"lease_ms": 1_000}}
        left.transport.websocket.send(to_message(late))
        left.transport.send_now()
        left.transport.socket.shutdown(SHUT_WR)  # before the server, which runs in this thread, has read
        await wait_until(lambda: len(served.app.connections) == 1)
        (row,) = (await operator.ask("queues"))["queues"]
        assert row["settings"]["lease_ms"] == 60_000


async def test_a_connection_without_a_request_is_one_task(served: Served) -> None:
    await check_healthy(served)
    await trio.testing.wait_all_tasks_blocked(0.05)
    tasks = tasks_living()
    async with socket(served) as silent, socket(served) as slow:
        await slow.send_all(b"GET / HT")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert tasks_living() == tasks + 2
        await silent.send_all(b"\x16\x03\x01")  # what is not HTTP is answered at once
        assert (await silent.receive_some()).startswith(b"HTTP/1.1 400")


async def test_a_slow_handshake_is_closed_after_its_deadline(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.2)
    async with socket(served) as silent, socket(served) as slow:
        await slow.send_all(handshake()[:40])
        assert await read_all(silent) == b""
        assert await read_all(slow) == b""


UNWANTED: list[tuple[dict[str, str | None], bytes]] = [  # test_heads.py has more
    ({"Authorization": "Basic ZGV2OmRldg=="}, b"401"),
    ({"Authorization": "Bearer"}, b"401"),
    ({"authorization": f"Bearer {WORKER}"}, b"400"),  # a second one
]


async def test_an_unwanted_client_is_refused_with_a_reason(served: Served) -> None:
    for headers, status in UNWANTED:
        async with socket(served) as stream:
            await stream.send_all(handshake(**headers))
            head, _, body = (await read_all(stream)).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 " + status), (headers, head)
            assert body.strip(), headers


async def test_an_origin_that_was_allowed_may_connect(server_store: str) -> None:
    async with running(server_store, origins=["https://good.example"]) as served, socket(served) as stream:
        await stream.send_all(handshake(Origin="https://good.example"))
        head = await read_until(stream, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101")
        assert b"sec-websocket-protocol: fairq.v1" in head.lower()


async def test_a_binary_message_is_an_error_and_the_connection_lives(worker: Raw) -> None:
    worker.transport.websocket.send(b'{"type":"ping"}')
    await send_message(worker.transport, "{}")
    answer = await worker.receive()
    assert (answer["type"], answer["code"]) == ("error", "bad_frame")
    await worker.attach("q")


@pytest.fixture
def patient_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that wait for the answer to their good-bye, however late it comes."""
    monkeypatch.setattr("fairq.server.engine.net.transport.CLOSE_S", 60.0)


@pytest.mark.usefixtures("patient_closing")
async def test_an_oversized_message_is_closed_with_1009_and_its_socket_freed(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its client stays."""
    too_long = "x" * (65_537 + (1 << 20))
    async with running(server_store, max_payload_bytes=65_536) as served:
        await check_healthy(served)
        await trio.testing.wait_all_tasks_blocked(0.05)
        gc.collect()
        fds, tasks = open_fds(), tasks_living()
        async with raw(served, WORKER) as worker:
            with suppress(Disconnected):
                await send_message(worker.transport, too_long)
            assert (await worker.closed())[0] == 1009
        monkeypatch.setattr("fairq.server.engine.net.transport.CLOSE_S", 0.1)
        async with raw(served, WORKER) as stays:
            with suppress(Disconnected):
                await send_message(stays.transport, too_long)
            await wait_until(lambda: not served.app.connections)
        await wait_until(lambda: open_fds() <= fds and tasks_living() <= tasks)


async def test_broken_framing_ends_only_its_own_connection(served: Served) -> None:
    async with socket(served) as stream:
        await stream.send_all(handshake())
        await read_until(stream, b"welcome")
        await stream.send_all(frame(3, b"") + frame(1, b"{}"))  # a reserved opcode
        await read_all(stream)
    await wait_until(lambda: not served.app.connections)
    await check_healthy(served)


@pytest.mark.usefixtures("patient_closing")
async def test_a_ping_while_the_server_closes_does_not_end_the_server(served: Served) -> None:
    async with socket(served) as stream:
        await stream.send_all(handshake())
        await read_until(stream, b"welcome")
        (connection,) = served.app.connections
        connection.close(1000, "good-bye")
        await read_until(stream, b"good-bye")
        await stream.send_all(frame(9, b"still there?") + frame(1, b"{}") + frame(8, b"\x03\xe8"))
        await read_all(stream)
    await wait_until(lambda: not served.app.connections)
    await check_healthy(served)


async def test_those_who_gave_up_cost_no_handshake(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    known = Auth.identify

    async def identify(auth: Auth, token: str) -> Identity:
        begun.append(token)
        return await known(auth, token)

    monkeypatch.setattr(Auth, "identify", identify)
    for _ in range(20):  # without a turn of the scheduler, so that each has left before it is looked at
        with create_connection((served.host, served.port)) as gone:
            gone.sendall(handshake())
    await check_healthy(served)
    assert begun == [tenant("ada")]


async def test_connections_over_the_limit_are_refused_until_one_leaves(server_store: str) -> None:
    async with running(server_store, max_connections=2) as served:
        async with raw(served, WORKER), raw(served, OPERATOR) as operator:
            with pytest.raises(Unavailable, match="at most 2 for this server"):
                async with raw(served, WORKER):
                    pass
            assert (await operator.ask("queues"))["queues"] == []
        await wait_until(lambda: not served.app.connections)
        await check_healthy(served)


async def test_a_client_that_never_reads_is_closed_and_its_tasks_go_elsewhere(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.server.engine.net.transport.SEND_S", 0.3)
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as stays, socket(served) as deaf:
        await deaf.send_all(handshake())
        await read_until(deaf, b"welcome")
        await deaf.send_all(frame(1, b'{"type":"attach","ref":1,"worker":"d","queues":["q"],"credit":500}'))
        await read_until(deaf, b'"leases"')
        assert [connection.name for connection in served.app.connections if connection.queues] == ["d"]
        big = "x" * 100_000
        for number in range(100):  # 10 MB are more than the kernel's buffers hold
            await ada.ask("enqueue", queue="q", tasks=[{"id": f"id-{number}", "payload": big}])
        await wait_until(lambda: not any(connection.queues for connection in served.app.connections))
        monkeypatch.setattr("fairq.server.engine.net.transport.SEND_S", 30.0)
        await stays.attach("q", credit=100)
        assert len({task["id"] for task in await stays.pushed(100)}) == 100
        assert [connection.name for connection in served.app.connections if connection.queues] == ["w"]


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v1/queues/q/tasks?ids=a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"POST /v1/queues/q/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 13\r\n\r\n" + b'{"payload":1}',
    ],
    ids=["get", "post"],
)
async def test_a_request_of_the_http_api_reads_that_its_port_is_another(served: Served, request_: bytes) -> None:
    async with socket(served) as stream:
        await stream.send_all(request_)
        head, _, body = (await read_all(stream)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"content-length: %d" % len(body) in head.lower()
        assert body.startswith(b"this port is for websockets; the HTTP API has one of its own")


async def test_tls_serves_wss_and_shrugs_off_plain_text(
    server_store: str, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    settings = Settings(port=0, store=server_store, dev=True, tls_cert=certificate[0], tls_key=certificate[1])  # type: ignore[arg-type]
    async with running_server(settings) as served:
        url = url_of(served).replace("ws://", "wss://")
        async with raw(url, OPERATOR) as operator:
            monkeypatch.setattr(module, "HANDSHAKE_S", 0.5)
            async with socket(served) as plain, socket(served) as silent:
                await plain.send_all(handshake())
                await read_all(plain)
                assert await read_all(silent) == b""
            assert (await operator.ask("queues"))["queues"] == []


@pytest.mark.parametrize("listener", ["ws", "http", "admin"])
async def test_a_few_tls_handshakes_go_on_in_one_turn(
    listener: str, server_store: str, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, went_on, do_handshake = Turns(), dict[ssl.SSLObject, int](), ssl.SSLObject.do_handshake

    def counted(handshake: ssl.SSLObject) -> None:
        went_on.setdefault(handshake, turns.count)
        do_handshake(handshake)

    hello = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    first, rest = hello.read(1), hello.read()
    monkeypatch.setattr(ssl.SSLObject, "do_handshake", counted)
    ports = {"http_port": 0, "admin_port": 0}
    settings = Settings(port=0, store=server_store, dev=True, tls_cert=certificate[0], tls_key=certificate[1], **ports)  # type: ignore[arg-type]
    async with running_server(settings) as served, AsyncExitStack() as open_:
        trio.lowlevel.add_instrument(turns)
        port = {"ws": served, "http": served.http, "admin": served.admin}[listener].port  # type: ignore[union-attr]
        streams = [await open_.enter_async_context(await trio.open_tcp_stream(served.host, port)) for _ in range(40)]
        for stream in streams:
            await stream.send_all(first)
        await trio.testing.wait_all_tasks_blocked(0.05)
        went_on.clear()
        for stream in streams:  # without a turn of the scheduler
            os.write(stream.socket.fileno(), rest)
        for stream in streams:
            await stream.receive_some(1)  # the server's hello
    assert len(went_on) == 40
    assert max(Counter(went_on.values()).values()) <= TLS_PER_TURN


async def test_a_forbidden_client_learns_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairq.wire.websocket.SUBPROTOCOL", "fairq.v0")
    with pytest.raises(Forbidden, match="subprotocol"):
        async with raw(served, OPERATOR):
            pass
