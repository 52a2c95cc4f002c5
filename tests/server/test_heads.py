"""The requests of heads.json, as they are sent: each is answered as it says, by the port that it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from fairq.server.run import Served
from fairq.server.web.http import listener
from fairq.wire import messages as wire
from tests.store.cases import case

from .harness import running
from .web.http.harness import http_of, read_all, read_until

HEADS: list[dict[str, Any]] = json.loads((Path(wire.__file__).parent / "heads.json").read_text(encoding="utf-8"))


async def test_a_request_is_answered_once_and_as_the_file_says(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(server_store, http_port=0) as patient:
        monkeypatch.setattr(listener, "HEAD_S", 0.2)
        async with running(server_store, http_port=0) as impatient:
            for each in HEADS:
                with case(each["is"]):
                    check(each, *await answer(impatient if each["status"] == 408 else patient, each))


async def answer(served: Served, each: dict[str, Any]) -> tuple[str, str]:
    """Send a request; returns the head of the answer, and all that follows it."""
    port = http_of(served).port if each["to"] == "http" else served.port
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all((each["request"] + "x" * each.get("then", 0)).encode())
        if each.get("closed"):
            head, _, body = (await read_all(stream)).decode().partition("\r\n\r\n")
        else:
            head, _, body = (await read_until(stream, b"\r\n\r\n")).decode().partition("\r\n\r\n")
            if "code" in each and "}" not in body:
                body += (await read_until(stream, b"}")).decode()
    return head, body


def check(each: dict[str, Any], head: str, body: str) -> None:
    assert head.startswith(f"HTTP/1.1 {each['status']} ")
    assert not re.search(r"HTTP/1\.1 \d", body)  # one answer
    ids = re.findall(r"(?im)^x-request-id: (\S+)\r?$", head)
    if each["status"] != 101:
        assert len(ids) == 1
        assert re.fullmatch(each.get("id", "[0-9a-f]{16}"), ids[0])
    if "code" in each:
        problem = json.loads(body)
        assert (problem["code"], problem.get("field")) == (each["code"], each.get("field"))
