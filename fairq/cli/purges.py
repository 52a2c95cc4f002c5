"""Cancels all waiting tasks of a tenant or a queue: the question, the progress and the counts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fairq.cli.confirm import agrees
from fairq.cli.meter import Pace, meter
from fairq.cli.options import Server, run_with
from fairq.cli.output import print_json

if TYPE_CHECKING:
    from fairq.client.operator import OperatorClient
    from fairq.model.cancelling import CancelProgress

    Steps = Callable[[OperatorClient, bool], AsyncGenerator[CancelProgress, None]]

DryRun = Annotated[bool, Parameter(name="--dry-run", negative=(), help="Only count; change nothing.")]


def purge(title: str, steps: Steps, *, dry_run: bool, yes: bool, json: bool, server: Server | None) -> int:
    """Cancel what `steps(client, dry_run)` finds, after a question, and print how many; returns the exit code.

    If interrupted, it prints how many were cancelled so far; if run again, it continues with the rest.
    """

    def ask() -> str:
        counts = _Counts()
        run_with(server, lambda client: _follow(f"{title}, counting", steps(client, True), counts))
        return f"{counts.found:,} waiting tasks match. Cancel the waiting tasks of {title} that match?"

    if not agrees(yes or dry_run, "cancelling all matches", ask, "nothing was cancelled"):
        return 1
    done = _Counts()
    try:
        run_with(server, lambda client: _follow(title, steps(client, dry_run), done))
    finally:
        if json:
            print_json({"found" if dry_run else "cancelled": done.found if dry_run else done.cancelled})
        else:
            print(f"{title}: {done.found:,} waiting tasks match" if dry_run else f"cancelled: {done.cancelled:,}")
    return 0


class _Counts:
    """The counts so far."""

    found = cancelled = 0


async def _follow(title: str, steps: AsyncGenerator[CancelProgress, None], counts: _Counts) -> None:
    """Show the progress of the steps, and note their counts."""
    pace = Pace()
    with meter(title) as show:
        async with aclosing(steps):
            async for step in steps:
                counts.found, counts.cancelled = step.found, step.cancelled
                total = max(step.looked, step.cancelled + step.waiting)
                text = f"{step.cancelled:,} cancelled, {step.waiting:,} waiting{pace.left(step.looked, total)}"
                show(text, step.looked, total)
