"""One client's connection: requests are carried out side by side, and reading waits for none of them.

A request costs no turn of the scheduler between its arrival and its beginning, nor between its end and its answer:
the task that has read it carries it out and sends the answer itself, and a successor reads on meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from time import thread_time
from typing import Any

import structlog
import trio
from attrs import define, field

from fairq.errors import BadFrame, Draining, FairqError, TooMany
from fairq.model.tasks import Lease
from fairq.server.dispatch.worker_account import WorkerAccount
from fairq.server.net.admission import Usage
from fairq.server.net.auth import Identity
from fairq.transport import Disconnected, Transport
from fairq.turns import Gate
from fairq.wire.messages import CLOSE_SILENT, Credit, Dead, DeadLetter, Drain, Peek, Schedules, State, Tenants, Workers
from fairq.wire.server_session import ServerSession

log = structlog.get_logger("fairq.server")

MAX_REQUESTS = 256  # under way at once, per connection
MAX_TENANT_REQUESTS = 2_500  # over all connections of a tenant: a quarter of what may wait for the store
MAX_WAITING = 4_096  # tasks, batches and feeds that requests only wait for
MAX_UNSENT_BYTES = 2 << 20  # that wait for a worker to take them, before it is given more tasks
MAX_UNREAD_BYTES = 4 << 20  # of answers that the client has not taken yet: nothing more is read from it meanwhile
LONG_ANSWERS = (Peek, Dead, DeadLetter, Schedules, Tenants, Workers)  # and those of requests that wait (asking.py)
MAX_LONG_ANSWERS = 4  # made at once, and none while too much is unread
LONG_TEXT_S, RESTS = 0.004, 3  # of CPU; whoever sends a text that takes longer to read has a fourth of the time at most
ENDS_AT_ONCE = 64  # requests that wait, when their connection has gone: thousands would hold up everybody
RETRY_MS = 100  # after which a request may be tried again that was one too many
END_S = 10.0  # how long a connection that is to end may take for what it still has to say


def _nothing(*_: Any) -> None:
    pass


@define(eq=False)
class Connection:
    """A connected client. `handle_request(connection, request)` carries a request out and returns the reply's body."""

    transport: Transport
    identity: Identity
    session: ServerSession
    handle_request: Callable[[Connection, Any], Awaitable[dict[str, Any] | None]]
    usage: Usage | None = None  # of its tenant
    ends: Gate = field(factory=lambda: Gate(1))  # of connections: thousands may break at once
    account: WorkerAccount = field(factory=WorkerAccount)
    drained: Callable[[], None] = lambda: None  # called when the socket has taken what it had not taken at once
    name: str = ""
    queues: tuple[str, ...] = ()
    order: int = 0  # when the worker came first, by the store, if its name is its own
    attached_at_ms: int = 0
    requests: int = 0
    closing: tuple[int, str] | None = None
    freed: Callable[[Connection], None] = lambda _: None  # leases are off its account, since their time is over
    is_leaving: bool = False
    is_over: trio.Event = field(factory=trio.Event, init=False)  # its leases need not be kept any more
    _waits: dict[trio.CancelScope, None] = field(factory=dict, init=False)  # requests that wait
    _waiting: int = field(default=0, init=False)  # for so many things
    _long_answers: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(MAX_LONG_ANSWERS), init=False)
    _sleeps_until: float = field(default=0.0, init=False)
    _woken: trio.Event = field(factory=trio.Event, init=False)
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _writing: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.transport.source, self.transport.stuck = self._outgoing, self._wake
        self.account.may_take = self._may_take

    def _may_take(self) -> bool:
        """Whether it may be given tasks: an attached worker that has taken most of what was pushed before."""
        return self.is_attached and self.unread_bytes <= MAX_UNSENT_BYTES

    @property
    def is_attached(self) -> bool:
        """Whether it is a worker that may be given tasks."""
        return self.session.state is State.ATTACHED

    @property
    def is_draining(self) -> bool:
        """Whether it is to end, and is given nothing more."""
        return self.session.state is State.DRAINING

    def push(self, queue: str, lease_ms: int, leases: Sequence[Lease]) -> None:
        """Give leased tasks to the worker."""
        self.account.lease(queue, leases, lease_ms / 1000, trio.current_time())
        self.session.push(queue, lease_ms, leases)
        self.wake_writer()

    def stop(self, queue: str, leases: Mapping[str, int]) -> None:
        """Tell the worker that these tasks were cancelled; id -> lease number."""
        self.session.stop(queue, leases)
        self.wake_writer()

    def _outgoing(self) -> Sequence[str]:
        return self.session.outgoing(trio.current_time())

    def _wake(self) -> None:
        self._woken.set()

    def wake_writer(self) -> None:
        """Have what the session's outbox holds sent, at the end of the scheduler's turn."""
        self.transport.wake_writer()
        if self.account.over_at < self._sleeps_until:
            self._wake()

    def close(self, code: int, reason: str) -> None:
        """End the connection when the outbox has been sent, or after END_S; what it still asks is not heard."""
        if self.closing is None:
            self.closing = (code, reason)
            self._scope.deadline = trio.current_time() + END_S
        self._wake()

    def leave(self) -> None:
        """End the connection as soon as nothing is under way on it: no request, no wait, and no lease."""
        self.is_leaving = True
        self._leave_if_idle()

    @property
    def unread_bytes(self) -> int:
        """How many bytes of answers the socket has not taken yet."""
        return self.session.outgoing_bytes + self.transport.unsent_bytes

    async def _room(self) -> None:
        """Wait until the client has taken enough of its answers."""
        while self.unread_bytes > MAX_UNREAD_BYTES:
            await self.transport.wait_sent()

    async def _wait_turn(self, size: int) -> None:
        """Read on when the tenant may send more."""
        now = trio.current_time()
        if self.usage is not None and (wait_s := self.usage.take(size, now)):
            self.session.last_received_at = now + wait_s  # it is not the client that is silent
            await trio.sleep(wait_s)

    def _take_in(self, text: str) -> Any | None:
        """Read a text; where that takes long, the tenant rests before its next one is taken in."""
        began = thread_time()
        request = self.session.receive(text, trio.current_time())
        took_s = thread_time() - began
        if self.usage is not None and took_s > LONG_TEXT_S:
            self.usage.rests_until = trio.current_time() + RESTS * took_s
        return request

    @asynccontextmanager
    async def long_answer(self) -> AsyncIterator[None]:
        """Make what may be a long answer: a few at once, and none while the client has not taken others."""
        async with self._long_answers:
            await self._room()
            yield

    @property
    def owes_answers(self) -> bool:
        """Whether requests are under way on it; some may only wait for something to happen."""
        return bool(self.requests or self._waits)

    @property
    def is_broken(self) -> bool:
        """Whether the connection ended without a word of either side."""
        websocket = self.transport.websocket
        return self.closing is None and not (self.session.is_timed_out or websocket.end[0] or websocket.has_failed)

    def _leave_if_idle(self) -> None:
        if self.is_leaving and not (self.owes_answers or self.account.held):
            self.close(1001, "the server stops")

    @contextmanager
    def waiting(self, things: int) -> Iterator[None]:
        """Count a request among those that wait, for so many things, while the context lasts. Raises: TooMany."""
        if self._waiting + things > MAX_WAITING:
            raise TooMany(
                f"requests would wait for more than {MAX_WAITING} tasks, batches and feeds", retry_in_ms=RETRY_MS
            )
        self._waiting += things
        self._count(-1)
        scope = trio.CancelScope()
        self._waits[scope] = None
        try:
            with scope:
                yield
        finally:
            self._waiting -= things
            del self._waits[scope]
            self._count(1)
        if scope.cancelled_caught:
            raise Draining("the connection has ended")

    async def _end_waits(self) -> None:
        for n, scope in enumerate(list(self._waits), 1):
            scope.cancel()
            if n % ENDS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def _count(self, requests: int) -> None:
        """Note that so many more requests are under way."""
        self.requests += requests
        if self.usage is not None:
            self.usage.under_way += requests

    def _has_too_many(self) -> bool:
        if self.usage is not None and self.usage.under_way >= MAX_TENANT_REQUESTS:
            return True
        return self.requests >= MAX_REQUESTS

    async def run(self) -> None:
        """Converse until either side ends it."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, nursery)
                with self._writing:
                    await self._write()
                await self._end_waits()
                self._scope.cancel()

    def unlink(self) -> None:
        """Let go of what leads back to it, for it is used no more.

        So it is freed at once: a garbage collection that looks at 10,000 connections takes 0.3 s.
        """
        self.transport.source, self.transport.stuck, self.account.may_take = tuple, _nothing, bool
        self.drained, self.freed, self.account.owner = _nothing, _nothing, None
        self.transport.websocket.unlink()

    async def _read(self, nursery: trio.Nursery) -> None:
        """Take in texts up to a request and carry that out; a successor reads on."""
        while True:
            await self._room()
            try:
                text = await self.transport.receive()
            except Disconnected:
                self.account.credit = 0  # nothing more is pushed into it
                await self.ends.enter()
                self._writing.cancel()
                return
            except BadFrame as error:
                self.session.refuse(None, error)
                self.wake_writer()
                continue
            await self._wait_turn(len(text))
            if self.closing:
                continue
            request = self._take_in(text)
            if request is None:
                if self.session.has_outgoing:
                    self.wake_writer()
            elif isinstance(request, Drain):
                self.account.credit = 0
            elif self._has_too_many():
                refusal = TooMany(f"{self.requests} requests are under way", retry_in_ms=RETRY_MS)
                self.session.refuse(request.ref, refusal)
                self.wake_writer()
            elif isinstance(request, Credit):  # needs no store, and must not be overtaken
                await self._answer(request)
                self.wake_writer()
            else:
                nursery.start_soon(self._read, nursery)
                await self._answer(request)
                self.wake_writer()
                return

    async def _answer(self, request: Any) -> None:
        self._count(1)
        try:
            async with self.long_answer() if isinstance(request, LONG_ANSWERS) else nullcontext():
                body = await self.handle_request(self, request)
                self.session.reply(request.ref, body or {})
        except FairqError as error:
            self.session.refuse(request.ref, error)
        except Exception:
            log.exception("request failed", verb=request.type, remote=self.transport.remote)
            self.session.refuse(request.ref, FairqError("the server failed; its log says why"))
        finally:
            self._count(-1)
        self._leave_if_idle()

    async def _write(self) -> None:
        """Send what the socket did not take at once, and keep the heart's deadlines, until the end."""
        while True:
            self.session.expire(trio.current_time())
            self.account.expire(trio.current_time())
            if self.account.is_freed:
                self.account.is_freed = False
                self.freed(self)
                self._leave_if_idle()
            try:
                if await self.transport.flush():
                    self.session.last_sent_at = (
                        trio.current_time()
                    )  # when the last of it left: no beat falls due meanwhile
                    self.drained()
            except Disconnected:
                return
            if self.session.is_timed_out:
                log.info("connection silent", remote=self.transport.remote, name=self.name)
                self.closing = self.closing or (CLOSE_SILENT, "nothing was heard for too long")
            if self.closing:
                await self.transport.close(*self.closing)
                return
            self._sleeps_until = min(self.session.deadline(), self.account.over_at)
            with trio.move_on_at(self._sleeps_until):
                await self._woken.wait()
            self._woken = trio.Event()
