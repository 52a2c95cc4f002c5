"""Functions in threads under asyncio and trio: a thread that is abandoned keeps its place until it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import anyio
import pytest

from fairq.client.threads import Threads

from .runtimes import on_both, wait_until


@on_both
async def test_a_call_that_is_left_while_it_waits_for_its_thread_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, calls, ran = Threads(1), list[Any](), list[str]()

    async def start_late(_: Threads, call: Any) -> None:
        calls.append(call)
        await anyio.sleep_forever()

    with monkeypatch.context() as patch:
        patch.setattr(Threads, "_in_thread", start_late)
        async with anyio.create_task_group() as group:
            group.start_soon(threads.run, ran.append, "left")
            await wait_until(lambda: bool(calls))
            group.cancel_scope.cancel()
    await threads.run(ran.append, "next")  # the place is free
    await anyio.to_thread.run_sync(calls[0])
    assert (ran, threads.abandoned) == (["next"], 0)


@on_both
async def test_threads_are_used_again_and_end_with_their_owner() -> None:
    threads, seen = Threads(3), set[threading.Thread]()
    for _ in range(5):
        await threads.run(lambda _: seen.add(threading.current_thread()), None)
    (thread,) = seen
    assert thread.daemon
    if "fairq" in thread.name:
        threads.close()
        thread.join(20)
        assert not thread.is_alive()
    threads.close()


PROGRAM = """
import asyncio, logging, sys, threading
import anyio
from fairq.client.threads import Threads

async def main():
    threads, began = Threads(1), threading.Event()

    def block(_):
        began.set()
        threading.Event().wait(60)

    with anyio.move_on_after(60) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(threads.run, block, None)
            while not began.is_set():
                await anyio.sleep(0.001)
            scope.cancel()
    print(threads.names_of_abandoned())

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize("runtime", ["asyncio", "trio"])
def test_a_process_ends_although_an_abandoned_thread_still_runs(runtime: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, runtime], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("abandoned threads keep all slots"), "the log says so"
    assert "main.<locals>.block" in done.stdout
