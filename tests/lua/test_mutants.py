"""Planted bugs: each is put into the library's text, and a random walk of the state machine must come upon it.

The bugs stand in mutants.diff, with the walk and the step at which each is found. Those that are not found there any
more, since the library or the walks have changed, `python -m tests.lua.planted` searches for anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
import redis

from fairq.store import library
from tests import stores

from .mutants import MUTANTS, Mutant
from .planted import find, record
from .walks import KINDS, Place, first_difference, is_found, load, steps

COMMAND = "python -m tests.lua.planted searches anew"
FOUND = [pytest.param(each, each.place, id=each.name.replace(" ", "-")) for each in MUTANTS if each.place]


def test_each_planted_bug_is_in_the_text_once_and_has_a_place() -> None:
    source = library.source()
    assert [mutant.name for mutant in MUTANTS if source.count(mutant.text) != 1] == []
    assert [mutant.name for mutant in MUTANTS if not mutant.place] == [], f"not found: {COMMAND}"
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.deep("mutants")
@pytest.mark.one_store
@pytest.mark.parametrize(("mutant", "place"), FOUND)
def test_a_planted_bug_is_found(redis_client: redis.Redis, mutant: Mutant, place: Place) -> None:
    assert is_found(redis_client, mutant.change, place), f"not at {place}: {COMMAND}"


@pytest.mark.one_store
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_planted_bug_the_same_places_differ_in_nothing(redis_client: redis.Redis, kind: str) -> None:
    """So the first tier comes upon each of them, without planting any."""
    compared: defaultdict[int, set[int]] = defaultdict(set)
    for _, _, _, place in MUTANTS:
        if place and place.kind == kind:
            compared[place.seed].add(place.step)
    for seed in (0, 1):
        load(redis_client, seed)
    assert [first_difference(redis_client, kind, seed, found) for seed, found in compared.items()] == [None] * len(
        compared
    )


@pytest.mark.deep("mutants")
@pytest.mark.one_store
def test_the_search_finds_a_planted_bug(start_store: Callable[..., stores.LocalServer]) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "an ended lease is settled again")
    with stores.connect(start_store({"enable-debug-command": "local"}).url) as client:
        load(client, 0)
        recordings = [record(client, kind, 0, 30) for kind in KINDS]
        found = find(client, mutant, recordings, 30)
        assert found
        assert is_found(client, mutant.change, found)
        assert not is_found(client, mutant.change, Place(found.kind, found.seed, found.step - 1))


@pytest.mark.deep("longest")
@pytest.mark.one_store
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_planted_bug_long_walks_find_nothing(redis_client: redis.Redis, kind: str) -> None:
    for seed in range(20):
        load(redis_client, seed)
        for _ in steps(redis_client, kind, seed, range(0, 301, 4)):
            pass
