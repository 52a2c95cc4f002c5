"""The demonstration's service: a server and its workers, as separate processes.

Each child has its own session, so that ctrl-C in the terminal reaches only the demonstration. It then stops the
children in order: first the workers, while the server still takes their settlements, then the server, which stops its
store. All output of a child goes to a file in the demonstration's directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import orjson
import trio
from attrs import define, field

from fairq.demo.executions import DIRECTORY_VARIABLE
from fairq.errors import FairqError
from fairq.io.scopes import background, end_process
from fairq.store.address import Address
from fairq.store.embedded import store_url
from fairq.store.node import ask_once

HANDLERS = "fairq.demo.handlers:app"
WORKERS = 2
CONCURRENCY = 2
_START_LIMIT_S = 30.0
STOP_LIMIT_S = 5.0


class ChildFailed(FairqError):
    """A process of the demonstration ended, or did not start in time."""

    code = "child_failed"


@define
class Service:
    """A running service: its addresses, the directory of its workers' records, and its processes as they are to end.

    `stays`: the processes go on when the context ends in good order.
    """

    url: str
    http: str
    admin: str
    executions: Path
    processes: Mapping[str, int]
    stays: bool = False


@define(eq=False)
class _Child:
    name: str
    process: trio.Process
    log: Path

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        telling = [
            line.strip(" |") for line in lines if any(map(str.isalpha, line))
        ]  # without the drawn lines of a traceback
        return telling[-1].removeprefix("fairq: ") if telling else "it said nothing"

    async def watch(self) -> None:
        """Wait for the process to end, then raise ChildFailed."""
        code = await self.process.wait()
        raise ChildFailed(f"the {self.name} ended with code {code}: {self.log_tail()}")


@define(eq=False)
class _Children:
    directory: Path
    nursery: trio.Nursery
    servers: list[_Child] = field(factory=list, init=False)
    workers: list[_Child] = field(factory=list, init=False)

    async def start(self, kin: list[_Child], name: str, *arguments: str, **variables: str) -> _Child:
        """Start `python -m fairq` with these arguments; settings of the caller's environment do not reach it."""
        log = self.directory / f"{name}.log"
        own = {key: value for key, value in os.environ.items() if not key.startswith("FAIRQ_")}
        with log.open("wb") as output:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "fairq", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**own, **variables},
                start_new_session=True,
            )
        child = _Child(name, process, log)
        kin.append(child)
        self.nursery.start_soon(child.watch)
        return child


async def _stop_all(servers: Sequence[_Child], workers: Sequence[_Child], data_dir: Path) -> None:
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            for worker in workers:
                nursery.start_soon(end_process, worker.process, STOP_LIMIT_S)
        for server in servers:
            await end_process(server.process, STOP_LIMIT_S)
            await stop_orphaned_store(data_dir)


async def stop_orphaned_store(data_dir: Path) -> None:
    """Shut down the store if the server died and left it running."""
    with suppress(OSError, FairqError, trio.BrokenResourceError), trio.move_on_after(STOP_LIMIT_S):
        await ask_once(Address.parse(store_url(data_dir)), "SHUTDOWN", "NOSAVE")


def _addresses_in(log: Path) -> dict[str, str] | None:
    for line in log.read_bytes().splitlines():
        with suppress(orjson.JSONDecodeError):
            entry = orjson.loads(line)
            if entry.get("event") == "serving":
                return {name: entry[name] for name in ("url", "http", "admin")}
    return None


async def _wait_serving(server: _Child) -> dict[str, str]:
    with trio.move_on_after(_START_LIMIT_S):
        while True:
            if addresses := _addresses_in(server.log):
                return addresses
            await trio.sleep(0.05)
    raise ChildFailed(f"the server did not start within {_START_LIMIT_S:g} seconds: {server.log_tail()}")


@asynccontextmanager
async def running_service(directory: Path, port: int = 0) -> AsyncIterator[Service]:
    """Run the server and its workers while the context lasts; all their processes end with it, unless they stay.

    Raises: ChildFailed, also inside the context, when one of them ends before its time.
    """
    data_dir, executions = directory / "data", directory / "executions"
    executions.mkdir()
    children: _Children | None = None
    service: Service | None = None
    try:
        async with background() as nursery:
            children = _Children(directory, nursery)
            server = await children.start(
                children.servers, "server", "serve", "--dev", "--host", "127.0.0.1", "--port", str(port),
                "--data-dir", str(data_dir), "--grace", "2", "--log-json",
            )  # fmt: skip
            addresses = await _wait_serving(server)
            for number in range(1, WORKERS + 1):
                await children.start(
                    children.workers, f"worker-{number}", "worker", HANDLERS, "-c", str(CONCURRENCY),
                    "--name", f"worker-{number}", "--no-task-log", "--url", addresses["url"],
                    FAIRQ_TOKEN="dev-worker", **{DIRECTORY_VARIABLE: str(executions)},
                )  # fmt: skip
            processes = {each.name: each.process.pid for each in (*children.workers, server)}
            url, http, admin = (addresses[name] for name in ("url", "http", "admin"))
            service = Service(url, http, admin, executions, processes)
            yield service
    except BaseException:
        service = None
        raise
    finally:
        if children is not None and not (service and service.stays):
            await _stop_all(children.servers, children.workers, data_dir)
