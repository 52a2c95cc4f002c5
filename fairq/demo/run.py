"""`fairq demo`, from the first file to the last process."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import trio
from rich.console import Console

from fairq.demo import staying
from fairq.demo.corpus import choose_files, digest_directly
from fairq.demo.live import View, open_view
from fairq.demo.phase import open_stage
from fairq.demo.processes import WORKERS, running_service
from fairq.demo.report import Report, make_report
from fairq.demo.scenario import plan_phases
from fairq.demo.summary import print_summary

DIRECT_S = 6.0  # of direct tokenizing, which decides the number of files, and so the whole duration
_BETWEEN_S = 0.3


async def run_demo(*, as_json: bool, file_count: int | None = None, stays: bool = False) -> int:
    """Run the demonstration; returns 0 if the proof holds, 1 if not. Cancelled, it cleans up within limits of its own.

    Without `file_count` the machine's speed decides how many files there are (see `digest_directly`). `stays`: the
    server and the workers go on after it.
    """
    report, next_steps = await _demonstrate(as_json, file_count, stays)
    _print(report, as_json, next_steps)
    return 0 if report.proof.holds else 1


def _print(report: Report, as_json: bool, next_steps: str) -> None:
    if as_json:
        print(orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        print_summary(Console(width=None if sys.stdout.isatty() else 120), report, next_steps)


async def _demonstrate(as_json: bool, file_count: int | None, stays: bool) -> tuple[Report, str]:
    """Run the demonstration; returns its report, and what to do next if the service stays."""
    began, next_steps = trio.current_time(), ""
    console = Console()
    is_live = sys.stdout.isatty() and not as_json
    with (
        staying.folder_of_its_own() if stays else _temporary() as directory,
        open_view(console, sys.stderr, is_live=is_live) as view,
    ):
        if stays:
            staying.check_ports()
        digests, direct_s = await _digest(view, file_count)
        expected_s = direct_s / min(WORKERS, os.cpu_count() or 1)
        phases = plan_phases(list(digests), expected_s)
        view.show_step("starting a server, its store and two workers")
        async with running_service(directory, staying.PORT if stays else 0) as service:
            async with open_stage(service, phases, view.show_phase) as stage:
                for phase in phases:
                    await stage.run(phase)
                    await trio.sleep(_BETWEEN_S)
            if stays:
                staying.note(directory, service.processes)
                service.stays, next_steps = True, staying.describe(service)
        view.show_step("checking the workers' records")
        stage.follow()  # complete, since the workers have ended
        return make_report(stage.progress, digests, direct_s, trio.current_time() - began), next_steps


@contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fairq-demo-") as directory:
        yield Path(directory)


async def _digest(view: View, file_count: int | None) -> tuple[dict[str, str], float]:
    files = await trio.to_thread.run_sync(choose_files)
    began = trio.current_time()

    def progress(count: int, elapsed: float) -> None:
        done, total = (count, file_count) if file_count else (elapsed, DIRECT_S)
        view.show_step("reading, tokenizing and hashing files directly, to compare with later", done, total)

    digests = await digest_directly(files, DIRECT_S, progress, count=file_count)
    return digests, trio.current_time() - began
