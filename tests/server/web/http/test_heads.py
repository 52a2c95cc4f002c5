"""Heads of requests that can be read in two ways, or are rare."""

from __future__ import annotations

import re
from itertools import product

from fairq.server.run import Served
from fairq.server.web.http.guard import HEADERS
from tests.server.harness import WORKER

from .harness import head, plain, read_all

TWICE: list[dict[str, str]] = [
    {"authorization": f"Bearer {WORKER}", "Connection": "close"},
    {"host": "evil.example"},
    {"Content_Length": "2", "content_length": "60"},
    {"Content_Length": "60", "Transfer_Encoding": "chunked"},
]


async def test_a_request_that_can_be_read_in_two_ways_is_refused_and_the_last_one(served: Served) -> None:
    for twice in TWICE:
        async with plain(served) as stream:
            await stream.send_all(head("GET", "/v1/queues/q/next", **twice) + b"0\r\n\r\n")
            assert (await read_all(stream)).startswith(b"HTTP/1.1 400 "), twice


async def test_a_request_behind_a_refused_one_is_answered(served: Served) -> None:
    last = head("GET", "/v1/queues/q/next", Connection="close")
    for _, size, apart in product(range(5), (14, 60_000), (True, False)):
        refused = head("POST", "/v1/queues/q/tasks", "wrong", Content_Length=str(size)) + bytes(size)
        async with plain(served) as stream:
            for part in (refused, last) if apart else (refused + last,):
                await stream.send_all(part)
            received = await read_all(stream)
        assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"401", b"200"], (size, apart)


async def test_a_header_has_one_value(served: Served) -> None:
    for name in HEADERS:
        async with plain(served) as stream:
            values = {name: "a", name.lower(): "b"}
            await stream.send_all(head("GET", "/openapi.json", None, Connection="close", **values))
            received = await read_all(stream)
        assert received.startswith(b"HTTP/1.1 400 "), name
        assert f'"field":"{name}"'.encode() in received


WHOLE_URLS: list[tuple[str, bytes]] = [
    ("http://127.0.0.1/v1/queues/q/next?count=1", b"200"),
    ("HTTPS://127.0.0.1:7701/v1/queues/q/next", b"200"),
    ("http://127.0.0.1", b"404"),
    ("http://127.0.0.1?v1/queues/q/next", b"404"),
    ("http://evil.example/v1/queues/q/next", b"421"),
    ("http://ada@127.0.0.1/v1/queues/q/next", b"404"),
    ("ftp://127.0.0.1/v1/queues/q/next", b"404"),
]


async def test_a_whole_url_is_taken_as_its_host_and_path(served: Served) -> None:
    for target, status in WHOLE_URLS:
        async with plain(served) as stream:
            await stream.send_all(head("GET", target, Connection="close"))
            assert (await read_all(stream)).startswith(b"HTTP/1.1 " + status), target
