"""Where the HTTP API listens: with TLS, in several processes, and not at all."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trio

import fairq
from fairq.errors import SettingsError
from fairq.server.web.http.listener import WRONG_PORT
from tests.cli.harness import environment
from tests.server.harness import running
from tests.store.cases import raises_for

from .harness import DEADLINE_S, base_of, check, plain, read_all, serving

ADA = {"Authorization": "Bearer dev-tenant:ada"}
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def test_it_is_behind_tls_as_the_websockets_are(server_store: str, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    context = ssl.create_default_context(cafile=cert)
    async with serving(server_store, tls_cert=Path(cert), tls_key=Path(key)) as served:
        async with httpx.AsyncClient(base_url=base_of(served, "https"), headers=ADA, verify=context) as ada:
            check(await ada.post("/v1/queues/q/tasks", json={"payload": 1}), 201)
        async with plain(served) as stream:
            await stream.send_all(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"200" not in await stream.receive_some()


async def test_a_port_that_is_taken_is_named(server_store: str) -> None:
    async with serving(server_store) as served:
        assert served.http is not None
        with raises_for("http_port", SettingsError):
            async with running(server_store, http_port=served.http.port):
                pass


@pytest.mark.parametrize("listener", ["http", "admin"])
async def test_a_client_at_its_port_reads_that_it_is_not_that_of_websockets(server_store: str, listener: str) -> None:
    async with serving(server_store, admin_port=0) as served:
        port = getattr(served, listener).port
        async with fairq.open_client(f"ws://127.0.0.1:{port}", token="dev-tenant:ada") as ada:
            with pytest.raises(fairq.Forbidden, match=r"this port is for HTTP; .*ws://"):
                await ada.enqueue("emails", 1)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(UPGRADE)
            answer = await read_all(stream)  # the server closes it
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert answer.endswith(WRONG_PORT)


async def test_it_is_off_unless_asked_for(server_store: str) -> None:
    async with running(server_store) as served:
        assert served.http is None


def test_its_libraries_are_imported_only_where_it_is_on() -> None:
    script = (
        "import sys, fairq, fairq.server.run; print([n for n in sys.modules if n in ('starlette', 'hypercorn', 'h2')])"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done


@pytest.mark.deep("kills")
def test_several_processes_share_its_port(server_store: str) -> None:
    flags = ("--dev", "--port", "0", "--http-port", "0", "--processes", "2", "--store", server_store, "--unsafe-store")
    argv = [sys.executable, "-m", "fairq", "serve", *flags, "--log-json"]
    with subprocess.Popen(argv, env=environment(), stderr=subprocess.PIPE) as server:
        try:
            assert server.stderr is not None
            logged = (json.loads(line) for line in server.stderr)
            url = next(line["http"] for line in logged if line["event"] == "serving")
            for n in range(8):  # a connection each: the kernel gives them to either process
                made = httpx.post(f"{url}/v1/queues/q/tasks", headers=ADA, json={"payload": n}, timeout=DEADLINE_S)
                assert made.status_code == 201
        finally:
            server.terminate()
            server.communicate(timeout=60)
    assert server.returncode == 0
