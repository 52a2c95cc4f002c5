"""The same work done by fairq and by its peers: rates beside raw Redis of the same minute, and a flood's effect."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

from loadtest.baseline import Baseline, Rates
from loadtest.fairness import CREDIT, QUIET_TASKS, QUIET_TENANTS, TASK_MS
from loadtest.figures import Verdict, judge, spread
from loadtest.peers import driving
from loadtest.peers.catalogue import PEERS, Peer
from loadtest.peers.driving import Producer, family_cpu, read_starts, running_producer, running_workers, wait_for
from loadtest.peers.environments import Environment, NotInstalled, find, install, remedy
from loadtest.peers.stores import RunningStore, running_store
from loadtest.processes import RunFailed, plain_store
from loadtest.report import Progress, Table

PAYLOAD_BYTES = 200
PEER_S = 240.0  # the longest that one peer may take
QUIET_WARM = 50  # starts of the flood before the quiet tenants come


@frozen
class Sizes:
    """How many tasks there are: one by one, of a peer's own number in bulk and flow, of its flood; raw per round."""

    one: int = 1_000
    part: float = 1.0
    raw: int = 10_000
    seconds: float = 2_400.0  # no further peer begins after these

    def of(self, count: int) -> int:
        """Return how many tasks take the place of `count`."""
        return max(100, int(count * self.part))


QUICK = Sizes(one=50, part=0.02, raw=500, seconds=13.0)


def mean(*rates: Rates) -> Rates:
    """Return the mean of rounds of the yardstick."""
    return Rates(sum(r.push for r in rates) / len(rates), sum(r.drain for r in rates) / len(rates))


def ids_of(prefix: str, count: int) -> list[str]:
    """Return the ids of the tasks that a producer makes for an order."""
    return [f"{prefix}{i:08d}" for i in range(count)]


@define(eq=False)
class Peers:
    """One run of the scenario."""

    directory: Path
    sizes: Sizes
    fsync: str
    baseline: Baseline
    progress: Progress
    rows: list[dict[str, Any]] = field(factory=list, init=False)
    quiet_rows: list[dict[str, Any]] = field(factory=list, init=False)
    left_out: dict[str, str] = field(factory=dict, init=False)
    verdicts: dict[str, Verdict] = field(factory=dict, init=False)

    async def run(self, peers: Sequence[tuple[Peer, Environment]]) -> None:
        """Measure peers one after the other; one that fails is told, and the others go on."""
        began = trio.current_time()
        for peer, environment in peers:
            if trio.current_time() - began > self.sizes.seconds:
                self.left_out[peer.name] = "no time left for it"
                continue
            for measure in (self.rates, self.quiet) if peer.ten_slots else (self.rates,):
                try:
                    with trio.fail_after(PEER_S):
                        await measure(peer, environment)
                except (RunFailed, trio.TooSlowError) as error:
                    self.left_out[f"{peer.name} ({measure.__name__})"] = str(error) or f"not done in {PEER_S:g} s"

    def _folder(self, peer: Peer, what: str) -> Path:
        name = "".join(letter if letter.isalnum() else "-" for letter in f"{peer.name}-{what}")
        folder = self.directory / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    async def rates(self, peer: Peer, environment: Environment) -> None:
        """Measure what goes in, comes out and passes through, and what that costs; one row."""
        one, many = self.sizes.of(self.sizes.one) if self.sizes.part < 1 else self.sizes.one, self.sizes.of(peer.count)
        folder = self._folder(peer, "rates")
        record = folder / "record"
        self.progress.say(f"{peer.name}: enqueuing {one + many:,} tasks")
        async with running_store(peer, environment.program, folder / "store", self.fsync) as store:
            settings = {**store.settings, **peer.options, "slots": peer.slots, "record": str(record)}
            async with running_producer(environment, settings, folder / "producer.log") as producer:
                raw = [await self.baseline.take()]
                one_by_one = await producer.order(do="one", prefix="one-", count=one)
                before = store.bytes_used()
                bulk = await producer.order(do="many", prefix="many", count=many)
                bytes_per_task = (store.bytes_used() - before) / many
                raw.append(await self.baseline.take())
                self.progress.say(f"{peer.name}: draining {one + many:,} tasks")
                log = folder / "worker.log"
                try:
                    async with running_workers(environment, settings, log) as workers:
                        await wait_for("drain", lambda: driving.count_starts(record), one + many)
                        drained = driving.rate_of(read_starts(record))
                        raw.append(await self.baseline.take())
                        self.progress.say(f"{peer.name}: flow of {many:,} tasks")
                        flow = await self._flow(many, producer, store, workers, record)
                        raw.append(await self.baseline.take())
                        left = await self._left(producer)
                except RunFailed as error:
                    raise RunFailed(f"{error}\n{driving.tail(log)}") from error
                finally:
                    expected = [*ids_of("one-", one), *ids_of("many", many), *ids_of("flow", many)]
                    self.verdicts[peer.name] = judge(expected, [start.id for start in read_starts(record)])
        push, drain, through = mean(raw[0], raw[1]).push, mean(raw[1], raw[2]).drain, mean(raw[2], raw[3]).flow
        verdict = self.verdicts[peer.name]
        self.rows.append(
            {
                "name": peer.name, "setting": peer.setting, "tasks": one + 2 * many,
                "one_by_one": round(one / one_by_one["seconds"]),
                "bulk": round(many / bulk["seconds"]), "bulk_of_raw": round(many / bulk["seconds"] / push, 4),
                "drained": round(drained), "drained_of_raw": round(drained / drain, 4),
                "flow": round(flow["rate"]), "flow_of_raw": round(flow["rate"] / through, 4),
                "raw": {"push": round(push), "drain": round(drain), "flow": round(through)},
                "cpu_s_per_1000": {name: round(used / many * 1000, 4) for name, used in flow["cpu"].items()},
                "cpu_s_per_1000_total": round(sum(flow["cpu"].values()) / many * 1000, 4),
                "bytes_per_task": round(bytes_per_task), "unacknowledged": left,
                "lost": len(verdict.lost), "twice": len(verdict.duplicated),
            }
        )  # fmt: skip

    async def _flow(
        self, count: int, producer: Producer, store: RunningStore, workers: Sequence[int], record: Path
    ) -> dict[str, Any]:
        """Have the producer enqueue while the worker works; from the first call to the last start."""
        before = driving.count_starts(record)

        def used() -> dict[str, float]:
            stores = {name: family_cpu([pid]) for name, pid in store.pids.items() if name != "server"}
            servers = (
                {"server": family_cpu([store.pids["server"]]) - sum(stores.values())} if "server" in store.pids else {}
            )
            return {"worker": family_cpu(workers), **stores, **servers}

        at_first = used()
        made = await producer.order(do="many", prefix="flow", count=count)
        await wait_for("flow", lambda: driving.count_starts(record), before + count)
        cpu = {name: value - at_first[name] for name, value in used().items()}
        last = max(start.started_us for start in read_starts(record))
        return {"rate": count / (last - made["began_us"]) * 1e6, "cpu": {"client": made["cpu_s"], **cpu}}

    async def _left(self, producer: Producer) -> int:
        """Return how many tasks are not acknowledged when the last acknowledgements have had time to arrive."""
        deadline = time.monotonic() + 5
        while (left := int((await producer.order(do="left"))["left"])) and time.monotonic() < deadline:
            await trio.sleep(0.1)
        return left

    async def quiet(self, peer: Peer, environment: Environment) -> None:
        """Measure the dwell of quiet tenants who come while a flood of another waits; one row."""
        assert peer.ten_slots is not None
        processes, slots = peer.ten_slots
        flood, folder = self.sizes.of(peer.flood), self._folder(peer, "quiet")
        record = folder / "record"
        orders = [{"prefix": f"q{i:03d}", "count": QUIET_TASKS, "tenant": f"quiet-{i}"} for i in range(QUIET_TENANTS)]
        quiet = {id for order in orders for id in ids_of(str(order["prefix"]), QUIET_TASKS)}
        self.progress.say(f"{peer.name}: quiet tenants, {flood:,} tasks before them")
        async with running_store(peer, environment.program, folder / "store", self.fsync) as store:
            settings = {**store.settings, **peer.options, "slots": slots, "record": str(record), "is_quiet": True}
            async with running_producer(environment, settings, folder / "producer.log") as producer:
                await producer.order(do="many", prefix="loud", count=flood, ms=TASK_MS, tenant="loud")
                log = folder / "worker.log"
                async with running_workers(environment, settings, log, processes=processes):
                    await wait_for("the flood", lambda: driving.count_starts(record), QUIET_WARM)
                    for order in orders:
                        await producer.order(do="many", ms=TASK_MS, **order)
                    await self._until_started(record, quiet, flood + len(quiet))
                left = await self._left_now(producer)
        starts = read_starts(record)
        expected = [*ids_of("loud", flood), *sorted(quiet)]
        self.verdicts[f"{peer.name}, quiet tenants"] = judge(expected, [start.id for start in starts], left=left)
        dwells = spread([(start.started_us - start.enqueued_us) / 1000 for start in starts if start.id in quiet])
        self.quiet_rows.append(
            {
                "name": peer.name,
                "flood": flood,
                "processes": processes,
                "slots": slots,
                **dwells,
                "rate": round(driving.rate_of(starts)),
            }
        )

    async def _left_now(self, producer: Producer) -> int:
        return int((await producer.order(do="left"))["left"])

    async def _until_started(self, record: Path, ids: set[str], total: int) -> None:
        """Wait until all these tasks have been started, however many others have."""
        seen = 0
        while not ids <= {start.id for start in read_starts(record)}:
            if seen >= total:
                raise RunFailed("quiet tenants' tasks are lost")
            await wait_for("the quiet tenants' tasks", lambda: driving.count_starts(record), seen + 1)
            seen = driving.count_starts(record)
            await trio.sleep(0.2)


async def environments(progress: Progress, *, quick: bool) -> tuple[list[tuple[Peer, Environment]], dict[str, str]]:
    """Return the peers that can run, with their environments, and the others with the reason and the remedy.

    A quick run installs nothing.
    """
    found, missing = [], {}
    for peer in PEERS:
        if quick:
            if environment := find(peer):
                found.append((peer, environment))
            else:
                missing[peer.name] = f"not installed, and --quick installs nothing; remedy: {remedy(peer)}"
            continue
        try:
            found.append((peer, await install(peer, progress)))
        except NotInstalled as error:
            missing[peer.name] = str(error)
    return found, missing


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    peers, missing = await environments(progress, quick=quick)
    with plain_store(directory / "peers-raw", fsync=fsync) as (socket, raw_pid):
        baseline = Baseline(socket, raw_pid, sizes.raw, PAYLOAD_BYTES)
        scenario = Peers(directory / "peers", sizes, fsync, baseline, progress)
        await scenario.run(peers)
    return {
        "payload_bytes": PAYLOAD_BYTES,
        "rows": scenario.rows,
        "quiet": {
            "quiet_tenants": QUIET_TENANTS, "tasks_each": QUIET_TASKS, "task_ms": TASK_MS, "slots": CREDIT,
            "rows": scenario.quiet_rows,
        },
        "raw": baseline.summary(),
        "left_out": {**missing, **scenario.left_out},
        "verdicts": scenario.verdicts,
    }  # fmt: skip


def _beside(row: Mapping[str, Any], name: str) -> str:
    return f"{row[name]:,} ({row[name + '_of_raw']:.2f})"


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    quiet = part["quiet"]
    rates = [
        [
            row["name"], row["tasks"], row["one_by_one"], *(_beside(row, name) for name in ("bulk", "drained", "flow")),
            *(row["cpu_s_per_1000"].get(name, "") for name in ("client", "server", "store", "worker")),
            row["cpu_s_per_1000_total"], row["bytes_per_task"], row["lost"], row["twice"],
        ]
        for row in part["rows"]
    ]  # fmt: skip
    headings = [
        "",
        "tasks",
        "one by one/s",
        "bulk/s",
        "drained/s",
        "flow/s",
        "client",
        "server",
        "store",
        "worker",
        "all",
        "B/task",
        "lost",
        "twice",
    ]
    title = f"fairq and its peers ({part['payload_bytes']} B payloads, no-op handler; CPU of the flow in seconds per 1,000 tasks)"
    found = [
        Table(title, headings, rates, "in brackets: of raw pipelined Redis in the same minute"),
        Table("settings", ["", "setting"], [[row["name"], row["setting"]] for row in part["rows"]]),
        Table(
            f"dwell of quiet tenants in ms: {quiet['quiet_tenants']} tenants with {quiet['tasks_each']} tasks each behind a"
            f" flood of one tenant's tasks of {quiet['task_ms']} ms, {quiet['slots']} slots",
            ["", "flood", "processes x slots", "p50", "p90", "p99", "max"],
            [
                [
                    row["name"],
                    row["flood"],
                    f"{row['processes']} x {row['slots']}",
                    *(row[p] for p in ("p50", "p90", "p99", "max")),
                ]
                for row in quiet["rows"]
            ],
        ),
    ]
    if part["left_out"]:
        found.append(Table("left out", ["", "why"], list(part["left_out"].items())))
    return found
