"""`fairq simulate` against a real server: what it prints, that it changes nothing, what it refuses."""

from __future__ import annotations

import time
from typing import Any

import trio

from fairq.wire.terms import Role
from tests.server.harness import VIEWER, WORKER, raw
from tests.store.waiting import wait_until

from .harness import Commands, ServerThread


def give(commands: Commands, server: ServerThread, tasks: dict[str, int]) -> None:
    """Have tasks of some tenants come and run, and add them to the history."""
    for tenant, count in tasks.items():
        for n in range(count):
            commands.enqueue("emails", str(n), name=tenant)
    served, until = server.served, time.monotonic() + 30

    async def work() -> None:
        with trio.fail_after(20):
            async with raw(served, WORKER) as worker:
                await worker.attach("emails", credit=4)
                left = sum(tasks.values())
                while left > 0:
                    pushed = await worker.pushed()
                    await worker.settle("emails", "ack", *pushed)
                    left -= len(pushed)
        await served.app.recorder.flush()
        await wait_until(lambda: not any(each.identity.role is Role.WORKER for each in served.app.connections))

    server.call(work)
    while any(row["slots"] for row in commands("queues", "list", "--json").json):
        assert time.monotonic() < until, "the worker is still attached"


def test_a_table_says_what_was_and_what_would_be(commands: Commands, server: ServerThread) -> None:
    give(commands, server, {"acme": 6, "globex": 3})
    before = commands("tenants", "list", "emails", "--json").json, commands("audit", "--json").out
    done = commands("simulate", "emails", "--slots", "4", "--weight", "acme=4", "--max-running", "globex=2")
    assert done.code == 0, done.err
    (acme,) = (line for line in done.out.splitlines() if "acme" in line and "weight 1 -> 4" in line)
    assert "%" in acme
    assert "max_running 0 -> 2" in done.out
    assert "note: Simulate again later: there are only" in done.out
    assert done.out.splitlines()[-1] == "nothing was changed"
    assert (commands("tenants", "list", "emails", "--json").json, commands("audit", "--json").out) == before


def test_json_has_all_three_columns(commands: Commands, server: ServerThread) -> None:
    give(commands, server, {"acme": 4})
    found = commands("simulate", "emails", "--slots", "3", "--traffic", "acme=2", "--json").json
    assert (found["queue"], found["slots"], found["proposed_slots"]) == ("emails", 3, 3)
    (acme,) = found["tenants"]
    outcomes: dict[str, Any] = {name: acme[name] for name in ("measured", "today", "proposed")}
    assert outcomes["measured"]["started"] == 4
    assert outcomes["proposed"]["started"] + outcomes["proposed"]["waiting"] == 2 * outcomes["today"]["started"]
    assert outcomes["today"]["share"] == 1.0
    assert commands("simulate", "emails", "--slots", "3", token=VIEWER).code == 0, "it only reads"
    assert {"little_history", "few_starts"} <= {each["code"] for each in found["cautions"]}


REFUSED = [
    (("--weight", "acme=0"), "weight must not be 0"),
    (("--weight", "acme"), "weight must be TENANT=VALUE, not 'acme'"),
    (("--weight", "=4"), "weight must be TENANT=VALUE"),
    (("--weight", "acme=fast"), "weight must be a number"),
    (("--max-running", "acme=default"), "max_running must be a number or none"),
    (("--max-running", "acme=-1"), "max_running must be a whole number"),
    (("--rate", "acme=1/week"), "rate must be a number"),
    (("--share", "fifo"), "share must be one of time, count"),
    (("--slots", "0"), "slots must be a whole number from 1"),
    (("--traffic", "acme=1000"), "traffic must be a factor from 0 to 100"),
]


def test_invalid_options_are_refused_by_name(commands: Commands) -> None:
    for options, message in REFUSED:
        done = commands("simulate", "emails", *options)
        assert (done.code, message in done.err) == (2, True), done


def test_without_a_queue_history_workers_or_tenant_it_says_so(commands: Commands, server: ServerThread) -> None:
    assert "there is no queue emails" in commands("simulate", "emails").err
    commands.enqueue("emails", "1", name="acme")
    done = commands("simulate", "emails")
    assert (done.code, "has no history of this period" in done.err) == (1, True)
    give(commands, server, {"acme": 2})
    assert "no worker is attached: say for how many slots to simulate" in commands("simulate", "emails").err
    done = commands("simulate", "emails", "--slots", "2", "--weight", "nobody=2")
    assert "queue emails has no tenant nobody" in done.err
