"""The display while the demonstration runs: a live table in a terminal, otherwise a line every _LINE_EVERY_S."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from attrs import define, field
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fairq.demo.phase import Progress, Row
from fairq.demo.scenario import QUIET, WEIGHTS
from fairq.model.fairness import NOTHING, shares, split_service
from fairq.model.texts import say_ms

_LINE_EVERY_S = 2.0
_COLUMNS = ("tenant", "weight", "queued", "running", "done", "delivered", "entitled", "wait p50", "wait p99")


def as_duration(ms: float | None) -> str:
    """Write a waiting time (ms); empty for none."""
    return "" if ms is None else say_ms(ms)


def as_percent(fraction: float | None) -> str:
    """Write a fraction in per cent."""
    return "" if fraction is None else f"{100 * fraction:.1f} %"


def _wait_cells(progress: Progress, *owners: str) -> tuple[str, str]:
    return as_duration(progress.wait_ms(50, *owners)), as_duration(progress.wait_ms(99, *owners))


def phase_table(progress: Progress) -> Table:
    """Draw the tenants as the service reports them; the one tenant of the fifo phase is followed by its owners."""
    table = Table(header_style="bold", expand=False)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "tenant" else "right", min_width=8)
    parts = shares(split_service({row["tenant"]: (row["delivered"], row["entitled"]) for row in progress.rows}))
    rows = {row["tenant"]: row for row in progress.rows}
    for name in progress.phase.tenants:
        row: Row = rows.get(name, {"weight": 1, "ready": 0, "delayed": 0, "leased": 0, "done": 0})
        owners = [name] if name in WEIGHTS else list(WEIGHTS)
        table.add_row(
            name, f"{row['weight']:g}", str(row["ready"] + row["delayed"]), str(row["leased"]), str(row["done"]),
            *map(as_percent, parts.get(name, NOTHING)[:2]), *_wait_cells(progress, *owners),
        )  # fmt: skip
        for owner in owners if name not in WEIGHTS else ():
            count = len(progress.wait_times(owner))
            table.add_row(f"  of {owner}", "", "", "", str(count), "", "", *_wait_cells(progress, owner), style="dim")
    return table


def _bar(done: float, total: float) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=total, completed=done, width=60), f"{100 * done / total:.0f} %")
    return line


@define
class LiveView:
    """Redraws a part of a terminal's screen."""

    live: Live

    def show_step(self, title: str, done: float = 0, total: float = 0) -> None:
        """Show a step that is not a phase, with its progress if it has one."""
        parts: list[RenderableType] = [Text(title, style="bold")]
        if total:
            parts.append(_bar(min(done, total), total))
        self.live.update(Group(*parts), refresh=True)

    def show_phase(self, progress: Progress) -> None:
        """Show the phase's title, its progress and its table."""
        title = Text(progress.phase.title, style="bold")
        self.live.update(Group(title, _bar(progress.done, progress.total), phase_table(progress)), refresh=True)


@define
class LineView:
    """Writes a line when a step begins, one at its first progress, and then one every _LINE_EVERY_S."""

    out: TextIO
    clock: Any = time.monotonic
    _title: str = field(default="", init=False)
    _said_at: float = field(default=float("-inf"), init=False)

    def _say(self, title: str, text: str) -> None:
        now = self.clock()
        if title != self._title:
            self._title, self._said_at = title, float("-inf")
            print(title, file=self.out, flush=True)
        if text and now - self._said_at >= _LINE_EVERY_S:
            print(f"  {text}", file=self.out, flush=True)
            self._said_at = now

    def show_step(self, title: str, done: float = 0, total: float = 0) -> None:
        """Show a step that is not a phase, with its progress if it has one."""
        self._say(title, f"{100 * min(done, total) / total:.0f} %" if done and total else "")

    def show_phase(self, progress: Progress) -> None:
        """Write how many tasks are done, and how long the quiet tenants' tasks waited."""
        text = f"{progress.done}/{progress.total} done" if progress.done else ""
        if text and not progress.phase.is_held:
            waited = as_duration(progress.wait_ms(99, *QUIET)) or "none done yet"
            text += f", wait p99 of the quiet: {waited}"
        self._say(progress.phase.title, text)


View = LiveView | LineView  # a display of the demonstration's progress


@contextmanager
def open_view(console: Console, lines: TextIO, *, is_live: bool) -> Iterator[View]:
    """Open the live table, or without a terminal the lines."""
    if not is_live:
        yield LineView(lines)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveView(live)
