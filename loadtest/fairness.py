"""Fairness: how far tenants are from their due, what a flood does to the others, shares by worker time; a scorecard."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio
from attrs import asdict, define, field, frozen

import fairq
from fairq.model.tasks import NewTask, Settlement
from fairq.store.embedded import embedded_store
from fairq.store.store import Store
from loadtest import bounds, queue_shares, several, trials
from loadtest.cases import BOUNDS, CASES, scaled
from loadtest.figures import Lag, Record, Verdict, judge, read_records, share_error, spread
from loadtest.pictures import new_grid, save
from loadtest.processes import RunFailed, Server, running_server, running_worker
from loadtest.report import Progress, Table
from loadtest.stores import opened
from loadtest.trials import Lengths
from loadtest.watch import queue_state, stop_handing_out, wait_attached, wait_until

QUIET_TENANTS, QUIET_TASKS, TASK_MS, CREDIT = 10, 20, 5, 10
CLAIM = 100
# tenant: weight, length of its tasks in ms
MIXED = {"long-1": (1.0, 50), "long-2": (2.0, 20), "short-1": (1.0, 2), "short-2": (1.0, 1), "short-3": (3.0, 2)}


@frozen
class Sizes:
    """How much of everything."""

    tenants: int = 1_000
    dispatches: tuple[int, ...] = (20_000, 100_000)
    flood: int = 20_000
    share_seconds: float = 15.0
    several_seconds: float = 30.0
    seconds: float = 240.0
    lengths: Lengths = field(factory=Lengths)
    cases: tuple[str, ...] = tuple(case.name for case in CASES)
    fifo: tuple[str, ...] = cases
    bounds: tuple[str, ...] = tuple(case.name for case in BOUNDS)
    bounds_scale: float = 1.0


QUICK = Sizes(
    tenants=100, dispatches=(2_000,), flood=600, share_seconds=2.0, several_seconds=2.0, seconds=30.0,
    lengths=Lengths(seconds=0.6, sample_s=0.03, window_s=0.2, limit=30.0),
    cases=("trickle", "lone-tenant", "delayed-herd", "weight-change-live"), fifo=("lone-tenant",),
    bounds=("gives-back", "joins-beside-limit"), bounds_scale=0.1,
)  # fmt: skip


async def _fill(store: Store, queue: str, tenants: dict[str, float], tasks: int, progress: Progress) -> None:
    """Give every tenant so many tasks that it stays backlogged for `tasks` dispatches."""
    weight_sum = sum(tenants.values())
    await store.configure(queue, {"share": "count"})
    for i, (tenant, weight) in enumerate(tenants.items()):
        if i % 100 == 0:
            progress.say(f"lag: filling the queues of {len(tenants):,} tenants: {i:,}")
        await store.set_weight(queue, tenant, weight)
        count = int(tasks * weight / weight_sum) + 60
        for start in range(0, count, 500):
            ids = range(start, min(start + 500, count))
            await store.enqueue(queue, tenant, [NewTask(f"{tenant}-{n}", b'{"n":1}') for n in ids])


async def service_lag(directory: Path, sizes: Sizes, progress: Progress, fsync: str) -> dict[str, Any]:
    """Claim and acknowledge through the Store's verbs, and look how far each tenant is from its due."""
    queue, tenants = "lag", {f"t{i}": float(1 + i % 10) for i in range(sizes.tenants)}
    rows, served, seen = [], Counter[str](), Counter[str]()
    async with embedded_store(directory / "lag", fsync=fsync) as url, opened(url) as store:
        await _fill(store, queue, tenants, max(sizes.dispatches), progress)
        claiming = 0.0
        for goal in sizes.dispatches:
            progress.say(f"lag: {goal:,} dispatches")
            while served.total() < goal:
                began = time.perf_counter()
                claim = await store.claim(queue, "loadtest", min(CLAIM, goal - served.total()))
                claiming += time.perf_counter() - began
                if not claim.leases:
                    raise RunFailed(f"lag: the queue gave nothing after {served.total():,} dispatches")
                served.update(lease.tenant for lease in claim.leases)
                seen.update(lease.id for lease in claim.leases)
                await store.settle(queue, [Settlement("ack", lease.id, lease.lease) for lease in claim.leases])
            lag = Lag.of(tenants, served)
            rows.append({**asdict(lag), "claim_us_per_task": round(claiming / goal * 1e6, 1)})
    return {"tenants": len(tenants), "rows": rows, "verdict": judge(seen.keys(), seen.elements())}


@define(eq=False)
class Fairness:
    """The measurements against a real server and worker."""

    server: Server
    operator: fairq.Client
    sizes: Sizes
    progress: Progress
    verdicts: dict[str, Verdict] = field(factory=dict, init=False)

    def _client(self, tenant: str) -> Any:
        return fairq.open_client(self.server.url, token=f"dev-tenant:{tenant}")

    async def _dwell(self, name: str, flood: int, *, fifo: bool) -> tuple[list[Record], Sequence[str]]:
        """Let quiet tenants come to a worker that has `flood` tasks before it; returns all starts, and the quiet ids.

        Under `fifo` all are one tenant, whose tasks run in the order in which they came.
        """
        queue, quiet, expected = f"sleep-{name}", list[str](), list[str]()
        record = self.server.directory / f"{queue}.record"
        payload = {"ms": TASK_MS}
        self.progress.say(f"quiet tenants, {name}: {flood:,} tasks before them")
        async with AsyncExitStack() as stack:
            loud = await stack.enter_async_context(self._client("loud"))
            others = [await stack.enter_async_context(self._client(f"quiet-{i}")) for i in range(QUIET_TENANTS)]
            await self.operator.request("set_paused", {"paused": True, "queue": queue})
            if flood:
                expected += [task.id for task in await loud.enqueue_many(queue, [payload] * flood)]
            async with running_worker(self.server, [queue], CREDIT, record):
                await self._begun(queue, flood)
                for client in [loud] * QUIET_TENANTS if fifo else others:
                    quiet += [task.id for task in await client.enqueue_many(queue, [payload] * QUIET_TASKS)]
                expected += quiet
                await self._until_done(queue, [loud] if fifo else others, quiet)
                left = await stop_handing_out(self.operator, queue, self.sizes.seconds)
        starts = read_records(record)
        self.verdicts[f"quiet tenants, {name}"] = judge(expected, [entry.id for entry in starts], left=left)
        return starts, quiet

    async def _begun(self, queue: str, flood: int) -> None:
        """Let the queue go, and wait until the flood is under way."""

        async def has_begun() -> float:
            return float((await queue_state(self.operator, queue))["done"] >= min(flood, 50))

        await wait_attached(self.operator, queue)
        await self.operator.request("set_paused", {"paused": False, "queue": queue})
        await wait_until("the flood", self.sizes.seconds, has_begun)

    async def _until_done(self, queue: str, clients: Sequence[fairq.Client], ids: Sequence[str]) -> None:
        """Wait until all these tasks are done; each client asks for its own, the last first."""
        per_client = len(ids) // len(clients)
        for i, client in enumerate(clients):
            own = ids[i * per_client : (i + 1) * per_client]

            async def all_done(client: fairq.Client = client, own: Sequence[str] = own) -> float:
                states = await client.tasks(queue, own)
                return max(0.01, sum(state.state in ("done", "unknown") for state in states) / len(own))

            await wait_until("the quiet tenants' tasks", self.sizes.seconds, all_done)

    async def quiet(self) -> dict[str, Any]:
        """Measure the dwell of quiet tenants: alone, beside a flood, and beside it when all is first-in-first-out."""
        rows, p99 = [], dict[str, float]()
        for name, flood in (("alone", 0), ("fair", self.sizes.flood), ("fifo", self.sizes.flood)):
            with trio.fail_after(self.sizes.seconds):
                starts, quiet = await self._dwell(name, flood, fifo=name == "fifo")
            wanted = set(quiet)
            wait_times = spread([entry.dwell_ms for entry in starts if entry.id in wanted])
            rows.append({"name": name, **wait_times})
            p99[name] = max(wait_times["p99"], 0.01)
        return {
            "quiet_tenants": QUIET_TENANTS, "tasks_each": QUIET_TASKS, "task_ms": TASK_MS, "credit": CREDIT,
            "flood": self.sizes.flood, "rows": rows,
            "p99_fair_to_alone": round(p99["fair"] / p99["alone"], 3),
            "p99_fair_to_fifo": round(p99["fair"] / p99["fifo"], 4),
        }  # fmt: skip

    async def share(self) -> dict[str, Any]:
        """Measure shares of worker time between tenants with long and short tasks, all backlogged all the time."""
        queue, seconds = "sleep-share", self.sizes.share_seconds
        record = self.server.directory / f"{queue}.record"
        weight_sum = sum(weight for weight, _ in MIXED.values())
        ids: list[str] = []
        await self.operator.request("set_paused", {"paused": True, "queue": queue})
        for tenant, (weight, ms) in MIXED.items():
            self.progress.say(f"share of worker time: filling the queue of {tenant}")
            await self.operator.request("set_weight", {"queue": queue, "tenant": tenant, "weight": weight})
            count = int(1.3 * seconds * CREDIT * weight / weight_sum / ms * 1000) + 100
            async with self._client(tenant) as client:
                ids += [task.id for task in await client.enqueue_many(queue, [{"ms": ms}] * count)]
        async with running_worker(self.server, [queue], CREDIT, record):
            await self._begun(queue, 0)
            self.progress.say(f"share of worker time: {seconds:g} s")
            await trio.sleep(seconds)
            left = await stop_handing_out(self.operator, queue, self.sizes.seconds)
            states = (await self.operator.request("tenants", {"queue": queue}))["tenants"]
        if dry := [state["tenant"] for state in states if not state["ready"]]:
            raise RunFailed(f"share of worker time: {', '.join(dry)} ran out of tasks")
        starts = read_records(record)
        self.verdicts["share of worker time"] = judge(ids, [entry.id for entry in starts], left=left)
        return _shares(states, starts, seconds)


def _shares(states: Sequence[dict[str, Any]], starts: Sequence[Record], seconds: float) -> dict[str, Any]:
    weights = {tenant: weight for tenant, (weight, _) in MIXED.items()}
    lease = {state["tenant"]: float(state["delivered"]) for state in states}
    handler = dict.fromkeys(weights, 0.0)
    for entry in starts:
        handler[entry.tenant] += entry.worked_ms / 1000
    tasks = Counter(entry.tenant for entry in starts)
    rows = [
        {
            "tenant": tenant,
            "weight": weight,
            "task_ms": ms,
            "tasks": tasks[tenant],
            "due": weight / sum(weights.values()),
            "lease_part": lease[tenant] / sum(lease.values()),
            "handler_part": handler[tenant] / sum(handler.values()),
        }
        for tenant, (weight, ms) in MIXED.items()
    ]
    return {
        "seconds": seconds, "credit": CREDIT, "tenants": rows, "lease_error": round(share_error(weights, lease), 4),
        "handler_error": round(share_error(weights, handler), 4),
    }  # fmt: skip


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    lag = await service_lag(directory, sizes, progress, fsync)
    progress.say("fairness: starting a server")
    async with (
        running_server(directory / "fairness", fsync=fsync) as server,
        fairq.open_client(server.url, token="dev-operator") as operator,
    ):
        scenario = Fairness(server, operator, sizes, progress)
        quiet, share = await scenario.quiet(), await scenario.share()
        one_queue, of_queue = await several.measure(server, operator, sizes.several_seconds, sizes.seconds, progress)
        queues, of_queues = await queue_shares.measure(
            server, operator, queue_shares.QUICK if quick else queue_shares.Sizes(), progress
        )
        cases = [case for case in CASES if case.name in sizes.cases]
        windowed = [scaled(case, sizes.bounds_scale) for case in BOUNDS if case.name in sizes.bounds]
        scorecard, verdict = await trials.measure(
            server, operator, sizes.lengths, cases, sizes.fifo, windowed, progress
        )
    verdicts = {
        "lag": lag.pop("verdict"), **scenario.verdicts, "several queues": of_queue, **of_queues, "scorecard": verdict
    }  # fmt: skip
    return {
        "lag": lag, "quiet": quiet, "share": share, "several": one_queue, "queues": queues, "scorecard": scorecard,
        "verdicts": verdicts,
    }  # fmt: skip


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    lag, quiet, share = part["lag"], part["quiet"], part["share"]
    return [
        Table(
            f"service lag in tasks: {lag['tenants']:,} backlogged tenants, weights 1 to 10, share = count",
            ["dispatches", "max lag", "mean lag", "claim us/task"],
            [[row["dispatches"], row["max"], row["mean"], row["claim_us_per_task"]] for row in lag["rows"]],
        ),
        Table(
            f"dwell of quiet tenants in ms: {quiet['quiet_tenants']} tenants with {quiet['tasks_each']} tasks each,"
            f" {quiet['flood']:,} tasks of {quiet['task_ms']} ms queued before them, {quiet['credit']} slots",
            ["", "p50", "p90", "p99", "max"],
            [[row["name"], row["p50"], row["p90"], row["p99"], row["max"]] for row in quiet["rows"]],
            f"p99 beside a flood: {quiet['p99_fair_to_fifo']:.3f} of first-in-first-out's",
        ),
        Table(
            f"worker time by share = time, {share['seconds']:g} s, {share['credit']} slots, mixed task lengths",
            ["tenant", "weight", "task ms", "tasks", "due", "received (lease)", "received (handler)"],
            [
                [t["tenant"], t["weight"], t["task_ms"], t["tasks"], f"{t['due']:.1%}", f"{t['lease_part']:.1%}",
                 f"{t['handler_part']:.1%}"]
                for t in share["tenants"]
            ],
            f"largest error: {share['lease_error']:.1%} of a tenant's due in lease time (what fairq charges),"
            f" {share['handler_error']:.1%} in handler time",
        ),
        several.table(part["several"]),
        *queue_shares.tables(part["queues"]),
        _scorecard_table(part["scorecard"]),
        bounds.table(part["scorecard"]),
    ]  # fmt: skip


def _known(value: float | None, style: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, style)


def _scorecard_table(scorecard: Mapping[str, Any]) -> Table:
    columns = {
        "contest s": ("contested_s", ".1f"), "its due": ("subject_of_due", ".1%"), "error: time": ("time_error", ".1%"),
        "starts": ("count_error", ".1%"), "lag": ("max_lag", ".1f"), "of ms": ("lag_unit_ms", ".0f"),
        "Jain": ("jain", ".4f"), "p99 ms": ("quiet_p99_ms", ".0f"), "/alone": ("quiet_to_alone", ".2f"),
        "span s": ("makespan_s", ".1f"), "/FIFO": ("makespan_to_fifo", ".2f"), "busy": ("busy", ".0%"),
        "stall s": ("longest_gap_s", ".2f"),
    }  # fmt: skip
    rows = [{**case, "subject_of_due": case["of_due"].get(case["subject"])} for case in scorecard["cases"]]
    changes = [case for case in rows if "follows_after" in case]
    return Table(
        f"scorecard: cases of {scorecard['seconds']:g} s of work for {scorecard['slots']} slots, share = time",
        ["", *columns],
        [[row["name"], *(_known(row[name], style) for name, style in columns.values())] for row in rows],
        "; ".join(f"{case['name']}: shares follow after {case['follows_after']} dispatches" for case in changes),
    )


def draw(part: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw shares over time, delivered against entitled for the scorecard; of the other cases against their due."""
    cases = part["scorecard"]["cases"]
    figure, grid = new_grid("Share of worker time: delivered (solid), entitled (dashed)", len(cases), "s", "")
    for case, axes in zip(cases, grid, strict=True):
        shown = case["series"]
        for n, tenant in enumerate(shown["delivered"]):
            axes.plot(shown["at"], shown["delivered"][tenant], color=f"C{n}", linewidth=1.2, label=tenant)
            axes.plot(shown["at"], shown["entitled"][tenant], color=f"C{n}", linewidth=1.2, linestyle="--", alpha=0.7)
        axes.set_title(case["name"], loc="left", fontsize=10)
        axes.set_ylim(0, 1.02)
        axes.legend(fontsize=7, frameon=False, loc="upper left", ncols=2)
    return [save(figure, directory / "fairness.png"), bounds.draw(part["scorecard"], directory)]
