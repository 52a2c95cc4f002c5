"""What workers and clients log: through `logging`, nothing on standard output, one line at each turn of their lives."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
import time
import traceback
from typing import Any

import anyio
import pytest
import trio

import fairq
import fairq.sync
from fairq.client.handlers import perform
from fairq.client.kinds import Handler
from fairq.client.threads import Threads
from fairq.client.watchdog import BLOCKED_S, LOOK_S, Watchdog, _watchdogs, handler_in, watching
from fairq.io.event_loop import current_runtime
from fairq.log import Log, shown
from fairq.wire.frames import PushedTask
from tests import stores
from tests.logs import captured_logs
from tests.server.harness import OPERATOR, WORKER, tenant

from .runtimes import Service, on_both, wait_state, wait_until, working


@on_both
async def test_a_line_at_the_start_and_at_each_loss_and_return_of_the_connection(
    service: Service, runtime: str
) -> None:
    app = fairq.Worker(service.proxied, WORKER, 3, name="worker-1")
    app.task("emails")(print)
    app.task("images")(print)
    with captured_logs() as lines:
        async with working(app):
            await wait_until(lambda: app._run.driver.session.is_attached)
            service.soon(service.proxy.cut)
            await wait_until(lambda: service.proxy.connections == 2)
            await wait_until(lambda: app._run.driver.session.is_attached)
    logged = [line["text"] for line in lines if line["log_level"] != "debug"]
    assert logged[0] == (
        f"worker started worker=worker-1 server={service.proxied} queues=emails,images slots=3 loop={runtime}"
    )
    assert logged[1:] == [
        f"connected url={service.proxied}",
        f"connection lost; connecting again url={service.proxied}",
        f"connected url={service.proxied}",
        "worker ended worker=worker-1 why=cancelled",
    ]


@on_both
async def test_a_drained_worker_does_not_say_that_it_connects_again(service: Service, runtime: str) -> None:
    app = fairq.Worker(service.proxied, WORKER, name="worker-1")
    app.task("emails")(print)
    with captured_logs() as lines:
        async with fairq.open_operator(service.url, token=OPERATOR) as boss, anyio.create_task_group() as group:
            await group.start(lambda *, task_status: app.run(task_status=task_status))
            await wait_until(lambda: app._run.driver.session.is_attached)
            await boss.drain_worker("worker-1")
    logged = [line["text"] for line in lines if line["log_level"] != "debug"]
    assert logged[-2:] == ["an operator drains this worker worker=worker-1", "worker ended worker=worker-1 why=drained"]


@pytest.mark.parametrize("opened", ["async", "sync"])
def test_that_there_is_no_server_is_warned_of_once(opened: str) -> None:
    def ask(seconds: float) -> None:
        with fairq.sync.open_client(url, token="dev-tenant:ada") as client:
            client.enqueue("emails", 1, timeout=seconds)

    async def ask_async(seconds: float) -> None:
        async with fairq.open_client(url, token="dev-tenant:ada") as client:
            await client.enqueue("emails", 1, timeout=seconds)

    url, levels = f"ws://127.0.0.1:{stores.free_port()}", list[str]()
    for seconds in (0.5, 4, 16):  # a busy machine does not try twice so soon
        if len(levels) < 2:
            with captured_logs() as lines, pytest.raises(fairq.Unavailable):
                ask(seconds) if opened == "sync" else trio.run(ask_async, seconds)
            levels = [line["log_level"] for line in lines if line["event"] == "cannot connect"]
    assert levels[:2] == ["warning", "info"]
    assert "warning" not in levels[1:]


async def test_no_token_is_reported(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    """Not even at DEBUG, nor by what programs and reports of errors print of a client."""
    caplog.set_level(logging.DEBUG)
    async with fairq.open_client(service.url, token=tenant("ada")) as client:
        await client.enqueue("emails", 1)
        found = caplog.text + repr(client) + repr(client._caller)
    assert tenant("ada") not in found


PROGRAM = """
import asyncio, sys
import fairq

app = fairq.Worker(sys.argv[1], "dev-worker")

@app.task("emails")
async def handle(task):
    raise fairq.Reject("no") if task.payload else ValueError("broken")

async def main():
    async with fairq.open_client(sys.argv[1], token="dev-tenant:ada") as client:
        await client.enqueue_many("emails", [0, 1], max_attempts=1)
    await app.run(burst=True)

asyncio.run(main())
assert "structlog" not in sys.modules
"""


def test_a_program_that_configures_no_logging_gets_warnings_on_standard_error_only(service: Service) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, service.url], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.startswith("task failed task=")
    assert re.findall(r"File .* in (.*)|^(ValueError: .*)", done.stderr, re.M) == [
        ("handle", ""),
        ("", "ValueError: broken"),
    ]
    assert "worker started" not in done.stderr


@on_both
async def test_a_failure_outside_of_the_handler_is_logged_with_all_frames() -> None:
    async def later() -> None:
        pass

    handler = Handler(lambda _: later(), "emails")
    with captured_logs() as lines:
        await perform(handler, "emails", TASK, Threads(1), lambda *_: None, ask_nothing, ask_nothing)
    assert "in perform" in "".join(traceback.format_exception(lines[0]["raised"]))


def test_a_field_cannot_look_like_another_line_or_field() -> None:
    assert [shown(value) for value in (1, "a b", "a\nb", "", "x=1")] == ["1", "'a b'", "'a\\nb'", "''", "x=1"]
    with captured_logs() as lines:
        Log("fairq.worker").warning("event", kind="100%\n%d")
        logging.getLogger("fairq.worker").setLevel(logging.ERROR)
        Log("fairq.worker").warning("unseen")
        logging.getLogger("fairq.worker").setLevel(logging.NOTSET)
    assert [line["text"] for line in lines] == ["event kind='100%\\n%d'"]


@on_both
async def test_a_handler_that_blocks_the_event_loop_is_warned_of(service: Service) -> None:
    app, warned = service.worker(2), threading.Event()

    @app.task("emails")
    async def handle(task: fairq.Task) -> None:
        assert warned.wait(25)  # it blocks until it is warned of

    with captured_logs() as lines:
        notice = logging.Handler()
        notice.emit = lambda record: warned.set() if "blocks" in record.msg else None  # type: ignore[method-assign]
        logging.getLogger("fairq").addHandler(notice)
        async with service.client() as client, working(app):
            task = await client.enqueue("emails", 1)
            await wait_state(task, "done")
        logging.getLogger("fairq").removeHandler(notice)
    (line,) = [line for line in lines if "blocks" in line["event"]]
    assert (line["queue"], line["task"]) == ("emails", task.id)
    assert line["handler"].endswith("handle")
    assert "threading.py" in line["at"]
    assert BLOCKED_S - LOOK_S <= line["s"] + 0.05 < 25


TASK = PushedTask("ada/t1", 1, 1, 1, "ada", 0, None)


async def ask_nothing(*_: object) -> str:
    """Stand for the worker's connection."""
    raise AssertionError("the handler asks for nothing")


def look_inside_a_handler(watchdog: Watchdog, *moments: float) -> list[Any]:
    """Look at these moments while a handler runs; returns the lines of the log."""

    async def handle(task: object) -> None:
        for moment in moments:
            watchdog.look(watchdog._looked_at + moment)

    async def run() -> None:
        await perform(Handler(handle, "emails"), "emails", TASK, Threads(1), lambda *_: None, ask_nothing, ask_nothing)

    with captured_logs() as lines:
        trio.run(run)
    return lines


def test_a_handler_that_gives_the_loop_its_turns_is_not_warned_of() -> None:
    watchdog = Watchdog(lambda answer: answer())  # the loop answers at once
    assert look_inside_a_handler(watchdog, *[LOOK_S] * 100) == []
    asked = list[Any]()
    watchdog = Watchdog(asked.append)  # it never does
    assert len(look_inside_a_handler(watchdog, *[LOOK_S] * 100)) == 1
    assert len(asked) == 1
    for answer in asked:
        answer()
    assert len(look_inside_a_handler(watchdog, *[LOOK_S] * 100)) == 1, "the next time it is warned of again"


def test_a_handler_that_keeps_all_threads_from_running_is_warned_of_when_it_ends() -> None:
    (line,) = look_inside_a_handler(Watchdog(lambda answer: None), 5 + LOOK_S)
    assert line["s"] == 5


def test_a_loop_without_a_handler_is_not_asked() -> None:
    asked = list[Any]()
    watchdog = Watchdog(asked.append)
    for moment in range(100):
        watchdog.look(time.monotonic() + moment)
    assert asked == []


@on_both
async def test_the_workers_of_a_loop_share_one_watchdog_until_the_last_has_ended(service: Service) -> None:
    def ended() -> list[bool]:
        return [watchdog.ended.is_set() for watchdog in {id(each): each for each in seen}.values()]

    seen = list[Watchdog]()
    with watching(current_runtime()):
        seen.append(_watchdogs[threading.get_ident()])
        with watching(current_runtime()):
            seen.append(_watchdogs[threading.get_ident()])
        assert ended() == [False]
    assert ended() == [True]
    assert threading.get_ident() not in _watchdogs


@on_both
async def test_a_plain_function_may_block_its_thread(service: Service) -> None:
    threads, asked, looks = Threads(1), list[Any](), list[float]()
    watchdog = Watchdog(asked.append)

    def handle(task: object) -> None:
        while handler_in(sys._current_frames().get(watchdog.thread_id)):
            time.sleep(0.001)  # the loop has begun this thread, and not gone on yet
        for _ in range(100):
            watchdog.look(time.monotonic() + 100)
        looks.append(1)

    await perform(Handler(handle, "emails"), "emails", TASK, threads, lambda *_: None, ask_nothing, ask_nothing)
    assert (looks, asked) == ([1], [])
