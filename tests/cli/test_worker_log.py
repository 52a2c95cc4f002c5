"""The log of a worker's process is the command's own, whatever an app makes of `logging` and of structlog."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .harness import EXIT_SECONDS, Commands, ServerThread, read_until, started, worker_in

APP = """
import logging, logging.config
import fairq, structlog

app = fairq.Worker()

@app.task("emails")
async def send(task):
    raise ValueError(task.payload)

def configure():
    SETUP

WHEN
"""
DICT = "logging.config.dictConfig({'version': 1, 'handlers': {'c': {'class': 'logging.StreamHandler'}}, MORE})"
SETUPS = {
    "the root": DICT.replace("MORE", "'root': {'handlers': ['c'], 'level': 10}"),
    "our logger": DICT.replace("MORE", "'loggers': {'fairq': {'handlers': ['c']}}"),
    "disable": "logging.disable()",
    "every logger": (
        "logging.basicConfig(force=True)\n"
        "    for name in list(logging.root.manager.loggerDict):\n"
        "        logging.getLogger(name).handlers.clear()\n"
        "        logging.getLogger(name).propagate = True"
    ),
    "structlog": "structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())",
}


@pytest.mark.parametrize("when", ["app.on_startup(configure)", "configure()"])
@pytest.mark.parametrize("setup", SETUPS)
def test_an_app_neither_silences_nor_doubles_the_lines_of_its_worker(
    commands: Commands, server: ServerThread, tmp_path: Path, setup: str, when: str
) -> None:
    worker = worker_in(tmp_path, APP.replace("SETUP", SETUPS[setup]).replace("WHEN", when), server.url)
    commands.enqueue("emails", "1", "--max-attempts", "1")
    with started(*worker, cwd=tmp_path) as process:
        output = read_until(process, "task failed")
        assert "ValueError: 1" not in output
        assert process.stdout is not None
        rest = [next(process.stdout)]
        while "outcome=dead" not in rest[-1]:
            assert "task failed" not in rest[-1]
            rest.append(next(process.stdout))
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=EXIT_SECONDS)
    assert [out.count(text) for text in ("task failed", "outcome=", "stopping: ", "worker ended")] == [0, 0, 1, 1]


def test_what_a_handler_prints_comes_before_the_line_of_its_end(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    source = (
        "import fairq\napp = fairq.Worker()\n@app.task('emails')\ndef send(task):\n    print('sent', task.payload)\n"
    )
    commands.enqueue("emails", "1")
    with started(*worker_in(tmp_path, source, server.url), cwd=tmp_path, extra={"PYTHONUNBUFFERED": ""}) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while "outcome=done" not in (line := next(process.stdout)):
            lines.append(line)
    assert "sent 1\n" in lines
