"""`python -m loadtest [throughput|fairness|all] [--quick] [--json]`, from the repository's root."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import trio

from fairq.cli.output import configure_logging
from fairq.errors import FairqError
from loadtest import fairness, report, throughput
from loadtest.processes import RunFailed, store_version

SCENARIOS = {"throughput": throughput.run, "fairness": fairness.run}
LIMIT_S, QUICK_LIMIT_S = 1_200.0, 150.0


def arguments_of(argv: list[str]) -> argparse.Namespace:
    """Read the command line; ends the process with 2 when it makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__)
    parser.add_argument("scenario", nargs="?", default="all", choices=[*SCENARIOS, "all"])
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works, not how fast")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--fsync", default="always", choices=["always", "everysec"], help="of all stores")
    return parser.parse_args(argv)


async def measure(names: list[str], *, quick: bool, fsync: str, progress: report.Progress) -> dict[str, Any]:
    """Run scenarios, one after the other, in a directory that goes away; returns the report."""
    result: dict[str, Any] = {"about": report.about(store_version(), quick=quick, fsync=fsync)}
    verdicts = {}
    with tempfile.TemporaryDirectory(prefix="fairq-loadtest-") as directory:
        for name in names:
            part = await SCENARIOS[name](Path(directory), progress, quick=quick, fsync=fsync)
            verdicts.update(part.pop("verdicts"))
            result[name] = part
    return {**result, "verdicts": verdicts, "ok": all(verdict.is_clean for verdict in verdicts.values())}


async def _until_signalled(scope: trio.CancelScope, received: list[int]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            received.append(number)
            scope.cancel()


async def main(arguments: argparse.Namespace) -> int:
    """Run what was asked for and print it; returns the exit code."""
    names = list(SCENARIOS) if arguments.scenario == "all" else [arguments.scenario]
    progress, received, result = report.Progress(), list[int](), None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_signalled, nursery.cancel_scope, received)
            with trio.fail_after(QUICK_LIMIT_S if arguments.quick else LIMIT_S):
                result = await measure(names, quick=arguments.quick, fsync=arguments.fsync, progress=progress)
            nursery.cancel_scope.cancel()
    except* (RunFailed, FairqError, trio.TooSlowError) as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        progress.close()
        print(f"loadtest: {error or 'it took too long'}", file=sys.stderr)
    progress.close()
    if received:
        return 128 + received[0]
    if result is None:
        return 1
    (report.print_json if arguments.json else report.print_tables)(result)
    for name, verdict in result["verdicts"].items():
        if not verdict.is_clean:
            print(f"loadtest: {name}: {verdict}", file=sys.stderr)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    configure_logging("error")
    sys.exit(trio.run(main, arguments_of(sys.argv[1:])))
