"""The multiplexed connection: replies find their callers, and a break tells each caller exactly what is known."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count

import pytest
import structlog
import trio

from fairq.errors import FairqError, OutcomeUnknown, StoreFull, StoreRefused, Unavailable
from fairq.io.scopes import background
from fairq.io.sockets import send_now
from fairq.io.taskless import Taskless
from fairq.store import connection as module
from fairq.store.address import Address
from fairq.store.connection import Connection, Subscription
from fairq.store.node import Redirected, as_error, ask_once, cause_of
from tests import stores
from tests.logs import captured_logs

from .cases import case
from .proxy import open_proxy
from .waiting import wait_until


@asynccontextmanager
async def connected(port: int, *, timeout: float = 5.0) -> AsyncIterator[Connection]:
    """A connection to a port of this machine, once it is up."""
    connection = Connection(Address.parse(f"redis://127.0.0.1:{port}/0"), timeout=timeout)
    async with background(connection.run):
        with trio.fail_after(30):
            await connection.wait_connected()
        yield connection


async def call_outcome(connection: Connection, *command: str | bytes, into: list[object]) -> None:
    """Make a call and note its reply, or the class of its error."""
    try:
        into.append(await connection.call(*command))
    except FairqError as error:
        into.append(type(error))


async def test_why_no_connection_is_made_is_reported() -> None:
    with pytest.raises(OSError, match="all attempts") as caught:
        await trio.open_tcp_stream("127.0.0.1", stores.free_port())
    assert "Connection refused" in cause_of(caught.value)
    error = OSError("all attempts failed")
    error.__cause__ = ExceptionGroup("of several addresses", [OSError("no route"), OSError("refused")])
    assert cause_of(error) == "no route"


async def test_a_thousand_concurrent_calls_share_few_writes_and_each_gets_its_own_reply(
    store_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies, writes = dict[int, bytes](), count()
    monkeypatch.setattr(module, "send_now", lambda *data: (next(writes), send_now(*data))[1])

    async def echo(connection: Connection, number: int) -> None:
        replies[number] = await connection.call("ECHO", number)

    with trio.fail_after(30):
        async with connected(store_port) as connection, trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(echo, connection, number)
    assert next(writes) < 20
    assert replies == {number: str(number).encode() for number in range(1000)}


async def test_callers_without_a_task_get_their_replies_and_their_failures_reach_nobody_else(store_port: int) -> None:
    got, failed = list[object](), list[object]()

    async def call_and_fail() -> None:
        await call_outcome(connection, "ECHO", "one", into=failed)
        raise ZeroDivisionError

    async def call_twice() -> None:
        await call_outcome(connection, "ECHO", "two", into=got)
        await call_outcome(connection, "NO-SUCH-COMMAND", into=got)

    with trio.fail_after(30), captured_logs() as logs:
        async with connected(store_port) as connection, trio.open_nursery() as nursery:
            taskless = Taskless(nursery)
            for caller in (call_and_fail, call_twice) * 3:
                assert taskless.begin(caller()) is None
            await wait_until(lambda: not taskless.waiting)
            assert await connection.call("ECHO", "three") == b"three"
            assert not nursery.child_tasks
    assert (failed, sorted(got, key=str)) == ([b"one"] * 3, [StoreRefused] * 3 + [b"two"] * 3)
    assert [entry["event"] for entry in logs] == ["a coroutine without a task failed"] * 3


async def test_callers_without_a_task_learn_what_is_known_when_the_connection_breaks(store_port: int) -> None:
    got = list[object]()

    async def call_again() -> None:
        await call_outcome(connection, "ECHO", "one", into=got)
        await call_outcome(connection, "ECHO", "two", into=got)

    with trio.fail_after(30):
        async with open_proxy(store_port) as proxy, connected(proxy.port) as connection:
            async with trio.open_nursery() as nursery:
                taskless = Taskless(nursery)
                proxy.hold()
                taskless.begin(call_again())
                await wait_until(lambda: not connection._out)
                proxy.cut()
                await wait_until(lambda: not taskless.waiting)
            proxy.release()
            await connection.wait_connected()
    assert got == [OutcomeUnknown, Unavailable]


async def test_replies_to_callers_that_were_closed_are_dropped(store_port: int) -> None:
    got = list[object]()
    with trio.fail_after(30):
        async with open_proxy(store_port) as proxy, connected(proxy.port) as connection:
            async with trio.open_nursery() as nursery:
                taskless = Taskless(nursery)
                proxy.hold()
                taskless.begin(call_outcome(connection, "ECHO", "one", into=got))
                await wait_until(lambda: not connection._out)
                taskless.close()
                proxy.release()
            assert await connection.call("ECHO", "two") == b"two"
    assert got == []


async def test_a_stopped_store_fails_calls_in_time_and_is_used_again_when_it_goes_on(
    start_store: Callable[..., stores.LocalServer],
) -> None:
    server = start_store()
    with trio.fail_after(30):
        async with connected(server.port, timeout=0.4) as connection:
            os.kill(server.pid, signal.SIGSTOP)
            try:
                with pytest.raises(OutcomeUnknown):
                    await connection.call("SET", "a", "1")
                with pytest.raises(Unavailable):
                    await connection.call("SET", "b", "1")
            finally:
                connection.timeout = 30.0
                os.kill(server.pid, signal.SIGCONT)
            with trio.fail_after(30):
                await connection.wait_connected()
            assert await connection.call("EXISTS", "b") == 0


async def test_a_store_that_does_not_answer_is_noticed_once(
    start_store: Callable[..., stores.LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.store.connection.STALL_S", 0.15)
    server = start_store()

    def outages(logs: Sequence[Mapping[str, object]]) -> list[object]:
        return [entry["event"] for entry in logs if entry["log_level"] == "warning"]

    with trio.fail_after(30), structlog.testing.capture_logs() as logs:
        async with connected(server.port, timeout=30.0) as connection, trio.open_nursery() as nursery:
            for _ in range(2):
                os.kill(server.pid, signal.SIGSTOP)
                before = len(outages(logs))
                for _ in range(5):
                    nursery.start_soon(connection.call, "PING")
                await wait_until(lambda before=before: len(outages(logs)) > before)  # type: ignore[misc]
                os.kill(server.pid, signal.SIGCONT)
                await wait_until(lambda before=before: len(outages(logs)) > before + 1)  # type: ignore[misc]
    assert outages(logs) == ["store does not answer", "store answers again"] * 2


async def test_a_primary_that_was_demoted_is_left(start_store: Callable[..., stores.LocalServer]) -> None:
    server = start_store()
    with trio.fail_after(30):
        async with connected(server.port) as connection:
            assert await connection.call("SET", "a", "1") == b"OK"
            await connection.call("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(Unavailable):
                await connection.call("SET", "a", "2")
            await wait_until(lambda: "no longer a primary" in connection.trouble)
            await ask_once(connection.address, "REPLICAOF", "NO", "ONE")
            await connection.wait_connected()
            assert await connection.call("SET", "a", "3") == b"OK"


async def test_a_store_whose_connections_are_all_taken_is_waited_for(
    start_store: Callable[..., stores.LocalServer],
) -> None:
    server = start_store()
    with trio.fail_after(30):
        async with connected(server.port) as first:
            await first.call("CONFIG", "SET", "maxclients", "1")
            second = Connection(first.address)
            async with background(second.run):
                await wait_until(lambda: "max number of clients" in second.trouble)
                assert second.fatal is None
                await first.call("CONFIG", "SET", "maxclients", "10")
                await second.wait_connected()


async def test_a_connection_cut_before_sending_says_that_nothing_was_done() -> None:
    cut = trio.Event()

    async def answer_ping_then_read_no_more(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"+PONG\r\n")
        await cut.wait()
        await trio.aclose_forcefully(stream)

    sent: list[object] = []
    queued: list[object] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, answer_ping_then_read_no_more, listeners)
            async with connected(listeners[0].socket.getsockname()[1]) as connection, trio.open_nursery() as callers:
                callers.start_soon(lambda: call_outcome(connection, "SET", "a", b"x" * 30_000_000, into=sent))
                await wait_until(lambda: bool(connection._pending) and not connection._out)  # it is being sent
                callers.start_soon(lambda: call_outcome(connection, "SET", "b", "1", into=queued))
                await wait_until(lambda: len(connection._pending) == 2)
                cut.set()
            nursery.cancel_scope.cancel()
    assert (sent, queued) == ([OutcomeUnknown], [Unavailable])


async def test_a_store_that_never_answers_does_not_connect() -> None:
    attempts = 0

    async def stay_silent(stream: trio.SocketStream) -> None:
        nonlocal attempts
        attempts += 1
        await trio.sleep_forever()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, stay_silent, listeners)
            port = listeners[0].socket.getsockname()[1]
            connection = Connection(Address.parse(f"redis://127.0.0.1:{port}"), timeout=0.1)
            async with background(connection.run):
                await wait_until(lambda: attempts >= 3)  # it has given up the first ones
                assert not connection.is_connected
                with pytest.raises(Unavailable):
                    await connection.call("PING")
            nursery.cancel_scope.cancel()


async def test_a_reply_for_which_no_call_waits_breaks_the_connection_and_nothing_else() -> None:
    """A call whose reply came twice cannot be distinguished from the next one: only a new connection is in order."""

    async def answer_twice(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"+PONG\r\n")
        await stream.receive_some()
        await stream.send_all(b":1\r\n:1\r\n")
        await trio.sleep_forever()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, answer_twice, listeners)
            async with connected(listeners[0].socket.getsockname()[1]) as connection:
                for _ in range(2):
                    await connection.wait_connected()
                    connects = connection.connects
                    assert await connection.call("INCR", "a") == 1
                    await wait_until(lambda connects=connects: connection.connects > connects)  # type: ignore[misc]
            nursery.cancel_scope.cancel()


async def test_too_many_waiting_calls_are_refused_before_they_are_sent(
    store_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 5)
    got: list[object] = []
    with trio.fail_after(30):
        async with open_proxy(store_port) as proxy, connected(proxy.port) as connection:
            proxy.hold()
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(lambda: call_outcome(connection, "ECHO", "x", into=got))
                await wait_until(lambda: len(connection._pending) == 5)
                with pytest.raises(Unavailable):
                    await connection.call("ECHO", "one too many")
                proxy.release()
            assert got == [b"x"] * 5
            assert await connection.call("ECHO", "y") == b"y"


async def test_a_subscription_hears_messages_and_hears_of_its_reconnects(store_port: int) -> None:
    heard: list[str] = []
    with trio.fail_after(30):
        async with open_proxy(store_port) as proxy, connected(store_port) as connection:
            subscription = Subscription(
                Address.parse(f"redis://127.0.0.1:{proxy.port}"), lambda channel, _: heard.append(channel)
            )
            await subscription.add("before")
            async with background(subscription.run):
                await wait_until(lambda: "" in heard)
                await subscription.add("plain", sharded=False)
                for attempt in range(2):
                    await wait_until(partial(connection.call, "SPUBLISH", "before", "1"))
                    await wait_until(partial(connection.call, "PUBLISH", "plain", "1"))
                    await wait_until(lambda: min(heard.count("before"), heard.count("plain")) >= 2)  # and subscribing
                    if attempt == 0:
                        heard.clear()
                        proxy.cut()
                        await wait_until(lambda: "" in heard)
                await subscription.remove("before")
                await wait_until(lambda: nobody_hears(connection))
                heard.clear()
                proxy.cut()
                await wait_until(lambda: "" in heard and "plain" in heard)
                assert await nobody_hears(connection), "nor after a reconnect"


async def nobody_hears(connection: Connection) -> bool:
    """Tell whether a message in the sharded channel `before` reaches nobody."""
    return bool(await connection.call("SPUBLISH", "before", "1") == 0)


async def test_a_subscription_whose_connection_leads_nowhere_any_more_makes_another(store_port: int) -> None:
    heard: list[str] = []
    with trio.fail_after(30):
        async with open_proxy(store_port) as proxy, connected(store_port) as connection:
            subscription = Subscription(
                Address.parse(f"redis://127.0.0.1:{proxy.port}"), lambda channel, _: heard.append(channel), timeout=0.5
            )
            await subscription.add("channel")
            async with background(subscription.run):
                await wait_until(lambda: "channel" in heard)
                # One that keeps no connection sends three things on each: its login, the channel, and the question.
                await wait_until(lambda: proxy.requests >= 3 * proxy.connections + 2)
                before = proxy.connections
                proxy.hold()  # nothing comes through, and nobody says that the connection is broken
                await wait_until(lambda: proxy.connections > before)
                proxy.release()
                heard.clear()
                await wait_until(lambda: "channel" in heard)
                await wait_until(partial(connection.call, "SPUBLISH", "channel", "1"))


def test_the_stores_errors_become_ours() -> None:
    for reply, expected, field in [
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFull, None),
        ("LOADING Redis is loading the dataset in memory", Unavailable, None),
        ("BUSY Redis is busy running a script.", Unavailable, None),
        ("MISCONF Errors writing to the AOF file", Unavailable, None),
        ("READONLY You can't write against a read only replica.", Unavailable, None),
        ("CLUSTERDOWN Hash slot not served", Unavailable, None),
        ("ERR max number of clients reached", Unavailable, None),
        ("ERR max number of clients + cluster connections reached", Unavailable, None),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable, None),
        ("MOVED 3999 127.0.0.1:6381", Redirected, None),
        ("FAIRQ bad_request weight", FairqError, "weight"),
        ("FAIRQ bad_request limit script: fq1_claim, on @user_function:1.", FairqError, "limit"),
        ("ERR unknown command", StoreRefused, None),
        ("NOAUTH Authentication required.", StoreRefused, None),
    ]:
        with case(reply, expected, field):
            error = as_error(Exception(reply))
            assert isinstance(error, expected)
            assert error.field == field


def test_a_redirection_names_the_node() -> None:
    for reply, expected in [
        ("MOVED 3999 127.0.0.1:6381", (False, "127.0.0.1", 6381)),
        ("ASK 3999 ::1:6381", (True, "::1", 6381)),
        ("MOVED 3999 :6381", (False, "", 6381)),
    ]:
        with case(reply, expected):
            error = as_error(Exception(reply))
            assert isinstance(error, Redirected)
            assert isinstance(error, Unavailable)  # nothing was done
            assert (error.is_ask, error.host, error.port) == expected
