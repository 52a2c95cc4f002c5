"""The same work done by fairq and by its peers: rates beside raw Redis of the same minute, and what a flood does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from loadtest.baseline import Baseline
from loadtest.fairness import CREDIT, QUIET_TASKS, QUIET_TENANTS, TASK_MS
from loadtest.figures import Verdict
from loadtest.peers.catalogue import Peer, chosen
from loadtest.peers.environments import Environment, NotInstalled, find, install, remedy
from loadtest.peers.measuring import PACES, QUICK, Measuring, Sizes
from loadtest.processes import RunFailed, plain_store
from loadtest.report import Progress, Table

PAYLOAD_BYTES = 200
PROCESSES = ("client", "server", "store", "worker")
MEASUREMENT_S = 200.0  # the longest that one measurement of one peer may take


async def environments(progress: Progress, *, quick: bool) -> tuple[list[tuple[Peer, Environment]], dict[str, str]]:
    """Return the peers that can run, with their environments, and of the others the reason and the remedy.

    A quick run installs nothing.
    """
    found, missing = [], dict[str, str]()
    for peer in chosen():
        try:
            environment = find(peer) if quick else await install(peer, progress)
        except NotInstalled as error:
            missing[peer.name] = str(error)
        else:
            if environment:
                found.append((peer, environment))
            else:
                missing[peer.name] = f"not installed, and a quick run installs nothing; remedy: {remedy(peer)}"
    return found, missing


def _is_ours(name: str) -> bool:
    """True if lost tasks fail the run: those of fairq and the yardstick; peers' are only reported."""
    return name.startswith(("fairq", "raw")) or name.endswith(", fairq")


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report.

    A peer that fails is listed in `left_out`, and the others go on. Raises: RunFailed if it is fairq.
    """
    sizes, began = QUICK if quick else Sizes(), trio.current_time()
    peers, left_out = await environments(progress, quick=quick)
    rows, quiet_rows, verdicts = list[dict[str, Any]](), list[dict[str, Any]](), dict[str, Verdict]()
    with plain_store(directory / "peers-raw", fsync=fsync) as (socket, raw_pid):
        baseline = Baseline(socket, raw_pid, sizes.raw, PAYLOAD_BYTES)
        for peer, environment in peers:
            if trio.current_time() - began > sizes.seconds and not _is_ours(peer.name):
                left_out[peer.name] = "no time was left for it"
                continue
            measuring = Measuring(peer, environment, directory / "peers", sizes, fsync, baseline, progress)
            for measure, into in ((measuring.rates, rows), (measuring.quiet, quiet_rows)):
                if into is quiet_rows and not peer.ten_slots:
                    continue
                try:
                    with trio.fail_after(MEASUREMENT_S):
                        into.append(await measure())
                except (RunFailed, trio.TooSlowError) as error:
                    if _is_ours(peer.name):
                        raise
                    left_out[f"{peer.name}, {measure.__name__}"] = str(error) or f"not done in {MEASUREMENT_S:g} s"
            verdicts.update(measuring.verdicts)
    return {
        "payload_bytes": PAYLOAD_BYTES,
        "rows": rows,
        "quiet": {
            "quiet_tenants": QUIET_TENANTS, "tasks_each": QUIET_TASKS, "task_ms": TASK_MS, "slots": CREDIT,
            "rows": quiet_rows,
        },
        "raw": baseline.summary(),
        "left_out": left_out,
        "verdicts": {name: verdict for name, verdict in verdicts.items() if _is_ours(name)},
        "peers_verdicts": {name: verdict for name, verdict in verdicts.items() if not _is_ours(name)},
    }  # fmt: skip


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    found = [
        _rates_table(part),
        _costs_table(part),
        _paced_table(part),
        _quiet_table(part["quiet"]),
        _settings_table(part),
    ]
    if part["left_out"]:
        found.append(Table("left out", ["", "why"], list(part["left_out"].items())))
    return found


def _rates_table(part: Mapping[str, Any]) -> Table:
    rows = []
    for row in part["rows"]:
        rates = [cell for name in ("bulk", "drained", "flow") for cell in (row[name], f"{row[name + '_of_raw']:.3f}")]
        rows.append([row["name"], row["tasks"], row["one_by_one"], *rates, row["lost"], row["twice"], row["left"]])
    return Table(
        f"fairq and its peers, tasks/s ({part['payload_bytes']} B payloads, a handler that does nothing, one worker)",
        ["", "tasks", "one by one", "bulk", "of raw", "drained", "of raw", "flow", "of raw", "lost", "twice", "left"],
        rows,
        "of raw: of pipelined bare commands just before and after. left: never acknowledged",
    )


def _costs_table(part: Mapping[str, Any]) -> Table:
    return Table(
        "what that costs: CPU seconds per 1,000 tasks of the flow; bytes in the store per queued task",
        ["", *PROCESSES, "all", "bytes"],
        [
            [row["name"], *(row["cpu_s_per_1000"].get(name, "") for name in PROCESSES), row["cpu_s_per_1000_total"],
             row["bytes_per_task"]]
            for row in part["rows"]
        ],
    )  # fmt: skip


def _paced_table(part: Mapping[str, Any]) -> Table:
    dwells = ("p50", "p99")
    return Table(
        "one caller and nothing else: from the making of a task to its start, and CPU per task, both in ms",
        ["", *(f"{name} at {pace}/s" for pace in PACES.values() for name in dwells), *PROCESSES, "all", "all at 20/s"],
        [
            [row["name"], *(row[pace][name] for pace in PACES for name in dwells),
             *(row["steady"].get(name, "") for name in PROCESSES), row["steady"]["cpu_ms"], row["idle"]["cpu_ms"]]
            for row in part["rows"]
        ],
    )  # fmt: skip


def _quiet_table(quiet: Mapping[str, Any]) -> Table:
    return Table(
        f"dwell of quiet tenants in ms: {quiet['quiet_tenants']} tenants with {quiet['tasks_each']} tasks each behind"
        f" one tenant's flood, all of {quiet['task_ms']} ms, {quiet['slots']} slots",
        ["", "flood", "processes x slots", "started/s", "p50", "p90", "p99", "max", "lost", "twice"],
        [
            [row["name"], row["flood"], f"{row['processes']} x {row['slots']}", row["rate"],
             *(round(row[name]) for name in ("p50", "p90", "p99", "max")), row["lost"], row["twice"]]
            for row in quiet["rows"]
        ],
    )  # fmt: skip


def _settings_table(part: Mapping[str, Any]) -> Table:
    return Table("settings", ["", "setting"], [[row["name"], row["setting"]] for row in part["rows"]])
