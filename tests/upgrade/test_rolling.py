"""Servers of two builds on one store, rolled one after the other under load: today's, and tomorrow's."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio

from fairq.store import keys, library
from fairq.store.migrations import NEW, READABLE
from tests import stores
from tests.store.waiting import wait_until
from tests.system.harness import ROOT, Process, World, operating, producing, wait_drained

from .tomorrow import build

pytestmark = pytest.mark.deep("kills")

PRODUCERS, PAUSE_S = 20, 0.1  # at most 200 tasks a second: a busy machine has to keep up
TASKS = 150  # that are to end between two steps
LIMIT_S = 280  # of a test, and the only one that its steps have


class Roll:
    """Two servers and two workers; a server is replaced, a worker too."""

    def __init__(self, world: World, store: str) -> None:
        self.world, self.store, self.ports = world, store, [stores.free_port(), stores.free_port()]
        self.urls = [f"ws://127.0.0.1:{port}" for port in self.ports]
        self.servers: dict[int, Process] = {}
        self.killed: set[int] = set()  # workers

    async def serve(self, place: int, home: Path) -> None:
        self.servers[place] = self.world.serve("--store", self.store, "--port", str(self.ports[place]), home=home)
        await self.servers[place].wait_url()

    async def replace(self, place: int, home: Path, *, kills: bool) -> None:
        """End a server, by a signal or as a crash would, and start another one in its place; then work goes on."""
        server = self.servers[place]
        if kills:
            server.kill()
        else:
            server.send(signal.SIGTERM)
            assert await server.wait(LIMIT_S) == 0
        await self.serve(place, home)
        await self.goes_on()

    async def goes_on(self) -> None:
        """Wait until some more tasks have ended."""
        done = len(self.world.journal("end"))
        await self.world.wait_journal(lambda ran: sum(row.event == "end" for row in ran) >= done + TASKS, LIMIT_S)

    def may_repeat(self) -> set[str]:
        """Return the tasks that a killed worker had begun."""
        return {row.id for row in self.world.journal("start") if row.pid in self.killed}


async def play(roll: Roll, homes: Sequence[tuple[int, Path, bool]]) -> None:
    """Begin with two of today's servers, roll them to these homes under load with a worker killed, and account."""
    stop = trio.Event()
    for place in (0, 1):
        await roll.serve(place, ROOT)
    roll.world.work(*roll.urls, concurrency=50, name="steady")
    victim = roll.world.work(*roll.urls, concurrency=50, name="victim")
    async with producing(*roll.urls) as producer, operating(*roll.urls) as operator:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(PRODUCERS):
                nursery.start_soon(producer.keep_on, f"id{number}", stop, PAUSE_S)
            await roll.goes_on()
            for place, home, kills in homes:
                await roll.replace(place, home, kills=kills)
                if kills and not roll.killed:
                    victim.kill()
                    roll.killed.add(victim.pid)
                    roll.world.work(*roll.urls, concurrency=50, name="heir")
                    await roll.goes_on()
            stop.set()
        rate = len(producer.acknowledged) / (trio.current_time() - began)
        print(f"{len(producer.acknowledged)} tasks, {rate:.0f} a second")
        row = await wait_drained(operator, LIMIT_S)
        assert (row["dead"], row["done"]) == (0, len(producer.acknowledged)), f"at {rate:.0f} tasks a second"
        assert producer.acknowledged == producer.attempted, "the SDK repeats what had no answer"
        may_repeat = roll.may_repeat()
        producer.check(roll.world.journal(), may_repeat=lambda id: id in may_repeat)


async def test_servers_are_rolled_to_another_version_and_back(
    world: World, durable_store: Callable[[], stores.LocalServer], tmp_path: Path
) -> None:
    store, tomorrow = durable_store(), build(tmp_path / "tomorrow")
    with trio.fail_after(LIMIT_S):
        there = [(0, tomorrow, False), (1, tomorrow, True)]
        back = [(0, ROOT, True), (1, ROOT, False)]
        await play(Roll(world, store.url), there + back)
    with stores.connect(store.url) as client:
        assert len([row for row in client.function_list() if b"fairq_" in repr(row).encode()]) == 2


async def test_the_last_new_server_migrates_the_data_and_no_old_one_comes_back(
    world: World, durable_store: Callable[[], stores.LocalServer], tmp_path: Path
) -> None:
    store, tomorrow = durable_store(), build(tmp_path / "tomorrow", migrates=True)
    roll, ours, theirs = Roll(world, store.url), NEW, library.DATA_VERSION + 1
    with trio.fail_after(LIMIT_S), stores.connect(store.url) as client:
        await play(roll, [(0, tomorrow, False)])
        assert client.get(keys.DATA_VERSION) == str(ours).encode(), "an old server runs"
        done = world.run("doctor", "--store", stores.of_owner(store.url), home=tomorrow)
        await done.wait_printed(f"version {ours}; it will be migrated to {theirs}: tenants are noted")
        done = world.run("migrate", "--store", stores.of_owner(store.url), home=tomorrow)
        assert await done.wait() == 1
        assert "servers of an older version run" in done.printed
        roll.servers[1].kill()
        await roll.serve(1, tomorrow)
        await wait_until(lambda: client.get(keys.DATA_VERSION) == str(theirs).encode())
        assert client.hgetall(keys.queue_prefix("q") + ":tomorrow") == {b"ada": b"migrated"}
        await wait_until(lambda: not client.exists(keys.MIGRATION, keys.MIGRATOR))  # they go right after the version
        old = world.serve("--store", store.url)
        assert await old.wait() == 2
        assert f"the store holds data of version {theirs}, but this fairq reads {READABLE}" in old.printed
        done = world.run("migrate", "--store", stores.of_owner(store.url), home=tomorrow)
        await done.wait_printed(f"the data has version {theirs}")
