"""Open-loop traffic: tasks are sent at times that were fixed beforehand, whether earlier ones have arrived or not.

A closed loop waits for slow replies, and so leaves out the very moments it should measure ("coordinated omission").
Here latency counts from the moment at which a task was due to be sent, so what a stall holds back counts in full.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import trio
from attrs import define, field
from hdrh.histogram import HdrHistogram

import fairq
from loadtest.figures import Record

HIGHEST_US = 600_000_000
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


@define(eq=False)
class OpenLoop:
    """Sends tasks as a Poisson stream of `rate` per second; `due_ms` tells, by id, when each was due (wall clock)."""

    queue: str
    payload: Any
    rate: float
    seed: int = 1
    due_ms: dict[str, float] = field(factory=dict, init=False)
    _is_stopped: bool = field(default=False, init=False)

    def stop(self) -> None:
        """Send no more than what is due now."""
        self._is_stopped = True

    def _moments(self, seconds: float) -> Iterator[float]:
        draws = random.Random(self.seed)
        at = draws.expovariate(self.rate)
        while at < seconds and not self._is_stopped:
            yield at
            at += draws.expovariate(self.rate)

    async def run(self, clients: Sequence[fairq.Client], seconds: float) -> None:
        """Send for so many seconds or until stopped, by the clients in turn; returns when all is enqueued."""
        began, epoch_ms = trio.current_time() + 0.01, (time.time() + 0.01) * 1000
        async with trio.open_nursery() as nursery:
            for i, at in enumerate(self._moments(seconds)):
                if trio.current_time() < began + at:
                    await trio.sleep_until(began + at)
                nursery.start_soon(self._send, clients[i % len(clients)], f"{self.seed}-{i}", epoch_ms + at * 1000)

    async def _send(self, client: fairq.Client, id: str, due_ms: float) -> None:
        await client.enqueue(self.queue, self.payload, id=id)
        self.due_ms[id] = due_ms

    def latency(self, starts: Sequence[Record]) -> HdrHistogram:
        """Return the latency of each task, from when it was due to be sent to its start, as a histogram in us."""
        return histogram({record.id: record.started_ms - self.due_ms[record.id] for record in starts})


def histogram(latencies_ms: Mapping[str, float]) -> HdrHistogram:
    """Gather latencies in a histogram in us, to three digits."""
    gathered = HdrHistogram(1, HIGHEST_US, 3)
    for ms in latencies_ms.values():
        gathered.record_value(max(1, round(ms * 1000)))
    return gathered


def percentiles_ms(gathered: HdrHistogram) -> dict[str, float]:
    """Return p50, p90, p99, p99.9 and max in ms."""
    values = {f"p{p:g}": gathered.get_value_at_percentile(p) / 1000 for p in PERCENTILES}
    return {name: round(ms, 3) for name, ms in (values | {"max": gathered.get_max_value() / 1000}).items()}


def curve_ms(gathered: HdrHistogram) -> list[tuple[float, float]]:
    """Return points of the percentile curve for a picture: (1 / (1 - percentile), ms), up to the last task."""
    parts = [1 - 10 ** (-n / 8) for n in range(41)]
    total = gathered.get_total_count()
    return [
        (round(1 / (1 - part), 3), gathered.get_value_at_percentile(part * 100) / 1000)
        for part in parts
        if total * (1 - part) >= 1
    ]
