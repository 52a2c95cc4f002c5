"""The load test's idle clients: they count once they are attached, and come back with or without their leases."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define
from trio.testing import MockClock

import fairq
from fairq.errors import Forbidden
from loadtest import connections
from loadtest.connections import Sizes
from loadtest.crowd import connected_crowd
from loadtest.processes import RunFailed, Server, running_server
from loadtest.pulse import PERIOD_S, Pulse
from loadtest.report import Progress, as_json

LIMIT_S = 60.0


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[Server, fairq.Client]]:
    """Run a server, with an operator's client, while the context lasts."""
    with trio.fail_after(LIMIT_S):
        async with (
            running_server(directory, fsync="everysec") as server,
            fairq.open_client(server.url, token="dev-operator") as operator,
        ):
            yield server, operator


async def attached_at(operator: fairq.Client) -> dict[str, int]:
    """Return since when each worker is attached."""
    return {row["worker"]: row["attached_at_ms"] for row in (await operator.request("workers"))["workers"]}


@pytest.mark.deep("fairness")
async def test_idle_workers_count_when_they_are_attached_and_attach_again_after_a_break(tmp_path: Path) -> None:
    names = {f"idle-{n}" for n in range(5)}
    async with (
        served(tmp_path) as (server, operator),
        connected_crowd(server, "workers", 5, Progress(), limit=LIMIT_S) as workers,
    ):
        assert (await attached_at(operator)).keys() == names
        before_ms = int(time.time() * 1000)
        assert await workers.break_all() > 0
        again = await attached_at(operator)
    assert again.keys() == names
    assert min(again.values()) >= before_ms


async def test_crowd_that_does_not_connect_fails_the_run(tmp_path: Path) -> None:
    server: Any = Namespace(url="ws://127.0.0.1:1", directory=tmp_path)
    for kind, limit, said in (
        ("nonsense", LIMIT_S, "ended: 0 of 5 idle nonsense were connected"),
        ("tenants", 0, "in 0 s 0 of 5 idle tenants were connected"),
    ):
        with trio.fail_after(LIMIT_S), pytest.raises(RunFailed, match=said):
            async with connected_crowd(server, kind, 5, Progress(), limit=limit):
                pass


@pytest.mark.deep("fairness")
async def test_a_reconnect_is_a_row_and_every_task_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "QUICK", Sizes(each=6, holders=3, seconds=0.1, limit=LIMIT_S))
    with trio.fail_after(2 * LIMIT_S):
        part = await connections.run(tmp_path, Progress(), quick=True, fsync="everysec")
    assert all(verdict.is_clean for verdict in part["verdicts"].values())
    assert part["verdicts"]["connections, tasks held while 6 workers reconnect"].expected == 3
    row = part["rows"][-1]
    assert (row["name"], row["idle"], row["held"]) == ("while 6 workers reconnect", 12, 3)
    assert row["leases_lost"] >= 0  # how many depends on what else runs
    assert min(row["attached_again_s"], row["longest_silence_ms"], row["max"]) > 0
    latency, reconnect = connections.tables(part)
    assert [line[1] for line in latency.rows] == [0, 6, 12, 12]
    assert len(reconnect.rows[0]) == len(reconnect.headings)
    assert b"attached_again_s" in as_json(part)


@define
class SlowServer:
    """Refuses each request after so many seconds, and those beyond at once."""

    delays: Iterator[float]

    async def request(self, kind: str, *, timeout: float) -> Any:
        """Take as long as the next delay."""
        await trio.sleep(next(self.delays, 0))
        raise Forbidden("tenant tokens may not list queues")


async def test_the_longest_silence_is_from_one_answer_to_the_next_or_to_the_end(autojump_clock: MockClock) -> None:
    for delays, longest in (((), PERIOD_S), ((0, 0.5, 0), PERIOD_S + 0.5), ((0.5, 0.7), 0.7), ((0, 10), 2)):
        client: Any = SlowServer(iter(delays))
        pulse = Pulse(client)
        with trio.move_on_after(2):
            await pulse.run()
        assert pulse.longest_s == pytest.approx(longest), delays
