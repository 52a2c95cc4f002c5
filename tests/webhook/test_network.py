"""Over real sockets: a name is resolved once, the address checked is the one connected to, TLS is for the name."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpcore2
import pytest
import trio
from attrs import define, evolve, field

import fairq
from fairq.webhook.addresses import AddressRules
from fairq.webhook.deliverer import Deliverer, open_deliverer
from fairq.webhook.network import CheckedNetwork, ask_system
from tests.store.certificates import make_certificate
from tests.store.waiting import wait_until

from .harness import DELIVERY, LOOPBACK, PUBLIC, listening, task, to
from .receiver import Receiver, Request, reply

NAME = "hooks.example"


@define(eq=False)
class Resolver(trio.abc.HostnameResolver):
    """What the whole process resolves names with: one answer after the other, and then the last one again."""

    answers: list[str]
    asked: list[Any] = field(factory=list)

    async def getaddrinfo(self, host: Any, port: Any, *_: int) -> list[Any]:
        address = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append(host)
        return [(trio.socket.AF_INET, trio.socket.SOCK_STREAM, 6, "", (address, port))]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        """Not called in these tests."""
        raise NotImplementedError


@pytest.fixture
async def resolve_with() -> AsyncIterator[Callable[..., Resolver]]:
    """Replace the process's resolver."""

    def use(*answers: str) -> Resolver:
        resolver = Resolver(list(answers))
        trio.socket.set_custom_hostname_resolver(resolver)
        return resolver

    yield use
    trio.socket.set_custom_hostname_resolver(None)


class Wire(httpcore2.TrioBackend):
    """Real connections, but for the public address, at which a receiver of this machine answers."""

    def __init__(self, public_port: int) -> None:
        self.public_port = public_port
        self.dialled: list[str] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.dialled.append(host)
        if host == PUBLIC:
            host, port = "127.0.0.1", self.public_port
        return await super().connect_tcp(host, port, timeout, local_address, socket_options)


async def closing(_: Request) -> Any:
    """Answer, and close the connection, so that the next request needs another."""
    return reply(connection="close")


async def test_a_name_that_changes_its_address_after_the_check_leads_nowhere_else(
    resolve_with: Callable[..., Resolver],
) -> None:
    """DNS rebinding: first public, then this machine, where a service listens at the port of the URL."""
    outside, inside = Receiver(closing), Receiver(closing)
    with trio.fail_after(30):
        async with listening(outside) as public_port, listening(inside) as port:
            wire, resolver = Wire(public_port), resolve_with(PUBLIC, "127.0.0.1")
            network = CheckedNetwork(AddressRules(), inner=wire)
            async with open_deliverer(to(f"http://{NAME}:{port}/"), DELIVERY, network) as deliverer:
                await deliverer.deliver(task())
                assert (len(outside.requests), wire.dialled, len(resolver.asked)) == (1, [PUBLIC], 1)
                assert outside.requests[0].headers["host"] == f"{NAME}:{port}"
                for _ in range(2):
                    with pytest.raises(fairq.Retry, match=r"127\.0\.0\.1 is loopback"):
                        await deliverer.deliver(task())
            assert (wire.dialled, len(resolver.asked)) == ([PUBLIC], 3)
    assert inside.connections == 0


class Twice(Receiver):
    """Sends a second answer behind the first, for the next request on the connection; that one refuses its task."""

    async def handle(self, stream: trio.abc.Stream) -> None:
        """Serve one connection."""
        self.connections += 1
        answers = [b"HTTP/1.1 %d OK\r\ncontent-length: 0\r\n\r\n" % status for status in (200, 410)]
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            got = b""
            while more := await stream.receive_some():
                got += more
                if got.endswith(b"\r\n\r\nnull"):
                    await stream.send_all(b"".join(answers))


@pytest.mark.parametrize("host", [NAME, "127.0.0.1"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_what_comes_behind_an_answer_decides_no_task_of_another_url(
    scheme: str, host: str, tmp_path: Path, resolve_with: Callable[..., Resolver]
) -> None:
    resolve_with("127.0.0.1")
    receiver = Twice()
    cert, key = make_certificate(tmp_path, NAME, "127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    trusted = ssl.create_default_context(cafile=cert)
    with trio.fail_after(30):
        async with listening(receiver, context if scheme == "https" else None) as port:
            find = to(f"{scheme}://{host}:{port}/{{tenant}}?key=1")
            async with open_deliverer(find, DELIVERY, CheckedNetwork(LOOPBACK), trusted) as deliverer:
                for tenant in ("ada", "bob", "cy"):
                    assert await deliverer.deliver(task(tenant=tenant)) is None
    assert receiver.connections == 3


async def test_a_connection_is_kept_for_the_same_url(resolve_with: Callable[..., Resolver]) -> None:
    resolver, receiver = resolve_with("127.0.0.1"), Receiver()
    with trio.fail_after(30):
        async with listening(receiver) as port:
            find = to(f"http://{NAME}:{port}/{{tenant}}")
            async with open_deliverer(find, DELIVERY, CheckedNetwork(LOOPBACK)) as deliverer:
                for tenant in ("ada", "bob", "ada", "bob"):
                    await deliverer.deliver(task(tenant=tenant))
    assert (receiver.connections, len(receiver.requests)) == (2, 4)
    assert resolver.asked == [NAME.encode()] * 2


@define(eq=False)
class Tls:
    """A receiver behind TLS, and what its clients asked for."""

    port: int
    trusted: ssl.SSLContext | None
    receiver: Receiver
    asked_for: list[str | None] = field(factory=list)

    @asynccontextmanager
    async def deliverer(self, host: str, **settings: Any) -> AsyncIterator[Deliverer]:
        """A deliverer that trusts the receiver's certificate."""
        network = CheckedNetwork(LOOPBACK)
        async with open_deliverer(
            to(f"https://{host}:{self.port}/"), evolve(DELIVERY, **settings), network, self.trusted
        ) as opened:
            yield opened


@asynccontextmanager
async def tls_receiver(directory: Path, receiver: Receiver) -> AsyncIterator[Tls]:
    """A receiver whose certificate is for NAME."""
    cert, key = make_certificate(directory, NAME)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    asked_for: list[str | None] = []
    context.sni_callback = lambda _, name, __: asked_for.append(name)
    async with listening(receiver, context) as port:
        yield Tls(port, ssl.create_default_context(cafile=cert), receiver, asked_for)


@pytest.mark.parametrize(
    ("host", "is_vouched_for"), [(NAME, True), (NAME, False), ("other.example", True), ("127.0.0.1", True)]
)
async def test_tls_is_for_the_name_though_the_address_is_connected_to(
    host: str, is_vouched_for: bool, tmp_path: Path, resolve_with: Callable[..., Resolver]
) -> None:
    resolver = resolve_with("127.0.0.1")
    with trio.fail_after(30):
        async with tls_receiver(tmp_path, Receiver()) as tls:
            if not is_vouched_for:
                tls.trusted = None
            async with tls.deliverer(host) as deliverer:
                if host == NAME and is_vouched_for:
                    await deliverer.deliver(task())
                    assert (tls.asked_for, resolver.asked, len(tls.receiver.requests)) == ([NAME], [NAME.encode()], 1)
                else:
                    with pytest.raises(fairq.Retry, match="certificate verify failed"):
                        await deliverer.deliver(task())
                    assert not tls.receiver.requests


class Deaf(Receiver):
    """Shakes hands and reads nothing."""

    async def handle(self, stream: trio.abc.Stream) -> None:
        await trio.sleep_forever()


async def test_a_receiver_that_reads_nothing_holds_nobody_up(
    tmp_path: Path, resolve_with: Callable[..., Resolver]
) -> None:
    """The body is larger than all buffers on the way, so that the request is stuck in the middle of a TLS record."""
    resolve_with("127.0.0.1")
    with trio.fail_after(30):
        async with tls_receiver(tmp_path, Deaf()) as tls, tls.deliverer(NAME, timeout=0.5) as deliverer:
            with pytest.raises(fairq.Retry, match="did not answer within"):
                await deliverer.deliver(task("x" * 20_000_000))
            assert not deliverer.pool.connections


async def test_lookups_that_hang_keep_no_other_host_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, look_up, hanging = threading.Event(), socket.getaddrinfo, list[Any]()

    def getaddrinfo(host: Any, *args: Any, **more: Any) -> Any:
        if isinstance(host, str):  # is it an address?
            return look_up(host, *args, **more)
        if host == b"dead.example":
            hanging.append(host)
            may_end.wait(60)
        return look_up("127.0.0.1", *args, **more)

    async with open_deliverer(to(), DELIVERY, CheckedNetwork(LOOPBACK)):
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        try:
            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    for _ in range(50):
                        nursery.start_soon(ask_system, "dead.example", 443)
                    await wait_until(lambda: len(hanging) == 50)
                    nursery.cancel_scope.cancel()  # as at a request's timeout
                assert await ask_system("live.example", 443) == ["127.0.0.1"]
        finally:
            may_end.set()
