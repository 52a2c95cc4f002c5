"""Driving a peer's scripts: a producer that takes orders, workers that note what they start, and what they noted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import trio
from attrs import define, field

from loadtest.peers.environments import SCRIPTS, Environment
from loadtest.processes import ROOT, START_S, RunFailed, children, cpu_seconds, stop

LINE_BYTES = 47  # of one start in a record file (scripts/peerlib.py)
STALLED_S = 30.0


class Start(NamedTuple):
    """One start of a task, as a peer's handler noted it; times in microseconds."""

    id: str
    started_us: int
    enqueued_us: int


def read_starts(path: Path) -> list[Start]:
    """Read what the handlers noted; a line that is not complete yet is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    rows = (
        data[at : at + LINE_BYTES].decode("ascii").split()
        for at in range(0, len(data) // LINE_BYTES * LINE_BYTES, LINE_BYTES)
    )
    return [Start(id, int(started), int(enqueued)) for id, started, enqueued in rows]


def count_starts(path: Path) -> int:
    """Return how many starts are noted, from the size of the file."""
    with suppress(FileNotFoundError):
        return path.stat().st_size // LINE_BYTES
    return 0


def rate_of(starts: Sequence[Start]) -> float:
    """Return starts per second, from the first to the last: the first tells when a worker was ready."""
    times = [start.started_us for start in starts]
    seconds = (max(times) - min(times)) / 1e6 if times else 0.0
    return (len(times) - 1) / seconds if seconds else 0.0


async def wait_for(what: str, count: Callable[[], int], goal: int) -> None:
    """Wait until `count` is `goal` or more. Raises: RunFailed when it does not grow for STALLED_S."""
    last, changed = count(), trio.current_time()
    while last < goal:
        await trio.sleep(0.01)
        if (now := count()) != last:
            last, changed = now, trio.current_time()
        elif trio.current_time() - changed > STALLED_S:
            raise RunFailed(f"{what}: stands still at {last:,} of {goal:,}")


def _environment(environment: Environment, settings: Mapping[str, Any]) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("FAIRQ_")}
    paths = {"PYTHONPATH": str(SCRIPTS), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    return {**own, **paths, **environment.variables, "LOADTEST_PEER": json.dumps(dict(settings))}


def tail(path: Path) -> str:
    """Return the last lines of a log."""
    with suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-8:])
    return ""


async def _end(process: trio.Process, seconds: float = 10.0) -> None:
    """End a script and the processes that it started, which are in its session."""
    try:
        await stop(process, seconds)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def family(pids: Sequence[int]) -> list[int]:
    """Return processes with all that they started."""
    found = list(pids)
    for pid in found:
        found += [child for child in children(pid) if child not in found]
    return found


def family_cpu(pids: Sequence[int]) -> float:
    """Return CPU seconds used by processes and all that they started."""
    return sum(cpu_seconds(pid) for pid in family(pids))


@define(eq=False)
class Producer:
    """A running producer script."""

    process: trio.Process
    log: Path
    _pending: bytearray = field(factory=bytearray, init=False)

    async def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while b"\n" not in self._pending:
            if not (data := await self.process.stdout.receive_some()):
                raise RunFailed(f"the producer ended:\n{tail(self.log)}")
            self._pending += data
        line, _, rest = self._pending.partition(b"\n")
        self._pending = rest
        return dict(json.loads(line))

    async def order(self, **order: Any) -> dict[str, Any]:
        """Have it do something (scripts/peerlib.py: `serve`); returns its answer. Raises: RunFailed if it ends."""
        assert self.process.stdin is not None
        try:
            await self.process.stdin.send_all(json.dumps(order).encode() + b"\n")
        except trio.BrokenResourceError as error:
            raise RunFailed(f"the producer ended:\n{tail(self.log)}") from error
        return await self._answer()


@asynccontextmanager
async def running_producer(environment: Environment, settings: Mapping[str, Any], log: Path) -> AsyncIterator[Producer]:
    """Run a producer while the context lasts; it is connected when the context begins."""
    with log.open("wb") as file:
        process = await trio.lowlevel.open_process(
            [*environment.command, "produce"], cwd=ROOT, env=_environment(environment, settings),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        producer = Producer(process, log)
        with trio.move_on_after(START_S) as scope:
            await producer._answer()
        if scope.cancelled_caught:
            raise RunFailed(f"the producer did not start:\n{tail(log)}")
        yield producer
    finally:
        await _end(process, 2.0)


@asynccontextmanager
async def running_workers(
    environment: Environment, settings: Mapping[str, Any], log: Path, *, processes: int = 1
) -> AsyncIterator[list[int]]:
    """Run worker processes while the context lasts; gives their ids. They end gracefully unless the context fails."""
    started: list[trio.Process] = []
    seconds = 1.0
    try:
        with log.open("wb") as file:
            for _ in range(processes):
                process = await trio.lowlevel.open_process(
                    [*environment.command, "work"], cwd=ROOT, env=_environment(environment, settings),
                    stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                )  # fmt: skip
                started.append(process)
        yield [process.pid for process in started]
        seconds = 3.0
    finally:
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.shield = True
            for process in started:
                nursery.start_soon(_end, process, seconds)
