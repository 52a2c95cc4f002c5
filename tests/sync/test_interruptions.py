"""Threads of a client that are interrupted, or whose call is bad: the others are served all the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import fairq.sync
from fairq.errors import Closed, Unavailable
from fairq.sync.alarm import Place
from fairq.sync.driver import Driver
from fairq.wire.calls import Call
from fairq.wire.client_session import ClientSession
from tests.cli.harness import environment
from tests.client.runtimes import Service
from tests.server.harness import tenant
from tests.store.waiting import wait_for

from .test_threads import LIMIT_S, Calls, calls

__all__ = ["calls"]


def on_signal(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Have a signal arrive while frames are made."""
    gather = ClientSession.gather

    def interrupted(session: ClientSession, now: float) -> None:
        gather(session, now)
        monkeypatch.setattr(ClientSession, "gather", gather)
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(ClientSession, "gather", interrupted)
    signal.signal(signal.SIGUSR1, lambda *_: act())


@pytest.fixture
def usual_signals() -> Iterator[None]:
    was = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, was)


CLOSING = """
import faulthandler, signal, fairq.sync
from fairq.wire.client_session import ClientSession
faulthandler.dump_traceback_later(20, exit=True)
client = fairq.sync.open_client()
client.enqueue("emails", 0)
signal.signal(signal.SIGTERM, lambda *_: client.close())
gather = ClientSession.gather
def interrupted(session, now):
    gather(session, now)
    signal.raise_signal(signal.SIGTERM)
ClientSession.gather = interrupted
try:
    client.enqueue("emails", 1)
except fairq.errors.Closed:
    print("closed")
"""


def test_a_signal_handler_may_close_the_client_in_the_middle_of_a_change(service: Service) -> None:
    variables = environment({"FAIRQ_URL": service.url, "FAIRQ_TOKEN": tenant("ada")})
    ran = subprocess.run([sys.executable, "-c", CLOSING], env=variables, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("closed\n", "")


def test_a_signal_handler_that_makes_a_call_is_reported(
    service: Service, ada: fairq.sync.Client, monkeypatch: pytest.MonkeyPatch, usual_signals: None
) -> None:
    seen: list[BaseException] = []

    def enqueue() -> None:
        try:
            ada.enqueue("emails", "from the handler")
        except RuntimeError as error:
            seen.append(error)

    ada.enqueue("emails", 0)
    on_signal(monkeypatch, enqueue)
    ada.enqueue("emails", 1)
    assert "signal handler" in str(seen[0])
    assert [each.payload for each in ada.peek("emails")] == [0, 1]


@pytest.mark.parametrize("moment", ["before it leaves", "as it wakes the next"])
def test_an_interrupted_hand_over_wakes_the_next_all_the_same(
    moment: str, service: Service, ada: fairq.sync.Client, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = ada.enqueue_many("emails", [1, 2], result_ttl=60)
    first = calls.start(one.result)
    wait_for(lambda: ada._driver._leader is not None)
    second = calls.start(two.result)
    wait_for(lambda: len(ada._driver._line) == 1)
    wake, leave, is_once = Place.wake, Driver._leave, iter([True])

    def interrupt() -> None:
        if threading.current_thread() is calls.threads[0] and next(is_once, False):
            raise KeyboardInterrupt

    def interrupted_wake(place: Place) -> None:
        if ada._driver._leader is place:
            interrupt()
        wake(place)

    def interrupted_leave(driver: Driver, call: Call, place: Place) -> None:
        interrupt()
        leave(driver, call, place)

    if moment == "before it leaves":
        monkeypatch.setattr(Driver, "_leave", interrupted_leave)
    else:
        monkeypatch.setattr(Place, "wake", interrupted_wake)
    with fairq.sync.open_client(service.url, token=tenant("ada")) as other:
        other.cancel("emails", [one.id])
        assert isinstance(calls.join(first)[0], KeyboardInterrupt)
        other.cancel("emails", [two.id])
        calls.join(second)
    ada.enqueue("emails", 2, timeout=LIMIT_S)


def test_calls_end_in_time_while_another_thread_looks_up_addresses(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = threading.Event()

    def find(*_: Any, **__: Any) -> list[Any]:
        found.wait(LIMIT_S)
        raise OSError("no answer")

    monkeypatch.setattr("socket.getaddrinfo", find)
    with fairq.sync.open_client("ws://slow.example", token="t") as client:
        slow = calls.start(lambda: client.enqueue("emails", 1, timeout=0.1))
        wait_for(lambda: client._driver._leader is not None)
        fast = calls.start(lambda: client.enqueue("emails", 2, timeout=0.1))
        assert isinstance(calls.join(fast)[0], Unavailable)
        assert slow not in calls.results
        found.set()
        assert isinstance(calls.join(slow)[0], Unavailable)


def test_closing_between_a_step_and_its_wait_raises_closed(
    service: Service, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = fairq.sync.open_client(service.url, token=tenant("ada"))
    task = client.enqueue("emails", 1, result_ttl=60)
    left = Driver._left

    def closed_behind(driver: Driver, call: Call) -> Any:
        found = left(driver, call)
        if found and found[0]:  # it is connected, from the enqueue on
            closing = threading.Thread(target=driver.close)
            closing.start()
            wait = driver._alarm.wait

            def wait_closed(socks: Any, **options: Any) -> None:
                closing.join(LIMIT_S)
                wait(socks, **options)

            monkeypatch.setattr(type(driver._alarm), "wait", lambda _, socks, **options: wait_closed(socks, **options))
        return found

    monkeypatch.setattr(Driver, "_left", closed_behind)
    with pytest.raises(Closed):
        task.result(timeout=LIMIT_S)
