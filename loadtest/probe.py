"""A probe into a store: calls single verbs, and notes by the store's own clocks how long each took."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from attrs import define, field, frozen

from fairq.model.checks import MAX_BATCH
from fairq.store import keys, library
from fairq.store.store import Store
from loadtest.report import Progress

LIMIT_MS = 10.0
REPLY_BYTES = (1 << 20) + (1 << 20) + (1 << 17)  # a page, its last entry, and what stands around 500 entries
Args = Sequence[str | bytes | int | float]
Prepare = Callable[[], Awaitable[Args]]


@frozen
class Sizes:
    """How much there is of what calls work on, and how often each row is measured."""

    tenants: int = 100_000
    many: int = 100_000  # tasks, dead letters, marks, leases: whatever a tenant may have many of
    listed: int = 1_000_000  # tasks in one tenant's list
    call: int = MAX_BATCH
    rounds: int = 5


QUICK = Sizes(tenants=600, many=600, listed=1_500, call=100, rounds=1)


@define
class Row:
    """One verb in one situation: the store's time of the longest call of each round, and the longest reply."""

    verb: str
    what: str
    calls: int = 0
    longest_ms: list[float] = field(factory=list)
    cpu_ms: list[float] = field(factory=list)  # the same, without the time in which the store did not have the CPU
    reply_bytes: int = 0

    @property
    def least_ms(self) -> float:
        """CPU time of the longest call in the round in which the machine disturbed least."""
        return min(self.cpu_ms)

    @property
    def is_within(self) -> bool:
        """The store's time, and the reply, are within what is promised."""
        return self.least_ms <= LIMIT_MS and self.reply_bytes <= REPLY_BYTES


def size_of(reply: Any) -> int:
    """Count the bytes of a reply, without what the protocol puts around them."""
    if isinstance(reply, list):
        return sum(size_of(part) for part in reply)
    return len(reply) if isinstance(reply, bytes) else 8


@define(eq=False)
class Probe:
    """Calls verbs on a store that does nothing else, and notes how long they took by its own slow log."""

    store: Store
    sizes: Sizes
    progress: Progress
    rows: list[Row] = field(factory=list, init=False)

    async def command(self, *words: str | bytes | int | float) -> Any:
        """Send a command."""
        return await self.store.connection.call(*words)

    async def call(self, verb: str, queue: str, *args: str | bytes | int | float, now: float | str = "") -> Any:
        """Call a verb; `now` counts where the queue has the tests' gate."""
        command = "FCALL_RO" if verb in library.verbs("reads") else "FCALL"
        prefix = queue if queue == keys.REGISTRY else keys.queue_prefix(queue)
        return await self.command(command, library.function_name(verb), 1, prefix, now, "", *args)

    async def start_over(self) -> None:
        """Empty the store."""
        await self.command("FLUSHALL", "SYNC")
        await self.command("CONFIG", "SET", "auto-aof-rewrite-percentage", 0)  # no fork while we measure
        self.store.registry.known.clear()

    async def _cpu_ms(self) -> float:
        """Return the CPU time of the store's main thread."""
        found = (await self.command("INFO", "cpu")).decode().replace("\r", "")
        used = dict(line.split(":", 1) for line in found.splitlines() if ":" in line)
        return 1000 * (float(used["used_cpu_user_main_thread"]) + float(used["used_cpu_sys_main_thread"]))

    async def _timed(self, row: Row, queue: str, args: Args, now: float | str) -> tuple[Any, float, float]:
        await self.command("SLOWLOG", "RESET")
        before = await self._cpu_ms()
        reply = await self.call(row.verb, queue, *args, now=now)
        cpu = await self._cpu_ms() - before
        name = library.function_name(row.verb).encode()
        entries = await self.command("SLOWLOG", "GET", 16)
        (took,) = [entry[2] for entry in entries if entry[3][1:2] == [name]]
        row.calls += 1
        row.reply_bytes = max(row.reply_bytes, size_of(reply))
        return reply, took / 1000, min(took / 1000, cpu)

    async def measure(
        self,
        verb: str,
        what: str,
        queue: str,
        args: Prepare | Args = (),
        *,
        calls: int = 1,
        rounds: int = 0,
        now: float | str = "",
        until: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        """Add a row: in each round so many calls, or fewer (`until` a reply). `args` prepares each call."""
        self.progress.say(f"longest: {verb}, {what}")
        row = Row(verb, what)
        is_over = False
        for _ in range(rounds or self.sizes.rounds):
            longest = most_cpu = 0.0
            for _ in range(calls):
                given = await args() if callable(args) else args
                reply, took, cpu = await self._timed(row, queue, given, now)
                longest, most_cpu, is_over = max(longest, took), max(most_cpu, cpu), until(reply)
                if is_over:
                    break
            row.longest_ms.append(round(longest, 3))
            row.cpu_ms.append(round(most_cpu, 3))
            if is_over:
                break
        self.rows.append(row)
