"""Payloads up to what a server's setting allows, here 2 MiB; tests/system sends the longest there can be."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

import fairq
from fairq.errors import TooLarge
from fairq.model.checks import DEFAULT_PAYLOAD_BYTES
from fairq.server.run import Served
from tests.server.harness import Refused, raw, running, tenant, url_of

from .harness import wait_state, worker_of, working

LIMIT = 2 << 20
LONGEST = "x" * (LIMIT - 2)


@pytest.fixture
async def roomy(server_store: str) -> AsyncIterator[Served]:
    """A server that takes longer payloads than usual."""
    async with running(server_store, max_payload_bytes=LIMIT) as served:
        yield served


async def test_the_longest_payload_goes_all_the_way_and_back(roomy: Served) -> None:
    app, got = worker_of(roomy), []

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        got.append((task.attempt, task.payload == LONGEST))
        if task.attempt == 1:
            raise fairq.Reject("unwanted")

    with trio.fail_after(60):
        async with fairq.open_client(url_of(roomy), token=tenant("ada")) as ada:
            task = await ada.enqueue("emails", LONGEST)
            short = await ada.enqueue("emails", "short")
            peeked = [each.payload for each in await ada.peek("emails")]
            assert peeked == [LONGEST], "a long one fills a page"
            async with working(app):
                await wait_state(task, "dead")
                await wait_state(short, "dead")
                letters = ada.dead_letters("emails")
                assert (await letters.show(task.id)).payload == LONGEST
                walked = {letter.id: letter.payload async for letter in letters.walk()}
                assert walked == {task.id: LONGEST, short.id: "short"}
                assert await letters.replay([task.id]) == ["ok"]
                await wait_state(task, "done")
    assert got == [(1, True), (1, False), (2, True)]


async def test_the_server_refuses_what_a_client_sends_all_the_same(served: Served, roomy: Served) -> None:
    for server, limit in ((served, DEFAULT_PAYLOAD_BYTES), (roomy, LIMIT)):
        async with raw(server, tenant("ada")) as ada:
            assert ada.welcome["max_payload_bytes"] == limit
            assert ada.welcome["max_message_bytes"] == limit + (1 << 20)
            with pytest.raises(Refused, match=f"payload has {limit + 1} bytes; the limit is {limit}") as caught:
                await ada.ask("enqueue", queue="q", tasks=[{"id": "a", "payload": "x" * (limit - 1)}])
            assert (caught.value.code, caught.value.field) == ("too_large", "payload")


async def test_a_server_with_a_smaller_limit_delivers_what_is_stored(server_store: str, roomy: Served) -> None:
    async with running(server_store, max_payload_bytes=65_536) as small:
        app, got = worker_of(small), []

        @app.task("emails")
        async def send(task: fairq.Task) -> None:
            got.append(task.payload == LONGEST)

        with trio.fail_after(60):
            async with fairq.open_client(url_of(roomy), token=tenant("ada")) as ada:
                task = await ada.enqueue("emails", LONGEST)
            async with fairq.open_client(url_of(small), token=tenant("ada")) as ada:
                assert [each.payload == LONGEST for each in await ada.peek("emails")] == [True]
                with pytest.raises(TooLarge, match="the limit is 65536"):
                    await ada.enqueue("emails", LONGEST)
                task = fairq.EnqueuedTask(task.id, "emails", client=ada)
                async with working(app):
                    await wait_state(task, "done")
    assert got == [True]
