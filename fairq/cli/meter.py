"""The progress of a long command: a bar that is redrawn on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import trio
from attrs import define, field

from fairq.model.texts import say_span

if TYPE_CHECKING:
    from fairq.cli.requests import Sums
    from fairq.model.batches import BatchState
    from fairq.model.events import Event

    Counts: TypeAlias = "BatchState | Sums"  # the progress of the tasks of a batch, or of several
    Ends: TypeAlias = "Counts | Event"  # how they ended

LOG_S = 10.0  # between two lines of a log
_MEASURED_S = 60.0  # the estimate uses the pace of this period
Show = Callable[[str, int, int], None]


def say_ends(counts: Ends) -> str:
    """Write how tasks ended: `12 done, 3 dead (1 expired), 0 cancelled`."""
    expired = f" ({counts.expired:,} expired)" if counts.expired else ""
    return f"{counts.done:,} done, {counts.dead:,} dead{expired}, {counts.cancelled:,} cancelled"


def say_counts(counts: Counts) -> str:
    """Write the progress of tasks."""
    return f"{say_ends(counts)}, {counts.running:,} running of {counts.total:,} tasks"


@define
class Pace:
    """Estimates how long the rest takes, from the pace of the last minute."""

    _seen: deque[tuple[float, int]] = field(factory=deque)

    def left(self, done: int, total: int) -> str:
        """Update the progress; returns the estimate as the end of a sentence, or an empty text."""
        now = trio.current_time()
        if not self._seen or now - self._seen[-1][0] >= 1:
            self._seen.append((now, done))
        while now - self._seen[0][0] > _MEASURED_S:
            self._seen.popleft()
        since, earlier = self._seen[0]
        if done <= earlier or done >= total:
            return ""
        seconds = (total - done) * (now - since) / (done - earlier)
        return f", about {say_span(1000 * max(1, round(seconds)))} left"


@contextmanager
def meter(title: str) -> Iterator[Show]:
    """Show a bar and a text on standard error while the block lasts; in a log, print the text every LOG_S seconds.

    `show(text, done, total)` says how far it is; a total of 0 is unknown.
    """
    if sys.stderr.isatty():
        with _bar(title) as show:
            yield show
        return
    last_at = trio.current_time()

    def log(text: str, done: int, total: int) -> None:
        nonlocal last_at
        if trio.current_time() - last_at >= LOG_S:
            last_at = trio.current_time()
            print(f"{title}: {text}", file=sys.stderr, flush=True)

    yield log


@contextmanager
def _bar(title: str) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, text="")
        yield lambda text, done, total: bar.update(task, completed=done, total=total or None, text=text)
