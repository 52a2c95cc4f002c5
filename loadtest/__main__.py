"""`python -m loadtest [SCENARIO|all] [--quick] [--json] [--out DIR]`, from the repository's root."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from fairq.cli.output import configure_logging
from fairq.errors import FairqError
from loadtest import machine, report
from loadtest.faults.run import SCENARIOS as FAULTS_SCENARIOS
from loadtest.faults.scenario import (
    ALL,
    INTO_VARIABLE,
    KILLS_VARIABLE,
    MINUTES_VARIABLE,
    NAME_VARIABLE,
    SEED_VARIABLE,
)
from loadtest.figures import Verdict
from loadtest.longest import VARIABLE as REDIS_VARIABLE
from loadtest.peers.catalogue import FAMILIES
from loadtest.peers.catalogue import VARIABLE as PEER_VARIABLE
from loadtest.peers.environments import VARIABLE as PEERS_VARIABLE
from loadtest.processes import RunFailed, store_version
from loadtest.purge import VARIABLE as PURGE_VARIABLE
from loadtest.report import Progress
from loadtest.scenarios import SCENARIOS

LIMIT_S, QUICK_LIMIT_S = 1_800.0, 300.0  # of one scenario
MINUTES = 25  # of faults at most, so that a run ends within LIMIT_S


def whole(text: str) -> int:
    """Read a whole number from 1 on. Raises: ValueError."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def minutes(text: str) -> int:
    """Read a number of minutes, 1 to MINUTES. Raises: ValueError."""
    if (number := whole(text)) > MINUTES:
        raise ValueError(text)
    return number


def file(text: str) -> Path:
    """Read the path of a file that may be made. Raises: ValueError."""
    if (path := Path(text)).is_dir() or not path.parent.is_dir():
        raise ValueError(text)
    return path


def scenario(text: str) -> str:
    """Read the name of a scenario of `faults`, or ALL. Raises: ValueError."""
    if text not in (*FAULTS_SCENARIOS, ALL):
        raise ValueError(text)
    return text


def arguments_of(argv: list[str]) -> argparse.Namespace:
    """Read the command line; ends the process with 2 when it makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__)
    parser.add_argument("scenario", nargs="?", default="all", choices=[*SCENARIOS, "all"])
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works, not how fast")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="also write report.json, report.md and pictures (PNG) there"
    )
    parser.add_argument(
        "--peers-dir", type=Path, metavar="DIR", help=f"where the peers' environments are kept (or {PEERS_VARIABLE})"
    )
    parser.add_argument(
        "--peer", action="append", choices=FAMILIES, metavar="NAME",
        help=f"of the peers only this one; may be repeated (or {PEER_VARIABLE}, with commas)",
    )  # fmt: skip
    parser.add_argument("--redis", metavar="PROGRAM", help=f"a redis-server for `longest` (or {REDIS_VARIABLE})")
    parser.add_argument(
        "--purge-tasks", type=whole, default=os.environ.get(PURGE_VARIABLE), metavar="N",
        help=f"how many tasks `features` purges (or {PURGE_VARIABLE})",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole, default=os.environ.get(SEED_VARIABLE), metavar="N",
        help=f"of `faults`, to repeat a run (or {SEED_VARIABLE})",
    )  # fmt: skip
    parser.add_argument(
        "--minutes", type=minutes, default=os.environ.get(MINUTES_VARIABLE), metavar="M",
        help=f"how long `faults` does them, 1 to {MINUTES} (or {MINUTES_VARIABLE}; default: 5)",
    )  # fmt: skip
    parser.add_argument(
        "--scenario", dest="faults", type=scenario, default=os.environ.get(NAME_VARIABLE), metavar="NAME",
        help=f"how the store of `faults` is set up: {', '.join([*FAULTS_SCENARIOS, ALL])} (or {NAME_VARIABLE};"
        " default: single)",
    )  # fmt: skip
    parser.add_argument(
        "--kills", type=whole, default=os.environ.get(KILLS_VARIABLE), metavar="N",
        help=f"of `faults`: kill until FILE has N kills (or {KILLS_VARIABLE})",
    )  # fmt: skip
    parser.add_argument(
        "--into", type=file, default=os.environ.get(INTO_VARIABLE), metavar="FILE",
        help=f"with `--kills`: where each piece is added (or {INTO_VARIABLE})",
    )  # fmt: skip
    parser.add_argument("--fsync", default="always", choices=["always", "everysec"], help="of all stores")
    return parser.parse_args(argv)


def limit_s(*, quick: bool) -> float:
    """Return how long one scenario may take."""
    if KILLS_VARIABLE in os.environ:
        return math.inf
    if quick and MINUTES_VARIABLE not in os.environ:
        return QUICK_LIMIT_S
    return LIMIT_S * (len(FAULTS_SCENARIOS) if os.environ.get(NAME_VARIABLE) == ALL else 1)


def _innermost(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


async def measure(names: Sequence[str], *, quick: bool, fsync: str, progress: Progress) -> dict[str, Any]:
    """Run scenarios, one after the other, in a directory that goes away; returns the report.

    One that cannot run is listed in `failed`, and the others go on.
    """
    result: dict[str, Any] = {"about": report.about(store_version(), quick=quick, fsync=fsync)}
    verdicts, failed, disturbances = dict[str, Verdict](), dict[str, str](), dict[str, machine.Disturbance]()
    with tempfile.TemporaryDirectory(prefix="fairq-loadtest-") as directory:
        for name in names:
            try:
                with trio.fail_after(limit_s(quick=quick)):
                    async with machine.watched(Path(directory)) as disturbances[name]:
                        part = await SCENARIOS[name].run(Path(directory), progress, quick=quick, fsync=fsync)
            except* (RunFailed, FairqError, trio.TooSlowError) as group:
                failed[name] = str(_innermost(group)) or "it took too long"
            else:
                verdicts.update(part.pop("verdicts"))
                result[name] = part
    is_ok = not failed and all(verdict.is_clean for verdict in verdicts.values())
    return {**result, "machine": disturbances, "verdicts": verdicts, "failed": failed, "ok": is_ok}


async def _until_signalled(scope: trio.CancelScope, received: list[int]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            received.append(number)
            scope.cancel()


def show(result: dict[str, Any], *, as_json: bool, out: Path | None) -> None:
    """Print the report; with `out`, also write it there as JSON and as Markdown, with its pictures."""
    parts = [(scenario, result[name]) for name, scenario in SCENARIOS.items() if name in result]
    tables = [table for scenario, part in parts for table in scenario.tables(part)]
    tables.append(machine.table(result["machine"]))
    if as_json:
        report.print_json(result)
    else:
        report.print_tables(result, tables)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_bytes(report.as_json(result))
        (out / "report.md").write_text(report.as_markdown(result, tables))
        try:
            for path in (path for scenario, part in parts for path in scenario.draw(part, out)):
                print(f"wrote {path}", file=sys.stderr)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "matplotlib":
                raise
            print("no pictures: matplotlib is missing; remedy: pip install -e '.[loadtest]'", file=sys.stderr)


async def main(arguments: argparse.Namespace) -> int:
    """Run the scenarios asked for and print their results; returns the exit code."""
    if arguments.peers_dir:
        os.environ[PEERS_VARIABLE] = str(arguments.peers_dir)
    if arguments.peer:
        os.environ[PEER_VARIABLE] = ",".join(arguments.peer)
    if arguments.redis:
        os.environ[REDIS_VARIABLE] = arguments.redis
    if arguments.purge_tasks:
        os.environ[PURGE_VARIABLE] = str(arguments.purge_tasks)
    if arguments.seed:
        os.environ[SEED_VARIABLE] = str(arguments.seed)
    if arguments.minutes:
        os.environ[MINUTES_VARIABLE] = str(arguments.minutes)
    if arguments.kills:
        os.environ[KILLS_VARIABLE] = str(arguments.kills)
    if arguments.into:
        os.environ[INTO_VARIABLE] = str(arguments.into)
    if arguments.faults:
        os.environ[NAME_VARIABLE] = arguments.faults
    names = list(SCENARIOS) if arguments.scenario == "all" else [arguments.scenario]
    progress, received, result = Progress(), list[int](), None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_until_signalled, nursery.cancel_scope, received)
        result = await measure(names, quick=arguments.quick, fsync=arguments.fsync, progress=progress)
        nursery.cancel_scope.cancel()
    progress.close()
    if result is None:
        return 128 + received[0]
    show(result, as_json=arguments.json, out=arguments.out)
    for name, message in result["failed"].items():
        print(f"loadtest: {name}: {message}", file=sys.stderr)
    for name, verdict in result["verdicts"].items():
        if not verdict.is_clean:
            print(f"loadtest: {name}: {verdict}", file=sys.stderr)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    configure_logging("error")
    sys.exit(trio.run(main, arguments_of(sys.argv[1:])))
