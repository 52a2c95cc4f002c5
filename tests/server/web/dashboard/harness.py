"""A server with a dashboard, somebody who is signed in, and queues with something in them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import httpx
from attrs import frozen

from fairq.server.run import Served
from fairq.store.store import Store
from tests import stores
from tests.server.harness import OPERATOR, WORKER, Raw, raw, running, tenant

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@frozen
class Site:
    """A server, and a browser without scripts that is signed in."""

    served: Served
    browser: httpx.AsyncClient

    @property
    def store(self) -> Store:
        return self.served.app.store

    def forget(self) -> None:
        """Empty the store, which knows the sessions."""
        with stores.connect(self.served.store_url) as client:
            client.flushall()

    async def read(self, path: str, status: int = 200) -> str:
        """The HTML of a page."""
        answer = await self.browser.get(path)
        assert answer.status_code == status, (path, answer.text)
        return answer.text

    async def open(self, action: str, **query: Any) -> dict[str, str]:
        """The fields of an action's dialog as they are filled in."""
        return fields_of((await self.browser.get(f"/do/{action}", params=query)).text)

    async def do(self, action: str, given: dict[str, str] | None = None, /, **query: Any) -> str:
        """The note after a dialog was filled in and sent."""
        fields = await self.open(action, **query) | (given or {})
        return text_of((await self.browser.post(f"/do/{action}", data=fields, headers=FORM)).text)


def fields_of(html: str) -> dict[str, str]:
    """The values of a form's fields."""
    found = {}
    for tag in re.findall(r"<input[^>]*>", html):
        name, value = (re.search(rf'{each}="([^"]*)"', tag) for each in ("name", "value"))
        if name:
            found[name[1]] = unescape(value[1]) if value else ""
    for name, options in re.findall(r'<select name="([^"]*)">(.*?)</select>', html, re.DOTALL):
        chosen = re.search(r"<option selected>([^<]*)<", options)
        found[name] = unescape(chosen[1]) if chosen else ""
    return found


def text_of(html: str) -> str:
    """The text of a page, without tags, its white space as one space."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


@asynccontextmanager
async def visited(store: str, **settings: Any) -> AsyncIterator[Site]:
    """A server, and a browser that --dev has signed in."""
    async with running(store, **{"admin_port": 0, **settings}) as served:
        assert served.admin is not None
        base = f"http://{served.admin.host}:{served.admin.port}"
        async with httpx.AsyncClient(base_url=base, timeout=60, verify=False) as browser:
            yield Site(served, browser)


@asynccontextmanager
async def filled(site: Site) -> AsyncIterator[Raw]:
    """A worker that runs one task of queue q, which has others of ada and bob, and a dead letter."""
    async with raw(site.served, WORKER) as worker:
        async with raw(site.served, tenant("ada")) as ada, raw(site.served, tenant("bob")) as bob:
            await ada.ask("enqueue", queue="q", tasks=[{"id": "dies", "payload": {"to": "<b>"}, "max_attempts": 1}])
            await worker.attach("q", name="w1")
            await worker.settle("q", "nack", *await worker.pushed(), error="smtp <said> no")
            await ada.ask("enqueue", queue="q", tasks=[{"id": f"t{n}", "payload": n} for n in range(3)])
            await bob.ask("enqueue", queue="q", tasks=[{"id": "later", "payload": 1, "delay_ms": 3_600_000}])
        yield worker


@asynccontextmanager
async def busy(store: str, **settings: Any) -> AsyncIterator[tuple[Site, Raw]]:
    """A visited server that is filled, and its worker."""
    async with visited(store, **settings) as site, filled(site) as worker:
        yield site, worker


__all__ = ["OPERATOR", "Raw", "Site", "busy", "fields_of", "filled", "text_of", "visited"]
