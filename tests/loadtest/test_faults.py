"""The proof of `faults`: each violation that is planted in a sound history is found, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import cast

import pytest
import trio
from trio.testing import MockClock

import fairq
from loadtest.faults import http_worker, pieces, run, stores
from loadtest.faults.history import EXPIRED, Dead, Enqueued, History, Ran, Settled, check
from loadtest.faults.run import QUICK, Run
from loadtest.processes import RunFailed
from loadtest.report import Progress

NOW = 1_000.0
FAULTS = ("kill a server", "kill the store")


def sound() -> History:
    """Tasks: done at its second attempt, over HTTP, expired, of unknown outcome, and refused."""
    history = History()
    history.enqueued = [
        Enqueued("a", "ok", NOW, (NOW + 4, NOW + 5)), Enqueued("h", "ok"), Enqueued("e", "ok", 0, (NOW - 1, NOW)),
        Enqueued("u", "unknown"), Enqueued("r", "refused"),
    ]  # fmt: skip
    history.ran = [
        Ran("a", 1, "start", NOW), Ran("a", 2, "start", NOW + 1), Ran("a", 2, "end", NOW + 1), Ran("u", 1, "start", 1),
        Ran("u", 1, "end", 1), Ran("h", 1, "start", 1, 3),
        Ran("h", 2, "start", 3, 5),
    ]  # fmt: skip
    history.settled = [Settled("h", 1, 4, "stale"), Settled("h", 2, 4, "ok")]
    history.dead = {"e": Dead(EXPIRED, NOW)}
    history.faults.update(FAULTS)
    return history


def run_again(history: History) -> None:
    """Let an attempt begin after its task's end, and be acknowledged like the first."""
    history.ran.append(Ran("h", 3, "start", 5))
    history.settled.append(Settled("h", 3, 6, "ok"))


PLANTED: dict[str, Callable[[History], object]] = {
    "lost": lambda history: history.enqueued.append(Enqueued("gone", "ok")),
    "strange": lambda history: history.ran.append(Ran("never", 1, "start", NOW)),
    "done though refused": lambda history: history.ran.append(Ran("r", 1, "start", NOW)),
    "doubled": lambda history: history.ran.append(Ran("a", 2, "start", NOW + 2)),
    "leased twice": lambda history: history.ran.append(Ran("u", 0, "start", 1, 3)),
    "run after its end": run_again,
    "stale settlement taken": lambda history: history.settled.insert(0, Settled("h", 1, 4, "ok")),
    "started before its start": lambda history: history.ran.append(Ran("a", 3, "start", NOW - 1)),
    "started after its expiry": lambda history: history.ran.append(Ran("a", 3, "start", NOW + 7)),
    "expired before its expiry": lambda history: history.dead.update(e=Dead(EXPIRED, NOW - 2)),
    "dead by a fault": lambda history: history.dead.update(e=Dead("attempts", NOW)),
    "left": lambda history: history.left.append("a"),
    "fault that never happened": lambda history: history.faults.pop("kill the store"),
    "ended by itself": lambda history: history.crashed.append("server 0, once"),
}


def test_a_sound_history_breaks_no_rule() -> None:
    assert check(sound(), FAULTS) == {rule: [] for rule in PLANTED}


@pytest.mark.parametrize("rule", PLANTED)
def test_what_is_planted_is_found(rule: str) -> None:
    history = sound()
    PLANTED[rule](history)
    assert [name for name, broken in check(history, FAULTS).items() if broken] == [rule]


@pytest.mark.parametrize(
    ("id", "reason", "rule"),
    [("u", EXPIRED, "dead by a fault"), ("never", EXPIRED, "strange"), ("h", EXPIRED, "run after its end"),
     ("r", EXPIRED, "done though refused")],
)  # fmt: skip
def test_a_dead_letter_that_there_may_not_be_is_found(id: str, reason: str, rule: str) -> None:
    history = sound()
    history.dead[id] = Dead(reason, NOW)
    assert rule in [name for name, broken in check(history, FAULTS).items() if broken]


def test_a_dead_letter_without_a_reason_is_a_loss() -> None:
    history = sound()
    history.dead["e"] = Dead("", NOW)
    assert check(history, FAULTS)["lost"] == ["e"]


@pytest.mark.parametrize(("name", "remedy"), [("clock", "apt install faketime"), ("disk", "run it as root")])
def test_a_scenario_that_cannot_run_here_names_the_remedy(
    name: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_CLOCK_FOLDERS", ())
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(RunFailed, match=remedy):
        Run.of(name, 1, tmp_path, "always", QUICK, Progress())


async def test_a_run_ends_when_the_last_outcome_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def queue_state(*_: object) -> dict[str, int]:
        return {"ready": 0}

    monkeypatch.setattr(run, "queue_state", queue_state)
    one = Run.of("single", 1, tmp_path, "always", QUICK, Progress())
    one.http.working = 1
    await one._until_empty(cast(fairq.Client, None))
    assert (one.history.left, trio.current_time()) == (["1 under way over HTTP"], QUICK.limit)


async def test_the_worker_over_http_is_at_work_until_the_outcome_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, settling, may_answer = [[{"id": "t0/f1", "attempt": 1, "lease": 7}]], Event(), Event()

    def post(_url: str, path: str, _body: object) -> object:
        if path.endswith("/claims"):
            return {"tasks": tasks.pop() if tasks else []}
        settling.set()
        may_answer.wait()
        return {"outcomes": ["ok"]}

    monkeypatch.setattr(http_worker, "_post", post)
    monkeypatch.setattr(http_worker, "LATE_PART", 0)
    worker = http_worker.HttpWorker(["http://none"], History(), 1)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await trio.to_thread.run_sync(settling.wait)
            seen = (worker.working, [*worker.history.settled])
            may_answer.set()
            while worker.working:  # noqa: ASYNC110 - a thread
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
    assert (seen, [each.outcome for each in worker.history.settled]) == ((1, []), ["ok"])


def test_pieces_of_a_file_are_added_up(tmp_path: Path) -> None:
    into, row = tmp_path / "kills.jsonl", {"attempted": 9, "acked": 8, "lost": 1, "doubled": 2, "stale refused": 3}
    assert pieces.read(into) == []
    for seed, recovery_s in ((7, [1.0, 2.0]), (8, [9.0])):
        faults = {"kill the store": {"times": len(recovery_s), **row}}
        piece = {"seed": seed, "commit": "abc", "date": "2026-11-29", "faults": faults, "broken": [], "dead": 5}
        line = json.dumps({**piece, "recovery_s": {"kill the store": recovery_s}})
        into.write_text(f"{into.read_text() if into.exists() else ''}{line}\n")
    table = pieces.table(pieces.read(into))
    assert table.rows == [[name, 3, 18, 16, 2, 4, 6, 2.0, 9.0] for name in ("kill the store", "all")]
    assert "3 kills in 2 pieces (seeds 7 to 8" in table.title
    assert table.note == "broken rules: none; dead letters: 10"
