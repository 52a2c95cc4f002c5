"""One store process, with the link by which all others know it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.store.address import Address
from fairq.store.embedded import ALLOCATOR, program
from fairq.store.node import BROKEN, ask_once, read_info
from loadtest.faults.forking import Fork, Forker
from loadtest.faults.kept import Kept
from loadtest.faults.link import HOST, Link
from loadtest.processes import RunFailed, free_port

UP_S = 60.0  # until a store is what it is to become


@define(eq=False)
class Node:
    """A store in a directory; `settings` are more than every one has, `variables` those of its environment."""

    directory: Path
    fsync: str
    forker: Forker
    settings: dict[str, str] = field(factory=dict)
    variables: Mapping[str, str] = field(factory=dict)
    before_start: Callable[[], Awaitable[None]] | None = None
    port: int = field(factory=free_port, init=False)
    link: Link = field(init=False)
    kept: Kept = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.link = Link(free_port(), self.port)
        self.kept = Kept(self._start, self.directory / "log")

    async def _start(self) -> Fork:
        await trio.Path(self.directory).mkdir(parents=True, exist_ok=True)
        if self.before_start:
            await self.before_start()
        if not (config := self.directory / "node.conf").exists():  # sentinels write into it what it is to follow
            settings = {
                "port": str(self.port), "bind": HOST, "dir": str(self.directory), "save": '""', "appendonly": "yes",
                "appendfsync": self.fsync, "maxmemory-policy": "noeviction", "repl-diskless-sync-delay": "0",
                **self.settings,
            }  # fmt: skip
            config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        allocator = {name: os.environ.get(name, value) for name, value in ALLOCATOR.items()}
        return await self.forker.start([str(program()), str(config)], self.kept.log, {**allocator, **self.variables})

    async def ask(self, *command: str | int) -> Any:
        """Send it a command, past its link, and return the reply."""
        with trio.fail_after(10):
            return await ask_once(Address.parse(f"redis://{HOST}:{self.port}/0"), *command)

    async def info(self) -> dict[str, str]:
        """Read INFO; nothing if it does not answer."""
        try:
            return read_info(await self.ask("INFO", "everything"))
        except (*BROKEN, FairqError, trio.TooSlowError):
            return {}

    async def refused(self, error: str) -> str:
        """Count the commands that this process has refused with an error; "gone" if it does not answer."""
        info = await self.info()
        return f"{info['run_id']} {info.get(f'errorstat_{error}', 0)}" if info else "gone"

    async def has(self, name: str, value: str) -> bool:
        """True if it answers, and INFO has this value."""
        return (await self.info()).get(name) == value


async def wait_for(what: str, is_so: Callable[[], Awaitable[bool]], seconds: float = UP_S) -> None:
    """Ask until something is so. Raises: RunFailed."""
    with trio.move_on_after(seconds):
        while True:
            try:
                if await is_so():
                    return
            except (*BROKEN, FairqError, trio.TooSlowError):
                pass
            await trio.sleep(0.05)
    raise RunFailed(f"not in {seconds:g} s: {what}")
