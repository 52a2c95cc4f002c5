"""The connection of `fairq.sync`: made on use, made again, and never shared with another process."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from types import ModuleType

import pytest
import trio

import fairq
import fairq.sync
from fairq.errors import Closed, SettingsError, Unauthorized
from fairq.sync import driver as drivers
from fairq.wire.terms import TIMEOUT_S
from tests.cli.harness import environment
from tests.client.runtimes import Service
from tests.server.harness import tenant
from tests.store.waiting import wait_for

from .test_threads import Calls, calls

__all__ = ["calls"]


def test_it_connects_when_it_is_first_used(service: Service, ada: fairq.sync.Client) -> None:
    assert service.proxy.connections == 0
    ada.enqueue("emails", 1)
    ada.enqueue("emails", 2)
    assert service.proxy.connections == 1


def test_a_connection_that_the_server_has_ended_is_made_again_at_the_next_call(
    service: Service, ada: fairq.sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada.enqueue("emails", 1)
    service.soon(service.proxy.cut)
    wait_for(lambda: not service.proxy._scopes)
    monkeypatch.setattr(drivers, "_FRESH_S", 0.0)
    ada.enqueue("emails", 2, timeout=5)
    assert service.proxy.connections == 2
    assert ada._driver.session._failures <= 1, "it was nobody's failure"


@pytest.mark.parametrize("idle_s", [2.0, TIMEOUT_S - 25, TIMEOUT_S, 10 * TIMEOUT_S, 86_400.0])
def test_a_client_that_was_idle_goes_on(
    idle_s: float, service: Service, ada: fairq.sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada.enqueue("emails", 1)
    now = drivers._now
    monkeypatch.setattr(drivers, "_now", lambda: now() + idle_s)
    ada.enqueue("emails", 2, timeout=5)
    assert service.proxy.connections == (1 if idle_s < 30 else 2)


def test_a_server_that_was_silent_for_too_long_is_connected_to_anew(
    service: Service, ada: fairq.sync.Client, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada.enqueue("emails", 1)
    service.hold()
    calls.start(lambda: ada.enqueue("emails", 2, timeout=10 * TIMEOUT_S))
    wait_for(lambda: ada._driver._leader is not None)
    now = drivers._now
    monkeypatch.setattr(drivers, "_now", lambda: now() + TIMEOUT_S)
    ada._driver._alarm.ring()
    wait_for(lambda: not ada._driver.session.is_connected)
    service.soon(service.proxy.release)
    (task,) = calls.join()
    assert isinstance(task, fairq.sync.EnqueuedTask)


def test_a_log_handler_may_wait_for_a_thread_that_uses_the_client(
    service: Service, ada: fairq.sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            thread = threading.Thread(target=ada._driver.close)
            thread.start()
            thread.join(10)
            seen.append(thread.is_alive())

    seen, logger = list[bool](), logging.getLogger("fairq.client")
    handler = Handler(logging.INFO)
    logger.addHandler(handler)
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger._cache.clear()  # type: ignore[attr-defined]
    service.proxy.is_refusing = True
    try:
        with pytest.raises(Closed):
            ada.enqueue("emails", 1)
    finally:
        logger.removeHandler(handler)
        logger._cache.clear()  # type: ignore[attr-defined]
    assert seen[:1] == [False]


def test_a_refused_token_is_asked_again_at_the_next_call(service: Service) -> None:
    with fairq.sync.open_client(service.url, token="nonsense") as client:
        for _ in range(2):
            with pytest.raises(Unauthorized):
                client.enqueue("emails", 1)
        client._driver.token = tenant("ada")
        client.enqueue("emails", 1)


def test_inside_an_event_loop_it_says_what_to_use_there(service: Service, ada: fairq.sync.Client) -> None:
    async def enqueue() -> None:
        with pytest.raises(RuntimeError, match=r"fairq\.open_client"):
            fairq.sync.open_client(service.url, token=tenant("ada"))
        with pytest.raises(RuntimeError, match=r"fairq\.open_client"):
            ada.enqueue("emails", 1)

    asyncio.run(enqueue())
    trio.run(enqueue)
    asyncio.run(asyncio.to_thread(ada.enqueue, "emails", 1))  # a thread of an event loop's has none


def test_a_client_opened_without_a_token_needs_one_at_its_first_call(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAIRQ_TOKEN", raising=False)
    with fairq.sync.open_client(service.url) as client:
        for call in (lambda: client.enqueue("emails", 1), lambda: client.tasks("emails", ["one"])):
            with pytest.raises(SettingsError, match="missing token"):
                call()
        monkeypatch.setenv("FAIRQ_TOKEN", "two words")
        with pytest.raises(SettingsError, match="invalid token"):
            client.enqueue("emails", 1)
        monkeypatch.setenv("FAIRQ_TOKEN", tenant("ada"))
        assert client.enqueue("emails", 1, id="one").id == "one"


FORK = """
import os, sys, threading
import fairq.sync

client = fairq.sync.open_client()
task = client.enqueue("emails", "before", result_ttl=60)
waiting = threading.Thread(target=lambda: task.result(timeout=3600), daemon=True)  # it leads when the others fork
waiting.start()
while client._driver._leader is None:
    pass
children = []
for child in range(3):
    pid = os.fork()
    if not pid:
        for number in range(50):
            client.enqueue("emails", [child, number], timeout=20)
        client.close()
        os._exit(0)
    children.append(pid)
for number in range(50):
    client.enqueue("emails", ["parent", number], timeout=20)
codes = [os.waitpid(pid, 0)[1] for pid in children]
client.enqueue("emails", "after")
print(codes, flush=True)
os._exit(0)
"""


def test_forked_processes_share_no_connection_and_lose_nothing(service: Service, ada: fairq.sync.Client) -> None:
    variables = environment({"FAIRQ_URL": service.url, "FAIRQ_TOKEN": tenant("ada")})
    quiet = ["-W", "ignore:This process:DeprecationWarning"]  # Python 3.12 and later warn of forks beside threads
    ran = subprocess.run(
        [sys.executable, *quiet, "-c", FORK], env=variables, capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[0, 0, 0]\n", "")
    found = [str(each.payload) for each in ada.peek("emails", 500)]
    wanted = ["before", *(f"[{who}, {number}]" for who in (0, 1, 2, "'parent'") for number in range(50)), "after"]
    assert sorted(found) == sorted(wanted)


FORK_AMID_IMPORT = """
import logging, os, signal, sys, threading
import fairq.sync

importing, forking = threading.Event(), threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "fairq.sync.driver":
            importing.set()
            forking.wait(20)

sys.meta_path.insert(0, Slow())
os.register_at_fork(before=forking.set)
opening = threading.Thread(target=fairq.sync.open_client, daemon=True)
opening.start()
importing.wait(20)
pid = os.fork()
if not pid:
    signal.alarm(20)
    fairq.sync.open_client()
    os._exit(0)
print(os.waitpid(pid, 0)[1], flush=True)
os._exit(0)
"""


def test_a_fork_waits_until_another_thread_has_imported_the_driver() -> None:
    variables = environment({"FAIRQ_URL": "ws://127.0.0.1:1", "FAIRQ_TOKEN": tenant("ada")})
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", FORK_AMID_IMPORT]
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0\n", "")


CALLS = """
import sys
import fairq.sync

client = fairq.sync.open_client()
loaded = set(sys.modules)
task = client.enqueue("emails", {"to": "ada"}, delay=60, result_ttl=5, dedupe_key="k")
client.enqueue_many("emails", [1, 2], expires_in=60)
for call in (
    task.state, task.cancel, lambda: task.result(dict[str, int], timeout=0.01), lambda: client.why("emails", task.id),
    lambda: client.open_batch("emails").add(1), lambda: client.read_events("emails"),
    lambda: client.dead_letters("emails").page(), lambda: client.schedules("emails"), lambda: client.peek("emails"),
    lambda: client.schedule("emails", "nightly", 1, every=60), lambda: client.enqueue("no queue", 1),
):
    try:
        call()
    except (fairq.FairqError, TimeoutError):
        pass
print(*(set(sys.modules) - loaded))
"""


def test_no_call_of_a_client_waits_for_an_import(service: Service) -> None:
    """A process that is forked off while a thread imports would wait for that thread for ever."""
    variables = environment({"FAIRQ_URL": service.url, "FAIRQ_TOKEN": tenant("ada")})
    ran = subprocess.run([sys.executable, "-c", CALLS], env=variables, capture_output=True, text=True, timeout=60)
    assert (ran.stderr, ran.stdout) == ("", "\n")


CTRL_C = """
import os, signal, sys, threading, time
import fairq, fairq.sync

client = fairq.sync.open_client()
task = client.enqueue("emails", 1, result_ttl=60)

def interrupt():
    while client._driver._leader is None:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

for _ in range(3):
    try:
        threading.Thread(target=interrupt).start()
        task.result()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
client.enqueue("emails", 2)
print(task.state().state)
"""


def test_ctrl_c_ends_a_call_and_the_client_goes_on(service: Service) -> None:
    variables = environment({"FAIRQ_URL": service.url, "FAIRQ_TOKEN": tenant("ada")})
    ran = subprocess.run([sys.executable, "-c", CTRL_C], env=variables, capture_output=True, text=True, timeout=60)
    assert (ran.stdout.split(), ran.stderr) == (["interrupted"] * 3 + ["ready"], "")


def test_threads_of_a_client_are_none(ada: fairq.sync.Client) -> None:
    count = threading.active_count()
    ada.enqueue("emails", 1)
    assert threading.active_count() == count


def test_a_client_opens_while_another_thread_imports_trio(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trio", "trio.lowlevel"):  # begun, with nothing in them yet
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with fairq.sync.open_client("ws://127.0.0.1:1", token="token"):
        pass
    asyncio.run(_open_client())


async def _open_client() -> None:
    async with fairq.open_client("ws://127.0.0.1:1", token="token"):
        pass
