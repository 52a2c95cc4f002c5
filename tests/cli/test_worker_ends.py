"""What ends a worker's process, and what does not: the exit code and the log say which."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.store.waiting import wait_for

from .harness import EXIT_SECONDS, Commands, ServerThread, read_until, started, worker_in

APP = """
import asyncio, os, signal, sys
import fairq

app = fairq.Worker(concurrency=2)

async def leave(how):
    raise how(0)

@app.task("odd", retry_base=0.001, retry_cap=0.001)
async def odd(task):
    match task.payload:
        case "exit" | "interrupt":
            how = SystemExit if task.payload == "exit" else KeyboardInterrupt
            await asyncio.gather(leave(how), asyncio.sleep(60))
        case "callback":
            asyncio.get_running_loop().call_soon(sys.exit, 0)
            await asyncio.sleep(0.01)
        case "work_until_stopped.<locals>.work" | "_watch_signals" | "_stay_connected":
            next(each for each in asyncio.all_tasks() if task.payload in each.get_name()).cancel()
            await asyncio.sleep(60)
        case "all":
            for each in asyncio.all_tasks():
                each.cancel()
            await asyncio.sleep(60)
        case "stop":
            app.stop()
        case "signal":
            os.kill(os.getpid(), signal.SIGTERM)

@app.task("good")
async def good(task):
    print("begins", flush=True)
    await asyncio.sleep(task.payload)
    print("ends", task.attempt, flush=True)
"""


def test_an_exit_in_a_task_of_a_handlers_own_fails_that_handler_and_ends_no_loop(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    """asyncio leaves its loop there."""
    with started(*worker_in(tmp_path, APP, server.url), cwd=tmp_path) as process:
        commands.enqueue("good", "0.5")
        read_until(process, "begins")
        for payload, error in (("exit", "SystemExit: 0"), ("interrupt", "KeyboardInterrupt: 0")):
            id = commands.enqueue("odd", f'"{payload}"', "--max-attempts", "3")
            wait_for(lambda id=id: server.state(id, "odd").state == "dead")  # type: ignore[misc]
            state = server.state(id, "odd")
            assert (state.attempt, state.error) == (3, error)
        commands.enqueue("odd", '"callback"')
        read_until(process, "ends 1")
        process.send_signal(signal.SIGTERM)
        read_until(process, "worker ended")
        assert process.wait(EXIT_SECONDS) == 0


@pytest.mark.parametrize("payload", ["work_until_stopped.<locals>.work", "_watch_signals", "_stay_connected", "all"])
def test_a_handler_that_cancels_the_workers_own_tasks_ends_it_with_code_1(
    commands: Commands, server: ServerThread, tmp_path: Path, payload: str
) -> None:
    with started(*worker_in(tmp_path, APP, server.url), cwd=tmp_path) as process:
        read_until(process, "connected")
        commands.enqueue("odd", f'"{payload}"')
        read_until(process, "fairq: a handler has cancelled")
        assert process.wait(EXIT_SECONDS) == 1


def test_a_child_that_ends_with_0_unasked_is_started_again(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    argv = [*worker_in(tmp_path, APP, server.url), "--processes", "2", "--name", "web"]
    with started(*argv, cwd=tmp_path) as process:
        for _ in range(2):
            read_until(process, "connected")
        for payload in ("stop", "signal"):
            commands.enqueue("odd", f'"{payload}"')
            assert "code=0" in read_until(process, "worker process ended; starting another")
            read_until(process, "connected")
        for name in ("web-1", "web-2"):
            assert commands("workers", "drain", name).code == 0
            assert "why=drained" in read_until(process, "worker process is done")
        assert process.wait(EXIT_SECONDS) == 0
