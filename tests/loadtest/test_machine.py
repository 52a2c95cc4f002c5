"""What the machine did to a measurement is seen: it really stands still here, for the watcher."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import trio

from loadtest import machine
from tests.store.waiting import wait_until

from .test_run import descendants, is_running


def long_polls() -> list[int]:
    """Name the long_polls that this process has started."""
    return [pid for pid in descendants(os.getpid()) if b"loadtest.machine" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def synced(directory: Path) -> int:
    """Tell how much the watcher has written so far."""
    return (directory / "watched").stat().st_size if (directory / "watched").exists() else 0


def state_of(pid: int) -> str:
    """Tell what a process does: R, S (it sleeps), D (it waits for a disk) or T (it is stopped)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_pause_of_the_machine_is_seen_and_the_watcher_goes_away(tmp_path: Path) -> None:
    with trio.fail_after(30):
        async with machine.watched(tmp_path) as seen:
            await wait_until(lambda: synced(tmp_path) > 0)
            (pid,) = long_polls()
            for _ in range(3):  # in one of them it might just have begun a sync, which is then the longest
                await wait_until(lambda: state_of(pid) == "S")  # not at a sync, as just after it has written
                os.kill(pid, signal.SIGSTOP)
                await wait_until(lambda: state_of(pid) == "T")
                await trio.sleep(0.3)
                before = synced(tmp_path)
                os.kill(pid, signal.SIGCONT)
                await wait_until(lambda before=before: synced(tmp_path) > before)  # type: ignore[misc]  # it goes on
    assert seen.longest_pause_ms >= 250
    assert seen.longest_sync_ms > 0
    assert 0 <= seen.stolen < 1
    assert seen.seconds >= 0.4
    assert not is_running(pid)
