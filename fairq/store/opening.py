"""Opens a store by its URL, and checks that it keeps acknowledged tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

import structlog
import trio

from fairq.errors import FairqError, Retryable, SettingsError, StoreRefused, Unavailable
from fairq.io.auto_reset_event import AutoResetEvent
from fairq.io.scopes import background
from fairq.store.address import parse_seeds, without_secrets
from fairq.store.cluster import Cluster
from fairq.store.cluster_subscription import ClusterSubscription
from fairq.store.connection import Connection, Subscription
from fairq.store.durability import Finding, risks
from fairq.store.migrations import check_data_version
from fairq.store.node import read_info
from fairq.store.replicas import Replicas
from fairq.store.store import Store
from fairq.store.topology import is_cluster

AGAIN_S = 0.1  # before a check is repeated
LOOK_S = 10.0  # between two looks at whether the store keeps what it has acknowledged
log = structlog.get_logger("fairq.store")
T = TypeVar("T")


async def check_durability(store: Store) -> list[str]:
    """Return the settings of the store, or of its nodes, that could lose acknowledged tasks."""
    nodes = store.connection.nodes()
    problems = []
    for node in nodes:
        where = f"{node.address.shown}: " if len(nodes) > 1 else ""
        problems += [f"{where}{risk.message} ({risk.remedy})" for risk in await _risks(node)]
    return problems


async def asked(store: Store, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask the store, and again each time that it went away meanwhile. Raises: StoreRefused, and as `ask` does."""
    while True:
        await store.connection.wait_connected()
        try:
            return await ask()
        except Retryable as error:
            log.warning("asking the store again", error=error.message)
            await trio.sleep(AGAIN_S)


async def watch_durability(store: Store) -> None:
    """Log new risks to acknowledged tasks: the store was restarted, or its settings changed."""
    known: list[str] = []
    while True:
        await trio.sleep(LOOK_S)
        with suppress(FairqError):
            found = await check_durability(store)
            for problem in found:
                if problem not in known:
                    log.error("the store is not safe", problem=problem)
            known = found


async def _check(store: Store) -> None:
    await check_data_version(store.connection.call)
    await check_permissions(store)


async def check_permissions(store: Store) -> None:
    """Check that the store's user may run all commands of the library. Raises: SettingsError, naming the others."""
    if missing := await store.permissions("check"):
        raise SettingsError(
            f"the store's user may not run {', '.join(missing)} on fairq's keys and channels (fq:*): extend its ACL",
            field="store",
        )


async def _risks(node: Connection) -> list[Finding]:
    try:
        return risks(read_info(await node.call("INFO", "persistence", "memory")))
    except StoreRefused:
        return risks({})


async def _make_store(url: str, on_message: Callable[[str, str], None], connect_timeout: float) -> Store:
    """Make the store for the cluster or single node at the URL; it is not connected yet."""
    seeds = parse_seeds(url)
    if not seeds[0].sentinels and await is_cluster(seeds, connect_timeout):
        if seeds[0].database:
            raise SettingsError("a cluster has only database 0: end the store URL in /0", field="store")
        outdated = AutoResetEvent(trio.Event)
        cluster = Cluster(seeds, outdated.set)
        return Store(cluster, ClusterSubscription(cluster, on_message, outdated))
    if len(seeds) > 1:
        raise SettingsError("the store URL names several hosts, but they are not a cluster", field="store")
    return Store(Connection(seeds[0]), Subscription(seeds[0], on_message))


@asynccontextmanager
async def open_store(
    url: str,
    *,
    connect_timeout: float = 30.0,
    on_message: Callable[[str, str], None] = lambda _channel, _message: None,
    queue_quota: int | None = None,
    wait_replicas: int = 0,
    is_checked: bool = True,
) -> AsyncIterator[Store]:
    """Connect to the store at a URL and keep connected while the context lasts.

    `queue_quota`: how many queues a tenant may make (None: any number). `wait_replicas`: how many must have a write
    before it is acknowledged (replicas.py). `is_checked`: False for callers that read or write a store with data of any
    version.

    Raises: SettingsError if the URL is invalid, the store does not answer within `connect_timeout` seconds, its user
    may not run all commands of the library, or it holds data of another version, also if that comes later.
    """
    shown, deadline = without_secrets(url), trio.current_time() + connect_timeout
    away = f"the store at {shown} cannot be used after {connect_timeout:g} s"
    try:
        store = await _make_store(url, on_message, connect_timeout)
        store.registry.quota = queue_quota
        store.replicas = Replicas(store.connection, wait_replicas) if wait_replicas else None
    except StoreRefused as error:
        raise SettingsError(f"the store at {shown}: {error.message}", field="store") from None
    except Unavailable as error:
        raise SettingsError(f"{away}: {error.message}", field="store") from None
    services = [store.connection.run, store.subscription.run, store.watch_data]
    if store.replicas:
        services.append(store.replicas.run)
    async with background(*services):
        with trio.move_on_at(deadline) as waiting:
            try:
                await store.connection.wait_connected()
                if is_checked:
                    await asked(store, partial(_check, store))
                if store.replicas:
                    await asked(store, store.replicas.check)
            except StoreRefused as error:
                raise SettingsError(f"the store at {shown}: {error.message}", field="store") from None
        if waiting.cancelled_caught:
            raise SettingsError(f"{away}: {store.connection.trouble or 'no answer'}", field="store")
        yield store
