"""The load test itself: a small run of everything, its failures, and that it leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise, product
from math import inf
from pathlib import Path

import orjson
import pytest

import loadtest.__main__ as program
from loadtest.abuse import ROWS, SAME_PRODUCER
from loadtest.caller import KINDS
from loadtest.clients import LOOPS
from loadtest.faults import scenario
from loadtest.features import FEATURES
from loadtest.figures import judge
from loadtest.processes import RunFailed
from loadtest.scenarios import Scenario
from tests.processes import commands, is_running

ROOT = Path(__file__).resolve().parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a load test, as a user would."""
    command = [sys.executable, "-m", "loadtest", *arguments]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def descendants(pid: int) -> set[int]:
    """Name all processes below a process."""
    children = {child for child, _ in commands(pid)}
    return children.union(*map(descendants, children))


@pytest.mark.deep("loadtest")
@pytest.mark.timeout(780)
def test_quick_run_of_everything_accounts_for_every_task_and_draws_what_it_found(tmp_path: Path) -> None:
    process = start("all", "--quick", "--json", "--out", str(tmp_path))
    out, err = process.communicate(timeout=760)
    assert process.returncode == 0, err[-3_000:]  # the end says why
    report = orjson.loads(out)
    assert report["ok"]
    drawn = [path for path in tmp_path.iterdir() if path.suffix == ".png"]
    assert len(drawn) > 5
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    for row, following in pairwise((tmp_path / "report.md").read_text().splitlines()):
        assert not row.startswith("|") or following[:1] != "|" or row.count("|") == following.count("|"), following
    assert all(verdict["is_clean"] for verdict in report["verdicts"].values())
    names = [row["name"] for row in report["throughput"]["rows"]]
    assert names[:3] == ["enqueue, one caller", "enqueue, 100 callers", "enqueue_many"]
    assert {"drain, credit 1", "drain, credit 10", "drain, credit 100", "flow, credit 100"} <= set(names)
    assert all(row["rate"] > 0 and row["raw_rate"] > 0 for row in report["throughput"]["rows"])
    kinds = [(row["name"], row["kind"]) for row in report["clients"]["rows"]]
    assert len(kinds) == 3 * len(KINDS) + len(LOOPS)
    assert all(row["rate"] > 0 for row in report["clients"]["rows"])
    assert all(row["max"] <= 8 and row["mean"] <= 1 for row in report["fairness"]["lag"]["rows"])
    assert report["fairness"]["quiet"]["p99_fair_to_fifo"] > 0  # how much below 1 depends on what else runs here
    assert [(row["servers"], row["nodes"]) for row in report["scale"]["rows"]] == [(1, 3), (2, 3)]
    cpu = report["scale"]["rows"][1]["drain_cpu_s_per_1000"]
    assert {"node 1", "node 2", "node 3", "server 1", "worker 1"} <= cpu.keys()
    assert min(cpu.values()) > 0
    assert [(row["processes"], row["nodes"]) for row in report["scale"]["processes"]] == [(1, 1), (2, 1)]
    cpu = report["scale"]["processes"][1]["drain_cpu_s_per_1000"]
    assert {"node 1", "server 1", "server 2", "worker 4"} <= cpu.keys()
    assert [(row["partitions"], row["servers"]) for row in report["scale"]["one_queue"]] == [(1, 1), (12, 2)]
    reconnect = report["connections"]["rows"][-1]
    assert (reconnect["name"], reconnect["held"]) == ("while 100 workers reconnect", 10)
    assert min(reconnect["attached_again_s"], reconnect["longest_silence_ms"], reconnect["p99"]) > 0
    assert [row["name"] for row in report["features"]["rows"]] == [feature.name for feature in FEATURES]
    assert all(min(row["of_off"].values()) > 0 for row in report["features"]["rows"])
    assert report["features"]["purge"]["tasks"] == 2_000
    assert report["verdicts"]["features, purge"]["expected"]
    abused = {row["name"]: row for row in report["abuse"]["rows"]}  # whether they are within depends on what else runs
    assert list(abused) == list(ROWS)
    own = abused.keys() - {SAME_PRODUCER}  # that one shares the victim's connection
    assert all(abused[name]["did"]["connections"] for name in own)
    assert abused[SAME_PRODUCER]["did"][
        "waits"
    ]  # whether its enqueues end in so short a round depends on what else runs
    assert abused["slow worker"]["did"]["acknowledged"] == 8
    cases = {case["name"]: case for case in report["fairness"]["scorecard"]["cases"]}
    assert {"trickle", "lone-tenant", "delayed-herd", "weight-change-live"} == set(cases)
    assert cases["lone-tenant"]["makespan_to_fifo"] > 0
    assert all(0 < case["jain"] <= 1 for name, case in cases.items() if name != "lone-tenant")
    assert all(row["tasks"] for row in report["fairness"]["several"]["tenants"])
    bounds = {case["name"]: case for case in report["fairness"]["scorecard"]["bounds"]}
    assert {"gives-back", "joins-beside-limit"} == set(bounds)
    assert all(found["got"] > 0 for case in bounds.values() for found in case["tenants"])
    assert all(0 <= seen["stolen"] < 1 for seen in report["machine"].values())
    assert max(seen["longest_sync_ms"] for seen in report["machine"].values()) > 0
    assert set(report["machine"]) >= {"throughput", "latency", "peers"}
    peers = {row["name"]: row for row in report["peers"]["rows"]}
    assert {"raw, pipelined", "raw, one call each", "fairq"} <= peers.keys()
    for measured in peers.values():
        assert (measured["lost"], measured["twice"], measured["left"]) == (0, 0, 0)
        assert min(measured[name] for name in ("one_by_one", "bulk", "drained", "flow", "bytes_per_task")) > 0
    assert "throughput: starting a server" in err


@pytest.mark.deep("kills")
@pytest.mark.parametrize(
    ("scenario", "number"),
    [*product(["throughput", "peers", "faults"], [signal.SIGINT, signal.SIGTERM]), ("faults", signal.SIGKILL)],
)
def test_interrupted_run_leaves_no_process_behind(
    scenario: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if number == signal.SIGKILL:
        monkeypatch.setenv("TMPDIR", str(tmp_path))  # nothing else removes its directory
    least = 8 if scenario == "faults" else 4  # the watcher, two stores and a server or a producer
    process = start(scenario, "--quick")
    try:
        below: set[int] = set()
        deadline = time.monotonic() + 30
        while len(below) < least and time.monotonic() < deadline:
            below = descendants(process.pid)
            time.sleep(0.05)
        assert len(below) >= least
        os.kill(process.pid, number)
        process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    deadline = time.monotonic() + (10 if number == signal.SIGKILL else 0)
    while (left := [pid for pid in below if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@pytest.mark.parametrize(
    ("variables", "quick", "seconds"),
    [
        ({}, False, program.LIMIT_S),
        ({}, True, program.QUICK_LIMIT_S),
        ({scenario.KILLS_VARIABLE: "10000"}, True, inf),
        ({scenario.MINUTES_VARIABLE: "25"}, True, program.LIMIT_S),
        ({scenario.NAME_VARIABLE: scenario.ALL}, False, 10 * program.LIMIT_S),
        ({scenario.NAME_VARIABLE: scenario.ALL}, True, program.QUICK_LIMIT_S),
    ],
)
def test_a_scenario_may_take_as_long_as_it_is_asked_to(
    variables: dict[str, str], quick: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert program.limit_s(quick=quick) == seconds


@pytest.mark.parametrize(
    "words",
    [["--scenario", "nope"], ["--minutes", "26"], ["--minutes", "0"], ["--into", "."], ["--into", "no/such/file"]],
)
def test_arguments_that_make_no_sense_end_it_at_once(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.arguments_of(["faults", *words])


@pytest.mark.parametrize(
    ("variable", "value"),
    [(scenario.NAME_VARIABLE, "nope"), (scenario.MINUTES_VARIABLE, "26"), (scenario.SEED_VARIABLE, "x"),
     (scenario.KILLS_VARIABLE, "0"), (scenario.INTO_VARIABLE, "no/such/file")],
)  # fmt: skip
def test_variables_that_make_no_sense_end_it_at_once(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit, match="2"):
        program.arguments_of(["faults"])


async def test_lost_task_fails_the_run_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(*_: object, **__: object) -> dict[str, object]:
        return {"verdicts": {"drain": judge(["a", "b"], ["a"])}}

    monkeypatch.setattr(program, "SCENARIOS", {"throughput": Scenario(scenario, lambda _: [])})
    assert await program.main(program.arguments_of(["throughput"])) == 1
    assert capsys.readouterr().out.endswith("\n2 tasks; lost: 1\n")
    code = await program.main(program.arguments_of(["throughput", "--json"]))
    out, err = capsys.readouterr()
    assert code == 1
    assert "drain: 1 lost: b" in err
    assert orjson.loads(out)["verdicts"]["drain"]["lost"] == ["b"]


async def test_scenario_that_cannot_run_says_why_in_one_line_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(*_: object, **__: object) -> dict[str, object]:
        raise RunFailed("the server did not start")

    async def works(*_: object, **__: object) -> dict[str, object]:
        return {"verdicts": {"drain": judge(["a"], ["a"])}}

    scenarios = {"throughput": Scenario(scenario, lambda _: []), "fairness": Scenario(works, lambda _: [])}
    monkeypatch.setattr(program, "SCENARIOS", scenarios)
    assert await program.main(program.arguments_of(["all", "--json"])) == 1
    out, err = capsys.readouterr()
    assert err == "loadtest: throughput: the server did not start\n"
    report = orjson.loads(out)
    assert report["failed"] == {"throughput": "the server did not start"}
    assert report["verdicts"]["drain"]["is_clean"]
