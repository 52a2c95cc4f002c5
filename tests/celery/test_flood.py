"""Celery workers under a flood of one tenant, with the shares of the tenants, and when one of them is killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery")

import fairq.celery
import fairq.sync
from fairq.model.history import TenantTotals
from tests.celery.conftest import wait_for, worker

pytestmark = pytest.mark.deep("frameworks")

PROCESSES = 2  # of a worker


def send(shop: Any, tenant: str, queue: str, record: Path, count: int, seconds: float = 0.005) -> list[str]:
    """Send tasks of a tenant; returns their ids."""
    with fairq.celery.tenant(tenant):
        return [shop.work.apply_async((str(record), seconds), queue=queue).id for _ in range(count)]


def starts(record: Path) -> list[list[str]]:
    """Return the notes of the tasks that have started, in order."""
    return [line.split() for line in record.read_text().splitlines()] if record.exists() else []


def test_a_quiet_tenants_tasks_are_among_the_next_few_behind_a_flood(
    shop: Any, variables: dict[str, str], tmp_path: Path
) -> None:
    record = tmp_path / "record"
    send(shop, "loud", "flood", record, 600)
    with worker(variables, "-n", "flood@%h", "-Q", "flood"):
        wait_for(lambda: len(starts(record)) > 50)
        before = len(starts(record))
        quiet = {id for n in range(3) for id in send(shop, f"quiet-{n}", "flood", record, 1)}
        sent = len(starts(record))
        wait_for(lambda: quiet <= {id for _, id in starts(record)})
        places = [at for at, (_, id) in enumerate(starts(record)) if id in quiet]
        assert before <= min(places)
        assert max(places) < sent + 20  # of the 500 that wait


def test_tenants_get_their_shares(
    shop: Any, variables: dict[str, str], tmp_path: Path, operator: fairq.sync.OperatorClient
) -> None:
    record, weights = tmp_path / "record", {"one": 1.0, "two": 2.0, "three": 3.0}
    operator.configure("shares", share="count")  # exact; times of a busy machine are not
    for tenant, weight in weights.items():
        operator.set_weight("shares", tenant, weight)
        send(shop, tenant, "shares", record, 350, 0.01)
    with worker(variables, "-n", "shares@%h", "-Q", "shares"):
        wait_for(lambda: len(starts(record)) >= 600)
    served = Counter(tenant for tenant, _ in starts(record)[:600])  # none was without waiting tasks
    for tenant, weight in weights.items():
        assert served[tenant] == pytest.approx(100 * weight, rel=0.05), served


def test_tenants_get_their_shares_of_worker_time_whatever_their_tasks_take(
    shop: Any, variables: dict[str, str], tmp_path: Path, operator: fairq.sync.OperatorClient
) -> None:
    record, weights = tmp_path / "record", {"one": 1.0, "two": 2.0, "three": 3.0}
    for tenant, seconds, count in (("one", 0.1, 150), ("two", 0.05, 450), ("three", 0.025, 1100)):
        operator.set_weight("times", tenant, weights[tenant])
        send(shop, tenant, "times", record, count, seconds)

    def totals() -> dict[str, TenantTotals]:
        return {each.tenant: each.totals for each in operator.history("times", tenants=list(weights)).tenants}

    with worker(variables, "-n", "times@%h", "-Q", "times"):
        wait_for(lambda: sum(each.done for each in totals().values()) >= 600)
        found = totals()  # before the end of the worker, which keeps its last leases for longer
    assert all(each.started < each.enqueued for each in found.values())  # all had waiting tasks
    delivered = {tenant: each.delivered for tenant, each in found.items()}  # from the begin of leases to their end
    for tenant, weight in weights.items():
        assert delivered[tenant] / sum(delivered.values()) == pytest.approx(weight / 6, rel=0.05), found


def test_a_worker_that_is_killed_amid_work_loses_nothing_and_doubles_what_it_held(
    shop: Any, variables: dict[str, str], tmp_path: Path
) -> None:
    record = tmp_path / "record"
    sent = [id for n in range(4) for id in send(shop, f"tenant-{n}", "amid", record, 50)]
    with worker(variables, "-n", "killed@%h", "-Q", "amid") as killed:
        wait_for(lambda: len(starts(record)) > 40)
        killed.kill()
        with worker(variables, "-n", "other@%h", "-Q", "amid"):
            wait_for(lambda: {id for _, id in starts(record)} == set(sent))
    times = Counter(id for _, id in starts(record))
    assert sum(times.values()) - len(sent) <= PROCESSES
