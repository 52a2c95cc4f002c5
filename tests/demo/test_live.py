"""What is shown while it runs, and the lines that the workers write."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fairq.demo import executions
from fairq.demo.executions import Execution, Follower, append_execution
from fairq.demo.live import LineView, LiveView, open_view, phase_table
from fairq.demo.phase import Progress
from fairq.demo.scenario import WEIGHTS, plan_phases

ONE = Execution("fair-1", "fair", "ada", "ada", "/file-1", "digest", 1, 1_500)
COUNTS = {"ready": 7, "delayed": 1, "leased": 2, "done": 3}


@pytest.fixture
def progress() -> Progress:
    _, fair, _ = plan_phases([f"/file-{i}" for i in range(200)], 3)
    made = Progress(fair)
    made.saw_execution(ONE)
    made.saw_rows([
        {"tenant": name, "weight": float(weight), "delivered": 10.0 * weight, "entitled": 10.0 * weight, **COUNTS}
        for name, weight in WEIGHTS.items()
    ])  # fmt: skip
    return made


def test_table_has_a_row_per_tenant(progress: Progress) -> None:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(phase_table(progress))
    rows = {line.split()[1]: line.split() for line in console.export_text().splitlines() if line.startswith("│")}
    assert set(WEIGHTS) == set(rows)
    cells = [cell.strip() for cell in " ".join(rows["ada"]).split("│")]
    assert cells[1:-1] == ["ada", "1", "8", "2", "3", "6.7 %", "6.7 %", "1.5 s", "1.5 s"]


def test_table_stands_before_anything_is_known() -> None:
    for phase in plan_phases([f"/file-{i}" for i in range(200)], 3):
        assert phase_table(Progress(phase)).row_count >= 7


def test_lines_come_at_steps_with_the_first_progress_and_now_and_then(progress: Progress) -> None:
    out, now = io.StringIO(), [0.0]
    view = LineView(out, clock=lambda: now[0])
    view.show_step("starting")
    view.show_phase(Progress(progress.phase))  # nothing done yet: nothing to tell
    for _ in range(50):
        view.show_phase(progress)
        now[0] += 0.1
    assert out.getvalue().splitlines() == [
        "starting",
        progress.phase.title,
        "  1/200 done, wait p99 of the quiet: 1.5 s",
        "  1/200 done, wait p99 of the quiet: 1.5 s",
        "  1/200 done, wait p99 of the quiet: 1.5 s",
    ]


def test_live_view_draws_steps_and_phases(progress: Progress) -> None:
    out = io.StringIO()
    console = Console(width=120, file=out, force_terminal=True)
    with open_view(console, io.StringIO(), is_live=True) as view:
        assert isinstance(view, LiveView)
        view.show_step("reading", 1, 2)
        view.show_phase(progress)
    assert "50 %" in out.getvalue()
    assert progress.phase.title in out.getvalue()


def test_follower_reads_each_complete_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(executions.DIRECTORY_VARIABLE, str(tmp_path))
    executions._own_file.cache_clear()
    follower = Follower(tmp_path)
    assert follower.read_new() == []
    append_execution(ONE)
    append_execution(ONE)
    assert follower.read_new() == [ONE, ONE]
    assert follower.read_new() == []
    other = tmp_path / "other.jsonl"
    line = next(tmp_path.glob("[0-9]*.jsonl")).read_bytes().splitlines(keepends=True)[0]
    other.write_bytes(line + line[:10])
    assert follower.read_new() == [ONE]
    other.write_bytes(line + line)
    assert follower.read_new() == [ONE]
    executions._own_file.cache_clear()


def test_progress_keeps_the_last_answer_while_all_were_backlogged(progress: Progress) -> None:
    backlogged = progress.rows
    progress.saw_rows([{**row, "ready": 0 if row["tenant"] == "eve" else 1} for row in backlogged])
    assert progress.backlogged_rows is backlogged
    progress.saw_rows(backlogged[1:])
    assert progress.backlogged_rows is backlogged
