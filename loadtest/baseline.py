"""The yardstick: bare pipelined Redis commands on a store of the same program with the same settings.

Shared machines are noisy, so every measurement is set beside a round of these, taken just before and just after it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import redis
import trio
from attrs import define, field, frozen

from loadtest.processes import CpuMeter

BATCH = 100  # commands in one pipeline


@frozen
class Rates:
    """Tasks per second: pushed; moved to a second list and removed from it; both, one after the other."""

    push: float
    drain: float

    @property
    def flow(self) -> float:
        """Both, one after the other."""
        return 1 / (1 / self.push + 1 / self.drain)


@define(eq=False)
class Baseline:
    """Takes rounds of bare commands. `count` tasks each, with a payload of `payload_bytes`."""

    socket: Path
    store_pid: int
    count: int
    payload_bytes: int
    rounds: list[Rates] = field(factory=list, init=False)
    cpu: dict[str, float] = field(factory=dict, init=False)  # seconds by process and kind, over all rounds

    async def take(self) -> Rates:
        """Take a round."""
        rates: Rates = await trio.to_thread.run_sync(self._round)
        self.rounds.append(rates)
        return rates

    def _round(self) -> Rates:
        client = redis.Redis(unix_socket_path=str(self.socket))
        try:
            return Rates(self._timed(client, "push"), self._timed(client, "drain"))
        finally:
            client.delete("ready", "busy")
            client.close()

    def _timed(self, client: redis.Redis, kind: str) -> float:
        meter = CpuMeter({"store": self.store_pid, "client": os.getpid()})
        began = time.perf_counter()
        if kind == "push":
            self._push(client)
        else:
            self._drain(client)
        seconds = time.perf_counter() - began
        for name, used in meter.used().items():
            self.cpu[f"{kind} {name}"] = self.cpu.get(f"{kind} {name}", 0.0) + used
        return self.count / seconds

    def _push(self, client: redis.Redis) -> None:
        tail = b"x" * (self.payload_bytes - 12)
        for start in range(0, self.count, BATCH):
            pipe = client.pipeline(transaction=False)
            for i in range(start, min(start + BATCH, self.count)):
                pipe.lpush("ready", b"%012d" % i + tail)
            pipe.execute()

    def _drain(self, client: redis.Redis) -> None:
        for start in range(0, self.count, BATCH):
            size = min(BATCH, self.count - start)
            pipe = client.pipeline(transaction=False)
            for _ in range(size):
                pipe.lmove("ready", "busy", "RIGHT", "LEFT")
            tasks = pipe.execute()
            pipe = client.pipeline(transaction=False)
            for task in tasks:
                pipe.lrem("busy", -1, task)
            pipe.execute()

    def summary(self) -> list[dict[str, object]]:
        """Return one row per kind of work: the mean rate of all rounds, and CPU seconds per 1,000 tasks."""
        rows: list[dict[str, object]] = []
        for kind, name in (("push", "LPUSH x100"), ("drain", "LMOVE x100, LREM x100")):
            rates = [getattr(r, kind) for r in self.rounds]
            total = len(rates) * self.count
            cpu = {name: round(self.cpu[f"{kind} {name}"] / total * 1000, 4) for name in ("store", "client")}
            rows.append(
                {
                    "name": f"raw: {name}",
                    "tasks": total,
                    "rate": round(sum(rates) / len(rates)),
                    "lowest": round(min(rates)),
                    "highest": round(max(rates)),
                    "cpu_s_per_1000": cpu,
                    "cpu_s_per_1000_total": round(sum(cpu.values()), 4),
                }
            )
        return rows
