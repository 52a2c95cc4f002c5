"""Tenants by a part of their name in large queues: names are kept, read anew, and never told for too long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as some

from fairq.errors import Unavailable
from fairq.server.web.dashboard import finding as module
from fairq.server.web.dashboard.finding import MAX_AGE_S, MAX_QUEUES, Finder, look_through
from fairq.store import overview
from tests.server.harness import raw

from .harness import text_of, visited

NAMES = some.lists(some.text("ab.1", min_size=1, max_size=5), max_size=30)


@given(NAMES, some.text("ab.1\n*", min_size=1, max_size=3), some.integers(1, 9))
def test_lines_with_a_text_are_found(names: list[str], text: str, count: int) -> None:
    lines = b"".join(name.encode() + b"\n" for name in names)
    wanted = sorted({name for name in names if text in name})
    found, is_whole = look_through(lines, text, count)
    assert is_whole == (len(wanted) <= count)
    assert found == wanted if is_whole else set(found) < set(wanted)
    assert len(found) == min(count, len(wanted))


@define
class Hash:
    """A store with the tenants of any queue; a step of it takes 0.1 s."""

    names: list[bytes] = field(factory=lambda: [b"t%05d" % n for n in range(10_000)])
    commands: list[str] = field(factory=list)
    is_gone: bool = False

    async def call(self, command: str, *words: Any) -> Any:
        """Answer HLEN, and HSCAN with places in the list as cursors."""
        if self.is_gone and command != "HLEN":
            raise Unavailable("gone")
        if command == "HLEN":
            return len(self.names)
        self.commands.append("search" if "MATCH" in words else "read")
        await trio.sleep(0.1)
        at, step = int(words[1]), int(words[-1])
        some_names, pattern = self.names[at : at + step], words[3].strip("*").encode() if "MATCH" in words else b""
        pairs = [each for name in some_names if pattern in name for each in (name, b"details")]
        return (b"%d" % (at + step) if at + step < len(self.names) else b"0"), pairs


@asynccontextmanager
async def finding() -> AsyncIterator[tuple[Hash, Finder]]:
    """A finder on such a store."""
    held = Hash()
    async with trio.open_nursery() as nursery:
        store: Any = SimpleNamespace(connection=held)
        yield held, Finder(store, nursery)
        nursery.cancel_scope.cancel()


async def test_names_are_kept_and_read_anew_while_somebody_searches(autojump_clock: trio.testing.MockClock) -> None:
    async with finding() as (held, finder):
        assert await finder.find("q", "0777", 5) == (["t00777", *(f"t0777{n}" for n in range(4))], False)
        await trio.sleep(2)
        reads = held.commands.count("read")
        assert reads == 10
        searches = held.commands.count("search")
        for text, found in (("t09999", ["t09999"]), ("9998", ["t09998"]), ("x", []), ("*", [])):
            assert await finder.find("q", text, 5) == (found, True)
        assert held.commands.count("search") == searches, "the store was not asked"
        held.names.append(b"new")
        await trio.sleep(MAX_AGE_S * 0.7)
        assert await finder.find("q", "new", 5) == ([], True)
        await trio.sleep(2)
        assert await finder.find("q", "new", 5) == (["new"], True)
        assert held.commands.count("read") == 2 * reads + 1
        held.names.append(b"newer")
        await trio.sleep(MAX_AGE_S * 1.1)
        assert await finder.find("q", "newer", 5) == (["newer"], True), "what is too old is not told"


async def test_many_who_search_read_the_names_once(autojump_clock: trio.testing.MockClock) -> None:
    async with finding() as (held, finder):
        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(finder.find, "q", f"{n}7", 5)
        assert held.commands.count("read") == 10


async def test_few_queues_and_no_long_lists_are_kept(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with finding() as (held, finder):
        for n in range(MAX_QUEUES + 2):
            await finder.find(f"q{n}", "t", 5)
            await trio.sleep(3)
        assert list(finder._kept) == [f"q{n}" for n in range(2, MAX_QUEUES + 2)]
        monkeypatch.setattr(module, "MAX_BYTES", 20_000)
        held.commands.clear()
        for _ in range(3):
            assert await finder.find("long", "t00999", 5) == (["t00999"], True)
            await trio.sleep(3)
        assert held.commands.count("search") == 9, "each search is the store's"
        assert held.commands.count("read") < 9, "and the list is not read each time"


async def test_a_store_that_goes_meanwhile_ends_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with finding() as (held, finder):
        held.is_gone = True
        with pytest.raises(Unavailable):
            await finder.find("q", "ada", 5)
        held.is_gone = False
        assert await finder.find("q", "t00007", 5) == (["t00007"], True)


async def test_a_page_finds_tenants_by_the_names_that_are_kept(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEP", 50)
    monkeypatch.setattr(overview, "STEP", 50)
    with trio.fail_after(90):
        async with visited(server_store) as site, raw(site.served, "dev-producer") as producer:
            tasks = [{"id": "t", "payload": 1, "tenant": f"t{n:03}"} for n in range(400)]
            await producer.ask("enqueue", queue="q", tasks=tasks)
            for _ in range(3):
                told = text_of(await site.read("/tenants?queue=q&text=37"))
                assert [name for name in told.split() if name.startswith("t") and name[1:].isdigit()] == [
                    "t037", "t137", "t237", "t337", *(f"t37{n}" for n in range(10))
                ]  # fmt: skip
