"""Set-ups with one store: by itself, a server's own, on a disk that is full, with a clock that jumps."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import ClassVar

import trio
from attrs import define, field

from fairq.store.embedded import store_url
from loadtest.faults.deeds import STOPPED_S, Deed, of_links, of_processes
from loadtest.faults.forking import Forker
from loadtest.faults.kept import Kept
from loadtest.faults.link import HOST, Link
from loadtest.faults.node import Node, wait_for
from loadtest.processes import ROOT, RunFailed, free_port
from tests.upgrade.tomorrow import build

_TORN = b"*3\r\n$3\r\nSET\r\n$4\r\ntorn\r\n$1000\r\nhalf of a wri"  # as a power cut leaves it
_DISK = "64m"
_CLOCK = "libfaketime.so.1"
_CLOCK_FOLDERS = ("/usr/lib/*/faketime", "/usr/lib*/faketime", "/usr/local/lib/faketime")


@define(eq=False)
class Stores:
    """How the store is set up: what runs, how servers reach it, and what can be done to it."""

    directory: Path
    fsync: str
    servers: int
    draws: Random
    forker: Forker = field(factory=lambda: Forker(ROOT), init=False)  # of this version
    wait_replicas: ClassVar[int] = 0
    partitions: ClassVar[int] = 1  # of the workers' queue
    unpromised: ClassVar[frozenset[str]] = frozenset()  # rules that are counted only

    def check(self) -> None:
        """Raises: RunFailed, with the remedy, if this machine lacks something."""

    def versions(self) -> dict[str, Path]:
        """Return the versions of fairq that servers may have: a name, and where the package is."""
        return {"a server": ROOT}

    def arguments(self, n: int) -> list[str]:
        """Return the arguments by which a server finds the store."""
        raise NotImplementedError

    async def start(self, nursery: trio.Nursery) -> None:
        """Start it, and keep it running in a nursery."""
        raise NotImplementedError

    def deeds(self) -> dict[str, Deed]:
        """Return the faults, by name."""
        raise NotImplementedError

    def kept(self) -> dict[str, Kept]:
        """Return the processes that must not end by themselves, by name."""
        return {}

    def close(self) -> None:
        """Put away what is left when all processes have ended."""


@define(eq=False)
class Single(Stores):
    """One store, with a link from each server."""

    node: Node = field(init=False)
    links: Sequence[Link] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.node = Node(self.directory / "store", self.fsync, self.forker)
        self.links = [Link(free_port(), self.node.port, reads_calls=True) for _ in range(self.servers)]

    def arguments(self, n: int) -> list[str]:
        return ["--store", f"redis://{HOST}:{self.links[n].port}/0"]

    async def start(self, nursery: trio.Nursery) -> None:
        for link in self.links:
            await nursery.start(link.run)
        await nursery.start(self.node.kept.run)
        await wait_for("the store answers", lambda: self.node.has("loading", "0"))

    def kept(self) -> dict[str, Kept]:
        return {"the store": self.node.kept}

    def deeds(self) -> dict[str, Deed]:
        own = of_processes("the store", self._choose)
        more = {"tear the store's last write": self.tear, "fill the store's memory": self.fill_memory}
        return own | more | of_links("the link to the store", lambda: self.links, self.draws)

    async def _choose(self) -> Kept:
        return self.node.kept

    async def tear(self) -> float:
        """Kill the store, and leave half a write at the end of its file."""
        async with self.node.kept.down():
            newest = max((self.node.directory / "appendonlydir").glob("*.incr.aof"), key=os.path.getmtime)
            with newest.open("ab") as file:
                file.write(_TORN)
            return trio.current_time()

    async def fill_memory(self) -> float:
        """Let the store take nothing more for a while. Raises: RunFailed if it refused nothing."""
        before, began = await self.node.refused("OOM"), trio.current_time()
        await self.node.ask("CONFIG", "SET", "maxmemory", 1)
        await trio.sleep(STOPPED_S)
        await self.node.ask("CONFIG", "SET", "maxmemory", 0)
        if await self.node.refused("OOM") == before:
            raise RunFailed("the store's memory was full, and it refused nothing")
        return began


@define(eq=False)
class Disk(Single):
    """One store, on a disk of its own that is full now and then: with `appendfsync always` it ends there."""

    def check(self) -> None:
        if os.geteuid() or not shutil.which("mount"):
            raise RunFailed("`disk` mounts a tmpfs of 64 MB: run it as root, on Linux")

    async def start(self, nursery: trio.Nursery) -> None:
        self.node.directory.mkdir(parents=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "fairq-faults", str(self.node.directory)]
        await trio.run_process(words)
        await Single.start(self, nursery)

    def close(self) -> None:
        subprocess.run(["umount", str(self.node.directory)], check=False, timeout=10)

    def kept(self) -> dict[str, Kept]:
        return {}

    def deeds(self) -> dict[str, Deed]:
        return {"fill the store's disk": self.fill} | of_processes("the store", self._choose)

    async def fill(self) -> float:
        """Leave no byte on the disk for a while. Raises: RunFailed if the store did not notice."""
        before, began = await self.node.refused("MISCONF"), trio.current_time()
        ballast = self.node.directory / "ballast"
        try:
            with ballast.open("wb", buffering=0) as file:
                for size in (1 << 16, 1):
                    while _is_written(file.fileno(), size):
                        pass
            await trio.sleep(STOPPED_S)
            if await self.node.refused("MISCONF") == before:
                raise RunFailed("the store's disk was full, and it refused nothing")
        finally:
            ballast.unlink()
        return began


def _is_written(file: int, size: int) -> bool:
    try:
        return os.write(file, bytes(size)) == size
    except OSError:
        return False


@define(eq=False)
class Clock(Single):
    """One store, whose clock jumps by an hour now and then."""

    unpromised = frozenset(  # leases, starts and expiries go by the store's clock, not ours
        {"leased twice", "started before its start", "started after its expiry", "expired before its expiry"}
    )

    def __attrs_post_init__(self) -> None:
        Single.__attrs_post_init__(self)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._set(0)
        self.node.variables = {
            "LD_PRELOAD": str(_library_of_clocks() or ""),  # jemalloc, which reads the clock as it starts, would hang
            "FAKETIME_TIMESTAMP_FILE": str(self._file), "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1",
        }  # fmt: skip

    @property
    def _file(self) -> Path:
        return self.directory / "clock"

    def _set(self, seconds: int) -> None:
        self._file.write_text(f"{seconds:+d}\n")

    def check(self) -> None:
        if not _library_of_clocks():
            raise RunFailed("`clock` needs libfaketime (Debian: apt install faketime)")

    def deeds(self) -> dict[str, Deed]:
        def jump(seconds: int) -> Deed:
            async def do() -> float:
                self._set(seconds)
                began = trio.current_time()
                await trio.sleep(STOPPED_S)
                off = int((await self.node.ask("TIME"))[0]) - time.time()
                self._set(0)
                if abs(off - seconds) > 60:
                    raise RunFailed(f"the store's clock was to jump by {seconds} s, and it is {off:.0f} s off")
                return began

            return do

        own = {"set the store's clock an hour on": jump(3600), "set the store's clock an hour back": jump(-3600)}
        return own | of_processes("the store", self._choose)


def _library_of_clocks() -> Path | None:
    for folder in _CLOCK_FOLDERS:
        for path in Path("/").glob(f"{folder[1:]}/{_CLOCK}"):
            return path
    return None


@define(eq=False)
class Rolling(Single):
    """One store, with servers of two versions: a server that is started has any of them."""

    def versions(self) -> dict[str, Path]:
        if not (home := self.directory / "tomorrow").exists():
            build(home)
        return {"a server of this version": ROOT, "a server of tomorrow's": home}


@define(eq=False)
class Embedded(Stores):
    """The first server's own store; the others use its socket."""

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def arguments(self, n: int) -> list[str]:
        return ["--store", store_url(self._data)] if n else ["--data-dir", str(self._data), "--fsync", self.fsync]

    async def start(self, nursery: trio.Nursery) -> None:
        """Leave it to the first server."""

    def deeds(self) -> dict[str, Deed]:
        async def kill() -> float:
            os.kill(self._pid(), signal.SIGKILL)
            return trio.current_time()

        async def stop() -> float:
            os.kill(pid := self._pid(), signal.SIGSTOP)
            began = trio.current_time()
            try:
                await trio.sleep(STOPPED_S)
            finally:
                os.kill(pid, signal.SIGCONT)
            return began

        return {"kill the store": kill, "stop the store": stop}

    def _pid(self) -> int:
        """Find the process whose working directory is the data's: its server may have died."""
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cwd").readlink() == self._data and _is_store(entry):
                    return int(entry.name)
            except OSError:
                continue
        raise RunFailed("the embedded store does not run")


def _is_store(entry: Path) -> bool:
    return b"valkey" in (entry / "cmdline").read_bytes().partition(b"\0")[0]
