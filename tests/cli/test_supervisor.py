"""`fairq worker --processes N`: children are kept running, drained together, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fairq.cli.supervisor import name_of_child
from fairq.errors import SettingsError
from tests.processes import is_running
from tests.server.harness import OPERATOR
from tests.store.waiting import wait_for, wait_until

from .harness import EXIT_SECONDS, Commands, ServerThread, check_error, fairq, fairq_here, read_until, started

APP = """
import os, pathlib, asyncio, subprocess, sys, time
import fairq

def tell(*words):  # in one write: the children and their logs share a pipe
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

app = fairq.Worker()

@app.on_startup
async def say():
    tell("child", os.getpid(), app.name)

@app.on_shutdown
async def end():
    tell("bye", os.getpid())

@app.task("emails")
async def send(task):
    tell("begins", task.payload, os.getpid())
    if task.payload == "stuck":
        time.sleep(600)
    if task.payload == "programs":
        try:
            read = subprocess.run(["cat"], capture_output=True, timeout=10).stdout
        except subprocess.TimeoutExpired:
            read = "for ever"
        files = [sys.executable, "-c", "import os; print(sorted(map(int, os.listdir('/dev/fd'))))"]
        return tell("run", read, subprocess.run(files, capture_output=True, close_fds=False, text=True).stdout)
    while task.payload != "quick" and not pathlib.Path(task.payload).exists():
        await asyncio.sleep(0.01)
    tell("ends", task.payload)
"""


CHILDREN: list[int] = []  # of the running test


@contextmanager
def supervised(server: ServerThread, directory: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Run a supervisor of two."""
    (directory / "mail.py").write_text(APP)
    argv = ["worker", "mail:app", "--processes", "2", "--name", "web", "-c", "1", "--url", server.url, *more]
    with started(*argv, "--token", "dev-worker", cwd=directory) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            for pid in CHILDREN:  # where the supervisor fails, they hold its output open
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise
        finally:
            CHILDREN.clear()


def children_of(process: subprocess.Popen[str]) -> dict[str, int]:
    """Read the names and pids of two children that start."""
    lines = [read_until(process, "child ").split() for _ in range(2)]
    children = {line[2]: int(line[1]) for line in lines}
    CHILDREN.extend(children.values())
    return children


def connected(server: ServerThread, count: int) -> None:
    """Wait until so many workers with room are attached."""
    connections = server.served.app.connections
    server.call(wait_until, lambda: sum(bool(each.queues and each.account.credit) for each in connections) == count)


def test_children_have_names_of_their_own_and_are_drained_together_by_signals_to_all_processes(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    """As systemd sends them: the children get the supervisor's too, and that is one signal."""
    with supervised(server, tmp_path) as process:
        children = children_of(process)
        assert sorted(children) == ["web-1", "web-2"]
        for _ in range(2):
            commands.enqueue("emails", '"slow"')
        assert len({read_until(process, "begins slow").split()[-1] for _ in range(2)}) == 2
        for pid in children.values():
            os.kill(pid, signal.SIGTERM)
        connected(server, 0)
        process.send_signal(signal.SIGTERM)
        (tmp_path / "slow").touch()
        out, _ = process.communicate(timeout=EXIT_SECONDS)
        assert (process.returncode, out.count("ends slow"), out.count("bye")) == (0, 2, 2), out
    assert not any(map(is_running, children.values()))


def test_a_child_that_dies_is_started_again_under_its_name_and_one_that_is_drained_stays_away(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    with supervised(server, tmp_path) as process:
        children_of(process)
        id = commands.enqueue("emails", '"slow"')
        pid = int(read_until(process, "begins slow").split()[-1])
        os.kill(pid, signal.SIGKILL)
        assert "code=-9" in read_until(process, "worker process ended")
        (tmp_path / "slow").touch()
        read_until(process, "ends slow")
        connected(server, 2)
        wait_for(lambda: server.state(id).state == "done")  # it got its task back, and reports its end after it prints
        names = [row["worker"] for row in commands("workers", "list", "--json").json]
        assert sorted(names) == ["web-1", "web-2"]
        assert commands("workers", "drain", "web-1").code == 0
        connected(server, 1)
        commands.enqueue("emails", '"quick"')
        read_until(process, "ends quick")
        assert commands("workers", "drain", "web-2").code == 0
        assert process.wait(EXIT_SECONDS) == 0


def test_what_a_handler_runs_has_an_empty_standard_input_and_no_line_to_the_supervisor(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    with supervised(server, tmp_path) as process:
        children_of(process)
        commands.enqueue("emails", '"programs"')
        assert read_until(process, "run ") == "run b'' [0, 1, 2, 3]\n", "3: the folder itself"


@pytest.mark.deep("kills")
def test_no_child_is_left_behind_when_the_supervisor_is_killed(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    with supervised(server, tmp_path) as process:
        children = children_of(process)
        id = commands.enqueue("emails", '"slow"')
        read_until(process, "begins slow")
        process.kill()
        connected(server, 0)
        (tmp_path / "slow").touch()
        wait_for(lambda: not any(map(is_running, children.values())))
        assert server.state(id).state == "done", "they finished what they held"


@pytest.mark.deep("kills")
def test_a_stuck_child_is_left_behind_by_neither_a_killed_supervisor_nor_a_stopped_one(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    for is_killed in (True, False):
        with supervised(server, tmp_path, "--grace", "0.1") as process:
            children = children_of(process)
            commands.enqueue("emails", '"stuck"')
            read_until(process, "begins stuck")
            if is_killed:
                process.kill()
            else:
                process.send_signal(signal.SIGTERM)
                assert process.wait(EXIT_SECONDS) == 1
            wait_for(lambda children=children: not any(map(is_running, children.values())))  # type: ignore[misc]


@pytest.mark.deep("kills")
def test_a_second_signal_ends_all_at_once(commands: Commands, server: ServerThread, tmp_path: Path) -> None:
    with supervised(server, tmp_path) as process:
        children = children_of(process)
        id = commands.enqueue("emails", '"slow"')
        read_until(process, "begins slow")
        process.send_signal(signal.SIGINT)
        connected(server, 0)
        process.send_signal(signal.SIGINT)
        assert process.wait(EXIT_SECONDS) == 0
        assert server.state(id).state == "ready", "it was given back"
    assert not any(map(is_running, children.values()))


@pytest.mark.deep("kills")
def test_a_burst_ends_when_all_children_are_done(commands: Commands, server: ServerThread, tmp_path: Path) -> None:
    for _ in range(5):
        commands.enqueue("emails", '"quick"')
    (tmp_path / "mail.py").write_text(APP)
    done = fairq(
        "worker", "mail:app", "--burst", "--processes", "2", "--url", server.url, "--token", "dev-worker", cwd=tmp_path
    )
    assert (done.code, done.out.count("ends quick"), done.out.count(", in ")) == (0, 5, 2), (done.out, done.err)
    assert done.err.count("worker process is done") == 2, done.err


@pytest.mark.parametrize(
    ("source", "argv", "code", "said"),
    [
        (APP, ["--token", "wrong"], 1, "token"),
        pytest.param(APP + "\nos.abort()\n", ["--token", "dev-worker"], 1, "code=-6", marks=pytest.mark.deep("kills")),
    ],
)
def test_what_is_wrong_with_all_children_is_said_once_and_ends_all(
    server: ServerThread, tmp_path: Path, source: str, argv: list[str], code: int, said: str
) -> None:
    (tmp_path / "mail.py").write_text(source)
    done = fairq("worker", "mail:app", "--processes", "3", "--url", server.url, *argv, cwd=tmp_path)
    assert done.code == code, (done.out, done.err)
    assert said in done.err
    assert done.err.count("cannot work") == 1


def test_children_put_a_schedule_once_and_end_together_if_they_may_not(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    declared = '@app.task("emails")\n@app.schedule(every=3600, tenant="ada")\nasync def send'
    (tmp_path / "mail.py").write_text(APP.replace('@app.task("emails")\nasync def send', declared))
    token = commands("tokens", "create", "worker", token=OPERATOR).out.strip()
    argv = ["worker", "mail:app", "--burst", "--processes", "2", "--url", server.url, "--token"]
    done = fairq(*argv, "dev-worker", cwd=tmp_path)
    assert (done.code, (done.out + done.err).count("schedule created")) == (0, 1), (done.out, done.err)
    done = fairq(*argv, token, cwd=tmp_path)
    assert (done.code, "tokens create worker --tenant ada" in done.out + done.err) == (1, True), (done.out, done.err)
    rows = commands("schedules", "list", "emails", "--json", token=OPERATOR).json
    assert [(row["tenant"], row["name"], row["app"]) for row in rows] == [("ada", "send", "mail")]


def test_what_cannot_be_is_one_line_and_code_2(tmp_path: Path) -> None:
    for argv, said in (
        (["0"], "from 1 to 256"),
        (["257"], "from 1 to 256"),
        (["2", "--reload"], "leave out --processes"),
    ):
        done = fairq_here("worker", "mail:app", "--token", "x", "--processes", *argv, cwd=tmp_path)
        check_error(done, 2, said)


def test_names_of_children() -> None:
    assert (name_of_child("web", 0), name_of_child("web", 3)) == ("web", "web-3")
    with pytest.raises(SettingsError, match="name"):
        name_of_child("n" * 63, 1)
