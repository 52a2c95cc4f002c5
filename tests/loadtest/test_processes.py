"""What is read from processes that a run watches."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from loadtest.processes import cpu_seconds


def test_cpu_time_of_a_process_is_told_finer_than_in_ticks() -> None:
    before, own = time.process_time(), cpu_seconds(os.getpid())
    after = time.process_time()
    assert 0 < before <= own <= after


def test_cpu_time_of_another_process_is_told_and_none_of_one_that_is_gone() -> None:
    code = "import sys, time; print(time.process_time(), flush=True); sys.stdin.read(); print(time.process_time())"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin
        assert process.stdout
        least = float(process.stdout.readline())
        told = cpu_seconds(process.pid)
        process.stdin.close()
        most = float(process.stdout.readline())
    assert 0 < least <= told <= most
    assert cpu_seconds(process.pid) == 0.0
