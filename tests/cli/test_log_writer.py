"""A server goes on while its log is not read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairq.cli.log_writer import MAX_LINES
from tests.cli.harness import environment

EXTRA = 5_000  # lines beyond what waits; a pipe takes some hundred

SCRIPT = f"""
import sys
import structlog
from fairq.cli.log_writer import LogWriter
from fairq.cli.output import configure_logging

configure_logging("info", as_json=True, to=LogWriter(sys.stderr))
log = structlog.get_logger()
for n in range({MAX_LINES + EXTRA}):
    log.info("line", n=n, more="x" * 100)
print("went on", flush=True)
sys.stdin.readline()
log.info("last")
"""


@contextmanager
def logging_process() -> Iterator[subprocess.Popen[str]]:
    """A process that logs more than fits, says so, and logs another line when it is told to."""
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(argv, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(60)
def test_a_log_that_is_not_read_stops_nobody_and_says_what_it_lost() -> None:
    with logging_process() as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "went on\n"
        numbers, dropped = [], 0
        for text in process.stderr:
            line = json.loads(text)
            if line["event"] == "line":
                numbers.append(line["n"])
            else:
                dropped += line["lines"]
            if dropped and len(numbers) + dropped == MAX_LINES + EXTRA:
                break
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= MAX_LINES
        process.stdin.write("\n")
        process.stdin.close()
        assert json.loads(process.stderr.read())["event"] == "last"
        assert process.wait() == 0


@pytest.mark.timeout(60)
def test_a_log_whose_reader_is_gone_stops_nobody() -> None:
    with logging_process() as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stderr.close()
        assert process.stdout.readline() == "went on\n"
        process.stdin.close()
        process.wait()
