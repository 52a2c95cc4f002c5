"""fairq/README.md names the modules that a task passes, the verbs that it calls, and the keys that these write."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import redis
import trio
from attrs import define, field

import fairq
from fairq.server.run import Served
from fairq.store import library
from fairq.store.connection import Connection
from tests.lua.calls import Queue
from tests.server.harness import WORKER, url_of
from tests.test_documents import table_after

PACKAGE = Path(fairq.__file__).parent
TEXT = (PACKAGE / "README.md").read_text()
STOPS = table_after(TEXT, "| | stop |")
FILES = [re.findall(r"`([\w/]+\.(?:py|lua))`", stop["files"]) for stop in STOPS]
MODULES = [[name for name in stop if name.endswith(".py")] for stop in FILES]
BESIDE = set(re.findall(r"`([\w/]+\.py)`", TEXT.split("Beside the path")[1].split("\n\n")[0]))
VERBS = re.findall(r"`(\w+)`", TEXT.split("The store's verbs, in this order:")[1].split(".")[0])
WALKS = 10  # something else may happen during some: a heartbeat, a tick


def keys_in(text: str) -> set[str]:
    """Read the kinds of keys that a text names."""
    return {key.split(":")[0] for key in re.findall(r"`([\w:<>]+)`", text)}


@define(eq=False)
class Walk:
    """What one task has passed: modules of fairq, in the order of their first calls; and verbs of the store."""

    modules: dict[str, None] = field(factory=dict)
    verbs: list[str] = field(factory=list)

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call, as a profiler."""
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            self.modules.setdefault(path.relative_to(PACKAGE).as_posix())
            if frame.f_code is Connection.send.__code__ and str(frame.f_locals["command"][0]).startswith("FCALL"):
                self.verbs.append(frame.f_locals["command"][1].rpartition(f"{library.version()}_")[2])


@contextmanager
def walking() -> Iterator[Walk]:
    """Note what this thread calls until the block is left."""
    walk, profiler = Walk(), sys.getprofile()
    sys.setprofile(walk.note)
    try:
        yield walk
    finally:
        sys.setprofile(profiler)


async def test_a_task_passes_the_stops_of_the_path_and_no_other_module(served: Served, ada: fairq.Client) -> None:
    app = fairq.Worker(url_of(served), token=WORKER, concurrency=1)

    @app.task("emails")
    async def send(task: fairq.Task) -> str:
        return f"sent to {task.payload['to']}"

    async def walk() -> Walk:
        with walking() as found:
            task = await ada.enqueue("emails", {"to": "ada"}, result_ttl=60)
            while app._run.driver.session.holding:
                await trio.lowlevel.checkpoint()
            assert await task.result() == "sent to ada"
        return found

    async with trio.open_nursery() as nursery:
        await nursery.start(app.run)
        await walk()  # it makes the queue
        tries = [await walk() for _ in range(WALKS)]
        nursery.cancel_scope.cancel()
    walks = [each for each in tries if VERBS[0] in each.verbs]  # a claim that is paced forks at stop 6
    listed = {module for stop in MODULES for module in stop}
    assert listed <= set().union(*(each.modules for each in walks)), "listed, but not passed"
    assert set.intersection(*(set(each.modules) for each in walks)) <= listed | BESIDE, "passed, but not listed"
    begins = [stop[0] for stop in MODULES if stop]
    assert begins in [[module for module in each.modules if module in begins] for each in walks]
    assert VERBS in [[verb for verb in each.verbs if verb in VERBS] for each in walks]
    assert set.intersection(*(set(each.verbs) for each in walks)) <= {*VERBS, "claim", "tick"}


def test_the_library_writes_what_the_path_says(redis_client: redis.Redis) -> None:
    queue = Queue(redis_client)

    def contents() -> dict[str, Any]:
        keys = (key.decode().removeprefix(f"{queue.prefix}:") for key in redis_client.scan_iter())
        return {key: redis_client.dump(queue.key(key)) for key in keys}

    def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
        return {key.split(":")[0] for key in before | after if before.get(key) != after.get(key)}

    for id in ("ada/first", "ada/second"):  # the first one makes its tenant
        before = contents()
        queue.enqueue("ada", id)
        stored = contents()
        (task,) = queue.claim()
        leased = contents()
        queue.settle(("ack", task.id, task.lease))
        settled = contents()
    first, last = (stop["writes"] for stop in STOPS if stop["writes"].startswith("at once"))
    assert changed(before, stored) | changed(stored, leased) == keys_in(first)
    assert changed(leased, settled) == keys_in(last)


def test_the_files_of_the_path_exist() -> None:
    for name in (name for stop in FILES for name in stop):
        assert ((PACKAGE.parent if name.startswith("lua/") else PACKAGE) / name).is_file(), name
