"""Simulate: what `fairq simulate` predicts of a change, beside what the servers then do of the same tasks again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

import fairq
from fairq.client.operator import OperatorClient, open_operator
from fairq.model.simulation.comparison import Comparison, compare
from fairq.model.simulation.gathering import gather
from fairq.model.simulation.setup import Proposal
from loadtest.figures import Record, Verdict, judge, read_records, spread
from loadtest.processes import Server, running_server, running_worker
from loadtest.report import Progress, Table
from loadtest.watch import queue_state, wait_attached, wait_until

SLOTS = 8
FLUSH_S = 12.0  # until all that was counted is in the history
SHARE_POINTS, FACTOR, NO_MATTER_MS = 0.05, 2.0, 100


@frozen
class Sender:
    """A tenant: so many tasks at once, every so many seconds on average, of a mean length (exponentially spread)."""

    every_s: float
    at_once: int
    ms: float


SENDERS = {"acme": Sender(0.12, 1, 320), "globex": Sender(6.0, 60, 350), "quiet": Sender(2.0, 1, 100)}
PROPOSAL = Proposal(weights={"acme": 3.0}, limits={"globex": {"max_running": 4}})


@frozen
class Sizes:
    """How long tasks come."""

    seconds: float = 120.0
    limit_s: float = 300.0


QUICK = Sizes(seconds=20.0, limit_s=120.0)


@define(eq=False)
class Rounds:
    """The same tasks twice: as the queue is set up first, and after the change."""

    server: Server
    operator: OperatorClient
    sizes: Sizes
    progress: Progress
    queue: str = "sleep-simulate"
    verdicts: dict[str, Verdict] = field(factory=dict, init=False)
    found: Comparison = field(init=False)

    async def play(self, name: str) -> list[Record]:
        """Have the tasks come, and run; returns their starts."""
        record, ids = self.server.directory / f"{name}.record", list[str]()
        self.progress.say(f"simulate: {name}, {self.sizes.seconds:g} s")
        async with running_worker(self.server, [self.queue], SLOTS, record):
            await wait_attached(self.operator, self.queue)
            async with trio.open_nursery() as nursery:
                for tenant, sender in SENDERS.items():
                    nursery.start_soon(self._send, tenant, sender, ids)
            await self._until_empty()
            if name == "now":
                await trio.sleep(FLUSH_S)
                self.found = compare(await gather(self.operator, self.queue, "1h", PROPOSAL), PROPOSAL)
        starts = read_records(record)
        self.verdicts[f"simulate, {name}"] = judge(ids, [entry.id for entry in starts])
        return starts

    async def _send(self, tenant: str, sender: Sender, ids: list[str]) -> None:
        source, began, at = random.Random(tenant), trio.current_time(), 0.0
        async with fairq.open_client(self.server.url, token=f"dev-tenant:{tenant}") as client:
            while (at := at + source.expovariate(1 / sender.every_s)) < self.sizes.seconds:
                lengths = [{"ms": round(sender.ms * source.expovariate(1.0), 1)} for _ in range(sender.at_once)]
                await trio.sleep_until(began + at)
                ids += [task.id for task in await client.enqueue_many(self.queue, lengths)]

    async def _until_empty(self) -> None:
        async def is_empty() -> float:
            state = await queue_state(self.operator, self.queue)
            return float(not state["ready"] + state["leased"])

        await wait_until("the tasks", self.sizes.limit_s, is_empty)

    async def apply(self) -> None:
        """Carry out the change."""
        for tenant, weight in PROPOSAL.weights.items():
            await self.operator.set_weight(self.queue, tenant, weight)
        for tenant, limits in PROPOSAL.limits.items():
            await self.operator.set_limits(self.queue, tenant, max_running=int(limits["max_running"]))


def _got(starts: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return of each tenant its share of the worker time, and the p99 of its waiting times."""
    whole = sum(entry.worked_ms for entry in starts)
    found = {}
    for tenant in SENDERS:
        own = [entry for entry in starts if entry.tenant == tenant]
        found[tenant] = {
            "share": sum(entry.worked_ms for entry in own) / whole,
            "p99_ms": spread([entry.dwell_ms for entry in own])["p99"],
            "starts": len(own),
        }
    return found


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    async with (
        running_server(directory / "simulate", fsync=fsync) as server,
        open_operator([server.url], token="dev-operator") as operator,
    ):
        rounds = Rounds(server, operator, sizes, progress)
        was = _got(await rounds.play("now"))
        await rounds.apply()
        then = _got(await rounds.play("changed"))
    rows = []
    for row in rounds.found.tenants:
        share, p99 = row.proposed.share or 0.0, row.proposed.p99_ms or 0
        got = then[row.tenant]
        low, high = sorted((p99 + NO_MATTER_MS, got["p99_ms"] + NO_MATTER_MS))
        rows.append({
            "tenant": row.tenant, "was": was[row.tenant], "then": got,
            "model": {"share": row.today.share, "p99_ms": row.today.p99_ms},
            "predicted": {"share": share, "p99_ms": p99},
            "is_near": abs(share - got["share"]) <= SHARE_POINTS and high <= FACTOR * low,
        })  # fmt: skip
    return {
        "seconds": sizes.seconds, "slots": SLOTS, "rows": rows, "cautions": [c.text for c in rounds.found.cautions],
        "verdicts": rounds.verdicts,
    }  # fmt: skip


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    title = (
        f"what `fairq simulate` predicts and what then happens, of the same tasks twice: {part['seconds']:g} s of them"
        f" on {part['slots']} slots; then acme gets weight 3, and globex may run 4 at once"
    )
    rows = [
        [
            row["tenant"], row["then"]["starts"], f"{row['was']['share']:.1%}", f"{row['model']['share']:.1%}",
            f"{row['predicted']['share']:.1%}", f"{row['then']['share']:.1%}", round(row["was"]["p99_ms"]),
            row["model"]["p99_ms"], row["predicted"]["p99_ms"], round(row["then"]["p99_ms"]),
            "yes" if row["is_near"] else "NO",
        ]
        for row in part["rows"]
    ]  # fmt: skip
    headings = [
        "tenant", "tasks", "share: was", "model", "predicted", "then was", "wait p99 ms: was", "model", "predicted",
        "then was", "within 5 points and a factor of two",
    ]  # fmt: skip
    return [Table(title, headings, rows, "; ".join(part["cautions"]))]
