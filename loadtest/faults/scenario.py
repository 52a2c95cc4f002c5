"""The scenario `faults` of the load test: one set-up of the store (`--scenario`), or each for a moment (`all`)."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from loadtest.faults.history import RULES, check
from loadtest.faults.run import QUICK, SCENARIOS, Run, Sizes
from loadtest.figures import Verdict, spread
from loadtest.report import Progress, Table

SEED_VARIABLE, MINUTES_VARIABLE = "FAIRQ_LOADTEST_SEED", "FAIRQ_LOADTEST_MINUTES"
NAME_VARIABLE, ALL = "FAIRQ_LOADTEST_FAULTS", "all"


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report. Raises: RunFailed if the service does not come back."""
    sizes = QUICK if quick else Sizes()
    if minutes := os.environ.get(MINUTES_VARIABLE):
        sizes = evolve(sizes, seconds=60 * float(minutes), kinds=0)
    seed = int(os.environ.get(SEED_VARIABLE) or random.randrange(1 << 31))
    name = os.environ.get(NAME_VARIABLE) or "single"
    parts, verdicts = {}, dict[str, Verdict]()
    for each in SCENARIOS if name == ALL else [name]:
        one = Run.of(each, seed, directory / f"faults-{each}", fsync, sizes, progress)
        await one.run()
        parts[each], own = report(one)
        verdicts |= own
    return {"seed": seed, "scenarios": parts, "verdicts": verdicts}


def report(one: Run) -> tuple[dict[str, Any], dict[str, Verdict]]:
    """Return a run's part of the report, and the verdicts of its rules."""
    history, unpromised = one.history, one.world.stores.unpromised
    found = check(history, one.deeds)
    lost = found.pop("lost")
    broken = {rule: ids for rule, ids in found.items() if ids and rule not in unpromised}
    count = len(history.acknowledged)
    verdicts = {f"faults, {one.name}": Verdict(count, count - len(lost), lost, [], [])}
    verdicts |= {f"faults, {one.name}, {rule}": Verdict(0, 0, [], [], ids) for rule, ids in broken.items()}
    return {
        "tasks": len(history.enqueued), "acknowledged": count, "lost": len(lost), "broken": sorted(broken),
        "unpromised": {rule: len(found[rule]) for rule in sorted(unpromised) if found.get(rule)},
        "dead": len(history.dead), "faults": by_fault(one, lost, found["doubled"]),
    }, verdicts  # fmt: skip


def by_fault(one: Run, lost: list[str], doubled: list[str]) -> dict[str, dict[str, float]]:
    """Return one row for each fault: the tasks that were enqueued from its beginning until the next one's."""
    history, of = one.history, {task.id: task.fault for task in one.history.enqueued}
    counts = {
        "attempted": Counter(of.values()),
        "acked": Counter(of[id] for id in history.acknowledged),
        "lost": Counter(of[id] for id in lost),
        "doubled": Counter(of[id.partition(",")[0]] for id in doubled),
        "stale refused": Counter(each.fault for each in history.settled if each.outcome == "stale"),
    }
    return {
        fault: {"times": len(times), **{name: count[fault] for name, count in counts.items()}, **spread(times)}
        for fault, times in one.recovery_s.items()
    }


COLUMNS = ("times", "attempted", "acked", "lost", "doubled", "stale refused", "p50", "p99")


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    return [
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
