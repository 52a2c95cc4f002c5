"""What a client is to its server: identity, limits of its requests, what waits, and a worker's account.

A websocket is one such (net/socket_connection.py), and so are all HTTP requests of one token (web/http/connections.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from time import thread_time
from typing import Any

import structlog
import trio
from attrs import define, field

from fairq.errors import Draining, FairqError, TooMany
from fairq.model.checks import owner_of
from fairq.model.tasks import Lease
from fairq.server.dispatch.worker_account import WorkerAccount
from fairq.server.net.admission import Usage
from fairq.server.net.auth import Identity
from fairq.server.net.refusals import Refusals
from fairq.server.net.tenant_load import RETRY_MS, TenantLoad, tenants_of
from fairq.taskless import in_task
from fairq.turns import Gate
from fairq.wire import messages as wire
from fairq.wire.server_session import ServerSession
from fairq.wire.terms import MAX_PRODUCER_WAITING, MAX_WAITING, Role, State

log = structlog.get_logger("fairq.server")

MAX_REQUESTS = 256  # under way at once, per connection
MAX_PRODUCER_REQUESTS = 2_500  # the same of a producer, for all its tenants
MAX_TENANT_REQUESTS = 2_500  # over all connections of a tenant: a quarter of what may wait for the store
LONG_ANSWERS = (
    wire.Peek,
    wire.Dead,
    wire.DeadLetter,
    wire.Schedules,
    wire.Tenants,
    wire.Workers,
    wire.WorkerTasks,
    wire.Attempts,
)  # and requests that wait (request_scope.py)
TASKLESS = frozenset({wire.Enqueue, wire.Settle, wire.Progress, wire.Credit})  # only call the store, if that
MAX_LONG_ANSWERS = 4  # made at once, and none while too many bytes are unread
SHORT_BYTES = 4_096  # of a text that takes less time to read than to time it
LONG_TEXT_S, RESTS = 0.004, 3  # CPU time of a long message; then the tenant rests 3 times as long as it took
ENDS_AT_ONCE = 64  # waiting requests cancelled in one turn: thousands would block the process
NOTHING = nullcontext()
_NO_TENANTS: frozenset[str] = frozenset()


def nothing(*_: Any) -> None:
    """Do nothing."""


@define(eq=False)
class Connection:
    """A connected client. `handle_request(connection, request)` carries a request out and returns the reply's body."""

    remote: str  # its address
    identity: Identity
    session: ServerSession
    handle_request: Callable[[Connection, Any], Awaitable[dict[str, Any] | None]]
    usage: Usage | None = None  # of its tenant
    account: WorkerAccount = field(factory=WorkerAccount)
    output_sent: Callable[[], None] = nothing  # called when the socket has taken all output that waited
    name: str = ""
    queues: tuple[str, ...] = ()
    order: int = 0  # when the worker first attached, by the store, if it keeps its name across restarts
    number: int = 0  # of this attach, by the store: later ones of the same run have greater ones; 0: unknown
    attached_at_ms: int = 0
    requests: int = 0
    closing: tuple[int, str] | None = None
    freed: Callable[[Connection], None] = nothing  # called when leases have expired on its account
    is_leaving: bool = False
    keeps_leases: bool = True  # on its account; those pushed to a worker over HTTP are known to the store alone
    keeps_no_more: trio.Event = field(factory=trio.Event, init=False)  # set: its leases are given back now
    turns: Gate | None = field(default=None, init=False)  # in which its messages are read
    load: TenantLoad | None = field(default=None, init=False)  # of a producer's tenants
    refusals: Refusals | None = field(default=None, init=False)  # of its server
    _waits: dict[trio.CancelScope, None] = field(factory=dict, init=False)  # requests that wait
    _waiting: int = field(default=0, init=False)  # tasks, batches and feeds that they wait for
    _long_answers: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(MAX_LONG_ANSWERS), init=False)
    _woken: trio.Event = field(factory=trio.Event, init=False)
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.account.may_take = self._may_take
        self.session.refused = self._note_refusal
        if self.identity.role is Role.PRODUCER:
            self.load = TenantLoad()
        if self.usage is not None:
            self.turns = self.usage.turns

    async def run(self) -> None:
        """Serve requests until either side ends the connection."""
        raise NotImplementedError

    def push(self, queue: str, lease_ms: int, leases: Sequence[Lease], run_timeout_ms: int = 0) -> None:
        """Give leased tasks to the worker."""
        raise NotImplementedError

    def stop(self, queue: str, leases: Mapping[str, int]) -> None:
        """Tell the worker that these tasks were cancelled; id -> lease number."""
        raise NotImplementedError

    async def room(self) -> None:
        """Wait until the client has taken most of its answers."""

    def wake_writer(self) -> None:
        """Send what the session has to say."""

    def request_id(self, ref: int | None) -> str:
        """Name a request as its client can, too."""
        return f"{self.session.id}/{'-' if ref is None else ref}"

    def _note_refusal(self, ref: int | None, error: FairqError, verb: str) -> None:
        if self.refusals is not None:
            of = {"role": self.identity.role.value, "tenant": self.identity.tenant, "name": self.name}
            self.refusals.note(error.code, self.request_id(ref), verb=verb, remote=self.remote, **of)

    def _may_take(self) -> bool:
        """True if it may be given tasks."""
        return self.is_attached

    @property
    def is_attached(self) -> bool:
        """True if it is a worker that may be given tasks."""
        return self.session.state is State.ATTACHED

    @property
    def is_draining(self) -> bool:
        """True if it is about to end, and gets no more tasks."""
        return self.session.state is State.DRAINING

    @property
    def is_broken(self) -> bool:
        """True if the connection ended without a close by either side."""
        return False

    @property
    def owes_answers(self) -> bool:
        """True if requests are under way or waiting on it."""
        return bool(self.requests or self._waits)

    def close(self, code: int, reason: str) -> None:
        """End the connection; later requests are ignored."""
        self.closing = self.closing or (code, reason)
        self._woken.set()

    def leave(self) -> None:
        """End the connection as soon as it has no request, no wait and no lease."""
        self.is_leaving = True
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if self.is_leaving and not (self.owes_answers or self.account.held):
            self.close(1001, "the server is stopping")

    async def wait_turn(self, size: int) -> None:
        """Wait until the tenant's rates allow a message of `size`, and it is its turn."""
        if self.usage is not None and (wait_s := self.usage.take(size, trio.current_time())) > 0:
            await self._rest(wait_s)
        if self.turns is not None:
            await self.turns.enter()
            while (
                self.usage is not None
                and self.usage.rests_until
                and self.usage.rests_until > (now := trio.current_time())
            ):
                await self._rest(self.usage.rests_until - now)  # one that began in the same turn took long
                await self.turns.enter()

    async def _rest(self, wait_s: float) -> None:
        self.session.last_received_at = trio.current_time() + wait_s  # unread: the client has not timed out
        await trio.sleep(wait_s)

    def reading(self, size: int) -> AbstractContextManager[None]:
        """Have the tenant rest if the context, in which its text is read, takes long; a short one cannot."""
        return self._timed() if size > SHORT_BYTES else NOTHING

    @contextmanager
    def _timed(self) -> Iterator[None]:
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
        left, tenants = dict.fromkeys(ids), frozenset(map(owner_of, ids)) if self.load else _NO_TENANTS

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
        """Add to the number of requests under way; `tenants` are the tenants of a producer's request."""
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
            is_enqueue = isinstance(request, wire.Enqueue)  # it refuses tenants
            return "" if is_enqueue else self.load.limit(tenants_of(request))
        if self.usage is not None and self.usage.under_way >= MAX_TENANT_REQUESTS:
            return f"at most {MAX_TENANT_REQUESTS} may be under way per tenant"
        return f"at most {MAX_REQUESTS} may be under way per connection" if self.requests >= MAX_REQUESTS else ""

    async def handle(self, request: Any) -> dict[str, Any]:
        """Do what a request asks, and count it as under way meanwhile; returns the reply's body. Raises: FairqError."""
        tenants = tenants_of(request) if self.load else _NO_TENANTS
        self._count(1, tenants)
        try:
            if type(request) in TASKLESS:
                return await self.handle_request(self, request) or {}
            await in_task()
            async with self.long_answer() if isinstance(request, LONG_ANSWERS) else nullcontext():
                return await self.handle_request(self, request) or {}
        finally:
            self._count(-1, tenants)

    def unlink(self) -> None:
        """Break reference cycles at the end, so that the connection is freed at once.

        A garbage collection that looks at 10,000 connections takes 0.3 s.
        """
        self.output_sent, self.freed = nothing, nothing
        self.account.may_take, self.account.owner, self.session.refused = bool, None, nothing
