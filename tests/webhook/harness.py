"""Tasks, and deliverers whose network is in the test."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from attrs import define, evolve

from fairq.client.links import Links
from fairq.client.task import Task
from fairq.webhook.addresses import AddressRules
from fairq.webhook.deliverer import Deliverer, Delivery, Find, Others, Target, open_deliverer
from fairq.webhook.network import CheckedNetwork
from fairq.webhook.signature import Signer
from fairq.webhook.urls import UrlTemplate

from .receiver import MemoryNetwork, Receiver

LOOPBACK = AddressRules.parse(["127.0.0.1"])
PUBLIC, OTHER_PUBLIC = "93.184.216.34", "2606:2800:220:1::1"
URL = "https://hooks.example/in"
NOW = 1_700_000_000.0
DELIVERY = Delivery(timeout=30.0, per_host=10, max_response=65_536)
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # for receivers without TLS: the usual one takes long to make


def task(
    payload: Any = None,
    *,
    id: str = "t1",
    tenant: str = "ada",
    queue: str = "emails",
    attempt: int = 1,
    max_attempts: int = 5,
    wants_result: bool = False,
    name: str = "",
    webhook: str = "",
    links: Links | None = None,
    expires_at_ms: int | None = None,
) -> Task:
    """A task as a handler gets it."""
    return Task(
        id, queue, tenant, attempt, max_attempts, payload, 1_700_000_000_123, wants_result=wants_result, name=name,
        webhook=webhook, links=links or Links(), expires_at_ms=expires_at_ms,
    )  # fmt: skip


def to(url: str = URL, signer: Signer | None = None) -> Find:
    """Post all tasks to one URL; http:// is allowed, for a receiver in memory speaks no TLS."""
    target = Target(UrlTemplate.parse(url, plaintext=True), signer)
    return lambda _: target


def resolving(*answers: Sequence[str]) -> Any:
    """A resolver that gives one answer after the other, and then the last one again."""
    left = list(answers)

    async def resolve(host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        return list(left.pop(0) if len(left) > 1 else left[0])

    return resolve


@define(eq=False)
class Bench:
    """A deliverer, its network, and the receiver at PUBLIC."""

    deliverer: Deliverer
    network: MemoryNetwork
    receiver: Receiver

    async def deliver(self, payload: Any = None, **more: Any) -> Any:
        return await self.deliverer.deliver(task(payload, **more))


@asynccontextmanager
async def bench(
    receiver: Receiver,
    url: str = "http://hooks.example/in",
    *,
    resolve: Any = None,
    rules: AddressRules | None = None,
    slow: frozenset[str] = frozenset(),
    signer: Signer | None = None,
    find: Find | None = None,
    others: Others = lambda _: (),
    **settings: Any,
) -> AsyncIterator[Bench]:
    """A deliverer to a receiver in the test; virtual time works."""
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(nursery, {PUBLIC: receiver}, slow)
        checked = CheckedNetwork(rules or AddressRules(), resolve or resolving([PUBLIC]), network)
        find = find or to(url, signer)
        async with open_deliverer(find, evolve(DELIVERY, **settings).check(), checked, TLS, others) as deliverer:
            deliverer.clock = lambda: NOW
            yield Bench(deliverer, network, receiver)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def listening(receiver: Receiver, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A receiver on a port of this machine; gives the port."""

    async def serve(stream: trio.SocketStream) -> None:
        if tls is None:
            await receiver.handle(stream)
            return
        secure = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        try:
            await secure.do_handshake()
        except trio.BrokenResourceError:
            await trio.aclose_forcefully(stream)
        else:
            await receiver.handle(secure)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()
