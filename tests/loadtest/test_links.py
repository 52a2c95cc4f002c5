"""The links of `faults`: each does to real connections what its fault says, and then lets all through again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio

from loadtest.faults import deeds
from loadtest.faults import link as link_module
from loadtest.faults.link import HALF, HOST, Edge, Link
from loadtest.faults.watched import FAR
from loadtest.processes import RunFailed, free_port
from tests import stores

LIMIT_S = 20.0


async def _echo(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)


@asynccontextmanager
async def linked() -> AsyncIterator[Link]:
    """Run a link to a server that sends back what comes."""
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host=HOST)
            nursery.start_soon(trio.serve_listeners, _echo, listeners)
            link = Link(free_port(), listeners[0].socket.getsockname()[1])
            await nursery.start(link.run)
            yield link
            nursery.cancel_scope.cancel()


async def talk(link: Link, address: str = HOST) -> trio.SocketStream:
    """Open a connection that works."""
    stream = await trio.open_tcp_stream(HOST, link.port, local_address=address)
    await stream.send_all(b"first")
    assert await stream.receive_some() == b"first"
    return stream


async def is_over(stream: trio.SocketStream) -> bool:
    try:
        return await stream.receive_some() == b""
    except trio.BrokenResourceError:
        return True


async def is_silent(stream: trio.SocketStream) -> bool:
    with trio.move_on_after(0.05):
        return not await stream.receive_some()
    return True


async def test_a_lost_reply_breaks_its_connection_behind_the_request() -> None:
    async with linked() as link, await talk(link) as stream:
        link.lose_reply()
        await stream.send_all(b"second")
        assert await is_over(stream)
        assert link.lost.is_set()
        await (await talk(link)).aclose()


async def test_a_half_open_link_is_silent_and_new_connections_work() -> None:
    async with linked() as link, await talk(link) as stream:
        link.mute()
        await stream.send_all(b"second")
        assert await is_silent(stream)
        assert not link.is_used
        await (await talk(link)).aclose()


async def test_a_held_link_brings_all_when_it_is_healed() -> None:
    async with linked() as link, await talk(link) as stream:
        link.hold()
        await stream.send_all(b"second")
        assert await is_silent(stream)
        link.heal()
        assert await stream.receive_some() == b"second"


async def test_a_reply_is_not_lost_on_a_half_open_connection() -> None:
    async with linked() as link, await talk(link) as silent:
        link.mute()
        async with await talk(link) as stream:
            link.lose_reply()
            await silent.send_all(b"second")
            assert await is_silent(silent)
            await stream.send_all(b"second")
            assert await is_over(stream)
            assert link.lost.is_set()


@pytest.mark.parametrize("how", ["hold", "slow", "slice"])
async def test_a_fault_of_a_link_on_which_nothing_comes_fails_the_run(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deeds, "STOPPED_S", 0.05)
    monkeypatch.setattr(deeds, "_LOST_S", 0.2)
    async with linked() as link, await talk(link) as stream:
        fault = deeds.of_links("the link", lambda: [link], Random(1))[f"{how} the link"]
        with pytest.raises(RunFailed, match="nothing came on the link"):
            await fault()
        monkeypatch.undo()
        monkeypatch.setattr(deeds, "STOPPED_S", 0.5)
        fault = deeds.of_links("the link", lambda: [link], Random(1))[f"{how} the link"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, b"second")
            await fault()


async def test_a_link_on_which_nothing_came_of_late_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with linked() as link, await talk(link):
        assert link.is_used
        monkeypatch.setattr(link_module, "_USED_S", 0.0)
        assert not link.is_used


async def test_a_sliced_link_brings_the_rest_at_once_when_it_is_healed() -> None:
    async with linked() as link, await talk(link) as stream:
        link.piece = 1
        sent = bytes(range(256)) * 200
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, sent)
            came = await stream.receive_some(1)
            link.heal()
            while len(came) < len(sent):
                came += await stream.receive_some()
        assert came == sent


async def test_a_link_is_cut_off_from_one_address_only() -> None:
    async with linked() as link, await talk(link) as near, await talk(link, FAR) as far:
        link.refused.add(FAR)
        link.cut(FAR)
        assert await is_over(far)
        async with await trio.open_tcp_stream(HOST, link.port, local_address=FAR) as refused:
            assert await is_over(refused)
        await near.send_all(b"second")
        assert await near.receive_some() == b"second"


async def test_half_an_answer_comes_and_no_more() -> None:
    async with linked() as link, await talk(link) as stream:
        link.edge = edge = Edge(HALF)
        await stream.send_all(b"abcdef")
        await edge.reached.wait()
        assert await stream.receive_some() == b"abc"
        edge.scope.cancel()
        assert await is_over(stream)


@pytest.mark.parametrize("when", ["sent", "answered"])
async def test_a_call_stands_still_at_its_edge(when: str, start_store: Callable[..., stores.LocalServer]) -> None:
    store = start_store()
    link = Link(free_port(), store.port, reads_calls=True)
    with trio.fail_after(LIMIT_S), stores.connect(store.url) as client:
        client.function_load(
            "#!lua name=fq_1\nredis.register_function('fq_1_claim', function(k) return redis.call('INCR', k[1]) end)"
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(link.run)
            link.edge = edge = Edge(when, "claim")
            async with await trio.open_tcp_stream(HOST, link.port) as stream:
                await stream.send_all(
                    b"*1\r\n$4\r\nPING\r\n*4\r\n$5\r\nFCALL\r\n$10\r\nfq_1_claim\r\n$1\r\n1\r\n$1\r\nk\r\n"
                )
                await edge.reached.wait()
                assert client.get("k") == (b"1" if when == "answered" else None)
                edge.goes_on.set()
                text = b""
                while not text.endswith(b":1\r\n"):
                    text += await stream.receive_some()
            nursery.cancel_scope.cancel()
