"""What faults are done to: a store, two servers on it, two workers, and the links between them. The dead come back."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
from attrs import define, field

from fairq.store.embedded import ALLOCATOR, program
from loadtest.faults.link import HOST, Link
from loadtest.processes import ROOT, START_S, Server, free_port, running_server, stop

SERVERS, WORKERS, CREDIT = 2, 2, 10
STOPPED_S = 3.0  # a process stands still, or a link is held, for so long: longer than a store's probe, not than a lease
SLOW_S = 0.05  # for each piece on a slow link


@define(eq=False)
class World:
    """All processes of a run, by their names, and its links."""

    directory: Path
    fsync: str
    store_port: int = field(factory=free_port)
    server_ports: list[int] = field(factory=lambda: [free_port() for _ in range(SERVERS)])
    to_store: Link = field(init=False)
    to_servers: list[Link] = field(init=False)
    servers: dict[int, Server] = field(factory=dict, init=False)
    _processes: dict[str, trio.Process] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.to_store = Link(free_port(), self.store_port)
        self.to_servers = [Link(free_port(), port) for port in self.server_ports]

    @property
    def links(self) -> list[Link]:
        """Return all links."""
        return [self.to_store, *self.to_servers]

    @property
    def urls(self) -> list[str]:
        """Return the URLs of the servers, each through its link."""
        return [f"ws://{HOST}:{link.port}" for link in self.to_servers]

    def record(self, n: int) -> Path:
        """Return the file of a worker's handlers."""
        return self.directory / f"worker-{n}.record"

    async def start(self, nursery: trio.Nursery) -> None:
        """Start everything in a nursery; all of it ends with that."""
        for link in self.links:
            await nursery.start(link.run)
        await nursery.start(self._keep_store)
        for n in range(SERVERS):
            await nursery.start(self._keep_server, n)
        for n in range(WORKERS):
            await nursery.start(self._keep_process, f"worker {n}", self._start_worker, n)

    async def _keep_store(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self._keep_process("store", self._start_store, 0, task_status=task_status)

    async def _keep_process(
        self,
        name: str,
        start: Callable[[int], Awaitable[trio.Process]],
        n: int,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run a process, and another one when it was killed."""
        for lives in itertools.count():
            process = self._processes[name] = await start(n)
            try:
                if lives == 0:
                    task_status.started()
                await process.wait()
            finally:
                await stop(process, 2.0)

    async def _keep_server(self, n: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        store = f"redis://{HOST}:{self.to_store.port}/0"
        for lives in itertools.count():
            where = self.directory / f"server-{n}"
            async with running_server(where, port=self.server_ports[n], store=store) as server:
                self.servers[n], self._processes[f"server {n}"] = server, server.process
                if lives == 0:
                    task_status.started()
                await server.process.wait()

    async def _start_store(self, _: int) -> trio.Process:
        where = self.directory / "store"
        await trio.Path(where).mkdir(parents=True, exist_ok=True)
        settings = {
            "port": str(self.store_port), "bind": HOST, "dir": str(where), "save": "", "appendonly": "yes",
            "appendfsync": self.fsync, "maxmemory-policy": "noeviction", "logfile": str(where / "log"),
        }  # fmt: skip
        command = [str(program()), *(word for name, value in settings.items() for word in (f"--{name}", value))]
        return await trio.lowlevel.open_process(
            command, env={**ALLOCATOR, **os.environ}, stdin=subprocess.DEVNULL, start_new_session=True
        )

    async def _start_worker(self, n: int) -> trio.Process:
        own = {name: value for name, value in os.environ.items() if not name.startswith("FAIRQ_")}
        own |= {"FAIRQ_URL": ",".join(self.urls), "FAIRQ_TOKEN": "dev-worker", "FAULTS_RECORD": str(self.record(n))}
        command = ["-m", "fairq", "worker", "loadtest.faults.app:app", "-c", str(CREDIT), "--name", f"w{n}"]
        with (self.directory / f"worker-{n}.log").open("ab") as log:
            return await trio.lowlevel.open_process(
                [sys.executable, *command, "--loop", "trio", "--log-level", "warning"], cwd=ROOT, env=own,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    async def _running(self, name: str) -> trio.Process:
        """Return a process when it runs: a fault that hits nothing proves nothing."""
        with trio.fail_after(START_S):
            while (process := self._processes[name]).poll() is not None:  # noqa: ASYNC110 - another one is started
                await trio.sleep(0.02)
        return process

    async def kill(self, name: str) -> None:
        """Kill a process: another one takes its place."""
        process = await self._running(name)
        process.kill()
        await process.wait()

    async def stand_still(self, name: str) -> None:
        """Stop a process, and let it go on."""
        process = await self._running(name)
        process.send_signal(signal.SIGSTOP)
        try:
            await trio.sleep(STOPPED_S)
        finally:
            process.send_signal(signal.SIGCONT)

    async def disturb(self, link: Link, how: str) -> None:
        """Cut, hold or slow a link, or bring single bytes; then heal it."""
        match how:
            case "cut":
                link.cut()
            case "hold":
                link.hold()
            case "slow":
                link.delay_s = SLOW_S
            case "bytes":
                link.piece = 1
        if how != "cut":
            await trio.sleep(STOPPED_S)
        link.heal()
