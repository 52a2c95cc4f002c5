"""What faults are done to: servers on a store, workers, and the links between them. The dead come back."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random

import trio
from attrs import define, field

from loadtest.faults.deeds import Deed, of_links, of_processes
from loadtest.faults.forking import FAIRQ, Fork, Forker
from loadtest.faults.kept import Kept
from loadtest.faults.link import HOST, Link
from loadtest.faults.node import wait_for
from loadtest.faults.stores import Stores
from loadtest.processes import ROOT, free_port

SERVERS, WORKERS, CREDIT = 2, 3, 10


@define(eq=False)
class World:
    """All processes of a run, and its links."""

    directory: Path
    stores: Stores
    draws: Random
    ports: list[int] = field(factory=lambda: [free_port() for _ in range(SERVERS)], init=False)
    http_ports: list[int] = field(factory=lambda: [free_port() for _ in range(SERVERS)], init=False)
    links: list[Link] = field(init=False)
    servers: list[Kept] = field(init=False)
    homes: dict[int, Path] = field(factory=dict, init=False)  # of the package that each server runs
    _next: dict[int, Path] = field(factory=dict, init=False)  # that it runs from its next start on, if not any
    workers: list[Kept] = field(init=False)
    _forkers: dict[Path, Forker] = field(init=False)  # by version

    def __attrs_post_init__(self) -> None:
        self._forkers = {ROOT: self.stores.forker}
        self.links = [Link(free_port(), port) for port in self.ports]
        self.servers = [Kept(partial(self._start_server, n), self._log("server", n)) for n in range(SERVERS)]
        self.workers = [Kept(partial(self._start_worker, n), self._log("worker", n)) for n in range(WORKERS)]

    @property
    def urls(self) -> list[str]:
        """Return the URLs of the servers, each through its link."""
        return [f"ws://{HOST}:{link.port}" for link in self.links]

    def urls_of(self, n: int) -> list[str]:
        """Return the URL of the nth server for the nth client, and those of all for the others: all have clients."""
        return self.urls[n : n + 1] or self.urls

    @property
    def http_urls(self) -> list[str]:
        """Return the URLs of the servers' HTTP APIs."""
        return [f"http://{HOST}:{port}" for port in self.http_ports]

    def _log(self, kind: str, n: int) -> Path:
        return self.directory / f"{kind}-{n}.log"

    def record(self, n: int) -> Path:
        """Return the file of a worker's handlers."""
        return self.directory / f"worker-{n}.record"

    async def start(self, nursery: trio.Nursery) -> None:
        """Start everything, and keep it running in a nursery."""
        self.directory.mkdir(parents=True, exist_ok=True)
        await self.stores.start(nursery)
        for link in self.links:
            await nursery.start(link.run)
        for n, server in enumerate(self.servers):
            await nursery.start(server.run)
            if n == 0:  # the others may need its store
                await self._wait_serving(n)
        for worker in self.workers:
            await nursery.start(worker.run)
        await self.wait_serving()

    async def wait_serving(self) -> None:
        """Wait until all servers serve."""
        for n in range(SERVERS):
            await self._wait_serving(n)

    async def _wait_serving(self, n: int) -> None:
        await wait_for(f"server {n} serves", partial(_is_open, self.ports[n]))

    def deeds(self) -> dict[str, Deed]:
        """Return all faults, by name."""
        deeds = of_processes("a worker", self._any_worker)
        for name, home in self.stores.versions().items():
            deeds |= of_processes(name, partial(self._any_server, home))
        return deeds | of_links("the link to a server", lambda: self.links, self.draws) | self.stores.deeds()

    async def _any_worker(self) -> Kept:
        return self.draws.choice(self.workers)

    async def _any_server(self, home: Path) -> Kept:
        return self.servers[await self.server_of(home)]

    async def server_of(self, home: Path) -> int:
        """Return the number of any server of a version; if there is none, put one in another one's place."""
        if found := [n for n in range(SERVERS) if self.homes[n] == home]:
            return self.draws.choice(found)
        n = self.draws.randrange(SERVERS)
        self._next[n] = home
        await self.servers[n].end(signal.SIGTERM)
        await self._wait_serving(n)
        return n

    def crashed(self) -> list[str]:
        """Name the processes that ended though nobody had ended them."""
        kept = self.stores.kept()
        kept |= {f"server {n}": server for n, server in enumerate(self.servers)}
        kept |= {f"worker {n}": worker for n, worker in enumerate(self.workers)}
        return [f"{name}, {crash}" for name, each in kept.items() for crash in each.crashes]

    async def _start_server(self, n: int) -> Fork:
        variables = {
            "FAIRQ_HTTP_PORT": str(self.http_ports[n]), "FAIRQ_ADMIN_PORT": "0", "PYTHONUNBUFFERED": "1",
            "FAIRQ_WAIT_REPLICAS": str(self.stores.wait_replicas),
        }  # fmt: skip
        arguments = ["serve", "--dev", "--port", str(self.ports[n]), *self.stores.arguments(n)]
        arguments += ["--grace", "5", "--log-json"]
        self.homes[n] = self._next.pop(n, self.draws.choice([*self.stores.versions().values()]))
        return await self._fork(self.homes[n], arguments, self._log("server", n), variables)

    async def _start_worker(self, n: int) -> Fork:
        variables = {
            "FAIRQ_URL": ",".join(self.urls_of(n)), "FAIRQ_TOKEN": "dev-worker", "FAULTS_RECORD": str(self.record(n)),
        }  # fmt: skip
        arguments = ["worker", "loadtest.faults.app:app", "-c", str(CREDIT), "--name", f"w{n}"]
        arguments += ["--loop", "trio", "--log-level", "warning"]
        return await self._fork(ROOT, arguments, self._log("worker", n), variables)

    async def _fork(self, home: Path, arguments: Sequence[str], log: Path, variables: Mapping[str, str]) -> Fork:
        return await self._forkers.setdefault(home, Forker(home)).start([FAIRQ, *arguments], log, variables)

    async def close(self) -> None:
        """End all processes."""
        for each in self._forkers.values():
            await each.close()
        self.stores.close()


async def _is_open(port: int) -> bool:
    await trio.aclose_forcefully(await trio.open_tcp_stream(HOST, port))
    return True
