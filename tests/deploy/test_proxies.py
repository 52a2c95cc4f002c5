"""nginx and Caddy, with deploy's configuration, before a real server: TLS, websockets, the HTTP API, event streams."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio

import fairq
from fairq.server.run import Served
from tests import stores
from tests.parts import program
from tests.server.conftest import server_store
from tests.server.harness import WORKER, running, tenant
from tests.server.web.http.harness import DEADLINE_S
from tests.store.certificates import make_certificate

from .tools import DEPLOY, run

__all__ = ["server_store"]

pytestmark = pytest.mark.deep("deploy")

HOST = "127.0.0.1"


def nginx(directory: Path, served: Served, port: int, dead: int | None = None) -> list[str]:
    """Write nginx.conf for a server, and one at a port where nobody listens; returns the command."""
    assert served.http is not None
    text = (DEPLOY / "nginx.conf").read_text().replace("/etc/fairq/", f"{directory}/")
    text = text.replace("listen 443 ssl http2", f"listen {HOST}:{port} ssl http2")
    text = text.replace("listen 80", f"listen {HOST}:{stores.free_port()}")
    text = re.sub(r":77[01]0", f":{served.port}", text)
    text = text.replace(":7711", f":{dead or served.http.port}").replace(":7701", f":{served.http.port}")
    paths = "".join(
        f"{kind}_temp_path {directory}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (directory / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {directory}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{paths}{text}\n}}\n"
    )
    return [program("nginx"), "-e", "stderr", "-p", str(directory), "-c", str(directory / "nginx.conf")]


def caddy(directory: Path, served: Served, port: int, dead: int | None = None) -> list[str]:
    """Write Caddyfile for a server, and one at a port where nobody listens; returns the command."""
    assert served.http is not None
    text = (DEPLOY / "Caddyfile").read_text()
    servers, http = (" ".join(f"{HOST}:{each}" for each in (of.port, dead) if each) for of in (served, served.http))
    given = {"SITE": f"https://{HOST}:{port}", "SERVERS": servers, "HTTP_SERVERS": http}
    for name, value in given.items():
        text, found = re.subn(rf"\{{\$FAIRQ_{name}:[^}}]*\}}", value, text)
        assert found == 1
    site = f"{given['SITE']} {{"
    text = text.replace(site, f"{site}\n\ttls {directory}/cert.pem {directory}/key.pem")
    options = "{\n\tadmin off\n\tauto_https disable_redirects\n\tstorage file_system " + f"{directory}/caddy\n}}\n"
    (directory / "Caddyfile").write_text(options + text)
    return [program("caddy"), "run", "--adapter", "caddyfile", "--config", str(directory / "Caddyfile")]


PROXIES = {"nginx": nginx, "caddy": caddy}


@asynccontextmanager
async def proxying(command: list[str], port: int, directory: Path) -> AsyncIterator[None]:
    """Run a proxy while the block lasts; it answers on entry."""
    with (directory / "log").open("wb") as log:
        process = await trio.lowlevel.open_process(command, stdout=log, stderr=log, cwd=directory)
    try:
        async with httpx.AsyncClient(verify=False, timeout=5) as client:
            while True:
                try:
                    if (await client.get(f"https://{HOST}:{port}/openapi.json")).status_code == 200:
                        break
                except httpx.TransportError:
                    assert process.poll() is None, (directory / "log").read_text()
                await trio.sleep(0.05)
        yield
    finally:
        process.kill()
        with trio.CancelScope(shield=True), trio.fail_after(20):
            await process.wait()


def test_caddy_accepts_its_configuration_and_finds_it_well_formed() -> None:
    run("caddy", "validate", "--adapter", "caddyfile", "--config", DEPLOY / "Caddyfile")
    assert run("caddy", "fmt", DEPLOY / "Caddyfile") == (DEPLOY / "Caddyfile").read_text()


@pytest.mark.parametrize("name", PROXIES)
async def test_clients_workers_and_streams_go_through_a_proxy_with_tls(
    server_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    cert, _ = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", cert)
    port, tls = stores.free_port(), ssl.create_default_context(cafile=cert)
    with trio.fail_after(25):
        async with running(server_store, http_port=0) as served:
            command = PROXIES[name](tmp_path, served, port)
            if name == "nginx":
                await trio.to_thread.run_sync(run, "nginx", "-t", *command[1:])
            async with proxying(command, port, tmp_path):
                await work_through(port)
                base = f"https://{HOST}:{port}"
                headers = {"Authorization": f"Bearer {tenant('ada')}"}
                async with httpx.AsyncClient(base_url=base, headers=headers, timeout=DEADLINE_S, verify=tls) as ada:
                    made = await ada.post("/v1/queues/q/tasks", json={"payload": "x" * 900_000, "events": True})
                    assert (made.status_code, "x-request-id" in made.headers) == (201, True)
                    async with streaming(port, tls) as stream:
                        await ada.delete(f"/v1/queues/q/tasks/{made.json()['id']}")
                        assert b"event: cancelled" in await read_until(stream, b"}\n\n")
                    assert (await ada.get("/metrics")).status_code in (400, 404, 426)


@pytest.mark.parametrize("name", PROXIES)
async def test_tasks_are_taken_while_one_of_two_servers_is_down(server_store: str, tmp_path: Path, name: str) -> None:
    make_certificate(tmp_path)
    port, headers, taken = stores.free_port(), {"Authorization": f"Bearer {tenant('ada')}"}, 0
    with trio.fail_after(25):
        async with running(server_store, http_port=0) as served:
            command = PROXIES[name](tmp_path, served, port, stores.free_port())
            async with (
                proxying(command, port, tmp_path),
                httpx.AsyncClient(base_url=f"https://{HOST}:{port}", headers=headers, verify=False) as ada,
            ):
                while taken < 20:  # in a row, once it has seen that one is down
                    made = await ada.post("/v1/queues/q/tasks", json={"payload": 1})
                    taken = taken + 1 if made.status_code == 201 else 0
                for _ in range(10):  # as what opens a websocket
                    assert "websockets" in (await ada.get("/")).text


@asynccontextmanager
async def streaming(port: int, tls: ssl.SSLContext) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
    """A stream of events, behind its head."""
    stream = await trio.open_ssl_over_tcp_stream(HOST, port, ssl_context=tls)
    try:
        lines = ("GET /v1/queues/q/events HTTP/1.1", f"Host: {HOST}:{port}", f"Authorization: Bearer {tenant('ada')}")
        await stream.send_all("\r\n".join((*lines, "Accept: text/event-stream", "", "")).encode())
        assert b"text/event-stream" in (await read_until(stream, b"\r\n\r\n")).lower()
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


async def read_until(stream: trio.abc.ReceiveStream, end: bytes) -> bytes:
    """Read up to some bytes, and what came with them."""
    found = b""
    while end not in found:
        more = await stream.receive_some(65_536)
        assert more, found
        found += more
    return found


async def work_through(port: int) -> None:
    """Enqueue, run and wait for a task over websockets."""
    url = f"wss://{HOST}:{port}"
    app = fairq.Worker(url, token=WORKER)

    @app.task("emails")
    async def send(task: fairq.Task) -> str:
        return f"sent {task.payload}"

    async with fairq.open_client(url, token=tenant("ada")) as client, trio.open_nursery() as nursery:
        nursery.start_soon(app.run)
        task = await client.enqueue("emails", "a", result_ttl=60)
        assert await task.result(timeout=20) == "sent a"
        nursery.cancel_scope.cancel()
