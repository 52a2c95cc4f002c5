"""Kills by the thousand, in pieces: each is a run of the scenario `edges` with a seed of its own.

A piece that is done is a line of a file, so the command goes on where it was interrupted; the table adds them up.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import trio

from loadtest.faults.run import Run, Sizes
from loadtest.faults.verdicts import report
from loadtest.figures import Verdict, spread
from loadtest.processes import ROOT
from loadtest.report import Progress, Table

SCENARIO = "edges"
PIECE = Sizes(seconds=0, rounds=2, rate=15.0)  # some minutes; more tasks a second would leave less CPU for kills
AT_ONCE = 4  # pieces, and scenarios with `quick`: they wait for some of the time
_SUMS = ("times", "attempted", "acked", "lost", "doubled", "stale refused")


def read(into: Path) -> list[dict[str, Any]]:
    """Return the pieces that are done."""
    return [json.loads(line) for line in into.read_text(encoding="utf-8").splitlines()] if into.exists() else []


def kills_of(pieces: Sequence[dict[str, Any]]) -> int:
    """Count the kills of some pieces."""
    return sum(row["times"] for piece in pieces for row in piece["faults"].values())


async def run_pieces(
    kills: int, into: Path, seed: int, directory: Path, fsync: str, progress: Progress
) -> dict[str, Verdict]:
    """Do whole pieces, some at once, until the file has so many kills or more; return the verdicts. Raises: RunFailed.

    The pieces have the seeds from `seed` on that the file does not have.
    """
    verdicts, known = dict[str, Verdict](), {piece["seed"] for piece in read(into)}
    seeds = (each for each in count(seed) if each not in known)

    async def run_some() -> None:
        while kills_of(read(into)) < kills:
            own_seed = next(seeds)
            one = Run.of(SCENARIO, own_seed, directory / f"piece-{own_seed}", fsync, PIECE, progress)
            await one.run()
            part, own = report(one)
            verdicts.update({f"{name}, seed {own_seed}": verdict for name, verdict in own.items()})
            line = {
                "seed": own_seed, "commit": _commit(), "date": time.strftime("%Y-%m-%d", time.gmtime()), **part,
                "recovery_s": {fault: [round(s, 3) for s in times] for fault, times in one.recovery_s.items()},
            }  # fmt: skip
            with into.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(run_some)
    return verdicts


def _commit() -> str:
    words = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=10).stdout.strip()


def table(pieces: Sequence[dict[str, Any]]) -> Table:
    """Add up pieces."""
    names = sorted({fault for piece in pieces for fault in piece["faults"]})
    broken = sorted({rule for piece in pieces for rule in piece["broken"]})
    dead = sum(piece["dead"] for piece in pieces)
    seeds, commits = [piece["seed"] for piece in pieces], sorted({piece["commit"] for piece in pieces})
    dates = f"{pieces[0]['date']} to {pieces[-1]['date']}"
    return Table(
        f"{kills_of(pieces):,} kills in {len(pieces)} pieces (seeds {min(seeds)} to {max(seeds)}, {dates}, commits"
        f" {', '.join(commits)}); s from a kill until a task that was enqueued behind it is done",
        ["fault", *_SUMS, "p50", "p99"],
        [*_rows(names, pieces), _row("all", names, pieces)],
        f"broken rules: {', '.join(broken) or 'none'}; dead letters: {dead}",
    )


def _rows(names: Sequence[str], pieces: Sequence[dict[str, Any]]) -> Iterator[list[Any]]:
    return (_row(name, [name], pieces) for name in names)


def _row(title: str, names: Sequence[str], pieces: Sequence[dict[str, Any]]) -> list[Any]:
    rows = [piece["faults"][name] for piece in pieces for name in names if name in piece["faults"]]
    times = [s for piece in pieces for name in names for s in piece["recovery_s"].get(name, [])]
    of = spread(times)
    return [title, *(sum(row[column] for row in rows) for column in _SUMS), of["p50"], of["p99"]]
