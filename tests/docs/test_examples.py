"""The examples do what they say, against a server and a worker that are processes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairq.cli.docs import FOLDER
from tests.cli.harness import environment, fairq, python, read_until, started

EXAMPLES = FOLDER / "examples"
PRINTED = {
    "two_tenants.py": r"cat\.png is smaller\ntasks of acme that were done by then: \d{1,2} of 400\n",
    "delays.py": r"before: delayed\nstarted now: ok\na report on May\nfailed: dead: expired\n",
    "batch_progress.py": r"(\d+ of 100\n)*100 of 100\n",
    "nightly.py": r"nightly, next at 03:00\ndone after attempt 1\nnightly removed: True\npulse removed: True\n",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server for a first try and the worker of the examples; gives the variable that names the server."""
    data = tmp_path_factory.mktemp("data")
    with started("serve", "--dev", "--port", "0", "--http-port", "0", "--data-dir", data) as server:
        variables = {"FAIRQ_URL": re.findall(r"ws://\S+", read_until(server, "ws://"))[0]}
        with started(
            "worker", "jobs:app", "--no-task-log", cwd=EXAMPLES, extra={**variables, "FAIRQ_TOKEN": "dev-worker"}
        ) as worker:
            read_until(worker, "connected")
            yield variables


@pytest.mark.deep("guides")
@pytest.mark.parametrize("program", PRINTED)
def test_a_program_says_what_it_shows(program: str, url: dict[str, str]) -> None:
    done = python(EXAMPLES / program, env=url)
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(PRINTED[program], done.out), done.out


@pytest.mark.deep("guides")
def test_the_receiver_gets_a_signed_task(url: dict[str, str], tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text(fairq("webhook-secret").out)
    secrets.chmod(0o600)
    command = [sys.executable, str(EXAMPLES / "receiver.py"), "0", str(secrets)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as receiver:
        port = read_until(receiver, "receives on port").split()[-1]
        to = f"http://127.0.0.1:{port}/in"
        options: list[str | Path] = ["--url", to, "--secret-file", secrets, "--allow-private", "127.0.0.1"]
        with started("webhook-worker", "hooks", *options, extra={**url, "FAIRQ_TOKEN": "dev-worker"}):
            variables = {**url, "FAIRQ_TOKEN": "dev-tenant:acme"}
            assert fairq("enqueue", "hooks", '{"to": "ada"}', "--id", "hook-1", "--wait", "20", env=variables).code == 0
        assert read_until(receiver, "received") == 'received hooks/acme/hook-1 {"to":"ada"}\n'
        receiver.terminate()
        receiver.wait(20)


@pytest.mark.deep("guides")
def test_the_tests_of_handlers_pass() -> None:
    done = python("-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider", "test_handlers.py", cwd=EXAMPLES)
    assert done.code == 0, done.out + done.err
    assert "2 passed" in done.out


def test_every_program_is_run() -> None:
    others = {"jobs.py", "receiver.py", "test_handlers.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == PRINTED.keys() | others
