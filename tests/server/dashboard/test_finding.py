"""Tenants by a part of their name: who asks for the same text at once is answered by one search."""

from __future__ import annotations

import pytest
import trio

from fairq.server.dashboard import finding as module
from fairq.server.dashboard.finding import MAX_KEPT, MAX_S, RESTS, Finder
from fairq.store.store import Store


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the store was searched for; each search takes 0.1 s, and finds the text itself."""
    begun: list[str] = []

    async def find_tenants(store: Store, queue: str, text: str, count: int) -> tuple[list[str], bool]:
        begun.append(text)
        await trio.sleep(0.1 if text != "slow" else 10.0)
        return [text], True

    monkeypatch.setattr(module, "find_tenants", find_tenants)
    return begun


async def test_one_search_answers_all_who_ask(searches: list[str], autojump_clock: trio.testing.MockClock) -> None:
    finder = Finder(None)  # type: ignore[arg-type]  # the search needs none here
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(finder.find, "q", "ada", 5)
    assert searches == ["ada"]
    await trio.sleep(0.1 * RESTS * 0.9)
    assert await finder.find("q", "ada", 5) == (["ada"], True)
    assert searches == ["ada"], "it was not long ago"
    await trio.sleep(0.1 * RESTS * 0.2)
    await finder.find("q", "ada", 5)
    assert searches == ["ada", "ada"]
    await finder.find("other", "ada", 5)
    assert searches == ["ada"] * 3, "another queue"


async def test_no_answer_is_older_than_told(searches: list[str], autojump_clock: trio.testing.MockClock) -> None:
    finder = Finder(None)  # type: ignore[arg-type]
    await finder.find("q", "slow", 5)
    await trio.sleep(MAX_S * 1.01)
    await finder.find("q", "slow", 5)
    assert searches == ["slow", "slow"]


async def test_one_search_at_a_time_and_few_are_kept(
    searches: list[str], autojump_clock: trio.testing.MockClock
) -> None:
    finder, began = Finder(None), trio.current_time()  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        for n in range(2 * MAX_KEPT):
            nursery.start_soon(finder.find, "q", f"t{n}", 5)
    assert trio.current_time() - began == pytest.approx(0.1 * 2 * MAX_KEPT), "one after the other"
    assert len(finder._kept) == MAX_KEPT


async def test_a_search_that_is_no_longer_wanted_is_left_to_the_next(
    searches: list[str], autojump_clock: trio.testing.MockClock
) -> None:
    finder = Finder(None)  # type: ignore[arg-type]
    with trio.move_on_after(0.05):
        await finder.find("q", "ada", 5)
    assert await finder.find("q", "ada", 5) == (["ada"], True)
    assert searches == ["ada", "ada"]
