"""Streams of pages: what they bring, when, and what bounds them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from fairq.server.web.dashboard import live as module
from fairq.server.web.dashboard import site as site_module
from fairq.server.web.dashboard.live import KEPT_S
from fairq.server.web.dashboard.sessions import COOKIE
from fairq.server.web.http.shared import MAX_KEPT, Shared
from tests.server.harness import raw, tenant
from tests.store.proxy import Proxy

from .harness import Raw, Site, busy, visited


class Follower:
    """A connection on which a page's stream comes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream

    async def until(self, *ends: str) -> str:
        """Read until one of some texts has come."""
        data = ""
        while not any(end in data for end in ends):
            more = await self.stream.receive_some()
            assert more, data
            data += more.decode()
        return data

    async def rest(self) -> str:
        """Read what comes until the stream ends."""
        return (await self.until("0\r\n\r\n")).partition("0\r\n\r\n")[0]


@asynccontextmanager
async def following(site: Site, path: str) -> AsyncIterator[Follower]:
    """Somebody who looks at a page."""
    await site.read("/system")  # to be signed in
    url, cookie = site.browser.base_url, site.browser.cookies[COOKIE]
    async with await trio.open_tcp_stream(url.host, url.port or 0) as stream:
        head = f"GET /live{path} HTTP/1.1\r\nHost: {url.host}\r\nCookie: {COOKIE}={cookie}\r\n\r\n"
        await stream.send_all(head.encode())
        follower = Follower(stream)
        assert "text/event-stream" in await follower.until("\r\n\r\n")
        yield follower


async def test_a_stream_brings_the_changing_part_and_then_each_change(site: Site, worker: Raw) -> None:
    async with following(site, "/queues") as follower, raw(site.served, tenant("ada")) as ada:
        assert "<html" not in await follower.until("/queues/q")
        await ada.enqueue("q", ["new"])
        await follower.until('<td class="n">3</td>')


async def test_a_stream_begins_with_nothing_that_is_older_than_its_page(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_module, "KEPT_S", 60.0)
    async with busy(server_store) as (site, _), raw(site.served, tenant("ada")) as ada:
        async with following(site, "/queues") as follower:
            await follower.until("/queues/q")
        await ada.enqueue("q", ["new"])
        async with following(site, "/queues") as follower:
            assert '<td class="n">3</td>' in await follower.until("\n\n")


async def test_a_stream_says_that_the_store_is_frozen_and_goes_on(
    proxy: Proxy, proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with busy(proxied) as (site, _), following(site, "/queues") as follower:
        await follower.until("/queues/q")
        monkeypatch.setattr(module, "ANSWER_S", 0.2)
        proxy.hold()
        await follower.until("event: trouble\ndata: the store has not answered for 0.2 s")
        monkeypatch.setattr(module, "ANSWER_S", 20.0)
        proxy.release()
        await follower.until("/queues/q")


async def test_streams_are_bounded_and_end_when_the_server_stops(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_module, "MAX_STREAMS", 1)
    async with visited(server_store) as site, following(site, "/queues") as follower:
        await follower.until("There is no queue yet")
        assert (await site.browser.get("/live/workers")).status_code == 429
        site.served.app.is_draining = True
        assert "event" not in await follower.rest()


async def test_a_head_of_a_stream_ends(site: Site) -> None:
    await site.read("/system")  # to be signed in
    answer = await site.browser.head("/live/queues")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    with trio.fail_after(10):
        await site.read("/system")  # over the same connection


class Page:
    """A page that takes a while to render, and counts how often it is."""

    asked = 0

    async def render(self) -> str:
        """Render the page."""
        self.asked += 1
        await trio.sleep(0.3)
        return f"page {self.asked}"


async def test_a_hundred_tabs_render_once(autojump_clock: object) -> None:
    renderings, page = Shared[str](KEPT_S), Page()
    found: list[str] = []

    async def tab() -> None:
        for _ in range(5):
            found.append(await renderings.get("queues", page.render))
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(tab)
    assert len(found) == 500
    assert page.asked <= 6


async def test_what_began_too_early_is_made_again_once_for_all(autojump_clock: object) -> None:
    renderings, page = Shared[str](KEPT_S), Page()
    found: list[str] = []

    async def tab() -> None:
        found.append(await renderings.get("queues", page.render, trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(renderings.get, "queues", page.render)
        await trio.sleep(0.1)
        for _ in range(100):
            nursery.start_soon(tab)
    assert found == ["page 2"] * 100


async def test_what_is_too_old_to_be_shown_is_not_kept(autojump_clock: object) -> None:
    renderings = Shared[str](KEPT_S)

    async def render() -> str:
        return "page"

    for n in range(9):
        await renderings.get(n, render)
    await trio.sleep(KEPT_S + 1)
    await renderings.get("another", render)
    assert list(renderings._kept) == ["another"]


async def test_renderings_of_many_pages_are_few_at_a_time_and_kept_within_bounds(autojump_clock: object) -> None:
    renderings, now, most = Shared[str](KEPT_S, 4), 0, 0

    async def render() -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await trio.sleep(0.1)
        now -= 1
        return "page"

    async with trio.open_nursery() as nursery:
        for n in range(500):
            nursery.start_soon(renderings.get, f"page {n}", render)
    assert most == 4
    assert len(renderings._kept) <= MAX_KEPT
