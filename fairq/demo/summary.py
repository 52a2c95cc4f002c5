"""Prints the report as text."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from fairq.demo.live import as_duration, as_percent
from fairq.demo.report import Proof, Report


def _contrast_table(report: Report) -> Table:
    table = Table(header_style="bold")
    table.add_column("")
    for heading in ("quiet p50", "quiet p99", "all done in"):
        table.add_column(heading, justify="right")
    rows: list[tuple[str, Mapping[str, Any]]] = [("first in, first out", report.fifo), ("fair", report.fair)]
    for name, row in rows:
        table.add_row(
            name, as_duration(row["quiet_p50_ms"]), as_duration(row["quiet_p99_ms"]), f"{row['seconds']:.1f} s"
        )
    return table


def _tenant_table(report: Report) -> Table:
    table = Table(header_style="bold")
    table.add_column("tenant")
    for heading in ("weight", "tasks", "wait p50", "wait p99", "entitled", "delivered"):
        table.add_column(heading, justify="right")
    for row in report.tenants:
        table.add_row(
            row["name"], f"{row['weight']:g}", str(row["tasks"]), as_duration(row["p50_ms"]),
            as_duration(row["p99_ms"]), as_percent(row["entitled"]), as_percent(row["delivered"]),
        )  # fmt: skip
    return table


def describe_proof(proof: Proof) -> str:
    """Write in one sentence the result, or the faults."""
    if proof.holds:
        return (
            f"Proof: {proof.tasks} tasks enqueued, every one processed exactly once, "
            f"every digest equal to the one computed directly."
        )
    return (
        f"NOT PROVEN: of {proof.tasks} tasks {proof.processed} were processed, {proof.lost} lost, "
        f"{proof.duplicated} duplicated, {proof.unexpected} unexpected; {proof.digest_mismatches} wrong digests."
    )


def describe_next_steps() -> str:
    """Write what to try next, with commands that work as they stand in the terminal that ran this one."""
    command = sys.argv[0]
    if command.endswith("__main__.py"):
        command = "python -m fairq"
    elif shutil.which("fairq"):
        command = "fairq"
    return (
        "Next:\n"
        f"  {command} serve --dev    starts a server; its dashboard is at http://127.0.0.1:7702\n"
        f"  {command} docs tutorial  20 minutes: two tenants, a flood, a weight, a dead letter"
    )


def print_summary(console: Console, report: Report, next_steps: str = "") -> None:
    """Print the contrast, the shares, the proof and what to try next."""
    waited = f"{as_duration(report.fifo['quiet_p99_ms'])} behind the flood, {as_duration(report.fair['quiet_p99_ms'])}"
    console.print(
        f"The same {report.files} files, arriving in the same way: first in, first out, the quiet tenants' "
        f"tasks waited up to {waited} when each owner is a tenant: {report.times_shorter} times shorter (p99).",
        highlight=False,
    )
    console.print(_contrast_table(report))
    console.print(
        "Both take about as long in all: the work is the same, only its order differs. Any difference here comes from "
        "other load on the machine.",
        highlight=False,
    )
    console.print(
        "The tenants: their waiting times during the flood, and, when every tenant has a backlog, the share of the "
        "workers' time that their weight entitles them to and the share they were delivered.",
        highlight=False,
    )
    console.print(_tenant_table(report))
    style = "bold green" if report.proof.holds else "bold red"
    console.print(f"{describe_proof(report.proof)} {report.seconds:.0f} seconds in all.", style=style, highlight=False)
    console.print(next_steps or describe_next_steps(), highlight=False, soft_wrap=True)
