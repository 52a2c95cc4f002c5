"""A server with its HTTP API inside the test, a client of one token, and plain sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import trio

from fairq.server.run import HttpServed, Served
from tests.server.harness import running

DEADLINE_S = 60.0
Client = httpx.AsyncClient


@asynccontextmanager
async def serving(store: str, **settings: Any) -> AsyncIterator[Served]:
    """A server with development tokens and an HTTP API on a free port."""
    async with running(store, **{"http_port": 0, **settings}) as served:
        yield served


def http_of(served: Served) -> HttpServed:
    """A server's HTTP API."""
    assert served.http is not None
    return served.http


def base_of(served: Served, scheme: str = "http") -> str:
    """The URL of a server's HTTP API."""
    return f"{scheme}://{http_of(served).host}:{http_of(served).port}"


@asynccontextmanager
async def api(served: Served, token: str | None = "dev-tenant:ada", **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client that sends a token; it need not read certificates, which takes 30 ms."""
    more = {"headers": {"Authorization": f"Bearer {token}"} if token else {}, "verify": False, **more}
    async with httpx.AsyncClient(base_url=base_of(served), timeout=DEADLINE_S, **more) as client:
        yield client


def check(response: httpx.Response, status: int = 200) -> Any:
    """Return an answer's JSON if it has this status."""
    assert response.status_code == status, (response.status_code, response.text)
    return response.json()


def check_problem(response: httpx.Response, status: int, code: str, field: str | None = None) -> dict[str, Any]:
    where = (response.request.url, response.text)
    assert response.status_code == status, where
    assert response.headers["content-type"] == "application/problem+json", where
    answer: dict[str, Any] = response.json()
    assert (answer["code"], answer.get("field"), answer["status"]) == (code, field, status), where
    assert answer.keys() >= {"type", "title", "detail"}
    return answer


@asynccontextmanager
async def plain(served: Served) -> AsyncIterator[trio.SocketStream]:
    """A TCP connection to the HTTP API."""
    stream = await trio.open_tcp_stream(http_of(served).host, http_of(served).port)
    try:
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


async def read_all(stream: trio.SocketStream) -> bytes:
    """Read until the server closes."""
    data = b""
    with suppress(trio.BrokenResourceError), trio.fail_after(DEADLINE_S):
        while more := await stream.receive_some():
            data += more
    return data


async def read_until(stream: trio.SocketStream, end: bytes) -> bytes:
    """Read until some bytes have come."""
    data = b""
    with trio.fail_after(DEADLINE_S):
        while end not in data:
            more = await stream.receive_some()
            assert more, data
            data += more
    return data


def head(method: str, path: str, token: str | None = "dev-tenant:ada", **headers: str) -> bytes:
    given = {"Host": "127.0.0.1", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if token:
        given["Authorization"] = f"Bearer {token}"
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
