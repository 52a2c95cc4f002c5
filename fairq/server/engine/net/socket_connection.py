"""One websocket: requests run concurrently, and reading does not wait for them.

The task that has read a request begins it, so that it costs no turn more (fairq/io/README.md). One that needs a task
keeps that one, and another task continues to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError, TooMany
from fairq.io.sockets import is_over
from fairq.io.taskless import Taskless
from fairq.io.transport import PIECE_BYTES
from fairq.io.turns import Gate, turn_time
from fairq.model.places import split_place
from fairq.model.tasks import Lease
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.net.tenant_load import RETRY_MS
from fairq.server.engine.net.transport import ServerTransport
from fairq.wire.connection_errors import Disconnected
from fairq.wire.frames import Ping
from fairq.wire.terms import CLOSE_SILENT, TIMEOUT_S, State

log = structlog.get_logger("fairq.server")

MAX_UNSENT_BYTES = 2 << 20  # that a worker has not taken; with more it gets no tasks
MAX_UNREAD_BYTES = 4 << 20  # of answers that a client has not taken; with more its requests are not read
MAX_HELD_BYTES = 4 << 20  # of its requests that have no answer yet; with more, no further ones are read
END_S = 10.0  # how long a closing connection may take to send its output


@define(eq=False)
class SocketConnection(Connection):
    """A client that is connected by a websocket."""

    transport: ServerTransport = field(kw_only=True)
    ends: Gate = field(factory=lambda: Gate(1), kw_only=True)  # of connections: thousands may break at once
    _held_bytes: int = field(default=0, init=False)
    _answered: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _sleeps_until: float = field(default=0.0, init=False)
    _writing: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    async def run(self) -> None:
        """Serve requests until either side ends the connection."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                taskless = Taskless(nursery)
                nursery.start_soon(self._read, taskless)
                try:
                    with self._writing:
                        await self._write()
                    await self._end_waits()
                finally:
                    taskless.close()
                self._scope.cancel()

    def push(self, place: str, lease_ms: int, leases: Sequence[Lease], run_timeout_ms: int, claimed_at: float) -> None:
        """Give leased tasks to the worker, at once: it begins while the rest of the turn goes on."""
        queue, partition = split_place(place)
        self.session.push(queue, lease_ms, leases, run_timeout_ms, self.attached_ms(claimed_at), partition)
        self.transport.send_now()
        self.account.lease(place, leases, lease_ms / 1000, turn_time())
        self._wake_in_time()

    def stop_tasks(self, queue: str, leases: Mapping[str, int]) -> None:
        """Send the worker that these tasks were cancelled; id -> lease number."""
        self.session.stop(queue, leases)
        self.wake_writer()

    def wake_writer(self) -> None:
        """Send the session's outbox at the end of the scheduler's turn."""
        self.transport.wake_writer()
        self._wake_in_time()

    def show_life(self) -> None:
        """Send a sign of life while the server reads nothing, and so answers no ping."""
        self.session.send(Ping.type)
        self.wake_writer()

    def _wake_in_time(self) -> None:
        """Make `_write` wake for the next deadline."""
        if self.account.over_at < self._sleeps_until:
            self._woken.set()

    def close(self, code: int, reason: str) -> None:
        """End the connection when the outbox has been sent, or after END_S; later requests are ignored."""
        if self.closing is None:
            self._scope.deadline = trio.current_time() + END_S
        Connection.close(self, code, reason)

    @property
    def may_take(self) -> bool:
        """True if it may be given tasks: it is attached and heard of, and has taken most of the earlier pushes."""
        unread = self.session.outgoing_bytes + len(self.transport.unsent)
        return unread <= MAX_UNSENT_BYTES and self.session.state is State.ATTACHED and not self.is_silent

    @property
    def unread_bytes(self) -> int:
        """How many bytes of answers the socket has not taken yet."""
        return self.session.outgoing_bytes + len(self.transport.unsent)

    async def wait_taken(self) -> None:
        """Wait until at most MAX_UNREAD_BYTES of answers are unread."""
        while self.unread_bytes > MAX_UNREAD_BYTES:
            await self.transport.wait_sent()

    @property
    def has_gone(self) -> bool:
        """True if the client has closed its end, though this server has not read so far."""
        return is_over(self.transport.stream)

    @property
    def is_broken(self) -> bool:
        """True if the connection ended without a close by either side."""
        websocket = self.transport.websocket
        return self.closing is None and not (self.session.is_timed_out or websocket.end[0] or websocket.has_failed)

    def unlink(self) -> None:
        """Break reference cycles at the end."""
        Connection.unlink(self)
        self.transport.websocket.unlink()

    async def _read(self, taskless: Taskless) -> None:
        """Read messages and begin their requests, up to one that needs a task; another task continues to read."""
        while True:
            if self.unread_bytes > MAX_UNREAD_BYTES:
                await self.wait_taken()
            while self._held_bytes > MAX_HELD_BYTES:
                await self._answered.park()
            try:
                message = await self.transport.receive()
            except Disconnected:
                self.account.credit = 0  # no more tasks are pushed to it
                await self.ends.enter()
                self._writing.cancel()
                return
            size = len(message)
            await self.wait_turn(size)
            now = turn_time()
            since = now - TIMEOUT_S
            if self.closing or (self.session.last_received_at < since and self.transport.progressed_at < since):
                continue  # this server has stood still, or `_write` would have ended it: ids may be forgotten by now
            request = self.read(self.session.receive, message, now)
            if self.is_silent:
                self.is_silent = False
                self.room_changed(self)
            del message  # a request holds its payloads
            if request is None:
                if self.session.has_outgoing:
                    self.wake_writer()
            elif limit := self.reached_limit(request):
                refusal = TooMany(f"too many requests: {limit}", retry_in_ms=RETRY_MS)
                self.session.refuse(request.ref, refusal, request.type)
                self.wake_writer()
            elif rest := taskless.begin(self._carry_out(request, size)):
                taskless.nursery.start_soon(self._read, taskless)
                await rest.finish()
                return

    async def _carry_out(self, request: Any, size: int) -> None:
        """Answer a request; the bytes of a long one are held meanwhile."""
        held = size if size > PIECE_BYTES else 0  # of short ones thousands may wait for minutes
        self._held_bytes += held
        try:
            self.session.reply(request.ref, await self.handle(request))
        except FairqError as error:
            self.session.refuse(request.ref, error, request.type)
        except Exception:
            id = self.request_id(request.ref)
            log.exception("request failed", request=id, verb=request.type, remote=self.remote)
            failure = FairqError(f"internal error; the server's log says why: request {id}")
            self.session.refuse(request.ref, failure, request.type)
        finally:
            if held:
                self._held_bytes -= held
                self._answered.unpark_all()
        self._close_if_idle()
        self.wake_writer()

    async def _write(self) -> None:
        """Send output that the socket did not take at once, and heartbeats, until the end."""
        while True:
            self.session.heard(self.transport.progressed_at)
            self.session.expire(trio.current_time())
            self.account.expire(trio.current_time())
            if self.account.is_freed:
                self.account.is_freed = False
                self.room_changed(self)
                self._close_if_idle()
            try:
                if await self.transport.flush():
                    # When the last of it was sent: no heartbeat is due meanwhile.
                    self.session.last_sent_at = trio.current_time()
                    self.room_changed(self)
            except Disconnected:
                return
            if self.session.is_timed_out:
                log.info("connection timed out", remote=self.remote, name=self.name)
                self.closing = self.closing or (CLOSE_SILENT, f"nothing was received for {TIMEOUT_S:g} s")
            if self.closing:
                await self.transport.close(*self.closing)
                return
            self._sleeps_until = min(self.session.deadline(), self.account.over_at)
            with trio.move_on_at(self._sleeps_until):
                await self._woken.wait()
