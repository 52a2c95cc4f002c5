"""One client's connection: requests run concurrently, and reading does not wait for them.

A request costs no extra turn of the scheduler before its start or before its answer: the task that has read it carries
it out and sends the answer itself, and another task continues to read meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from time import thread_time
from typing import Any

import structlog
import trio
from attrs import define, field

from fairq.errors import Draining, FairqError, TooMany
from fairq.model.checks import owner_of
from fairq.model.tasks import Lease
from fairq.server.dispatch.tracing import Pushes
from fairq.server.dispatch.worker_account import WorkerAccount
from fairq.server.net.admission import Usage
from fairq.server.net.auth import Identity
from fairq.server.net.refusals import Refusals
from fairq.server.net.tenant_load import TenantLoad, tenants_of
from fairq.transport import PIECE_BYTES, Transport
from fairq.turns import Gate, at_end_of_turn, call_from_end
from fairq.wire.beside import Message
from fairq.wire.endings import Disconnected
from fairq.wire.frames import Drain
from fairq.wire.messages import Credit, Dead, DeadLetter, Enqueue, Peek, Schedules, Tenants, Workers, WorkerTasks
from fairq.wire.server_session import ServerSession
from fairq.wire.terms import CLOSE_SILENT, MAX_PRODUCER_WAITING, MAX_WAITING, TIMEOUT_S, Role, State

log = structlog.get_logger("fairq.server")

MAX_REQUESTS = 256  # under way at once, per connection
MAX_PRODUCER_REQUESTS = 2_500  # the same of a producer, for all its tenants
MAX_TENANT_REQUESTS = 2_500  # over all connections of a tenant: a quarter of what may wait for the store
MAX_UNSENT_BYTES = 2 << 20  # that a worker has not taken; with more it gets no tasks
MAX_UNREAD_BYTES = 4 << 20  # of answers that a client has not taken; with more its requests are not read
LONG_ANSWERS = (
    Peek,
    Dead,
    DeadLetter,
    Schedules,
    Tenants,
    Workers,
    WorkerTasks,
)  # and requests that wait (request_scope.py)
MAX_HELD_BYTES = 4 << 20  # of its requests that have no answer yet; with more, no further ones are read
MAX_LONG_ANSWERS = 4  # made at once, and none while too many bytes are unread
LONG_TEXT_S, RESTS = 0.004, 3  # CPU time of a long message; then the tenant rests 3 times as long as it took
ENDS_AT_ONCE = 64  # waiting requests cancelled in one turn: thousands would block the process
RETRY_MS = 100  # after which a request over a limit may be tried again
END_S = 10.0  # how long a closing connection may take to send its output


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
    drained: Callable[[], None] = lambda: None  # called when the socket has taken all output that waited
    name: str = ""
    queues: tuple[str, ...] = ()
    order: int = 0  # when the worker first attached, by the store, if it keeps its name across restarts
    number: int = 0  # of this attach, by the store: later ones of the same run have greater ones; 0: unknown
    attached_at_ms: int = 0
    requests: int = 0
    closing: tuple[int, str] | None = None
    freed: Callable[[Connection], None] = lambda _: None  # called when leases have expired on its account
    is_leaving: bool = False
    keeps_leases: bool = True  # on its account; those pushed to a worker over HTTP are known to the store alone
    is_over: trio.Event = field(factory=trio.Event, init=False)  # its leases need not be kept any more
    _waits: dict[trio.CancelScope, None] = field(factory=dict, init=False)  # requests that wait
    _held_bytes: int = field(default=0, init=False)
    _answered: trio.Event = field(factory=trio.Event, init=False)
    _waiting: int = field(default=0, init=False)  # tasks, batches and feeds that they wait for
    _long_answers: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(MAX_LONG_ANSWERS), init=False)
    turns: Gate | None = field(default=None, init=False)  # in which its messages are read
    load: TenantLoad | None = field(default=None, init=False)  # of a producer's tenants
    refusals: Refusals | None = field(default=None, init=False)  # of its server
    _pushes: list[Pushes] = field(factory=list, init=False)  # traced ones that the socket has not taken yet
    _sleeps_until: float = field(default=0.0, init=False)
    _woken: trio.Event = field(factory=trio.Event, init=False)
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _writing: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.transport.source, self.transport.stuck = self._outgoing, self._wake
        self.account.may_take = self._may_take
        self.session.refused = self._note_refusal
        if self.identity.role is Role.PRODUCER:
            self.load = TenantLoad()
        if self.usage is not None:
            self.turns = self.usage.turns

    def request_id(self, ref: int | None) -> str:
        """Name a request as its client can, too."""
        return f"{self.session.id}/{'-' if ref is None else ref}"

    def _note_refusal(self, ref: int | None, error: FairqError, verb: str) -> None:
        if self.refusals is not None:
            of = {"role": self.identity.role.value, "tenant": self.identity.tenant, "name": self.name}
            self.refusals.note(error.code, self.request_id(ref), verb=verb, remote=self.transport.remote, **of)

    def _may_take(self) -> bool:
        """True if it may be given tasks: it is attached, and has taken most of the earlier pushes."""
        return self.is_attached and self.unread_bytes <= MAX_UNSENT_BYTES

    @property
    def is_attached(self) -> bool:
        """True if it is a worker that may be given tasks."""
        return self.session.state is State.ATTACHED

    @property
    def is_draining(self) -> bool:
        """True if it is about to end, and gets no more tasks."""
        return self.session.state is State.DRAINING

    def push(
        self, queue: str, lease_ms: int, leases: Sequence[Lease], run_timeout_ms: int = 0, traced: Pushes | None = None
    ) -> None:
        """Give leased tasks to the worker; the pushes of traced ones end when the socket has taken them."""
        self.account.lease(queue, leases, lease_ms / 1000, trio.current_time())
        self.session.push(queue, lease_ms, leases, run_timeout_ms)
        self.wake_writer()
        if traced:
            self._pushes.append(traced)
            at_end_of_turn(self._look_at_pushes)  # behind the writer

    def _look_at_pushes(self) -> None:
        """End the pushes if the socket has taken all; else the task that sends the rest does, or the connection's end.

        What a closing connection had to send may have been dropped.
        """
        if self.unread_bytes or self.closing:
            call_from_end(self._wake)
        else:
            self._end_pushes()

    def _end_pushes(self, error: str = "") -> None:
        pushes, self._pushes = self._pushes, []
        for traced in pushes:
            for end in traced.values():
                end(error)

    def stop(self, queue: str, leases: Mapping[str, int]) -> None:
        """Tell the worker that these tasks were cancelled; id -> lease number."""
        self.session.stop(queue, leases)
        self.wake_writer()

    def _outgoing(self) -> Sequence[Message]:
        return self.session.outgoing(trio.current_time())

    def _wake(self) -> None:
        self._woken.set()

    def wake_writer(self) -> None:
        """Send the session's outbox at the end of the scheduler's turn."""
        self.transport.wake_writer()
        if self.account.over_at < self._sleeps_until:
            self._wake()

    def close(self, code: int, reason: str) -> None:
        """End the connection when the outbox has been sent, or after END_S; later requests are ignored."""
        if self.closing is None:
            self.closing = (code, reason)
            self._scope.deadline = trio.current_time() + END_S
        self._wake()

    def leave(self) -> None:
        """End the connection as soon as it has no request, no wait and no lease."""
        self.is_leaving = True
        self._leave_if_idle()

    @property
    def unread_bytes(self) -> int:
        """How many bytes of answers the socket has not taken yet."""
        return self.session.outgoing_bytes + self.transport.unsent_bytes

    async def room(self) -> None:
        """Wait until at most MAX_UNREAD_BYTES of answers are unread."""
        while self.unread_bytes > MAX_UNREAD_BYTES:
            await self.transport.wait_sent()

    async def wait_turn(self, size: int) -> None:
        """Wait until the tenant's rates allow a message of `size`, and it is its turn."""
        if self.usage is not None:
            await self._rest(self.usage.take(size, trio.current_time()))
        if self.turns is not None:
            await self.turns.enter()
            while self.usage is not None and self.usage.rests_until > (now := trio.current_time()):
                await self._rest(self.usage.rests_until - now)  # one that began in the same turn took long
                await self.turns.enter()

    async def _rest(self, wait_s: float) -> None:
        if wait_s > 0:
            self.session.last_received_at = trio.current_time() + wait_s  # unread: the client has not timed out
            await trio.sleep(wait_s)

    def _take_in(self, message: Message) -> Any | None:
        """Process a message; if that takes long, the tenant's next one must wait."""
        with self.reading():
            return self.session.receive(message, trio.current_time())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Have the tenant rest if the context, in which its text is read, takes long."""
        began = thread_time()
        try:
            yield
        finally:
            took_s = thread_time() - began
            if self.usage is not None and took_s > LONG_TEXT_S:
                self.usage.rests_until = trio.current_time() + RESTS * took_s

    @asynccontextmanager
    async def long_answer(self) -> AsyncIterator[None]:
        """Limit long answers: a few at once, and none while the client has too many bytes unread."""
        async with self._long_answers:
            await self.room()
            yield

    @property
    def owes_answers(self) -> bool:
        """True if requests are under way or waiting on it."""
        return bool(self.requests or self._waits)

    @property
    def is_broken(self) -> bool:
        """True if the connection ended without a close by either side."""
        websocket = self.transport.websocket
        return self.closing is None and not (self.session.is_timed_out or websocket.end[0] or websocket.has_failed)

    def _leave_if_idle(self) -> None:
        if self.is_leaving and not (self.owes_answers or self.account.held):
            self.close(1001, "the server is stopping")

    @contextmanager
    def waiting(self, ids: Sequence[str]) -> Iterator[Callable[[Sequence[str]], None]]:
        """Count a request as waiting for these ids, while the context lasts; yields how to count some off.

        Raises: TooMany, Draining.
        """
        most = MAX_PRODUCER_WAITING if self.load else MAX_WAITING
        if self._waiting + len(ids) > most:
            message = f"too many waits: at most {most} tasks, batches and feeds per connection"
            raise TooMany(message, retry_in_ms=RETRY_MS)
        if self.load:
            self.load.check_waits(ids)
        left, tenants = dict.fromkeys(ids), frozenset(map(owner_of, ids)) if self.load else frozenset[str]()

        def count(some: Sequence[str], more: int) -> None:
            self._waiting += more * len(some)
            if self.load:
                self.load.count_waits(some, more)

        def release(ended: Sequence[str]) -> None:
            count(ended, -1)
            for id in ended:
                del left[id]

        count(ids, 1)
        self._count(-1, tenants)
        scope = trio.CancelScope()
        self._waits[scope] = None
        try:
            with scope:
                yield release
        finally:
            count(list(left), -1)
            del self._waits[scope]
            self._count(1, tenants)
        if scope.cancelled_caught:
            raise Draining("the connection has ended")

    async def _end_waits(self) -> None:
        for n, scope in enumerate(list(self._waits), 1):
            scope.cancel()
            if n % ENDS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def _count(self, requests: int, tenants: frozenset[str]) -> None:
        """Add to the number of requests under way; `tenants`: those of a producer's request."""
        self.requests += requests
        if self.load:
            self.load.count(tenants, requests)
        if self.usage is not None:
            self.usage.under_way += requests

    def request_limit(self, request: Any) -> str:
        """Return which limit of requests under way is reached; empty if none is."""
        if self.load:
            if self.requests >= MAX_PRODUCER_REQUESTS:
                return f"at most {MAX_PRODUCER_REQUESTS} may be under way per connection"
            return "" if isinstance(request, Enqueue) else self.load.limit(tenants_of(request))  # it refuses tenants
        if self.usage is not None and self.usage.under_way >= MAX_TENANT_REQUESTS:
            return f"at most {MAX_TENANT_REQUESTS} may be under way per tenant"
        return f"at most {MAX_REQUESTS} may be under way per connection" if self.requests >= MAX_REQUESTS else ""

    async def run(self) -> None:
        """Serve requests until either side ends the connection."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read, nursery)
                    with self._writing:
                        await self._write()
                    await self._end_waits()
                    self._scope.cancel()
        finally:
            self._end_pushes("the connection ended first")

    def unlink(self) -> None:
        """Break reference cycles at the end, so that the connection is freed at once.

        A garbage collection that looks at 10,000 connections takes 0.3 s.
        """
        self.transport.source, self.transport.stuck, self.account.may_take = tuple, _nothing, bool
        self.drained, self.freed, self.account.owner, self.session.refused = _nothing, _nothing, None, _nothing
        self.transport.websocket.unlink()

    async def _read(self, nursery: trio.Nursery) -> None:
        """Read messages up to a request and carry it out; another task continues to read."""
        while True:
            await self.room()
            while self._held_bytes > MAX_HELD_BYTES:
                await self._answered.wait()
            try:
                message = await self.transport.receive()
            except Disconnected:
                self.account.credit = 0  # no more tasks are pushed to it
                await self.ends.enter()
                self._writing.cancel()
                return
            size = len(message)
            await self.wait_turn(size)
            if self.closing:
                continue
            request = self._take_in(message)
            del message  # a request holds its payloads
            if request is None:
                if self.session.has_outgoing:
                    self.wake_writer()
            elif isinstance(request, Drain):
                self.account.credit = 0
            elif limit := self.request_limit(request):
                refusal = TooMany(f"too many requests: {limit}", retry_in_ms=RETRY_MS)
                self.session.refuse(request.ref, refusal, request.type)
                self.wake_writer()
            elif isinstance(request, Credit):  # needs no store, and must not be overtaken
                await self._answer(request)
                self.wake_writer()
            else:
                with self._holding(size):
                    nursery.start_soon(self._read, nursery)
                    await self._answer(request)
                self.wake_writer()
                return

    @contextmanager
    def _holding(self, size: int) -> Iterator[None]:
        """Count the bytes of a long request while the context lasts."""
        if size <= PIECE_BYTES:  # also of requests that wait for something to happen
            yield
            return
        self._held_bytes += size
        try:
            yield
        finally:
            self._held_bytes -= size
            self._answered.set()
            self._answered = trio.Event()

    async def handle(self, request: Any) -> dict[str, Any]:
        """Do what a request asks, and count it as under way meanwhile; returns the reply's body. Raises: FairqError."""
        tenants = tenants_of(request) if self.load else frozenset[str]()
        self._count(1, tenants)
        try:
            async with self.long_answer() if isinstance(request, LONG_ANSWERS) else nullcontext():
                return await self.handle_request(self, request) or {}
        finally:
            self._count(-1, tenants)

    async def _answer(self, request: Any) -> None:
        try:
            self.session.reply(request.ref, await self.handle(request))
        except FairqError as error:
            self.session.refuse(request.ref, error, request.type)
        except Exception:
            id = self.request_id(request.ref)
            log.exception("request failed", request=id, verb=request.type, remote=self.transport.remote)
            failure = FairqError(f"internal error; the server's log says why: request {id}")
            self.session.refuse(request.ref, failure, request.type)
        self._leave_if_idle()

    async def _write(self) -> None:
        """Send output that the socket did not take at once, and heartbeats, until the end."""
        while True:
            self.session.heard(self.transport.progressed_at)
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
                    )  # when the last of it was sent: no heartbeat is due meanwhile
                    self.drained()
                if self._pushes and not self.closing:
                    self._end_pushes()
            except Disconnected:
                return
            if self.session.is_timed_out:
                log.info("connection timed out", remote=self.transport.remote, name=self.name)
                self.closing = self.closing or (CLOSE_SILENT, f"nothing was received for {TIMEOUT_S:g} s")
            if self.closing:
                await self.transport.close(*self.closing)
                return
            self._sleeps_until = min(self.session.deadline(), self.account.over_at)
            with trio.move_on_at(self._sleeps_until):
                await self._woken.wait()
            self._woken = trio.Event()
