"""A process of idle clients (idle.py), from outside: waits until they are connected, and gives it orders."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field

from loadtest.processes import RunFailed, Server, running_idle
from loadtest.report import Progress


@define(eq=False)
class Crowd:
    """Idle clients in a process of their own. What waits for them raises RunFailed after `limit` seconds."""

    process: trio.Process
    kind: str
    limit: float
    _printed: bytes = field(default=b"", init=False)

    async def until_connected(self, count: int, progress: Progress) -> None:
        """Wait until so many are connected. Raises: RunFailed."""
        connected = 0
        while connected < count:
            connected = int(await self._line(f"{connected:,} of {count:,} idle {self.kind} were connected"))
            progress.say(f"connections: idle {self.kind}, {connected:,} of {count:,}")

    async def break_all(self) -> float:
        """Break all connections; returns the seconds until all were attached again. Raises: RunFailed."""
        await self._order("break")
        return float(await self._line("the workers were not all attached again"))

    async def finish(self) -> None:
        """Have the tasks that are held done."""
        await self._order("finish")

    async def tell(self) -> dict[str, Any]:
        """Return which of the held tasks are `done`, and how many `starts` they had. Raises: RunFailed."""
        await self._order("tell")
        answer: dict[str, Any] = json.loads(await self._line("the workers did not tell what they had done"))
        return answer

    async def _order(self, order: str) -> None:
        assert self.process.stdin is not None
        try:
            await self.process.stdin.send_all(f"{order}\n".encode())
        except trio.BrokenResourceError:
            raise RunFailed(f"the process of the idle {self.kind} ended") from None

    async def _line(self, trouble: str) -> bytes:
        """Wait for the next line. Raises: RunFailed if none comes."""
        assert self.process.stdout is not None
        with trio.move_on_after(self.limit):
            while b"\n" not in self._printed:
                if not (data := await self.process.stdout.receive_some()):
                    raise RunFailed(f"the process of the idle {self.kind} ended: {trouble}")
                self._printed += data
        line, is_whole, self._printed = self._printed.partition(b"\n")
        if not is_whole:
            raise RunFailed(f"in {self.limit:g} s {trouble}")
        return line


@asynccontextmanager
async def connected_crowd(
    server: Server, kind: str, count: int, progress: Progress, *, holders: int = 0, limit: float
) -> AsyncIterator[Crowd]:
    """Keep idle clients connected while the context lasts. Raises: RunFailed if they cannot be."""
    async with running_idle(server, kind, count, holders) as process:
        crowd = Crowd(process, kind, limit)
        await crowd.until_connected(count, progress)
        yield crowd
