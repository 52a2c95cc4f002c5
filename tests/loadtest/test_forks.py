"""The processes of a run of `faults` are forks: they end with their forker, and all that they have left behind does."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import trio

from loadtest.faults.forking import FAIRQ, Forker
from loadtest.faults.kept import Kept
from loadtest.processes import ROOT
from tests.processes import is_running

LIMIT_S = 60.0
SLEEP = ["sleep", "1000"]


async def last_line_of(log: Path) -> str:
    """Wait for the second line of a log."""
    while (text := await trio.Path(log).read_text()).count("\n") < 2:  # noqa: ASYNC110 - another process
        await trio.sleep(0.01)
    return text.splitlines()[-1]


async def test_a_closed_forker_leaves_no_process_behind(tmp_path: Path) -> None:
    forker, log = Forker(ROOT), tmp_path / "shell.log"
    log.touch()
    with trio.fail_after(LIMIT_S):
        still = await forker.start(SLEEP, tmp_path / "still.log", {})
        still.send_signal(signal.SIGSTOP)
        shell = await forker.start(["sh", "-c", f"setsid {' '.join(SLEEP)} & echo $!; wait"], log, {})
        left = int(await last_line_of(log))
        shell.kill()
        await shell.wait()
        assert is_running(left)
        await forker.close()
    assert not [pid for pid in (still.pid, left) if is_running(pid)]


async def test_a_process_that_ends_by_itself_is_started_again_and_the_end_of_its_log_is_kept(tmp_path: Path) -> None:
    forker, silent = Forker(ROOT), ["sh", "-c", "kill -TERM $$"]
    commands = list[Sequence[str]]([["sh", "-c", "echo no such store; exit 3"], silent, [FAIRQ, "--version"], SLEEP])
    kept = Kept(lambda: forker.start(commands.pop(0), kept.log, {"FAIRQ_URL": "none"}), tmp_path / "log")
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(kept.run)
            while commands:  # noqa: ASYNC110 - another process
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        await forker.close()
    assert kept.crashes == ["no such store", "it has begun", "it has ended with code 0"]
