"""The scenario `faults` of the load test: one set-up of the store (`--scenario`), or each for a moment (`all`)."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import evolve

from fairq.io.exception_groups import leaves
from loadtest.faults import pieces
from loadtest.faults.history import RULES
from loadtest.faults.run import QUICK, SCENARIOS, Run, Sizes
from loadtest.faults.verdicts import report
from loadtest.processes import RunFailed
from loadtest.report import Progress, Table

SEED_VARIABLE, MINUTES_VARIABLE = "FAIRQ_LOADTEST_SEED", "FAIRQ_LOADTEST_MINUTES"
NAME_VARIABLE, ALL = "FAIRQ_LOADTEST_FAULTS", "all"
KILLS_VARIABLE, INTO_VARIABLE = "FAIRQ_LOADTEST_KILLS", "FAIRQ_LOADTEST_INTO"


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report. Raises: RunFailed if the service does not come back."""
    sizes = QUICK if quick else Sizes()
    if minutes := os.environ.get(MINUTES_VARIABLE):
        sizes = evolve(sizes, seconds=60 * float(minutes), kinds=0)
    seed = int(os.environ.get(SEED_VARIABLE) or random.randrange(1 << 31))
    if kills := os.environ.get(KILLS_VARIABLE):
        into = Path(os.environ.get(INTO_VARIABLE) or f"{directory}/kills.jsonl")
        verdicts = await pieces.run_pieces(int(kills), into, seed, directory, fsync, progress)
        return {"pieces": pieces.read(into), "verdicts": verdicts}
    name = os.environ.get(NAME_VARIABLE) or "single"
    runs, left_out = list[Run](), list[str]()
    for each in SCENARIOS if name == ALL else [name]:
        try:
            runs.append(Run.of(each, seed, directory / f"faults-{each}", fsync, sizes, progress))
        except RunFailed as error:
            if name != ALL:
                raise
            left_out.append(f"{each}: {error}")
    await _run_all(runs, pieces.AT_ONCE if quick else 1)
    reports = {one.name: report(one) for one in runs}
    verdicts = {rule: verdict for _, own in reports.values() for rule, verdict in own.items()}
    return {
        "seed": seed, "scenarios": {name: part for name, (part, _) in reports.items()}, "left_out": left_out,
        "verdicts": verdicts,
    }  # fmt: skip


async def _run_all(runs: Sequence[Run], at_once: int) -> None:
    limit = trio.CapacityLimiter(at_once)

    async def run_one(one: Run) -> None:
        async with limit:
            try:
                await one.run()
            except* RunFailed as failed:
                raise RunFailed(f"{one.name}: {leaves(failed)[0]}") from None

    async with trio.open_nursery() as nursery:
        for one in runs:
            nursery.start_soon(run_one, one)


COLUMNS = ("times", "attempted", "acked", "lost", "doubled", "stale refused", "p50", "p99")


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    if done := part.get("pieces"):
        return [pieces.table(done)]
    tables = [
        Table(
            f"faults --scenario {name} --seed {part['seed']}: {one['tasks']:,} tasks, {one['acknowledged']:,}"
            " acknowledged; s from the beginning of a fault until a task that was enqueued behind it is done",
            ["fault", *COLUMNS],
            [[fault, *(row[column] for column in COLUMNS)] for fault, row in one["faults"].items()],
            f"rules: {', '.join(RULES)}; broken: {', '.join(one['broken']) or 'none'}; not promised here:"
            f" {one['unpromised'] or 'none'}; dead letters: {one['dead']}; lost: {one['lost']}",
        )
        for name, one in part["scenarios"].items()
    ]
    if part["left_out"]:
        tables.append(Table("left out here", ["scenario"], [[reason] for reason in part["left_out"]]))
    return tables
