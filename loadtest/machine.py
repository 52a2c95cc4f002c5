"""What the machine itself did to a measurement: time that its host took away, and moments at which it stood still.

A process of its own sleeps 10 ms at a time, so that a pause of the machine shows as a late awakening, and writes a line
to the disk twice a second, so that a slow disk shows as a long sync. It ends when its standard input does, so with us.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import trio
from attrs import define

from loadtest.report import Table

NAP_S, SYNC_EVERY_S = 0.01, 0.5
_END_S = 10.0  # how long the watcher may take to end: a sync may be under way


@define
class Disturbance:
    """The machine during a scenario; `stolen` is the part of the CPU time wanted here that the host gave to others."""

    seconds: float = 0.0
    load_before: float = 0.0
    load_after: float = 0.0
    stolen: float = 0.0
    longest_pause_ms: float = 0.0
    longest_sync_ms: float = 0.0


def _cpu_ticks() -> tuple[int, int]:
    """Return the CPU time wanted by anything on this machine so far, and how much of it the host gave to others."""
    user, nice, system, _, _, irq, softirq, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    return user + nice + system + irq + softirq + stolen, stolen


@asynccontextmanager
async def watched(directory: Path) -> AsyncIterator[Disturbance]:
    """Watch the machine while the context lasts; afterwards the result has the observations."""
    seen = Disturbance(load_before=os.getloadavg()[0])
    began, (wanted, stolen) = time.monotonic(), _cpu_ticks()
    watcher = await trio.lowlevel.open_process(
        [sys.executable, "-m", "loadtest.machine", str(directory / "watched")], cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield seen
    finally:
        assert watcher.stdin
        assert watcher.stdout
        with trio.move_on_after(_END_S, shield=True):
            await watcher.stdin.aclose()
            longest = b"".join([part async for part in watcher.stdout])
            await watcher.wait()
            if longest:
                seen.longest_pause_ms, seen.longest_sync_ms = orjson.loads(longest)
        if watcher.poll() is None:
            watcher.kill()
        wanted_now, stolen_now = _cpu_ticks()
        seen.seconds, seen.load_after = time.monotonic() - began, os.getloadavg()[0]
        seen.stolen = (stolen_now - stolen) / max(1, wanted_now - wanted)


def watch(path: Path) -> tuple[float, float]:
    """Sleep and sync until standard input ends; returns the longest pause and the longest sync in ms."""
    longest_pause, longest_sync, sync_at = 0.0, 0.0, 0.0
    with path.open("wb", buffering=0) as file:
        while True:
            began = time.perf_counter()
            if select.select([sys.stdin], [], [], NAP_S)[0]:
                return longest_pause * 1000, longest_sync * 1000
            woken = time.perf_counter()
            longest_pause = max(longest_pause, woken - began - NAP_S)
            if woken >= sync_at:
                file.write(b"fairq\n")
                os.fdatasync(file.fileno())
                longest_sync = max(longest_sync, time.perf_counter() - woken)
                sync_at = woken + SYNC_EVERY_S


def table(scenarios: dict[str, Disturbance]) -> Table:
    """Show what each scenario had to bear."""
    return Table(
        "the machine meanwhile",
        ["scenario", "s", "load", "stolen", "longest pause ms", "longest sync ms"],
        [
            [name, seen.seconds, f"{seen.load_before:.1f} to {seen.load_after:.1f}", f"{seen.stolen:.1%}",
             round(seen.longest_pause_ms, 1), round(seen.longest_sync_ms, 1)]
            for name, seen in scenarios.items()
        ],
        "stolen: of the CPU time wanted, given to others by the host; pause: how late a nap ended; sync: a few bytes",
    )  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(orjson.dumps(watch(Path(sys.argv[1]))).decode())
