"""`fairq tenants report`: the causes of a tenant's waiting times, and its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import asdict

from fairq.cli.options import Server, run_with
from fairq.cli.output import print_json, print_rows
from fairq.client.requests import check_whole
from fairq.model.history import PERIODS, History, Period
from fairq.model.texts import say_away
from fairq.model.waiting import WAITED_FOR

if TYPE_CHECKING:
    from fairq.client.operator import OperatorClient
    from fairq.model.waiting import Report

_COLUMNS = {"cause": "waited for", "part": "% of all", "p50_ms": "p50 (ms)", "p99_ms": "p99 (ms)", "meaning": "meaning"}
_PERIODS = {
    "period": "last", "enqueued": "enqueued", "started": "started", "done": "done", "failed": "failed",
    "delivered": "delivered", "delivered_part": "of all", "contested_part": "contested", "entitled_part": "due",
    "free_part": "free", "p50_ms": "p50 (ms)", "p99_ms": "p99 (ms)",
}  # fmt: skip


def show_report(server: Server | None, queue: str, tenant: str, json: bool) -> None:
    """Print the causes of waiting as a table, the tenant's share, and its totals of the last hours and days."""
    report, histories = run_with(server, lambda client: _read(client, queue, tenant))
    found, history = asdict(report), {period: _totals(each) for period, each in histories.items()}
    away = [partition for each in histories.values() for partition in each.away]
    if json:
        check_whole(queue, away)
        print_json({**found, "history": history})
        return
    parts = found["parts"]
    rows = [{**each, "part": round(100 * each["part"], 1), "meaning": WAITED_FOR[each["cause"]]} for each in parts]
    whole = {"cause": "total", "part": 100, "p50_ms": found["p50_ms"], "p99_ms": found["p99_ms"]}
    title = f"what {found['starts']} tasks of {tenant} in {queue} waited for"
    empty = f"no task of {tenant} in {queue} was started in the last 5 minutes"
    print_rows(title, _COLUMNS, [*rows, whole] if found["starts"] else [], empty=empty)
    if found["unanswered"]:
        print(f"{found['unanswered']} servers did not answer: what they started is missing")
    if found["share_over_ms"]:
        over = f"in the last {found['share_over_ms'] / 1000:.0f} s"
        contested = found["delivered"] - found["free"]
        print(
            f"share: {found['delivered']:.6g} delivered {over}: {contested:.6g} contested, where "
            f"{found['entitled']:.6g} was due, and {found['free']:.6g} free"
        )
    past = [{"period": period, **totals} for period, totals in history.items() if any(totals.values())]
    if past:
        print_rows(f"{tenant} in {queue}, at all servers", _PERIODS, past, empty="")
    if away:
        print(say_away(queue, away))


async def _read(client: OperatorClient, queue: str, tenant: str) -> tuple[Report, dict[Period, History]]:
    report = await client.report(queue, tenant)
    return report, {period: await client.history(queue, period, tenants=[tenant]) for period in PERIODS}


def _totals(history: History) -> dict[str, Any]:
    totals = history.tenants[0].totals
    return asdict(totals) | {"contested": totals.contested, "contested_part": totals.contested_part}
