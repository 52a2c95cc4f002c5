"""Tenants by a part of their name: searches take turns, and the store rests between them."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio

from fairq.errors import Unavailable
from fairq.io.scopes import run_all
from fairq.server.web.dashboard import finding as module
from fairq.server.web.dashboard.finding import RESTS, Finder
from tests.server.harness import raw

from .harness import Site, text_of


async def test_however_many_search_the_store_rests_most_of_the_time(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[float] = []

    async def find(store: Any, queue: str, text: str, count: int) -> tuple[list[str], bool]:
        began.append(trio.current_time())
        await trio.sleep(0.1)
        if text == "lost":
            raise Unavailable("the store is away")
        return [text], True

    monkeypatch.setattr(module, "find_tenants", find)
    store: Any = None
    finder = Finder(store)
    with pytest.raises(Unavailable):
        await finder.find("q", "lost", 5)
    await run_all(*(partial(finder.find, "q", f"{n}", 5) for n in range(20)))
    assert await finder.find("q", "ada", 5) == (["ada"], True)
    gaps = [later - earlier for earlier, later in pairwise(began)]
    assert gaps == pytest.approx([0.1 * (1 + RESTS)] * 21)


async def test_a_page_finds_all_tenants_with_a_text_in_their_name(site: Site) -> None:
    async with raw(site.served, "dev-producer") as producer:
        tasks = [{"id": "t", "payload": 1, "tenant": f"t{n:03}"} for n in range(400)]
        await producer.ask("enqueue", queue="q", tasks=tasks)
        text = text_of(await site.read("/tenants?queue=q&text=37"))
        assert [name for name in text.split() if name.startswith("t") and name[1:].isdigit()] == [
            "t037", "t137", "t237", "t337", *(f"t37{n}" for n in range(10))
        ]  # fmt: skip
