"""What a handler forks is a program of its own: it shares nothing of its worker, and ends alone."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from tests.store.waiting import wait_for

from .harness import EXIT_SECONDS, Commands, ServerThread, read_until, started

APP = """
import asyncio, json, multiprocessing, os, signal, socket, stat, subprocess, sys, time
import anyio
import fairq, fairq.sync

app = fairq.Worker(concurrency=2)
client = fairq.sync.open_client(token="dev-tenant:ada")
mp = multiprocessing.get_context("fork")
pid = os.getpid()

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def end(pid):
    tell("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

@app.on_startup
def begin():
    client.enqueue("unserved", "from the parent")

@app.on_shutdown
def bye():
    tell("bye")

@app.middleware
async def outermost(task):
    try:
        yield
    finally:
        if os.getpid() != pid:
            tell("ended as the parent does")

@app.middleware
def around(task):
    try:
        yield
    finally:
        tell("after" if os.getpid() == pid else "ended as", task.id)

@app.middleware
def innermost(task):
    if task.payload == "exits in middleware":
        fork("exits")
    yield

def act(how):
    match how:
        case "exits":
            sys.exit(3)
        case "raises":
            raise ValueError("in the child")
        case "is terminated":
            time.sleep(20)
            os._exit(4)
        case "interrupts":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(20)
            os._exit(4)
        case "calls":
            client.enqueue("unserved", "from a child")
            os._exit(3)

def fork(how):
    if how == "exits in middleware":
        return
    if pid := os.fork():
        if how == "is terminated":
            os.kill(pid, signal.SIGTERM)
        return end(pid)
    signal.alarm(20)
    act(how)

@app.task("thread")
def in_thread(task):
    fork(task.payload)

@app.task("loop")
async def in_loop(task):
    if task.payload != "awaits":
        return fork(task.payload)
    if pid := os.fork():
        return end(pid)
    await anyio.sleep(0)
    tell("the child goes on")

@app.task("subtask")
async def in_subtask(task):
    async def begin():
        fork(task.payload)
    async with anyio.create_task_group() as group:
        group.start_soon(begin)
        group.start_soon(anyio.sleep, 0)

def look(pipe):
    connections = polls = 0
    for number in map(int, os.listdir("/dev/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as one:
                    connections += one.family in (socket.AF_INET, socket.AF_INET6)
            polls += "eventpoll" in os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass  # listdir's own
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    are_defaults = handlers == [signal.default_int_handler, signal.SIG_DFL]
    os.write(pipe, json.dumps([are_defaults, signal.set_wakeup_fd(-1), connections, polls]).encode())

def share(how):
    ours, its = os.pipe()
    match how:
        case "os.fork":
            if not os.fork():
                look(its)
                os._exit(0)
        case "Process":
            mp.Process(target=look, args=(its,)).start()
        case "preexec_fn":
            subprocess.run(["true"], preexec_fn=lambda: look(its))
    tell("shares", os.read(ours, 1000).decode())

@app.task("sharing-thread")
def share_in_thread(task):
    share(task.payload)

@app.task("sharing-loop")
async def share_in_loop(task):
    share(task.payload)

@app.task("pool")
def leave_pool(task):
    with mp.Pool(2) as pool:
        try:
            pool.apply_async(time.sleep, (600,)).get(timeout=0.1)
        except multiprocessing.TimeoutError:
            pass
    tell("pool ended")

@app.task("other")
async def other(task):
    tell("other", task.payload)

if __name__ == "__main__":
    asyncio.run(app.run())
"""
WAYS: Mapping[str, list[str]] = {
    "uvloop": ["worker", "mail:app", "--loop", "asyncio"],
    "trio": ["worker", "mail:app", "--loop", "trio"],
    "processes": ["worker", "mail:app", "--loop", "trio", "--processes", "2"],
    "asyncio": [],
}
QUEUES = ("thread", "loop", "subtask")
ENDS = {
    "exits": 3, "exits in middleware": 3, "raises": 1, "returns": 0, "is terminated": -signal.SIGTERM, "interrupts": 1,
    "calls": 3,
}  # fmt: skip
NOTHING = [True, -1, 0, 0]


@pytest.fixture(params=WAYS)
def worker(request: pytest.FixtureRequest, server: ServerThread, tmp_path: Path) -> Iterator[Popen[str]]:
    with _worker(WAYS[request.param], server, tmp_path) as process:
        yield process


@contextmanager
def _worker(argv: list[str], server: ServerThread, directory: Path) -> Iterator[Popen[str]]:
    (directory / "mail.py").write_text(APP)
    variables = {"FAIRQ_URL": server.url, "FAIRQ_TOKEN": "dev-worker"}
    module = "fairq" if argv else "mail"
    with started(*argv, cwd=directory, extra=variables, module=module) as process:
        yield process


def test_a_forked_process_ends_alone(commands: Commands, server: ServerThread, worker: Popen[str]) -> None:
    for queue in QUEUES:
        for how, code in ENDS.items():
            id = commands.enqueue(queue, json.dumps(how))
            ended = int(read_until(worker, "ended ").split()[-1])
            assert ended == code or (queue == "subtask" and ended == 1), (queue, how)  # its loop knows no code
            assert read_until(worker, "after ").split()[-1] == id
            wait_for(lambda: server.state(id, queue).state == "done")  # noqa: B023
    commands.enqueue("loop", '"awaits"')
    assert int(read_until(worker, "ended ").split()[-1]) == 1
    read_until(worker, "after ")
    commands.enqueue("pool", "1")
    read_until(worker, "pool ended")
    read_until(worker, "after ")
    commands.enqueue("other", '"last"')
    read_until(worker, "other last")
    read_until(worker, "after ")
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=EXIT_SECONDS)
    assert not any(said in out for said in ("after", "task failed", "connection lost", "goes on")), out
    assert out.count("bye") == out.count("worker ended"), out


def test_a_forked_process_has_none_of_the_workers_signals_and_files(commands: Commands, worker: Popen[str]) -> None:
    for queue in ("sharing-thread", "sharing-loop"):
        for how in ("os.fork", "Process", "preexec_fn"):
            commands.enqueue(queue, json.dumps(how))
            assert json.loads(read_until(worker, "shares ").partition("shares ")[2]) == NOTHING, (queue, how)
