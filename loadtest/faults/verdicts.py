"""The report of one run: each rule's verdict, and a row for each fault."""

from __future__ import annotations

from collections import Counter
from typing import Any

from loadtest.faults.history import check
from loadtest.faults.run import Run
from loadtest.figures import Verdict, spread


def report(one: Run) -> tuple[dict[str, Any], dict[str, Verdict]]:
    """Return a run's part of the report, and the verdicts of its rules."""
    history, unpromised = one.history, one.world.stores.unpromised
    found = check(history, one.deeds)
    lost = found.pop("lost")
    broken = {rule: ids for rule, ids in found.items() if ids and rule not in unpromised}
    count = len(history.acknowledged)
    verdicts = {f"faults, {one.name}": Verdict(count, count - len(lost), [*map(history.story, lost)], [], [])}
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
