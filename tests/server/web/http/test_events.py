"""Events over HTTP: streams that go on where they ended, and pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import trio

from fairq.server.run import Served
from fairq.server.web.http import bounds
from fairq.server.web.http import events as module
from tests.store.waiting import wait_until

from .harness import Client, api, check, check_problem, head, http_of, plain, read_until, serving

EVENTS, TASKS = "/v1/queues/q/events", "/v1/queues/q/tasks"


@asynccontextmanager
async def streaming(served: Served, **headers: str) -> AsyncIterator[trio.SocketStream]:
    """A stream of events, behind its head; httpx leaves its generators to the garbage collector."""
    async with plain(served) as stream:
        await stream.send_all(head("GET", EVENTS, **headers))
        assert b"content-type: text/event-stream" in await read_until(stream, b"\r\n\r\n")
        yield stream


async def cancelled(client: httpx.AsyncClient, *ids: str) -> None:
    for id in ids:
        check(await client.post(TASKS, json={"payload": 1, "id": id, "events": True}), 201)
        check(await client.delete(f"{TASKS}/{id}"))


async def test_a_stream_tells_events_as_they_come_and_goes_on_behind_the_last(served: Served, ada: Client) -> None:
    await cancelled(ada, "a")
    async with streaming(served) as stream:
        received = await read_until(stream, b"}\n\n")
        assert b"id: 1\nevent: cancelled\ndata: {" in received
        assert b'"task":"a"' in received
        await cancelled(ada, "b")
        assert b'"task":"b"' in await read_until(stream, b"}\n\n")
    await cancelled(ada, "c")
    async with streaming(served, Last_Event_ID="1") as stream:
        received = await read_until(stream, b'"task":"c"')
        assert received.index(b"id: 2\n") < received.index(b'"task":"b"') < received.index(b"id: 3\n")
    page = check(await ada.get(EVENTS, params={"after": 2}, headers={"Accept": "application/json"}))
    assert [row["task"] for row in page["events"]] == ["c"]
    check_problem(await ada.get(EVENTS, params={"after": 99}), 400, "bad_request", "after")
    page = check(await ada.get(EVENTS, headers={"Last-Event-ID": "2", "Accept": "application/json"}))
    assert [row["task"] for row in page["events"]] == ["c"]
    both = await ada.get(EVENTS, params={"after": 2**50 + 1}, headers={"Last-Event-ID": "0"})
    check_problem(both, 400, "bad_request", "after")
    for last in ("x", "-1", "", "9" * 30):
        for accept in ("application/json", "text/event-stream"):
            refused = await ada.get(EVENTS, headers={"Last-Event-ID": last, "Accept": accept})
            check_problem(refused, 400, "bad_request", "Last-Event-ID")


async def test_a_stream_without_events_is_kept_alive_and_given_up_with_its_client(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE_S", 0.05)
    async with streaming(served) as stream:
        for _ in range(3):
            await read_until(stream, b": nothing new\n\n")
    http = http_of(served).listener
    await wait_until(lambda: not http.connections)


async def test_a_head_is_answered_and_the_next_request_too(served: Served) -> None:
    async with plain(served) as stream:
        await stream.send_all(head("HEAD", EVENTS) + head("GET", TASKS + "/none"))
        await read_until(stream, b'"not_found"')


async def test_a_head_waits_for_nothing(served: Served, ada: Client) -> None:
    check(await ada.post(TASKS, json={"payload": 1, "id": "t", "delay": 600}), 201)
    for path in (EVENTS, f"{TASKS}/t"):
        with trio.fail_after(30):
            assert (await ada.head(f"{path}?wait=60")).status_code == 200


async def test_streams_have_a_bound_and_an_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_TENANT_WAITING", 1)
    async with serving(served.store_url) as small, api(small) as ada:
        async with streaming(small) as stream:
            await read_until(stream, b": nothing new")
            check_problem(await ada.get(f"{TASKS}/t", params={"wait": 1}), 429, "too_many")
        monkeypatch.setattr(module, "STREAM_S", 0.3)
        async with streaming(served) as stream:
            await read_until(stream, b"0\r\n\r\n")  # the last chunk


async def test_a_server_that_stops_ends_its_streams(server_store: str) -> None:
    async with serving(server_store) as served, streaming(served) as stream:
        await read_until(stream, b": nothing new")
        await http_of(served).listener.stop()
        await served.app.drain(5)
        received = await read_until(stream, b"0\r\n\r\n")
        assert b"event: error\ndata: {" in received
        assert b'"code":"draining"' in received
