"""Fairness cases, carried out: each fair and then first in first out, with the same arrivals; and their scores.

A case with a period is carried out once, and what is left of its tasks when the period ends is left in the queue.
One worker process serves the queues of all trials, one after the other; its record tells at the end what it started.
First in first out is one tenant for all: its tasks run in the order in which they came.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import trio
from attrs import asdict, define, evolve, field, frozen

import fairq
from loadtest.bounds import bounds_of
from loadtest.cases import ALONE, CREDIT, Arrival, Case, Stream, Trickle, arrivals
from loadtest.figures import Record, Verdict, judge, read_records
from loadtest.processes import Server, running_worker
from loadtest.report import Progress
from loadtest.scorecard import Account, Sample, Score, follows_after, series
from loadtest.watch import queue_state, stop_handing_out, wait_attached, wait_until

FIFO = "fifo"
POLL_S = 0.01  # how often a trickling tenant asks whether its task is done


@frozen
class Lengths:
    """How long a case is, how often it is looked at, and after how long it has failed."""

    seconds: float = 8.0
    sample_s: float = 0.1
    window_s: float = 1.0  # of the picture
    limit: float = 180.0


def _queue(name: str) -> str:
    """Name a trial's queue, by which the handler is found."""
    return f"sleep-{name}"


@define(eq=False)
class Trial:
    """One queue's worth of work: its tasks, and the observations."""

    name: str
    seconds: float
    samples: list[Sample] = field(factory=list)
    came: list[Arrival] = field(factory=list)
    ids: list[str] = field(factory=list)
    began_ms: float = 0.0
    changed_ms: float = 0.0
    left: int = 0  # tasks that were not to run

    @property
    def queue(self) -> str:
        """The queue's name."""
        return _queue(self.name)

    def own(self, records: Sequence[Record]) -> list[Record]:
        """Pick what the worker started of this trial, in order."""
        known = set(self.ids)
        return sorted((record for record in records if record.id in known), key=lambda record: record.started_ms)


@define(eq=False)
class _Stage:
    """One trial while it runs."""

    trial: Trial
    operator: fairq.Client
    clients: Mapping[tuple[str, int], fairq.Client]
    lengths: Lengths
    began: float = field(factory=trio.current_time)

    async def enqueue(self, arrival: Arrival) -> list[str]:
        trial = self.trial
        ids = [f"{trial.name}_{n}" for n in range(len(trial.ids), len(trial.ids) + len(arrival.lengths_ms))]
        trial.ids += ids
        trial.came.append(arrival)
        client = self.clients[arrival.tenant, arrival.connection]
        asked = {"hand_backs": arrival.hand_backs} if arrival.hand_backs else {}
        payloads = [{"ms": ms, **asked} for ms in arrival.lengths_ms]
        await client.enqueue_many(trial.queue, payloads, ids=ids, delay=arrival.delay or None)
        return ids

    async def send(self, come: Sequence[Arrival]) -> None:
        """Send at the moments that were fixed beforehand, whether earlier ones have arrived or not."""
        async with trio.open_nursery() as nursery:
            for arrival in come:
                await trio.sleep_until(self.began + arrival.at)
                nursery.start_soon(self.enqueue, arrival)

    async def trickle(self, stream: Stream) -> None:
        client, n = self.clients[stream.tenant, 0], 0
        while (at := trio.current_time() - self.began) < self.trial.seconds:
            ms = stream.lengths_ms[n % len(stream.lengths_ms)]
            ids, n = await self.enqueue(Arrival(at, stream.tenant, [ms])), n + 1
            while (await client.tasks(self.trial.queue, ids))[0].state != "done":  # noqa: ASYNC110 - the service's state
                await trio.sleep(POLL_S)

    async def change(self, weights: Mapping[str, float]) -> None:
        await trio.sleep_until(self.began + self.trial.seconds / 2)
        for tenant, weight in weights.items():
            request = {"queue": self.trial.queue, "tenant": tenant, "weight": weight}
            await self.operator.request("set_weight", request)
        self.trial.changed_ms = time.time() * 1000

    async def look(self) -> None:
        states = (await self.operator.request("tenants", {"queue": self.trial.queue}))["tenants"]
        tenants = {s["tenant"]: Account(*(s[name] for name in Account._fields)) for s in states}
        self.trial.samples.append(Sample(trio.current_time() - self.began, tenants))

    async def sample(self) -> None:
        while True:
            await self.look()
            await trio.sleep(self.lengths.sample_s)

    async def until_done(self) -> None:
        async def part() -> float:
            state = await queue_state(self.operator, self.trial.queue)
            return max(0.01, float(state["done"]) / len(self.trial.ids))

        await wait_until(self.trial.name, self.lengths.limit, part)

    async def until_over(self) -> None:
        """Wait for the case's end, and have what runs then end."""
        await trio.sleep_until(self.began + self.trial.seconds)
        self.trial.left = await stop_handing_out(self.operator, self.trial.queue, self.lengths.limit)


@define(eq=False)
class Trials:
    """All trials of a scorecard, against one server."""

    server: Server
    operator: fairq.Client
    lengths: Lengths
    progress: Progress
    done: dict[str, Trial] = field(factory=dict, init=False)

    async def _run(self, name: str, come: Sequence[Arrival], case: Case) -> Trial:
        trial = Trial(name, case.period.seconds if case.period else self.lengths.seconds)
        self.progress.say(f"scorecard: {name}, {sum(len(arrival.lengths_ms) for arrival in come):,} tasks")
        streams = [stream for stream in case.streams if isinstance(stream.arrivals, Trickle)]
        senders = {(a.tenant, a.connection) for a in come} | {(stream.tenant, 0) for stream in streams}
        async with AsyncExitStack() as stack:
            clients = {
                (tenant, n): await stack.enter_async_context(
                    fairq.open_client(self.server.url, token=f"dev-tenant:{tenant}")
                )
                for tenant, n in sorted(senders)
            }
            await self.operator.request("set_paused", {"paused": True, "queue": trial.queue})
            for tenant, weight in case.weights.items():
                await self.operator.request("set_weight", {"queue": trial.queue, "tenant": tenant, "weight": weight})
            for tenant, limits in case.limits.items():
                await self.operator.request("set_limits", {"queue": trial.queue, "tenant": tenant, "limits": limits})
            stage = _Stage(trial, self.operator, clients, self.lengths)
            for arrival in come:
                if arrival.at == 0 and not arrival.delay:
                    await stage.enqueue(arrival)
            stage.began, trial.began_ms = trio.current_time(), time.time() * 1000
            await self.operator.request("set_paused", {"paused": False, "queue": trial.queue})
            async with trio.open_nursery() as looking:
                looking.start_soon(stage.sample)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stage.send, [a for a in come if a.at > 0 or a.delay])
                    for stream in streams:
                        nursery.start_soon(stage.trickle, stream)
                    if case.changed:
                        nursery.start_soon(stage.change, case.changed)
                await (stage.until_over() if case.period else stage.until_done())
                looking.cancel_scope.cancel()
            if case.period:
                await stage.look()  # nothing runs now, so all leases are booked
        self.done[name] = trial
        return trial

    async def run(self, cases: Sequence[Case], fifo: Sequence[str], bounds: Sequence[Case]) -> list[Record]:
        """Carry out the cases, those named in `fifo` also first in first out; returns all that the worker started."""
        names = [ALONE.name, *(case.name for case in (*cases, *bounds)), *(f"{name}-{FIFO}" for name in fifo)]
        queues, record = [_queue(name) for name in names], self.server.directory / "scorecard.record"
        async with running_worker(self.server, queues, CREDIT, record):
            await wait_attached(self.operator, queues[0])
            for case in (ALONE, *cases):
                trial = await self._run(case.name, arrivals(case, self.lengths.seconds), case)
                if case.name in fifo:
                    again = [evolve(arrival, tenant=FIFO, connection=0) for arrival in trial.came]
                    in_order = sorted(again, key=lambda arrival: arrival.at)
                    await self._run(f"{case.name}-{FIFO}", in_order, Case(FIFO, "", ()))
            for case in bounds:
                assert case.period
                await self._run(case.name, arrivals(case, case.period.seconds), case)
        return read_records(record)


def _particulars(case: Case, trial: Trial, starts: Sequence[Record], window_s: float) -> dict[str, Any]:
    """Return what only this case has to tell."""
    final = trial.samples[-1].tenants
    particulars: dict[str, Any] = {
        "tenants": {
            name: {"done": account.done, "delivered_s": round(account.delivered, 3),
                   "entitled_s": round(account.entitled, 3)}
            for name, account in final.items()
        },
        "series": series(trial.samples, [s.tenant for s in case.streams if s.tenant not in case.quiet], window_s),
    }  # fmt: skip
    if case.changed:
        weights = {tenant: case.changed.get(tenant, case.weight(tenant)) for tenant in case.backlogged}
        after = [start.tenant for start in starts if start.started_ms >= trial.changed_ms]
        particulars["follows_after"] = follows_after(after, weights)
    return particulars


def _bounds(case: Case, trial: Trial, records: Sequence[Record], window_s: float) -> dict[str, Any]:
    """Return a row of a case with a period."""
    found = bounds_of(case, trial.samples, trial.own(records), trial.began_ms)
    shown = series(trial.samples, case.backlogged, window_s)
    return {"name": case.name, "what": case.what, "tasks": len(trial.ids), **asdict(found), "series": shown}


def scorecard(
    trials: Trials, cases: Sequence[Case], bounds: Sequence[Case], records: Sequence[Record]
) -> tuple[dict[str, Any], Verdict]:
    """Work out the report's part, and the verdict over all tasks of all trials."""
    done = trials.done
    rows, alone = list[dict[str, Any]](), _score(ALONE, done[ALONE.name], records)
    for case in cases:
        trial = done[case.name]
        score, fifo = _score(case, trial, records), done.get(f"{case.name}-{FIFO}")
        in_order = _score(Case(FIFO, "", ()), fifo, records) if fifo else None
        rows.append({
            "name": case.name, "what": case.what, "subject": case.streams[0].tenant, "tasks": len(trial.ids),
            **asdict(score), "quiet_to_alone": round(score.quiet_p99_ms / alone.quiet_p99_ms, 3),
            "fifo_makespan_s": in_order and in_order.makespan_s, "fifo_busy": in_order and in_order.busy,
            "makespan_to_fifo": in_order and round(score.makespan_s / in_order.makespan_s, 4),
            **_particulars(case, trial, trial.own(records), trials.lengths.window_s),
        })  # fmt: skip
    bounded = [_bounds(case, done[case.name], records, trials.lengths.window_s) for case in bounds]
    expected = [id for trial in done.values() for id in trial.ids]
    verdict = judge(expected, [record.id for record in records], left=sum(trial.left for trial in done.values()))
    part = {
        "seconds": trials.lengths.seconds, "slots": CREDIT, "alone_p99_ms": alone.quiet_p99_ms, "cases": rows,
        "bounds": bounded,
    }  # fmt: skip
    return part, verdict


def _score(case: Case, trial: Trial, records: Sequence[Record]) -> Score:
    return Score.of(trial.samples, case.backlogged, trial.own(records), trial.began_ms, case.quiet, CREDIT)


async def measure(
    server: Server, operator: fairq.Client, lengths: Lengths, cases: Sequence[Case], fifo: Sequence[str],
    bounds: Sequence[Case], progress: Progress,
) -> tuple[dict[str, Any], Verdict]:  # fmt: skip
    """Carry out all trials; returns the scorecard and what became of every task."""
    trials = Trials(server, operator, lengths, progress)
    records = await trials.run(cases, fifo, bounds)
    return scorecard(trials, cases, bounds, records)
