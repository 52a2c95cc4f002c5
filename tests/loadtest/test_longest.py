"""The longest calls: every verb is called, times are those of the store, and what is too long is said to be."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import trio

from fairq.store import library
from fairq.store.embedded import embedded_store
from loadtest import scenes
from loadtest.probe import QUICK, Probe, Row, Sizes
from loadtest.report import Progress
from loadtest.stores import opened

VERBS = library.verbs("reads") | library.verbs("drains") | library.verbs("writes")


def test_every_verb_of_the_library_is_measured() -> None:
    measured = set(re.findall(r'p\.measure\(\s*"(\w+)"', inspect.getsource(scenes)))
    assert measured == VERBS


def test_a_call_is_within_by_its_best_round_and_its_longest_reply() -> None:
    for cpu, wall, size, is_within in (
        ([11.0, 9.9], [12.0, 30.0], 10, True), ([10.1, 11.0], [10.2, 12.0], 10, False), ([1.0], [1.0], 1 << 24, False),
    ):  # fmt: skip
        row = Row("tick", "anything", 1, wall, cpu, size)
        assert (row.least_ms, row.is_within) == (min(cpu), is_within)


async def test_the_time_is_of_the_verb_by_the_stores_own_clocks(tmp_path: Path) -> None:
    with trio.fail_after(120):
        async with embedded_store(tmp_path, fsync="everysec") as url, opened(url) as store:
            probe = Probe(store, Sizes(rounds=2), Progress())
            await probe.command("CONFIG", "SET", "slowlog-log-slower-than", 0)
            await probe.start_over()
            await probe.store.configure("q", {"lease_ms": 1000})
            await probe.measure("queue_state", "a queue", "q", calls=3)
            await probe.measure("tick", "until it is done", "q", (100,), calls=3, until=lambda reply: True)
    state, tick = probe.rows
    assert (state.calls, tick.calls) == (6, 1)
    assert all(0 < ms < 1000 for ms in state.longest_ms)
    assert state.cpu_ms <= state.longest_ms
    assert state.reply_bytes > 300


@pytest.mark.deep("longest")
@pytest.mark.parametrize("scene", scenes.SCENES, ids=lambda scene: scene.__name__)
async def test_a_scene_can_be_set_up(scene: scenes.Scene, tmp_path: Path) -> None:
    with trio.fail_after(250):
        async with embedded_store(tmp_path, fsync="everysec") as url, opened(url) as store:
            probe = Probe(store, QUICK, Progress())
            await probe.command("CONFIG", "SET", "slowlog-log-slower-than", 0)
            await scene(probe)
    assert probe.rows
    assert all(row.calls for row in probe.rows)
