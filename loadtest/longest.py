"""Longest: every verb of the function library in its worst legal case, and the time that the store says it took."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import asdict

from fairq.store.embedded import embedded_store
from loadtest.probe import LIMIT_MS, QUICK, Probe, Sizes
from loadtest.report import Progress, Table
from loadtest.scenes import SCENES
from loadtest.stores import opened, running_nodes

VARIABLE = "FAIRQ_LOADTEST_REDIS"  # a redis-server to measure in place of the embedded Valkey
CALL_S = 120.0  # for a call on a machine that stands still


@asynccontextmanager
async def _running(directory: Path, fsync: str) -> AsyncIterator[str]:
    """Run the store that was asked for; gives its URL."""
    if binary := os.environ.get(VARIABLE):
        async with running_nodes(directory, 1, fsync=fsync, is_cluster=False, binary=binary) as (node,):
            yield f"redis://{node.address.host}:{node.address.port}/0"
    else:
        async with embedded_store(directory, fsync=fsync) as url:
            yield url


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    async with _running(directory / "longest", fsync) as url, opened(url) as store:
        for node in store.connection.nodes():
            node.timeout = CALL_S
        probe = Probe(store, sizes, progress)
        await probe.command("CONFIG", "SET", "slowlog-log-slower-than", 0)
        for scene in SCENES:
            await probe.start_over()
            await scene(probe)
        version = (await probe.command("INFO", "server")).decode()
    rows = [{**asdict(row), "least_ms": row.least_ms, "is_within": row.is_within} for row in probe.rows]
    name = version.partition("server_name:")[2].split()[0] if "server_name:" in version else "redis"
    number = version.partition(f"{name}_version:")[2].split()[0]
    return {"sizes": asdict(sizes), "store": f"{name} {number}", "limit_ms": LIMIT_MS, "rows": rows, "verdicts": {}}


def _spread(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the CPU time, and by the slow log the least and the most of the rounds."""
    return row["least_ms"], min(row["longest_ms"]), max(row["longest_ms"])


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    rows = [
        [
            row["verb"], row["what"], row["calls"], *(f"{ms:.2f}" for ms in _spread(row)),
            row["reply_bytes"], "yes" if row["is_within"] else "NO",
        ]
        for row in part["rows"]
    ]  # fmt: skip
    title = f"the longest calls of each verb on {part['store']}, ms of the store's own time; the limit is 10"
    note = (
        "the longest call of each round: CPU: least of the rounds, without the time in which the store did not have the"
        " CPU; least, most: of the rounds, by the slow log"
    )
    return [Table(title, ["verb", "what", "calls", "CPU", "least", "most", "reply bytes", "within"], rows, note)]
