"""The proof of `faults`: each violation that is planted in a sound history is found, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest.faults import pieces, stores
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
