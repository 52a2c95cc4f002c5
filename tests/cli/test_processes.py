"""The commands that are processes: serve and worker, and how they end when something is wrong."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb

import pytest

from fairq.store import keys, library
from fairq.store.migrations import READABLE
from tests import stores
from tests.logs import captured_logs
from tests.store.waiting import wait_until

from .harness import (
    EXIT_SECONDS,
    Commands,
    Finished,
    ServerThread,
    check_error,
    fairq,
    fairq_here,
    python,
    read_until,
    started,
    worker_in,
)

APP = """
import fairq

app = fairq.Worker()

@app.task("emails")
def send(task):
    print("sent", task.payload, flush=True)

not_an_app = 5
"""


def test_a_taken_port_is_one_line_and_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = fairq_here("serve", "--dev", "--port", str(port), "--data-dir", tmp_path / "data")
    check_error(done, 2, str(port))


NEED_SERVER = """
import sys
from fairq.cli.app import _OF_SERVER, run

sys.modules.update(dict.fromkeys(_OF_SERVER))
print([run(argv.split()) for argv in sys.argv[1:]])
"""


def test_a_command_that_needs_the_servers_parts_says_how_to_install_them() -> None:
    posting = "webhook-worker emails --url https://hooks.example --unsigned --token x"
    done = python("-c", NEED_SERVER, "serve --port 0", "tokens create worker", posting, "demo")
    assert done.out == "[2, 2, 2, 2]\n", done
    assert done.err == 4 * "fairq: this command needs the server's parts: pip install 'fairq[server]'\n"


def test_bad_settings_are_one_line_and_code_2(tmp_path: Path) -> None:
    path = tmp_path / "fairq.toml"
    path.write_text("port = = 1")
    check_error(fairq_here("serve", "--config", path), 2, str(path))
    check_error(fairq_here("serve", "--config", tmp_path / "none.toml"), 2, "none.toml")
    check_error(fairq_here("serve", "--dev", "--host", "0.0.0.0", cwd=tmp_path), 2, "dev")
    check_error(fairq_here("serve", env={"FAIRQ_PORT": "many"}, cwd=tmp_path), 2, "FAIRQ_PORT")
    check_error(fairq_here("serve", "--store", "http://x", cwd=tmp_path), 2, "store")
    check_error(fairq_here("serve", "--host", "no such host", cwd=tmp_path), 2, "host")


def test_an_unsafe_store_is_refused_and_says_how_to_mend_it(
    start_store: Callable[..., stores.LocalServer], tmp_path: Path
) -> None:
    store = start_store({"appendonly": "no"})
    for mode in ((), ("--dev",)):
        check_error(fairq_here("serve", *mode, "--port", "0", "--store", store.url, cwd=tmp_path), 2, "appendonly")


def test_a_server_serves_tokens_work_offline_and_a_second_server_is_refused(tmp_path: Path) -> None:
    place = ("--data-dir", tmp_path / "data")
    for argv in (("create", "operator"), ("list",)):
        check_error(fairq_here("tokens", *argv, *place), 2, f"no store in {place[1]}", "fairq serve")
    assert not (tmp_path / "data").exists()
    with started("serve", "--port", "0", *place, "--log-level", "info") as server:
        url = next(word for word in read_until(server, "serving").split() if "ws://" in word).removeprefix("url=")
        token = fairq_here("tokens", "create", "tenant", "--tenant", "ada", *place)
        done = fairq_here("enqueue", "emails", "1", "--url", url, env={"FAIRQ_TOKEN": token.out.strip()})
        assert done.code == 0, done.err
        check_error(fairq_here("serve", "--port", "0", *place), 2, str(server.pid))
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
    assert fairq_here("tokens", "create", "operator", *place).code == 0
    check_error(fairq_here("tokens", "revoke", "nobody", *place), 2, "there is no token nobody")
    listed = fairq_here("tokens", "list", "--json", *place)
    assert {row["role"] for row in listed.json} == {"tenant", "operator"}


@pytest.mark.parametrize(("processes", "is_idle"), [("1", True), ("2", False)])
def test_a_server_ends_with_code_2_when_a_later_version_has_migrated_the_data(
    start_store: Callable[..., stores.LocalServer], processes: str, is_idle: bool
) -> None:
    """One that is idle finds out within seconds."""
    later, store = str(library.DATA_VERSION + 1), start_store()
    with (
        started("serve", "--dev", "--store", store.url, "--port", "0", "--processes", processes) as process,
        stores.connect(store.url) as client,
    ):
        found = re.search(r"ws://\S+", read_until(process, "serving"))
        assert found
        enqueue = ("enqueue", "emails", "1", "--url", found[0], "--token", "dev-tenant:ada")
        made = fairq_here(*enqueue)
        assert made.code == 0, made.err
        client.set(keys.DATA_VERSION, later)
        client.function_delete(library.name())
        if not is_idle:
            assert fairq_here(*enqueue, "--timeout", "0.1").code == 1
        output, _ = process.communicate(timeout=EXIT_SECONDS)
        assert process.returncode == 2, output
        assert f"fairq: the store holds data of version {later}, but this fairq reads {READABLE}" in output
        assert "Traceback" not in output


def test_a_worker_runs_the_handlers_of_an_app_and_stops_on_sigterm(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    commands.enqueue("emails", '"hello"')
    with started(*worker_in(tmp_path, APP, server.url), "-c", "3", cwd=tmp_path) as worker:
        assert "hello" in read_until(worker, "sent")
        read_until(worker, "outcome=done")  # until then the task runs
        worker.send_signal(signal.SIGTERM)
        read_until(worker, "stopping: no task runs")
        assert worker.wait(30) == 0
    assert server.call(server.served.app.store.queue, "emails").done == 1


STUBBORN = """
import time
import anyio
import fairq
import fairq.cli.ending

fairq.cli.ending.KILL_S = 0.1

app = fairq.Worker()

@app.task("emails")
async def send(task):
    print("begins", flush=True)
    while True:
        try:
            if task.payload == "blocks":
                time.sleep(600)
            await anyio.sleep(600)
        except BaseException:
            pass
"""


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("how", ["swallows", "blocks", "a second signal", "a burst"])
def test_a_worker_ends_although_a_handler_does_not(
    commands: Commands, server: ServerThread, tmp_path: Path, how: str, loop: str
) -> None:
    id = commands.enqueue("emails", '"blocks"' if how == "blocks" else "1")
    grace = "600" if how in ("a second signal", "a burst") else "0.1"
    more = ["--burst"] if how == "a burst" else []
    argv = [*worker_in(tmp_path, STUBBORN, server.url), "--loop", loop, "--grace", grace, *more]
    with started(*argv, cwd=tmp_path) as process:
        read_until(process, "begins")
        if how == "a burst":  # it ends for itself, when it has lost its only task
            commands("tasks", "cancel", "emails", f"ada/{id}")
        else:
            process.send_signal(signal.SIGINT)
        if how == "a second signal":
            read_until(process, "stopping: 1 task runs; 600 s left; again to give them back")
            process.send_signal(signal.SIGTERM)
        output = read_until(process, "a handler does not end")
        assert all(f" {field}" in output for field in (f"task={id}", "queue=emails", "tenant=ada", "handler=send")), (
            output
        )
        assert process.wait(EXIT_SECONDS) == 1


SLOW = """
import pathlib
import asyncio
import fairq

app = fairq.Worker()

@app.task("emails")
async def send(task):
    print("VERSION begins", task.payload, flush=True)
    while not pathlib.Path(task.payload).exists():
        await asyncio.sleep(0.01)
    print("VERSION ends", task.payload, flush=True)
"""


@pytest.mark.deep("kills")
def test_a_worker_starts_anew_when_its_files_change_and_finishes_first(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    app = tmp_path / "mail.py"
    app.write_text(SLOW.replace("VERSION", "one"))
    to_server = ("--url", server.url, "--token", "dev-worker", "--no-task-log")
    with started("worker", "mail:app", "--reload", *to_server, cwd=tmp_path) as worker:
        commands.enqueue("emails", '"first"')
        read_until(worker, "one begins")
        app.write_text(SLOW.replace("VERSION", "two"))
        read_until(worker, "files changed")
        for name in ("other.py", "more.py"):  # another change does not cut short what is held
            (tmp_path / name).write_text("1")
            read_until(worker, name)
        (tmp_path / "first").touch()
        read_until(worker, "one ends first")
        commands.enqueue("emails", '"first"')
        read_until(worker, "two ends first")
        app.write_text("this is no Python")
        read_until(worker, "worker ended")
        app.write_text(SLOW.replace("VERSION", "three"))
        commands.enqueue("emails", '"last"')
        read_until(worker, "three begins")
        worker.send_signal(signal.SIGTERM)
        connections = server.served.app.connections
        server.call(
            wait_until, lambda: all(connection.account.credit == 0 for connection in connections if connection.queues)
        )
        (tmp_path / "last").touch()
        read_until(worker, "three ends last")
        assert worker.wait(30) == 0
    assert server.call(server.served.app.store.queue, "emails").done == 3


LOOP = """
import sniffio
import fairq

app = fairq.Worker()

@app.task("emails")
async def send(task):
    loop = ""
    if sniffio.current_async_library() == "asyncio":
        import asyncio
        loop = type(asyncio.get_running_loop()).__module__
    print("runs in", sniffio.current_async_library(), loop, flush=True)
"""


def test_a_worker_runs_in_the_chosen_loop(commands: Commands, server: ServerThread, tmp_path: Path) -> None:
    burst = [*worker_in(tmp_path, LOOP, server.url), "--burst"]
    usual = "asyncio uvloop" if find_spec("uvloop") else "asyncio asyncio.unix_events"
    for argv, expected in ([], usual), (["--loop", "asyncio"], "asyncio"), (["--loop", "trio"], "trio"):
        commands.enqueue("emails", "1")
        done = fairq_here(*burst, *argv, cwd=tmp_path)
        assert done.out.startswith(f"runs in {expected}"), done
    assert fairq_here("worker", "mail:app", "--loop", "curio", cwd=tmp_path).code == 2


OF_TRIO = """
import fairq
{imports}

app = fairq.Worker()

@app.task("emails")
async def send(task):
    import trio
    await trio.sleep(0)
    print("sent", task.attempt, task.max_attempts, flush=True)
"""


def test_the_loop_is_that_which_the_handlers_modules_import(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    def burst(imports: str) -> Finished:
        return fairq_here(*worker_in(tmp_path, OF_TRIO.format(imports=imports), server.url), "--burst", cwd=tmp_path)

    commands.enqueue("emails", "1")
    assert burst("from trio import sleep").out.startswith("sent 1 25\n")
    check_error(burst("import asyncio, trio"), 2, "say --loop asyncio or --loop trio")


def test_a_burst_ends_by_itself_and_gives_an_account(commands: Commands, server: ServerThread, tmp_path: Path) -> None:
    burst = [*worker_in(tmp_path, APP, server.url), "--burst"]
    ids = [commands.enqueue("emails", payload) for payload in ('"a"', '"b"')]
    with captured_logs() as logged:
        done = fairq_here(*burst, cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1].startswith("done 2, in ")
    ended = {line["task"]: line for line in logged if line.get("outcome") == "done"}
    assert ended.keys() == set(ids)
    assert all(line["queue"] == "emails" and "ms" in line for line in ended.values())
    commands.enqueue("emails", '"c"')
    with captured_logs() as logged:
        assert fairq_here(*burst, "--no-task-log", cwd=tmp_path).code == 0
    assert not any("outcome" in line for line in logged)
    assert fairq_here(*burst, cwd=tmp_path).out.startswith("nothing to do, in ")


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_startup_that_fails_is_reported_without_our_own_frames(tmp_path: Path, kind: str, loop: str) -> None:
    hook = f"\n@app.on_startup\n{kind} connect():\n    raise ConnectionRefusedError('no database')\n"
    (tmp_path / "mail.py").write_text(APP + hook)
    with captured_logs() as lines:
        assert fairq_here("worker", "mail:app", "--token", "x", "--loop", loop, cwd=tmp_path).code == 1
    error = next(line["raised"] for line in lines if line["raised"])
    assert (str(error), [frame.name for frame in extract_tb(error.__traceback__)]) == ("no database", ["connect"])


def test_a_burst_without_a_server_ends_with_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairq.client.declaring.ASK_S", 0.05)
    url = f"ws://127.0.0.1:{stores.free_port()}"
    done = fairq_here(*worker_in(tmp_path, APP, url), "--burst", cwd=tmp_path)
    check_error(done, 1, "no connection to the server")


def test_a_worker_serves_the_named_queues(commands: Commands, server: ServerThread, tmp_path: Path) -> None:
    worker = worker_in(tmp_path, APP + "\napp.task('images')(print)\napp.task('sounds')(print)\n", server.url)
    for queue in ("emails", "images", "sounds"):
        commands.enqueue(queue, "1")
    done = fairq_here(*worker, "--burst", "--queue", "emails", "--queue", "sounds", cwd=tmp_path)
    assert done.out.splitlines()[-1].startswith("done 2, in "), done.err
    assert [row["ready"] for row in commands("queues", "list", "--json").json] == [0, 1, 0]


def test_a_queue_an_app_or_a_token_that_is_none_is_one_line_and_code_2(tmp_path: Path) -> None:
    (tmp_path / "mail.py").write_text(APP)
    for queue in ("", "emails=3", "nobody"):
        check_error(fairq_here("worker", "mail:app", "--token", "x", "--queue", queue, cwd=tmp_path), 2, "queue")
    for app, word in {
        "mail": "module:app",
        "nothing:app": "nothing",
        "mail:none": "mail:none",
        "mail:not_an_app": "fairq.Worker",
        "./mail.py:app": "mail:app",
        "mail.py:app": "mail:app",
        "tasks/mail.py:app": "tasks.mail:app",
    }.items():
        check_error(fairq_here("worker", app, "--token", "x", cwd=tmp_path), 2, word)
    check_error(fairq_here("worker", "mail:app", cwd=tmp_path), 2, "FAIRQ_TOKEN")


def test_a_worker_with_a_wrong_token_ends_with_code_1(server: ServerThread, tmp_path: Path) -> None:
    (tmp_path / "mail.py").write_text(APP)
    check_error(fairq_here("worker", "mail:app", "--token", "wrong", "--url", server.url, cwd=tmp_path), 1, "token")


def test_standard_output_holds_the_answer_only(server: ServerThread) -> None:
    """What the client logs on its way, here of a server that is not there, goes to standard error or nowhere."""
    urls = f"ws://127.0.0.1:{stores.free_port()},{server.url}"
    assert fairq("queues", "list", "--json", "--url", urls, "--token", "dev-operator").json == []


def test_help_and_version_end_with_code_0() -> None:
    assert "Usage" in fairq_here("--help").out
    assert fairq_here("serve", "--help").code == 0
    assert fairq("--version").code == 0
