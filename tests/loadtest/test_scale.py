"""The load test's own clusters and queues."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio
from redis.crc import key_slot

from fairq.store import keys
from fairq.store.dial import Redirected
from fairq.store.opening import open_store
from loadtest.report import Progress
from loadtest.scale import ALONE, QUEUES, Scale, Sizes, spread_queues, tables
from loadtest.stores import count_errors, running_nodes


def test_each_third_of_the_slots_has_equally_many_queues() -> None:
    queues = spread_queues()
    thirds = Counter(key_slot(keys.queue_prefix(queue).encode()) * 3 // 16_384 for queue in queues)
    assert thirds == {0: QUEUES // 3, 1: QUEUES // 3, 2: QUEUES // 3}
    assert len(set(queues)) == QUEUES


async def test_a_store_by_itself_is_no_cluster(tmp_path: Path) -> None:
    with trio.fail_after(30):
        async with running_nodes(tmp_path / "nodes", 1, fsync="everysec", is_cluster=False) as nodes:
            assert (await nodes[0].info("cluster"))["cluster_enabled"] == "0"


async def test_a_cluster_of_three_has_all_slots_and_counts_what_went_wrong(tmp_path: Path) -> None:
    with trio.fail_after(40):
        async with running_nodes(tmp_path / "nodes", 3, fsync="everysec", is_cluster=True) as nodes:
            async with open_store(nodes[1].address.shown) as store:
                for queue in spread_queues():
                    await store.pause(queue)
                assert len(store.connection.nodes()) == 3
            assert await count_errors(nodes) == {}
            with pytest.raises(Redirected):
                await nodes[0].ask("GET", "foo")  # slot 12182, of the third
            assert await count_errors(nodes) == {"MOVED": 1}


@pytest.mark.deep("fairness")
async def test_a_server_of_two_processes_is_measured_with_the_same_workers_and_clients(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with running_nodes(tmp_path, 1, fsync="everysec", is_cluster=False) as nodes:
            sizes = Sizes(tasks=60, seconds=30.0)
            scale = Scale(ALONE, nodes, tmp_path, sizes, Progress(), processes=2, crew=2)
            verdict = await scale.run()
    assert (verdict.is_clean, verdict.expected) == (True, 60)
    (row,) = scale.rows
    assert (row["name"], row["servers"], row["processes"]) == ("a store, 2 processes", 1, 2)
    expected = {"node 1", "client", "server 1", "server 2", "worker 1", "worker 2"}
    assert row["drain_cpu_s_per_1000"].keys() == row["enqueue_cpu_s_per_1000"].keys() == expected


def row(name: str, drained: int, **cpu: float) -> dict[str, object]:
    """Make a row of the report."""
    used = {process.replace("_", " "): seconds for process, seconds in cpu.items()}
    return {
        "name": name, "tasks": 60, "enqueue_rate": 100, "drain_rate": drained, "drain_cpu_s_per_1000": used,
    }  # fmt: skip


def test_rows_of_processes_are_compared_with_the_first_of_them_and_show_the_cpu_of_all_of_a_kind() -> None:
    cpu = {"node_1": 0.02, "client": 0.001, "server_1": 0.02, "server_2": 0.01, "worker_1": 0.02, "worker_2": 0.02}
    joined = [row("a store, 1 server", 1_000, server_1=0.02), row("a store, 2 servers", 1_500, **cpu)]
    processes = [row("a store, 1 process", 2_000, server_1=0.03), row("a store, 2 processes", 3_000, **cpu)]
    part = {"rows": joined, "processes": processes, "crew": 4, "queues": 6, "payload_bytes": 200, "cores": 2}
    by_servers, by_processes = tables(part)
    assert by_servers.headings == by_processes.headings
    assert list(by_servers.rows[1]) == [
        "a store, 2 servers", 100, 1_500, 1.5, "0.020 + 0.010", "0.020", "0.020 + 0.020", "0.001", 0.091,
    ]  # fmt: skip
    assert list(by_processes.rows[1]) == [
        "a store, 2 processes", 100, 3_000, 1.5, "0.030", "0.020", "0.040", "0.001", 0.091,
    ]  # fmt: skip
    assert "a store, 2 processes: 0.020 + 0.010" in by_processes.note
