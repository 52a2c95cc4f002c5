"""Many threads, one client: they share frames, and none waits for another's call."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

import fairq
import fairq.sync
from fairq.errors import Closed, NotYet, OutcomeUnknown, Unavailable
from fairq.sync.transport import Transport
from fairq.wire.client_session import ClientSession
from fairq.wire.connection_errors import Disconnected
from tests.client.runtimes import Service
from tests.server.harness import tenant
from tests.store.waiting import wait_for

LIMIT_S = 30.0


class Calls:
    """Calls in threads; what each raised or returned."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.results: dict[int, Any] = {}

    def start(self, call: Callable[[], Any]) -> int:
        """Make a call in a thread of its own; returns its number."""
        number = len(self.threads)

        def run() -> None:
            try:
                self.results[number] = call()
            except BaseException as error:
                self.results[number] = error

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()
        return number

    def join(self, *numbers: int) -> list[Any]:
        """Wait for calls (none: all), each for so long at most; returns what they ended with."""
        chosen = numbers or range(len(self.threads))
        for number in chosen:
            self.threads[number].join(LIMIT_S)
            assert not self.threads[number].is_alive()
        return [self.results[number] for number in chosen]


@pytest.fixture
def calls() -> Iterator[Calls]:
    """Calls that have all ended when the test ends."""
    calls = Calls()
    yield calls
    calls.join()


def test_calls_of_many_threads_share_frames(
    service: Service, ada: fairq.sync.Client, calls: Calls, frames: list[str]
) -> None:
    ada.enqueue("emails", "first")
    service.hold()
    asked = len(frames)
    for number in range(100):
        calls.start(partial(ada.enqueue, "emails", number))
    wait_for(lambda: len(frames) - asked == 2)  # two frames are under way; the others wait for their replies
    wait_for(lambda: len(ada._driver._line) == 99)
    service.soon(service.proxy.release)
    assert len({task.id for task in calls.join()}) == 100
    assert len(frames) - asked == 3
    assert sorted(each.payload for each in ada.peek("emails", 101)[1:]) == list(range(100))


def test_a_thread_that_is_served_goes_on_when_the_one_that_serves_has_its_answer(
    service: Service, ada: fairq.sync.Client, calls: Calls
) -> None:
    task = ada.enqueue("emails", 1, result_ttl=60)
    waiting = calls.start(lambda: task.result(timeout=0.5))
    wait_for(lambda: ada._driver._leader is not None)
    for number in range(20):  # these are served by the one that waits
        ada.enqueue("emails", number)
    other = ada.enqueue("emails", 2, result_ttl=60)
    later = calls.start(lambda: other.result(timeout=1.0))
    assert isinstance(calls.join(waiting)[0], NotYet)
    assert isinstance(calls.join(later)[0], NotYet)  # by itself
    assert ada._driver._leader is None


def test_each_call_ends_at_its_own_time(service: Service, ada: fairq.sync.Client, calls: Calls) -> None:
    ada.enqueue("emails", 0)
    service.hold()
    slow = calls.start(lambda: ada.enqueue("emails", 1, timeout=LIMIT_S))
    wait_for(lambda: ada._driver._leader is not None)
    fast = calls.start(lambda: ada.tasks("emails", ["a"], timeout=0.05))
    assert isinstance(calls.join(fast)[0], OutcomeUnknown | Unavailable)  # it may not have been sent by then
    assert slow not in calls.results
    service.soon(service.proxy.release)
    calls.join(slow)


@contextmanager
def silent_server() -> Iterator[int]:
    """A listener that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_call_ends_in_time_while_another_thread_connects(calls: Calls) -> None:
    with silent_server() as port, fairq.sync.open_client(f"ws://127.0.0.1:{port}", token="t") as client:
        slow = calls.start(lambda: client.enqueue("emails", 1, timeout=LIMIT_S))
        wait_for(lambda: client._driver._leader is not None)
        fast = calls.start(lambda: client.enqueue("emails", 2, timeout=0.05))
        assert isinstance(calls.join(fast)[0], Unavailable)
        assert slow not in calls.results
    assert isinstance(calls.join(slow)[0], Closed)


def test_closing_ends_calls_of_other_threads(service: Service, calls: Calls) -> None:
    with fairq.sync.open_client(service.url, token=tenant("ada")) as client:
        task = client.enqueue("emails", 1, result_ttl=60)
        for _ in range(5):
            calls.start(task.result)
        wait_for(lambda: len(client._driver._line) == 4)
    assert {type(error) for error in calls.join()} == {Closed}
    with pytest.raises(Closed):
        client.enqueue("emails", 2)
    client.close()


def test_a_connection_that_one_thread_finds_broken_is_made_again_by_the_one_that_serves(
    service: Service, ada: fairq.sync.Client, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader waits for a socket that is closed under it: nothing else would wake it."""
    monkeypatch.setattr("fairq.wire.session.HEARTBEAT_S", 3_600)
    monkeypatch.setattr("fairq.wire.session.TIMEOUT_S", 7_200)
    task = ada.enqueue("emails", 1, result_ttl=60)
    waiting = calls.start(partial(task.result, timeout=3_600))
    wait_for(lambda: ada._driver._leader is not None)
    flush, broken = Transport.flush, list[int]()

    def fail_once(transport: Transport, now: float) -> None:
        if threading.current_thread() is not calls.threads[0] and not broken:
            broken.append(1)
            raise Disconnected("the connection was lost")
        flush(transport, now)

    monkeypatch.setattr(Transport, "flush", fail_once)
    monkeypatch.setattr(Transport, "close", Transport.abandon)  # no close frame: the server says nothing either
    (task,) = calls.join(calls.start(partial(ada.enqueue, "emails", 2, timeout=3_600)))
    assert isinstance(task, fairq.sync.EnqueuedTask)
    assert waiting not in calls.results
    assert service.proxy.connections == 2
    ada.close()


def test_an_exception_of_a_signal_handler_ends_its_call_and_no_other(
    service: Service, ada: fairq.sync.Client, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits, nothing is half changed: the next thread serves."""
    task = ada.enqueue("emails", 1, result_ttl=60)
    first = threading.Event()

    def interrupted(*args: Any, **options: Any) -> None:
        if threading.current_thread() is calls.threads[0]:
            first.wait(LIMIT_S)
            raise KeyboardInterrupt
        wait(*args, **options)

    wait = ada._driver._alarm.wait
    monkeypatch.setattr(type(ada._driver._alarm), "wait", lambda _, *args, **options: interrupted(*args, **options))
    calls.start(lambda: task.result(timeout=20))
    wait_for(lambda: ada._driver._leader is not None)
    calls.start(lambda: ada.enqueue("emails", 2))
    wait_for(lambda: len(ada._driver._line) == 1)
    first.set()
    interrupt, enqueued = calls.join()
    assert isinstance(interrupt, KeyboardInterrupt)
    assert not enqueued.is_duplicate


def test_an_exception_in_the_middle_of_a_change_ends_the_session_and_the_next_call_begins_anew(
    service: Service, ada: fairq.sync.Client, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ada.enqueue("emails", 1, result_ttl=60)
    waiting = calls.start(task.result)
    wait_for(lambda: ada._driver._leader is not None)
    gather = ClientSession.gather

    def interrupted(session: ClientSession, now: float) -> None:
        gather(session, now)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ClientSession, "gather", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ada.enqueue("emails", 2, id="two")
    assert isinstance(calls.join(waiting)[0], OutcomeUnknown)
    ada.enqueue("emails", 2, id="two")
    assert [each.payload for each in ada.peek("emails")] == [1, 2]
