"""The registry of queues: their names, makers and ends.

A queue is made by the first call that stores something in it; with a quota of 0, by the first one of an operator.
This server remembers which queues exist, and their places (partitions.py), so that it asks the store once. If another
server has deleted the queue meanwhile, the store refuses the call. An operator deletes a queue, or servers remove one
that is unused (both: lua/operate/delete.lua).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import trio
from attrs import define, field

from fairq.errors import FairqError, NotEmpty, NotFound, OutcomeUnknown, QuotaExceeded, Unavailable
from fairq.io.taskless import in_task
from fairq.model.places import is_partition
from fairq.model.suggestions import did_you_mean
from fairq.store import keys
from fairq.store.cluster import Cluster
from fairq.store.connection import Connection
from fairq.store.partitions import Places, places_of

MAX_KNOWN = 10_000  # queues that are remembered to exist
OPERATOR, PRODUCER = "", "(producer)"  # makers that are not tenants: their queues count against no quota
_OFFER_S = 0.2  # between two searches for the nearest name: a tenant may mistype any number


class Maker(NamedTuple):
    """The tenant that made a queue (empty: an operator), and when."""

    made_by: str
    made_at_ms: int


def _maker(entry: bytes) -> Maker:
    """Read a queue's entry in the registry."""
    made_at, _, tenant = entry.decode().partition(" ")
    return Maker(tenant, int(made_at))


class Deletion(NamedTuple):
    """A deletion's outcome: `ok` (done), `more` (to be repeated) or `gone` (no such queue); what the queue held."""

    outcome: str
    contents: Mapping[str, int]


def _contents(replies: Sequence[Sequence[Any]]) -> dict[str, int]:
    """Add up what places hold, by the replies of `delete_queue`."""
    found = Counter[str]()
    for _, *pairs in replies:
        for name, count in zip(pairs[::2], pairs[1::2], strict=True):
            found[name.decode()] += count
    return dict(found)


def _not_empty(queue: str, contents: Mapping[str, int]) -> NotEmpty:
    what = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in contents.items() if count)
    return NotEmpty(f"queue {queue} is not empty: {what}", field="purge")


@define(eq=False)
class Registry:
    """The queues of a store. `call(prefix, verb, ...)` calls the library, `check_data()` the version of the data.

    `quota`: how many queues a tenant may make (None: any number; 0: only operators make queues).
    """

    connection: Connection | Cluster
    call: Callable[..., Awaitable[Any]]
    check_data: Callable[[], Awaitable[None]]
    quota: int | None = None
    known: dict[str, Places] = field(factory=dict, init=False)  # the places of the queues that are known to exist
    confirmed: set[str] = field(factory=set, init=False)  # known queues whose entries replicas have, where they must
    on_places: Callable[[str, Places], None] = field(default=lambda _queue, _places: None, init=False)  # when learned
    offered_at: float = field(default=-math.inf, init=False)  # when a name was last searched for
    making: dict[str, trio.Lock] = field(factory=dict, init=False)  # of the queues that are being made
    _last: dict[str, bytes] | None = field(default=None, init=False)  # the entries that were read last

    async def make(self, queue: str, maker: str, *, is_unmade: bool = False, partitions: int = 1) -> Places:
        """Make a queue unless it exists; returns its places. `is_unmade`: the store says that it does not exist.

        `partitions`: of a new queue. Raises: QuotaExceeded; NotFound where only operators make queues.
        """
        async with self._in_turn(queue):
            return await self._make(queue, maker, is_unmade, partitions)

    @asynccontextmanager
    async def _in_turn(self, queue: str) -> AsyncIterator[None]:
        """Let a queue's calls go on in the order in which they came; other queues do not wait for it."""
        await in_task()
        lock = self.making.setdefault(queue, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():  # by a call that waited, either
                self.making.pop(queue, None)

    async def _make(self, queue: str, maker: str, is_unmade: bool, partitions: int) -> Places:
        if places := self.known.get(queue):
            return places
        places = await self.read_places(queue)
        if places is None and self.quota == 0 and maker != OPERATOR:
            offer = await self._offer(queue)
            raise NotFound(f"there is no queue {queue}, and only operators make queues here{offer}", field="queue")
        if places is None or is_unmade:
            await self.check_data()  # an operator may have emptied the store
            tenant = "" if maker == PRODUCER else maker
            places = await self._add(queue, tenant, self.quota if tenant else None, partitions)
            for place in places:
                await self.call(keys.queue_prefix(place), "make_queue")
            places = await self._add(queue, tenant, None, partitions)  # it may have been deleted in between
        self._remember(queue, places)
        return places

    def _remember(self, queue: str, places: Places) -> None:
        if len(self.known) >= MAX_KNOWN:
            self.known = {name: places for name, places in self.known.items() if len(places) > 1}
        if places != self.known.get(queue):
            self.confirmed.discard(queue)
        self.known[queue] = places
        self.on_places(queue, places)

    def places_known(self, queue: str) -> Places:
        """Name the places of a queue, as far as this server knows."""
        return self.known.get(queue) or (queue,)

    async def places(self, queue: str) -> Places:
        """Name the places of a queue; of one that does not exist, as if it had one partition. Of a place: itself."""
        if is_partition(queue):
            return (queue,)
        if queue not in self.making and (places := self.known.get(queue)):  # else it would overtake those that wait
            return places
        async with self._in_turn(queue):  # behind a call that makes it
            if places := self.known.get(queue) or await self.read_places(queue):
                self._remember(queue, places)
        return places or (queue,)

    async def read_places(self, queue: str) -> Places | None:
        """Read a queue's places from the store; None if it does not exist."""
        entry = await self.connection.call("HGET", keys.QUEUES, queue)
        while entry:
            partitions = int(await self.connection.call("HGET", keys.PARTITIONS, queue) or 1)
            before, entry = entry, await self.connection.call("HGET", keys.QUEUES, queue)
            if entry == before:  # it was neither deleted nor made anew between the two
                return places_of(queue, partitions)
        return None

    async def _offer(self, queue: str) -> str:
        """Return a question that offers the nearest queue; empty if there is none, or it was just done for another."""
        if (now := trio.current_time()) < self.offered_at + _OFFER_S:
            return ""
        self.offered_at = now
        return did_you_mean(queue, await self.entries())

    async def exists(self, queue: str) -> bool:
        """True if there is such a queue; works on a full store."""
        return queue in self.known or bool(await self.connection.call("HEXISTS", keys.QUEUES, queue))

    async def _add(self, queue: str, maker: str, quota: int | None, partitions: int) -> Places:
        """Add a queue to the registry, or renew its entry, so that a deletion leaves it. Raises: QuotaExceeded."""
        args = (queue, maker, "" if quota is None else quota, partitions)
        try:
            _, found = await self.call(keys.REGISTRY, "add_queue", *args)
            return places_of(queue, found)
        except QuotaExceeded:
            message = f"tenant {maker} has reached its limit of {quota} queues: queue {queue} was not made"
            raise QuotaExceeded(message, field="queues") from None

    def forget(self, queue: str) -> None:
        """Forget a queue that was deleted."""
        self.known.pop(queue, None)
        self.confirmed.discard(queue)

    def confirm(self, queue: str) -> None:
        """Note that the replicas have a queue's entry."""
        if len(self.confirmed) >= MAX_KNOWN:
            self.confirmed.clear()
        self.confirmed.add(queue)

    async def entries(self) -> dict[str, bytes]:
        """Return the entries of all queues, as they are stored."""
        flat = await self.connection.call("HGETALL", keys.QUEUES)
        self._last = {name.decode(): entry for name, entry in zip(flat[::2], flat[1::2], strict=True)}
        return self._last

    async def all_places(self) -> list[str]:
        """Name the places of all queues, and correct those that this server knows otherwise."""
        queues, flat = await self.entries(), await self.connection.call("HGETALL", keys.PARTITIONS)
        partitions = dict(zip(flat[::2], map(int, flat[1::2]), strict=True))
        found: list[str] = []
        for queue in queues:
            places: Places | None = places_of(queue, partitions.get(queue.encode(), 1))
            # If it was deleted between the two readings, it seems to have one partition.
            if places != self.places_known(queue) and (places := await self.read_places(queue)):
                self._remember(queue, places)
            found += places or ()
        return found

    async def read(self) -> dict[str, Maker]:
        """Return all queues, with the maker of each and when it was made."""
        return {name: _maker(entry) for name, entry in (await self.entries()).items()}

    async def read_or_last(self) -> dict[str, Maker]:
        """Do the same; while the registry's primary is away, return those that this server read last.

        None is made or deleted then.
        """
        try:
            return await self.read()
        except (Unavailable, OutcomeUnknown):
            if self._last is None:
                raise
            return {name: _maker(entry) for name, entry in self._last.items()}

    async def makers(self, queues: Sequence[str]) -> list[str]:
        """Return the makers of these queues; empty: an operator, or not made yet."""
        entries = await self.connection.call("HMGET", keys.QUEUES, *queues) if queues else []
        return [(entry and _maker(entry).made_by) or "" for entry in entries]

    async def is_idle(self, queue: str, entry: bytes, idle_ms: int) -> bool:
        """True if a queue that a tenant made has been empty for `idle_ms`, and has no settings."""
        return bool(_maker(entry).made_by) and await self._forget_record(queue, entry, idle_ms, is_meant=False)

    async def drop_idle(self, queue: str, entry: bytes, idle_ms: int) -> bool:
        """Remove a queue that `is_idle`; returns whether it still was. An enqueue that comes later makes it anew.

        `entry`: its entry in the registry, read before.
        """
        await self._tell(queue)  # before it can be made anew
        if is_idle := await self._forget_record(queue, entry, idle_ms, is_meant=True):
            await self._remove(queue, entry, (queue,))
        return is_idle

    async def _forget_record(self, queue: str, entry: bytes, idle_ms: int, *, is_meant: bool) -> bool:
        now_ms, made_at_ms = round(time.time() * 1000), _maker(entry).made_at_ms
        args = (idle_ms, made_at_ms, now_ms, int(is_meant))
        place, *_ = await self.read_places(queue) or (queue,)  # of several, each has their number among its settings
        return bool(await self.call(keys.queue_prefix(place), "forget_queue", *args) == b"ok")

    async def delete(self, queue: str, *, purge: bool, seconds: float = float("inf")) -> Deletion:
        """Delete a queue and its contents, for about `seconds`; repeat it while the outcome is `more`.

        Once begun, the queue is blocked until the deletion is finished; any caller may continue it.
        Raises: NotEmpty if the queue holds anything and `purge` is false.
        """
        deadline, places = trio.current_time() + seconds, await self.places(queue)
        entry = await self.connection.call("HGET", keys.QUEUES, queue)
        if len(places) > 1 and not purge:
            await self._hold(queue, places)
        how = ("any" if purge else "empty", "block" if len(places) > 1 else "")
        replies = [await self.call(keys.queue_prefix(place), "delete_queue", *how) for place in places]
        contents = _contents(replies)
        if any(outcome == b"not_empty" for outcome, *_ in replies):
            raise _not_empty(queue, contents)
        if entry is None and all(reply[0] == b"gone" for reply in replies):
            return Deletion("gone", {})
        await self._tell(queue)
        # The first place goes last: while it is blocked, nobody makes the queue anew.
        for place, (outcome, *_) in reversed([*zip(places, replies, strict=True)]):
            while outcome == b"more":
                latest = await self.connection.call("HGET", keys.QUEUES, queue)  # calls that were refused renew it
                outcome, *_ = await self.call(keys.queue_prefix(place), "delete_queue", "begun")
                entry = entry if outcome == b"gone" else latest
                if outcome == b"more" and trio.current_time() >= deadline:
                    return Deletion("more", contents)
        if entry is not None:
            await self._remove(queue, entry, places)
        return Deletion("ok", contents)

    async def _hold(self, queue: str, places: Places) -> None:
        """Block all places if they are empty, else none. Raises: NotEmpty.

        If this breaks off, places stay blocked until the deletion is repeated.
        """
        try:
            replies = [await self.call(keys.queue_prefix(place), "delete_queue", "hold") for place in places]
            if any(outcome == b"not_empty" for outcome, *_ in replies):
                raise _not_empty(queue, _contents(replies))
        except FairqError:
            for place in places:
                with suppress(FairqError):
                    await self.call(keys.queue_prefix(place), "delete_queue", "free")
            raise

    async def _remove(self, queue: str, entry: bytes, places: Places) -> None:
        """Remove a queue that has ended; one that was made anew since stays, since its entry is another one."""
        await self.call(keys.REGISTRY, "remove_queue", queue, entry)
        for place in places:
            await self.connection.call("SPUBLISH", keys.ready_channel(place), keys.READY)  # to workers that wait for it

    async def _tell(self, queue: str) -> None:
        """Notify all servers to forget a queue; the message may be lost."""
        self.forget(queue)
        await self.connection.call("PUBLISH", keys.DELETED, queue)
