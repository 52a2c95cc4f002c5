"""Another library's websockets: its client with our server, and our SDK with its server, plain and over TLS.

The stranger's server stands between the SDK and a server of ours, and passes texts on by a client of the same library.
tests/wire/test_unknown_client.py talks by a third library.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import websockets.exceptions
import websockets.sync.client
import websockets.sync.server
from websockets.typing import Subprotocol

import fairq
from fairq.server.run import running_server
from fairq.server.settings import Settings
from fairq.wire import terms
from tests.client.harness import working
from tests.frames import read_frame, write_frame
from tests.store.waiting import wait_until

from .harness import WORKER, tenant

SUBPROTOCOL = Subprotocol(terms.SUBPROTOCOL)
BIG = "x" * 200_000
ENQUEUE = {"type": "enqueue", "ref": 1, "queue": "emails", "tasks": [{"id": "a", "payload": BIG}]}
PEEK = {"type": "peek", "ref": 2, "queue": "emails"}


@pytest.fixture(params=["ws", "wss"])
async def url(
    request: pytest.FixtureRequest, server_store: str, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """A server's URL, plain and over TLS."""
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    tls: dict[str, Any] = {"tls_cert": certificate[0], "tls_key": certificate[1]} if request.param == "wss" else {}
    async with running_server(Settings(port=0, store=server_store, dev=True, **tls)) as served:
        yield f"{request.param}://127.0.0.1:{served.port}"


def client_tls(url: str) -> ssl.SSLContext | None:
    """Trust the certificate of this test."""
    return ssl.create_default_context() if url.startswith("wss") else None


def answered(frames: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Sort frames by what they answer."""
    return {frame["ref"]: frame for frame in frames if "ref" in frame}


def check(frames: list[dict[str, Any]]) -> None:
    """See that a welcome came, a long enqueue was carried out, and a peek showed its task."""
    assert frames[0]["type"] == "welcome"
    replies = answered(frames)
    assert replies[1]["body"]["outcomes"] == ["ok"]
    assert replies[2]["body"]["tasks"][0]["id"] == "a"


def sync_client(url: str) -> list[dict[str, Any]]:
    """Talk by threads, in fragments."""
    headers = {"Authorization": f"Bearer {tenant('ada')}"}
    with websockets.sync.client.connect(
        url, subprotocols=[SUBPROTOCOL], additional_headers=headers, ssl=client_tls(url), max_size=None
    ) as socket:
        frames = [read_frame(socket.recv(10))]
        text = write_frame(ENQUEUE)
        socket.send(text[start : start + 1_000] for start in range(0, len(text), 1_000))
        frames.append(read_frame(socket.recv(10)))
        assert socket.ping().wait(10)
        socket.send(write_frame(PEEK))
        frames.append(read_frame(socket.recv(10)))
    assert socket.close_code == 1000
    return frames


async def test_clients_of_websockets_are_served(url: str) -> None:
    check(await trio.to_thread.run_sync(sync_client, url))


@asynccontextmanager
async def sync_relay(url: str, tls: ssl.SSLContext) -> AsyncIterator[str]:
    """Stand in front of a server, by threads."""

    def relay(socket: websockets.sync.server.ServerConnection) -> None:
        assert socket.request is not None
        headers = {"Authorization": socket.request.headers["Authorization"]}
        with websockets.sync.client.connect(
            url, subprotocols=[SUBPROTOCOL], additional_headers=headers, ssl=client_tls(url), max_size=None
        ) as inner:

            def back() -> None:
                with suppress(websockets.exceptions.ConnectionClosed):
                    for text in inner:
                        socket.send(text)

            thread = threading.Thread(target=back)
            thread.start()
            with suppress(websockets.exceptions.ConnectionClosed):
                for text in socket:
                    inner.send(text)
            inner.close()
            thread.join()

    with websockets.sync.server.serve(
        relay, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL], ssl=tls, max_size=None
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"wss://127.0.0.1:{server.socket.getsockname()[1]}"
        await trio.to_thread.run_sync(server.shutdown)  # it waits for what our server says
        await trio.to_thread.run_sync(thread.join)


async def work_through(url: str) -> None:
    """Enqueue by the SDK, and run the tasks by its worker."""
    app, ran = fairq.Worker(url, WORKER, 5), []

    @app.task("emails")
    async def send(task: fairq.Task) -> str:
        ran.append(task.payload)
        return BIG

    async with fairq.open_client(url, token=tenant("ada")) as client:
        wanted = await client.enqueue("emails", BIG, result_ttl=60)
        await client.enqueue_many("emails", range(30))
        async with working(app):
            assert await wanted.result(timeout=20) == BIG
            await wait_until(lambda: len(ran) == 31)


@pytest.mark.parametrize("url", ["wss"], indirect=True)
async def test_the_sdk_works_through_a_strangers_server(url: str, certificate: tuple[str, str]) -> None:
    async with sync_relay(url, server_tls(certificate)) as outer:
        await work_through(outer)


def server_tls(certificate: tuple[str, str]) -> ssl.SSLContext:
    """Serve with this test's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context
