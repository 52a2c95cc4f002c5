"""Who may come in, and how much those inside may ask: one address or tenant cannot keep others out."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from fairq.client.channel import Target
from fairq.client.connect import connect
from fairq.errors import TooMany, Unauthorized, Unavailable
from fairq.model import rates
from fairq.model.rates import Rate
from fairq.server.engine.net import admission as module
from fairq.server.engine.net.admission import (
    HANDSHAKE_BURST,
    HANDSHAKES_PER_S,
    MAX_HANDSHAKES,
    RECONNECT_MS,
    WRONG_TOKENS_BURST,
    Admission,
    Usage,
    block_of,
)
from fairq.server.engine.net.auth import Identity
from fairq.server.run import Served
from fairq.server.settings import Settings
from fairq.wire.terms import TIMEOUT_S, Role

from .harness import WORKER, raw, running, tenant, url_of
from .test_connection import SlowClient, ask, connected
from .test_listener import socket
from .web.http.harness import read_all

ADA, WORKERS = Identity(Role.TENANT, "ada"), Identity(Role.WORKER)
OUTSIDE = "203.0.113.7"


@given(st.lists(st.tuples(st.floats(0, 0.5), st.integers(0, 40)), max_size=100))
def test_a_client_that_waits_as_asked_takes_no_more_than_its_rate(taken: list[tuple[float, int]]) -> None:
    rate, now, most = Rate(100, 20), 1_000.0, 0
    for pause, amount in taken:
        now += pause + rate.take(amount, now + pause)
        most += amount
        assert most <= 20 + 100 * (now - 1_000) + 1e-6


def test_a_rate_is_whole_again_after_a_while() -> None:
    rate = Rate(10, 10)
    assert rate.is_whole(100.0)
    assert rate.take(10, 100.0) == 0
    assert rate.take(5, 100.0) == pytest.approx(0.5)
    assert not rate.is_whole(101.4)
    assert rate.is_whole(101.6)


def test_connections_are_counted_by_address_and_by_tenant() -> None:
    admission = Admission(Settings(connections_per_address=3, connections_per_tenant=2))
    with ExitStack() as inside:
        usages = [inside.enter_context(admission.connection(f"203.0.113.{n}", ADA)) for n in range(2)]
        assert usages[0] is usages[1]
        with pytest.raises(TooMany, match="at most 2 for one tenant") as caught:
            inside.enter_context(admission.connection("203.0.113.9", ADA))
        assert caught.value.retry_in_ms == RECONNECT_MS
        for _ in range(3):
            assert inside.enter_context(admission.connection(OUTSIDE, WORKERS)) is None
        with pytest.raises(TooMany, match=OUTSIDE):
            inside.enter_context(admission.connection(OUTSIDE, WORKERS))
        for n in range(10):
            inside.enter_context(admission.connection("127.0.0.1", WORKERS))
            inside.enter_context(admission.connection("::1", Identity(Role.TENANT, f"t{n}")))
    with admission.connection("203.0.113.9", ADA), admission.connection(OUTSIDE, WORKERS):
        pass


def test_an_address_that_shakes_hands_too_often_is_not_heard_for_a_while() -> None:
    admission = Admission(Settings())
    heard = sum(admission.admits_handshake(OUTSIDE, 50.0) for _ in range(5_000))
    assert HANDSHAKE_BURST - 1 <= heard <= HANDSHAKE_BURST
    assert admission.admits_handshake("203.0.113.8", 50.0)
    assert all(admission.admits_handshake("127.0.0.1", 50.0) for _ in range(5_000))
    assert admission.admits_handshake(OUTSIDE, 50.0 + 2 / HANDSHAKES_PER_S), "refused handshakes cost nothing"


def test_little_is_remembered_of_many_addresses_and_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (module, rates):
        monkeypatch.setattr(each, "MAX_KNOWN", 50)
    admission = Admission(Settings())

    async def visit() -> None:
        for n in range(500):
            admission.admits_handshake(f"198.51.100.{n % 250}", float(n))
            with admission.connection(f"198.51.100.{n % 250}", Identity(Role.TENANT, f"t{n}")):
                pass

    trio.run(visit)
    assert len(admission._rates) <= 51
    assert len(admission._usages) <= 51
    assert not admission._connections


async def test_the_oldest_handshake_of_the_address_with_most_gives_way() -> None:
    admission = Admission(Settings())
    with ExitStack() as inside:
        scopes = [trio.CancelScope() for _ in range(MAX_HANDSHAKES)]
        for n, scope in enumerate(scopes):
            inside.enter_context(admission.handshake(OUTSIDE if n else "203.0.113.1", scope))
        last = trio.CancelScope()
        inside.enter_context(admission.handshake("203.0.113.2", last))
        assert [n for n, scope in enumerate(scopes) if scope.cancel_called] == [1]
        assert not last.cancel_called
    assert not admission._handshakes
    assert admission._unfinished == 0


async def test_silent_connections_keep_nobody_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HANDSHAKES", 3)
    monkeypatch.setattr("fairq.server.listener.HANDSHAKE_S", 3600.0)
    async with socket(served) as first, socket(served), socket(served), socket(served):
        assert await read_all(first) == b"", "it was the oldest"
        async with raw(served, tenant("ada")) as client:
            assert await client.enqueue("q", ["a"]) == ["ok"]


async def test_a_tenant_with_too_many_connections_learns_when_to_try_again(server_store: str) -> None:
    async with running(server_store, connections_per_tenant=1) as served:
        async with raw(served, tenant("ada")), raw(served, tenant("bob")), raw(served, WORKER):
            with pytest.raises(Unavailable, match="at most 1 for one tenant"):
                await connect(Target.parse(url_of(served)), tenant("ada"))
        while True:  # until the server has seen it go
            try:
                async with raw(served, tenant("ada")):
                    break
            except Unavailable:
                await trio.sleep(0.01)


async def test_a_client_faster_than_its_tenant_may_be_is_read_more_slowly(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    take = Usage.take

    def note(self: Usage, size: int, now: float) -> float:
        waits.append(take(self, size, now))
        return 0.0

    monkeypatch.setattr(Usage, "take", note)
    async with (
        running(server_store, requests_per_second=3) as served,
        raw(served, tenant("ada")) as one,
        raw(served, tenant("ada")) as two,
        raw(served, WORKER) as other,
    ):
        for n in range(30):  # in much less than the ten seconds that they are good for
            await (one, two)[n % 2].ask("tasks", queue="q", ids=["x"])
        await other.ask("attach", worker="w", queues=["q"], credit=1, leases=[])
    assert waits[:3] == [0.0] * 3
    assert len(waits) == 30
    assert waits[-1] > 0


async def test_a_client_that_waits_its_turn_is_not_timed_out(autojump_clock: object) -> None:
    client = SlowClient(0.0, ask(3))
    connection = connected(client)
    connection.usage = Usage(Rate(1 / (2 * TIMEOUT_S), 1), Rate(1e9, 1e9))  # a request in so long
    with trio.move_on_after(3 * TIMEOUT_S):
        await connection.run()
    types = [frame["type"] for frame in client.got]
    assert [each for each in types if each != "ping"] == ["reply"] * 2
    assert len(types) > 2 * TIMEOUT_S, "unread, it would take a silent server for gone"


@pytest.mark.parametrize(
    ("address", "block"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::%eth0", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("::1", "::1"),
        ("unknown", "unknown"),
    ],
)
def test_a_network_of_64_bits_is_one_address(address: str, block: str) -> None:
    assert block_of(address) == block


async def test_a_host_with_many_addresses_has_the_limits_of_one() -> None:
    admission, now = Admission(Settings(connections_per_address=2)), trio.current_time()
    assert sum(admission.admits_handshake(f"2001:db8::{n:x}", now) for n in range(3_000)) <= HANDSHAKE_BURST + 1
    assert admission.admits_handshake("2001:db8:0:1::1", now)
    with ExitStack() as inside:
        inside.enter_context(admission.connection_from("2001:db8::1"))
        inside.enter_context(admission.connection_from("2001:db8::2"))
        inside.enter_context(admission.connection_from("2001:db8:0:1::2"))
        with pytest.raises(TooMany, match="2001:db8::/64"):
            inside.enter_context(admission.connection_from("2001:db8::3"))
    refused = []
    for n in range(2 * round(WRONG_TOKENS_BURST)):
        with pytest.raises((Unauthorized, TooMany)) as caught, admission.wrong_tokens(f"2001:db8::{n:x}"):
            raise Unauthorized("unknown token")
        refused.append(type(caught.value))
    assert (refused[0], refused[-1]) == (Unauthorized, TooMany)
