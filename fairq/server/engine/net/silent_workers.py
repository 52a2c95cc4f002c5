"""Workers of one server that are silent: their event loops may be blocked, or their machines gone.

- A worker is silent when nothing has come from it for SILENT_S, though each side sends a heartbeat every HEARTBEAT_S.
  It gets no tasks: it would lose them.
- After TIMEOUT_S its connection is closed. The worker is kept here, with the leases that have not run out: operators
  see who had the tasks, and that it is not well.
- It is forgotten when a worker of its name attaches, at any server; when it is drained; or after KEEP_S.

The log has one line when a silence begins, one when leases have run out in it, and one when it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import structlog
import trio
from attrs import define, field

from fairq.server.engine.net.connection import AttachOrder, Connection
from fairq.wire.terms import SILENT_S

log = structlog.get_logger("fairq.server")

KEEP_S = 600.0
MAX_KEPT = 1_000  # more are forgotten, the oldest first
MAX_REPORTED = 200  # to other servers


class Silence(NamedTuple):
    """A silent worker: since when (ms, by its server's clock), the leases that it holds, and those that ran out."""

    worker: str
    attached_at_ms: int
    queues: Sequence[str]
    since_ms: int
    held: int
    lost: int


def _heard_at(connection: Connection) -> float:
    return connection.session.last_received_at


@define(eq=False)
class SilentWorkers:
    """The silent workers of one server.

    `attached()` yields the connections of workers that are not kept here; `on_change()` is called when others are
    silent, or have lost more.
    """

    attached: Callable[[], Iterable[Connection]]
    on_change: Callable[[], None]
    kept: dict[Connection, None] = field(factory=dict, init=False)
    _looked_at: float = field(default=0.0, init=False)
    _lost: dict[Connection, int] = field(factory=dict, init=False)  # of those in the log, as it has them

    def keep(self, connection: Connection) -> None:
        """Keep a worker after its connection was closed because nothing came."""
        self.kept[connection], connection.is_silent = None, True
        while len(self.kept) > MAX_KEPT:
            self._forget(next(iter(self.kept)))

    def forget_older(self, token: str, worker: str, order: AttachOrder) -> None:
        """Forget the workers of a name that attached no later than this order."""
        for each in self._named(worker):
            if each.identity.token_id == token and each.attach_order <= order:
                self._forget(each)

    def drain(self, worker: str, by: float) -> int:
        """Forget the workers of a name that attached up to a time; returns how many."""
        found = [each for each in self._named(worker) if each.attached_at <= by]
        for each in found:
            self._forget(each)
        return len(found)

    def _named(self, worker: str) -> list[Connection]:
        return [each for each in self.kept if each.name == worker]

    def _forget(self, connection: Connection) -> None:
        del self.kept[connection]
        self.on_change()
        connection.account.drop_all()
        connection.unlink()

    def look(self) -> None:
        """Log silences that begin or end, and forget old ones."""
        now = trio.current_time()
        for each in list(self.attached()):
            if _heard_at(each) > self._looked_at:
                each.account.lost = 0  # it lost them before
            was_silent, each.is_silent = each.is_silent, each.tracks_leases and _heard_at(each) < now - SILENT_S
            if was_silent and not each.is_silent:  # part of a long message has come
                each.room_changed(each)
        self._looked_at = now
        for each in list(self.kept):
            each.account.expire(now)
            if _heard_at(each) < now - KEEP_S:
                self._forget(each)
        found = dict(self._described((*self.attached(), *self.kept)))
        before, self._lost = self._lost, {each: silence.lost for each, silence in found.items()}
        for each, silence in found.items():
            terms = {"worker": each.name, "silent_s": round(now - _heard_at(each))}
            if each not in before:
                log.warning("worker is silent", queues=each.queues, holds=silence.held, remote=each.remote, **terms)
            if silence.lost > before.get(each, 0):
                log.warning("tasks of a silent worker were lost", tasks=silence.lost - before.get(each, 0), **terms)
        for each in before.keys() - found.keys():
            log.info("silent worker is forgotten" if each.closing else "worker is silent no longer", worker=each.name)
        if before != self._lost:
            self.on_change()

    def _described(self, some: Iterable[Connection]) -> Iterator[tuple[Connection, Silence]]:
        ahead_ms = time.time() * 1000 - trio.current_time() * 1000
        for each in some:
            if each.is_silent:
                since_ms, account = round(ahead_ms + _heard_at(each) * 1000), each.account
                yield each, Silence(each.name, each.attached_at_ms, each.queues, since_ms, account.busy, account.lost)

    def silences(self) -> list[Silence]:
        """Describe those that were found silent and still are, the longest silence in front."""
        found = self._described(self._lost.keys() | self.kept.keys())
        return sorted((silence for _, silence in found), key=lambda each: each.since_ms)
