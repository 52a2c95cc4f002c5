"""The cases with a period: how many slots tenants had in it, and whether that is within the bound of the fair pick.

The bound (lua/pick/README.md): over any time in which a tenant and others wait, its worker time is within three of the
longest leases of its share.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from loadtest.cases import CREDIT, Case
from loadtest.figures import Record
from loadtest.pictures import new_grid, save
from loadtest.report import Table
from loadtest.scorecard import Sample

LEASES = 3


@frozen
class Bound:
    """What a tenant had in the period, what it was due and how far from that it may be: all in slots, on average."""

    tenant: str
    got: float
    due: float
    slack: float
    tasks: int  # started in the period

    @property
    def is_kept(self) -> bool:
        """It is as near to its due as the bound says."""
        return abs(self.got - self.due) <= self.slack


@frozen
class Bounds:
    """Observations of a case's period; nan where there are none."""

    began_s: float
    window_s: float
    longest_ms: float  # lease: the longest time that a handler worked in the period, and a lease's mean way beside it
    longest_gap_s: float  # between two looks at the queue
    ran_dry: list[str]  # tenants without ready tasks at some look: then the case says nothing
    tenants: list[Bound]
    holds: bool


def bounds_of(case: Case, samples: Sequence[Sample], starts: Sequence[Record], began_ms: float) -> Bounds:
    """Work them out, from the first look on at which all of the case's tenants have ready tasks.

    The last look is when nothing runs. `began_ms` is the wall clock's time at the samples' zero. Slots are parts of the
    worker time of all tenants: what a slot loses between two leases is nobody's.
    """
    period = case.period
    assert period
    inside = [sample for sample in samples if period.begins * period.seconds <= sample.at <= period.seconds]
    seen = list(itertools.dropwhile(lambda sample: _dry(sample, case.backlogged), inside))
    if len(seen) < 2:
        return Bounds(math.nan, math.nan, math.nan, math.nan, case.backlogged, [], False)
    first, last = seen[0], seen[-1]
    got = {name: last.tenants[name].delivered - first.tenants[name].delivered for name in first.tenants}
    began, ended = (began_ms + 1000 * sample.at for sample in (first, last))
    running = [start for start in starts if start.started_ms + start.worked_ms > began and start.started_ms < ended]
    longest_ms = max((start.worked_ms for start in running), default=math.nan) + _way_ms(samples[-1], starts)
    seconds, new = last.at - first.at, [start.tenant for start in running if start.started_ms >= began]
    tenants = [
        Bound(
            name, round(CREDIT * got[name] / sum(got.values()), 4), round(due, 4),
            round(LEASES * longest_ms / 1000 / seconds, 4), new.count(name),
        )
        for name, due in period.due.items()
    ]  # fmt: skip
    dry = sorted({name for sample in seen for name in _dry(sample, case.backlogged)})
    return Bounds(
        round(first.at, 2), round(seconds, 2), round(longest_ms, 1),
        round(max(b.at - a.at for a, b in itertools.pairwise(seen)), 2), dry, tenants,
        not dry and all(bound.is_kept for bound in tenants),
    )  # fmt: skip


def _way_ms(final: Sample, starts: Sequence[Record]) -> float:
    """Return what a lease takes beside its handler, on average: to the worker, and back."""
    leases = 1000 * sum(account.delivered for account in final.tenants.values())
    return (leases - sum(start.worked_ms for start in starts)) / len(starts) if starts else math.nan


def _dry(sample: Sample, tenants: Sequence[str]) -> list[str]:
    return [name for name in tenants if name not in sample.tenants or not sample.tenants[name].ready]


def table(scorecard: Mapping[str, Any]) -> Table:
    """Show each tenant that a period is about: its part of the slots, the part due, and the bound."""
    rows, slots = [], scorecard["slots"]
    for case in scorecard["bounds"]:
        for found in case["tenants"]:
            got, due, slack = (found[name] / slots for name in ("got", "due", "slack"))
            is_kept = not case["ran_dry"] and Bound(**found).is_kept
            rows.append([
                case["name"], found["tenant"], found["tasks"], f"{case['window_s']:.1f}", f"{case['longest_ms']:.0f}",
                f"{due:.1%}", f"{got:.1%}", f"{max(0.0, due - slack):.1%} to {due + slack:.1%}",
                "yes" if is_kept else "no", f"{case['longest_gap_s']:.2f}",
            ])  # fmt: skip
    dry = [f"{case['name']}: {', '.join(case['ran_dry'])} ran out of tasks" for case in scorecard["bounds"]]
    return Table(
        f"bounds: part of {slots} slots in a case's period, due plus or minus {LEASES} of the longest leases in it",
        ["", "tenant", "tasks", "period s", "longest ms", "due", "got", "bound", "holds", "stall s"],
        rows,
        "; ".join(line for line, case in zip(dry, scorecard["bounds"], strict=True) if case["ran_dry"]),
    )


def draw(scorecard: Mapping[str, Any], directory: Path) -> Path:
    """Draw the parts of worker time, tenants with a known due in color, others in grey; and the period's beginning."""
    cases, slots = scorecard["bounds"], scorecard["slots"]
    figure, grid = new_grid("Share of worker time (solid), and what is due in the period (dashed)", len(cases), "s", "")
    for case, axes in zip(cases, grid, strict=True):
        shown, due = case["series"], {found["tenant"]: found["due"] / slots for found in case["tenants"]}
        for tenant, parts in shown["delivered"].items():
            if tenant not in due:
                axes.plot(shown["at"], parts, color="lightgrey", linewidth=0.8)
        for n, (tenant, part) in enumerate(due.items()):
            axes.plot(shown["at"], shown["delivered"][tenant], color=f"C{n}", linewidth=1.2, label=tenant)
            axes.plot([case["began_s"], case["began_s"] + case["window_s"]], [part, part], "--", color=f"C{n}")
        axes.set_title(case["name"], loc="left", fontsize=10)
        axes.set_ylim(0, 1.02 if max(due.values(), default=1) > 0.3 else 0.42)
        axes.legend(fontsize=7, frameon=False, loc="upper right", ncols=2)
    return save(figure, directory / "bounds.png")
