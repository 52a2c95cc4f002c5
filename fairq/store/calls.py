"""Calls of the Lua library in the store: they load the library if it is missing, and make new queues.

In these classes `queue` names one place: a queue, or one of its partitions (routes.py).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError, OutcomeUnknown, SettingsError, StoreRefused, Unavailable
from fairq.model.places import queue_of
from fairq.store import keys, library
from fairq.store.attempts import AttemptLog
from fairq.store.audit import Audit
from fairq.store.cluster import Cluster
from fairq.store.cluster_subscription import ClusterSubscription
from fairq.store.connection import Connection, Hold, Subscription
from fairq.store.counts import Counts
from fairq.store.covered import Covered
from fairq.store.migrations import check_data_version
from fairq.store.registry import Registry
from fairq.store.replicas import Replicas
from fairq.store.token_records import Tokens
from fairq.store.workers import Workers

log = structlog.get_logger("fairq.store")

CHANGES, LOOKS = 64, 250  # tasks in one call that changes, or only reads, much of each
_UNMADE = "unmade"


def wall_ms() -> int:
    """Return this process's time in ms: the store compares its own clock with it."""
    return round(time.time() * 1000)


async def load_library(call: Callable[..., Awaitable[Any]]) -> None:
    """Load our version of the function library into a node, unless it is there."""
    if await call("FUNCTION", "LIST", "LIBRARYNAME", library.name()):
        return
    try:
        await call("FUNCTION", "LOAD", library.source())
    except StoreRefused as error:
        if "already exists" not in error.message:  # it does if another server or call was faster
            raise


@define(eq=False)
class Calls:
    """Calls verbs of the store."""

    connection: Connection | Cluster
    subscription: Subscription | ClusterSubscription
    counts: Counts = field(factory=Counts, init=False)  # for the history
    attempts: AttemptLog = field(factory=AttemptLog, init=False)
    registry: Registry = field(init=False)
    audit: Audit = field(init=False)
    tokens: Tokens = field(init=False)
    workers: Workers = field(init=False)
    # Called with a partition in which a call of this server's had a tenant begin to wait, and the weight that competes.
    on_woken: Callable[[str, int], None] = field(default=lambda _place, _weight: None, init=False)
    replicas: Replicas | None = field(default=None, init=False)  # that must have a write before it is acknowledged
    _unfit: SettingsError | None = field(default=None, init=False)  # why this build cannot use the data any more
    _is_unfit: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.tokens, self.workers = Tokens(self.connection), Workers(self.connection)
        self.registry = Registry(self.connection, self._call_at, self._check_data)
        self.audit = Audit(self.connection, self._call_at)

    async def watch_data(self) -> None:
        """Wait until a later version has migrated the data, or a backup takes its place. Raises: SettingsError."""
        await self._is_unfit.wait()
        assert self._unfit
        raise self._unfit

    def _call(
        self, verb: str, queue: str, *args: str | bytes | int | float, hold: Hold | None = None
    ) -> Awaitable[Any]:
        return self._call_at(keys.queue_prefix(queue), verb, *args, hold=hold)

    async def _call_at(self, prefix: str, verb: str, *args: str | bytes | int | float, hold: Hold | None = None) -> Any:
        command = "FCALL_RO" if verb in library.verbs("reads") else "FCALL"
        call = (command, library.function_name(verb), 1, prefix, "", "", *args)
        try:
            return await self.connection.call(*call, hold=hold)
        except StoreRefused as error:
            if "Function not found" not in error.message:
                raise
        await self._check_data()  # a later version may have come, and deleted our library
        log.info("loading the function library", library=library.name())
        for node in self.connection.nodes():
            if node.is_connected:
                await load_library(node.call)
        return await self.connection.call(*call)

    async def _check_data(self) -> None:
        """Check that this build may still use the data; an empty store gets our version. Raises: Unavailable."""
        try:
            await check_data_version(self.connection.call)
        except SettingsError as error:
            self._unfit = error
            self._is_unfit.set()
            raise Unavailable(error.message) from None

    async def _call_in_parts(
        self, verb: str, queue: str, ids: Sequence[str], *first: str | int, size: int = CHANGES
    ) -> list[Any]:
        """Call a verb for `size` ids at a time, to bound each call; join the replies."""
        parts = [ids[start : start + size] for start in range(0, len(ids), size)] or [ids]
        return [reply for part in parts for reply in await self._call(verb, queue, *first, *part)]

    async def _put(
        self, verb: str, queue: str, *args: str | bytes | int | float, maker: str = "", notify: str | Covered = "all"
    ) -> Any:
        """Call a verb that stores something in a queue; make the queue if it does not exist, for `maker` (a tenant).

        `notify`: as in `TaskCalls.enqueue`; `all` unless the call begins before this yields. Returns when `replicas`
        have it.
        """
        if self.replicas is None:
            return await self._put_here(verb, queue, args, maker, notify)
        reply = await self.replicas.having(
            keys.queue_prefix(queue),
            lambda is_at_once: self._put_here(verb, queue, args, maker, notify if is_at_once else "all"),
        )
        if queue_of(queue) not in self.registry.confirmed:
            await self._confirm_entry(queue, self.replicas)
        return reply

    async def _confirm_entry(self, queue: str, replicas: Replicas) -> None:
        """Wait until replicas have a queue's entry in the registry: without it no server looks for its tasks.

        The entry was written before what the queue's primary has confirmed, but perhaps to another primary.
        """
        name, owner = queue_of(queue), self.connection.owner
        is_elsewhere = owner(keys.REGISTRY) is not owner(keys.queue_prefix(queue))
        if is_elsewhere and not await replicas.having(keys.REGISTRY, lambda _: self.registry.read_places(name)):
            raise OutcomeUnknown(f"queue {name} was deleted during the call")
        self.registry.confirm(name)

    async def _put_here(
        self, verb: str, queue: str, args: Sequence[str | bytes | int | float], maker: str, notify: str | Covered
    ) -> Any:
        name = queue_of(queue)
        if name not in self.registry.known:
            notify = "all"
            await self.registry.make(name, maker)
        try:
            if isinstance(notify, Covered):
                return await self._call(verb, queue, *args, hold=notify.hold)
            return await self._call(verb, queue, *args, *(() if notify == "all" else (notify,)))
        except FairqError as error:
            if error.code != _UNMADE:
                raise
        self.registry.forget(name)  # it was deleted, and the message was lost
        if queue not in await self.registry.make(name, maker, is_unmade=True):
            raise Unavailable(f"queue {name} was made anew during the call")
        try:
            return await self._call(verb, queue, *args)
        except FairqError as error:
            if error.code != _UNMADE:
                raise
            raise Unavailable(f"queue {name} was deleted during the call") from None
