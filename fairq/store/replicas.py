"""Acknowledges a write when replicas have it (`fairq serve --wait-replicas`).

A primary answers as soon as it has a write itself. A failover loses those that no replica had yet.

- Replication has one order: a replica that has a write has all that came before it. So for all calls that a primary has
  answered meanwhile, one small write behind them and one WAIT are enough. This also covers a repeat that found its task
  stored, and wrote nothing.
- WAIT blocks its connection, and counts only its own writes. So both go over a connection of their own.
- A primary that was replaced meanwhile may have lost the call, and the new one would confirm the write behind it. The
  replication id names a history, and a promotion begins a new one. So the id after WAIT must be the one that was read
  on the shared connection, before the call was sent.

Else the outcome is unknown: the task is stored, and may be lost. The caller repeats it under the same id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError, OutcomeUnknown, StoreRefused, Unavailable
from fairq.io.scopes import background
from fairq.io.taskless import Wait
from fairq.io.turns import call_from_end, turn_time
from fairq.store.cluster import Cluster
from fairq.store.connection import Connection
from fairq.store.node import read_info

log = structlog.get_logger("fairq.store")

WAIT_MS = 2_000  # for replicas; below the timeout of a connection
IDLE_S = 60.0  # without a call, before the connection is closed
_HISTORY = "master_replid"
_MARK_MS = 1_000  # the small write expires by itself


class _Since(NamedTuple):
    """The primary that a call is sent to, and its replication id then."""

    primary: Connection
    connects: int
    history: str


@define(eq=False)
class _Confirming:
    """Confirms the answers of one primary, in bursts."""

    own: Connection
    prefix: str = ""  # a key's, in a slot of this primary
    waiting: list[tuple[Wait, str]] = field(factory=list)  # and the history of each
    has_work: trio.Event = field(factory=trio.Event)


@define(eq=False)
class Replicas:
    """Confirms, while `run` runs, that `count` replicas have the writes that the store has answered."""

    connection: Connection | Cluster
    count: int
    _known: dict[Connection, _Since] = field(factory=dict, init=False)
    _open: dict[Connection, _Confirming] = field(factory=dict, init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)

    async def check(self) -> None:
        """Check that the store has what it takes to wait for replicas; log how many lack. Raises: StoreRefused."""
        for primary in self.connection.nodes():
            await primary.call("WAIT", 0, 1)
            info = read_info(await primary.call("INFO", "replication"))
            if not info.get(_HISTORY):
                raise StoreRefused(f"INFO replication has no {_HISTORY}, which --wait-replicas needs")
            found = int(info.get("connected_slaves", 0))
            if found < self.count:
                log.warning("too few replicas", store=primary.address.shown, connected=found, wait_replicas=self.count)

    async def having(self, prefix: str, send: Callable[[bool], Awaitable[Any]]) -> Any:
        """Send a call with this key, and return its reply when replicas have the same.

        `send(is_at_once)`: nothing has yielded before, or something may have. Raises: as it does, and OutcomeUnknown.
        """
        is_at_once = bool(since := self._since(prefix))
        since = since or await self._look(prefix)
        reply = await send(is_at_once)
        await self._confirm(prefix, since)
        return reply

    def _since(self, prefix: str) -> _Since | None:
        """Return where a call with this key goes, if that is known."""
        primary = self.connection.owner(prefix)
        known = self._known.get(primary) if primary else None
        return known if known and known.connects == known.primary.connects else None

    async def _look(self, prefix: str) -> _Since:
        """Ask the primary that has this key for its replication id. Raises: as Connection.call."""
        while not (known := self._since(prefix)):
            if not (primary := self.connection.owner(prefix)):
                raise Unavailable("no node of the cluster serves this queue")
            connects = primary.connects
            history = _history(await primary.call("INFO", "replication"))
            for gone in self._known.keys() - {*self.connection.nodes()}:
                del self._known[gone]
            self._known[primary] = _Since(primary, connects, history)
        return known

    async def _confirm(self, prefix: str, since: _Since) -> None:
        """Wait until replicas have what the primary has answered to a call with this key. Raises: OutcomeUnknown."""
        primary = since.primary
        if self.connection.owner(prefix) is not primary or not self._nursery:
            raise OutcomeUnknown("the queue has moved to another primary meanwhile")
        if not (confirming := self._open.get(primary)):
            confirming = self._open[primary] = _Confirming(Connection(primary.address, primary.timeout))
            call_from_end(partial(self._nursery.start_soon, self._serve, primary, confirming))
        wait = Wait(turn_time())
        confirming.prefix = prefix
        confirming.waiting.append((wait, since.history))
        call_from_end(confirming.has_work.set)
        if error := await wait:
            self._known.pop(primary, None)
            raise error

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    async def _serve(self, primary: Connection, confirming: _Confirming) -> None:
        async with background(confirming.own.run):
            try:
                while await _has_work(confirming):
                    burst = len(confirming.waiting)
                    history, reason = "", "the primary was replaced"
                    try:
                        history = await self._wait(confirming)
                    except (FairqError, trio.TooSlowError) as error:
                        reason = str(error) or "no connection"
                    confirmed, confirming.waiting = confirming.waiting[:burst], confirming.waiting[burst:]
                    for wait, before in confirmed:
                        wait.end(None if history == before else _unknown(reason))
            finally:  # at once, so that none waits here for a connection that closes
                del self._open[primary]
                for wait, _ in confirming.waiting:
                    wait.end(_unknown("the server stops"))

    async def _wait(self, confirming: _Confirming) -> str:
        """Write something, and wait until replicas have it; return the primary's replication id then."""
        call = confirming.own.call
        with trio.fail_after(confirming.own.timeout):
            await confirming.own.wait_connected()
        await call("SET", f"{confirming.prefix}:confirmed", "", "PX", _MARK_MS)
        found = await call("WAIT", self.count, WAIT_MS)
        if found < self.count:
            raise Unavailable(f"{found} of {self.count} replicas have confirmed it within {WAIT_MS / 1000:g} s")
        return _history(await call("INFO", "replication"))


async def _has_work(confirming: _Confirming) -> bool:
    """Wait for a call; False if none has come for IDLE_S."""
    confirming.has_work = trio.Event()
    if not confirming.waiting:
        with trio.move_on_after(IDLE_S):
            await confirming.has_work.wait()
    return bool(confirming.waiting)


def _history(info: bytes) -> str:
    if history := read_info(info).get(_HISTORY):
        return history
    raise Unavailable("the store names no replication id (INFO replication)")


def _unknown(reason: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"it is stored, but replicas may not have it: {reason}")
