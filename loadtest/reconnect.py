"""A reconnect of all idle workers at once, while another tenant's traffic goes on.

Some of the workers hold leases. One that is brought along in time stays its worker's. The task of one that is lost
starts again, and is done once all the same.
"""

from __future__ import annotations

import math
from typing import Any

import trio
from attrs import define, field

import fairq
from loadtest.crowd import Crowd
from loadtest.figures import Verdict, judge
from loadtest.idle import HELD_QUEUE
from loadtest.openloop import OpenLoop
from loadtest.pulse import Pulse
from loadtest.throughput import PAYLOAD
from loadtest.watch import queue_state, wait_done, wait_until

AFTERWARDS_S = 1.0  # for which traffic goes on when all are attached again: the server still clears up


@define(eq=False)
class Reconnect:
    """One reconnect: `hold` tasks, `send` traffic while the connections break, and `finish` the held tasks."""

    workers: Crowd
    operator: fairq.Client
    busy: fairq.Client
    pulse: Pulse
    limit: float
    held: list[str] = field(factory=list, init=False)  # ids
    seconds: float = field(default=math.nan, init=False)  # until all were attached again

    async def hold(self, count: int) -> None:
        """Have workers take so many tasks, and hold them."""
        self.held = [task.id for task in await self.busy.enqueue_many(HELD_QUEUE, [PAYLOAD] * count)]
        await wait_until("the tasks to hold", self.limit, self._part_leased)

    async def _part_leased(self) -> float:
        return float((await queue_state(self.operator, HELD_QUEUE))["leased"]) / len(self.held)

    async def send(self, traffic: OpenLoop) -> None:
        """Send traffic while all workers lose their connections and attach again."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.pulse.run)
            nursery.start_soon(self._break_all, traffic)
            await traffic.run([self.busy], math.inf)
            nursery.cancel_scope.cancel()

    async def _break_all(self, traffic: OpenLoop) -> None:
        self.seconds = await self.workers.break_all()
        await trio.sleep(AFTERWARDS_S)
        traffic.stop()

    async def finish(self) -> tuple[dict[str, Any], Verdict]:
        """Have the held tasks done; returns the findings, and the outcomes of these tasks."""
        await self.workers.finish()
        await wait_done(self.operator, HELD_QUEUE, len(self.held), "the tasks that were held", self.limit)
        shown = await self.workers.tell()
        found = {
            "attached_again_s": round(self.seconds, 3),
            "longest_silence_ms": round(self.pulse.longest_s * 1000, 1),
            "held": len(self.held),
            "leases_lost": shown["starts"] - len(self.held),
        }
        return found, judge(self.held, shown["done"])
