"""Real processes, a journal of what their handlers did, and the checker that compares it with acknowledged tasks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path

import trio
from attrs import define, field, frozen

import fairq
from fairq.errors import FairqError
from tests.processes import commands
from tests.server.harness import OPERATOR, tenant
from tests.store.waiting import wait_until

ROOT = Path(__file__).parents[2]
START_SECONDS = 240.0  # a process that has ended is not waited for
ENQUEUE_SECONDS = 50.0  # less than the minute for which a queue remembers the id of a task that is done


@define(eq=False)
class Process:
    """A fairq command as a process; what it prints goes to a file."""

    output: Path
    process: subprocess.Popen[bytes]
    is_worker: bool = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def printed(self) -> str:
        return self.output.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    async def wait_printed(self, pattern: str) -> re.Match[str]:
        with trio.move_on_after(START_SECONDS):
            while True:
                if found := re.search(pattern, self.printed):
                    return found
                if self.process.poll() is not None:
                    break
                await trio.sleep(0.01)
        raise AssertionError(f"{pattern!r} was not printed:\n{self.printed}")

    async def wait(self, seconds: float = START_SECONDS) -> int:
        """Wait until it ends; returns its exit code."""
        await wait_until(lambda: self.process.poll() is not None, seconds)
        return self.process.returncode

    async def wait_url(self) -> str:
        return (await self.wait_printed(r"ws://127\.0\.0\.1:\d+")).group()

    def stop(self) -> None:
        """End it: a worker at once, a server in good order if it will."""
        if self.is_worker:
            self.kill()
        elif self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(30)  # killed, it would leave its store
            except subprocess.TimeoutExpired:
                self.kill()


def child_of(pid: int, name: str) -> int:
    """Find the child process of that name."""
    return next(child for child, words in commands(pid) if any(name in word for word in words))


@frozen
class Ran:
    """One line of the journal."""

    event: str
    id: str
    attempt: int
    pid: int


@define(eq=False)
class World:
    """One test's processes and their journal."""

    directory: Path
    _stack: ExitStack = field(factory=ExitStack)
    _count: int = 0

    def run(self, *argv: str | Path, home: Path = ROOT) -> Process:
        """Start a fairq command, of the package in the folder `home`."""
        self._count += 1
        output = self.directory / f"output-{self._count}-{argv[0]}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRQ_")}
        environment["FAIRQ_TEST_JOURNAL"] = str(self.directory / "journal")
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "fairq", *map(str, argv)],
                cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip
        started = Process(output, process, argv[0] == "worker")
        self._stack.callback(started.stop)
        return started

    def serve(self, *argv: str | Path, home: Path = ROOT) -> Process:
        """Start a server with development tokens, on a free port by default."""
        port = () if "--port" in argv else ("--port", "0")
        return self.run("serve", "--dev", *port, *argv, home=home)

    def work(self, *urls: str, concurrency: int = 4, name: str = "") -> Process:
        """Start a worker process; without a name it makes up one of its own."""
        named = ("--name", name) if name else ()
        argv = ("tests.system.app:app", "-c", str(concurrency), *named, "--token", "dev-worker")
        return self.run("worker", *argv, "--url", ",".join(urls))

    def touch(self, name: str) -> None:
        """Make the file that handlers wait for."""
        (self.directory / name).touch()

    def journal(self, event: str = "") -> list[Ran]:
        """Read what the handlers did so far."""
        path = self.directory / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [line.split(" ") for line in lines]
        ran = [Ran(what, id, int(attempt), int(pid)) for what, id, attempt, pid in rows]
        return [row for row in ran if event in ("", row.event)]

    async def wait_journal(self, holds: Callable[[list[Ran]], bool], seconds: float = START_SECONDS) -> list[Ran]:
        """Wait until the journal fulfils a condition."""
        try:
            await wait_until(lambda: holds(self.journal()), seconds)
        except TimeoutError:
            raise AssertionError(f"not in {seconds} s; the journal: {self.journal()}") from None
        return self.journal()


@contextmanager
def open_world(directory: Path) -> Iterator[World]:
    """Give a test its processes, and end those that are left."""
    world = World(directory)
    with world._stack:
        yield world


@define(eq=False)
class Producer:
    """Enqueues as a tenant, and keeps account of the answers."""

    client: fairq.Client
    attempted: set[str] = field(factory=set)
    acknowledged: set[str] = field(factory=set)

    async def enqueue(
        self, id: str, *, first: float | str = 0, then: float | str = 0, timeout: float = ENQUEUE_SECONDS
    ) -> bool:
        """Enqueue one task for tests/system/app.py; returns whether it was acknowledged."""
        self.attempted.add(id)
        try:
            await self.client.enqueue("q", {"first": first, "then": then}, id=id, timeout=timeout)
        except FairqError:
            return False
        self.acknowledged.add(id)
        return True

    async def keep_on(self, prefix: str, stop: trio.Event, pause: float = 0.005) -> None:
        """Enqueue one task after the other until it is stopped."""
        for number in count():
            if stop.is_set():
                return
            await self.enqueue(f"{prefix}-{number}")
            await trio.sleep(pause)

    def check(self, ran: Sequence[Ran], *, may_repeat: Callable[[str], bool] = lambda _: False) -> None:
        """Total queue: nothing acknowledged is lost, nothing unexpected ran, nothing ran twice that need not have."""
        starts = Counter((row.id, row.attempt) for row in ran if row.event == "start")
        ends = Counter(row.id for row in ran if row.event == "end")
        assert self.acknowledged - set(ends) == set(), "lost"
        assert set(ends) - self.attempted == set(), "unexpected"
        assert {key for key, count in starts.items() if count > 1} == set(), "one lease ran twice"
        assert {id for id, count in ends.items() if count > 1 and not may_repeat(id)} == set(), "duplicated"


@asynccontextmanager
async def producing(*urls: str) -> AsyncIterator[Producer]:
    async with fairq.open_client(urls, token=tenant("ada")) as client:
        yield Producer(client)


@asynccontextmanager
async def operating(*urls: str) -> AsyncIterator[fairq.Client]:
    async with fairq.open_client(urls, token=OPERATOR) as client:
        yield client


async def counts(operator: fairq.Client) -> dict[str, int]:
    """Read the queue's counts."""
    rows = (await operator.request("queues"))["queues"]
    return next((row for row in rows if row["queue"] == "q"), {})


async def wait_workers(operator: fairq.Client, count: int) -> None:
    """Wait until so many workers are attached to the operator's server."""

    async def are_there() -> bool:
        return (await counts(operator)).get("workers", 0) >= count

    await wait_until(are_there, START_SECONDS)


async def wait_drained(operator: fairq.Client, seconds: float = START_SECONDS) -> dict[str, int]:
    """Wait until nothing waits and nothing runs."""
    with trio.fail_after(seconds):
        while True:
            try:
                row = await counts(operator)
                if row and not row["ready"] + row["leased"] + row["delayed"]:
                    return row
            except FairqError:
                pass
            await trio.sleep(0.03)
