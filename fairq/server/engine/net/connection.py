"""A client's connection at its server: identity, limits of its requests, waiting requests, and a worker's account.

A websocket is one such (net/socket_connection.py), and so are all HTTP requests of one token (web/http/connections.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from math import floor
from time import thread_time
from typing import Any, NamedTuple, TypeVar

import structlog
import trio
from attrs import define, field

from fairq.errors import Draining, FairqError, TooMany
from fairq.io.auto_reset_event import AutoResetEvent
from fairq.io.taskless import in_task
from fairq.io.turns import Gate, turn_time
from fairq.model.checks import owner_of
from fairq.model.tasks import Lease
from fairq.server.engine.dispatch.capacity import Pool
from fairq.server.engine.dispatch.worker_account import WorkerAccount
from fairq.server.engine.net.admission import Usage
from fairq.server.engine.net.auth import Identity
from fairq.server.engine.net.refusals import Refusals
from fairq.server.engine.net.tenant_load import RETRY_MS, TenantLoad, tenants_of
from fairq.wire import messages as wire
from fairq.wire.raw_payloads import Message
from fairq.wire.server_session import ServerSession
from fairq.wire.terms import CLOSE_SILENT, MAX_PRODUCER_WAITING, MAX_WAITING, Role, State

T = TypeVar("T")

log = structlog.get_logger("fairq.server")

MAX_REQUESTS = 256  # under way at once, per connection
MAX_PRODUCER_REQUESTS = 2_500  # the same of a producer, for all its tenants
MAX_TENANT_REQUESTS = 2_500  # over all connections of a tenant: a quarter of what may wait for the store
LONG_ANSWERS = (  # as are those of requests that wait (request_scope.py)
    wire.BatchResults,
    wire.Peek,
    wire.Dead,
    wire.DeadLetter,
    wire.Schedules,
    wire.Tenants,
    wire.Workers,
    wire.WorkerTasks,
    wire.Attempts,
)
TASKLESS = frozenset({wire.Enqueue, wire.Settle, wire.Progress, wire.Credit})  # only call the store, if that
MAX_LONG_ANSWERS = 4  # made at once, and none while too many bytes are unread
SHORT_BYTES = 4_096  # reading a shorter text takes less time than measuring it
LONG_TEXT_S, RESTS = 0.004, 3  # CPU time of a long message; then the tenant rests 3 times as long as it took
ENDS_AT_ONCE = 64  # waiting requests cancelled in one turn: thousands would block the process
SIGN_S = 1.0  # between signs of life while nothing is read: clients leave a server that is silent for 5 s
NO_CONTEXT = nullcontext()
_NO_TENANTS: frozenset[str] = frozenset()


def nothing(*_: Any) -> None:
    """Do nothing."""


class AttachOrder(NamedTuple):
    """Where an attach stands among those of a worker's name, by the store: the greatest is the newest. 0: unknown."""

    run: int = 0  # when this run of the worker first attached
    number: float = 0  # of the attach


@define(eq=False)
class Connection:
    """A connected client.

    `handle_request(connection, request)` (in verbs/table.py) carries a request out and returns the reply's body.
    `room_changed(connection)` is called when a worker may be given more tasks: leases have expired, or its socket has
    taken all output.
    """

    remote: str  # its address
    identity: Identity
    session: ServerSession
    handle_request: Callable[[Connection, Any], Awaitable[dict[str, Any] | None]]
    usage: Usage | None = None  # of its tenant
    room_changed: Callable[[Connection], None] = nothing
    refusals: Refusals | None = None  # of its server
    requests: int = 0  # under way
    closing: tuple[int, str] | None = None  # the code and reason with which it ends
    closes_when_idle: bool = False
    turns: Gate | None = field(default=None, init=False)  # in which its messages are read
    tenant_load: TenantLoad | None = field(default=None, init=False)  # of a producer's tenants

    # Of a worker:
    name: str = ""
    queues: tuple[str, ...] = ()
    attached_at: float = 0.0  # by trio's clock
    attached_at_ms: int = 0  # by this server's, for people
    attach_order: AttachOrder = field(factory=AttachOrder)  # if it keeps its name across restarts
    account: WorkerAccount = field(factory=WorkerAccount)
    pool: Pool | None = field(default=None, init=False)  # while it is attached, if it has several queues
    tracks_leases: bool = True  # on its account; those pushed to a worker over HTTP are known to the store alone
    end_leases_now: trio.Event = field(factory=trio.Event, init=False)  # set: its leases are kept for it no longer
    is_silent: bool = field(default=False, init=False)  # nothing has come from it for too long: silent_workers.py
    is_alive_elsewhere: bool = field(default=False, init=False)  # the same run of its worker has attached again

    _waits: dict[trio.CancelScope, None] = field(factory=dict, init=False)  # requests that wait
    _waited_for: int = field(default=0, init=False)  # tasks, batches and feeds that they wait for
    _long_answers: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(MAX_LONG_ANSWERS), init=False)
    _woken: AutoResetEvent = field(factory=partial(AutoResetEvent, trio.Event), kw_only=True)  # ends the sleep of `run`
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.session.refused = self._note_refusal
        if self.identity.role is Role.PRODUCER:
            self.tenant_load = TenantLoad()
        if self.usage is not None:
            self.turns = self.usage.turns

    async def run(self) -> None:
        """Serve requests until either side ends the connection."""
        raise NotImplementedError

    def push(self, place: str, lease_ms: int, leases: Sequence[Lease], run_timeout_ms: int, claimed_at: float) -> None:
        """Give leased tasks to the worker; they were claimed at this time or later."""
        raise NotImplementedError

    def stop_tasks(self, queue: str, leases: Mapping[str, int]) -> None:
        """Send the worker that these tasks were cancelled; id -> lease number."""
        raise NotImplementedError

    async def wait_taken(self) -> None:
        """Wait until the client has taken most of its answers."""

    def wake_writer(self) -> None:
        """Send what the session has to say."""

    def show_life(self) -> None:
        """Send a sign of life while the server reads nothing, and so answers no ping."""

    def request_id(self, ref: int | None) -> str:
        """Name a request as its client can, too."""
        return f"{self.session.id}/{'-' if ref is None else ref}"

    def _note_refusal(self, ref: int | None, error: FairqError, verb: str) -> None:
        if self.refusals is not None:
            of = {"role": self.identity.role.value, "tenant": self.identity.tenant, "name": self.name}
            self.refusals.note(error.code, self.request_id(ref), verb=verb, remote=self.remote, **of)

    @property
    def may_take(self) -> bool:
        """True if it may be given tasks."""
        return self.is_attached

    @property
    def is_attached(self) -> bool:
        """True if it is an attached worker, which does not drain."""
        return self.session.state is State.ATTACHED

    @property
    def takes_tasks(self) -> bool:
        """True if it is an attached worker that is not silent."""
        return self.is_attached and not self.is_silent

    @property
    def ended_silent(self) -> bool:
        """True if it is a worker's, and was closed since nothing came."""
        return bool(self.queues) and self.closing is not None and self.closing[0] == CLOSE_SILENT

    def attached_ms(self, at: float) -> int:
        """Return for how long the worker had been attached at a time of trio's clock; less than 0: it was not yet."""
        return floor((at - self.attached_at) * 1000)

    @property
    def is_draining(self) -> bool:
        """True if it is about to end, and gets no more tasks."""
        return self.session.state is State.DRAINING

    @property
    def is_broken(self) -> bool:
        """True if the connection ended without a close by either side."""
        return False

    @property
    def has_gone(self) -> bool:
        """True if the client has closed its end, though this server has not read up to there.

        If this server stood still, the client may have sent the same requests, and newer ones, to another server: a
        setting that is carried out late would undo a newer one. TASKLESS requests do no harm: they have ids or leases.
        """
        return False

    @property
    def owes_answers(self) -> bool:
        """True if requests are under way or waiting on it."""
        return bool(self.requests or self._waits)

    def close(self, code: int, reason: str) -> None:
        """End the connection; later requests are ignored."""
        self.closing = self.closing or (code, reason)
        self._woken.set()

    def close_when_idle(self) -> None:
        """End the connection as soon as it has no request, no wait and no lease."""
        self.closes_when_idle = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self.closes_when_idle and not (self.owes_answers or self.account.held):
            self.close(1001, "the server is stopping")

    async def wait_turn(self, size: int) -> None:
        """Wait until the tenant's rates allow a message of `size`, and it is its turn."""
        usage = self.usage
        if usage is not None and (wait_s := usage.take(size, turn_time())) > 0:
            await self._rest(wait_s)
        if self.turns is None:
            return
        await self.turns.enter()
        while usage is not None and usage.rests_until and (rest_s := usage.rests_until - trio.current_time()) > 0:
            await self._rest(rest_s)  # one that began in the same turn took long
            await self.turns.enter()

    async def _rest(self, wait_s: float) -> None:
        self.session.last_received_at = trio.current_time() + wait_s  # unread: the client has not timed out
        while wait_s > SIGN_S:
            self.show_life()
            await trio.sleep(SIGN_S)
            wait_s -= SIGN_S
        await trio.sleep(wait_s)

    def read(self, reader: Callable[..., T], text: Message, *more: Any) -> T:
        """Read a text by `reader`; the tenant rests if that takes long, as a short one cannot."""
        if len(text) <= SHORT_BYTES:
            return reader(text, *more)
        began = thread_time()
        try:
            return reader(text, *more)
        finally:
            took_s = thread_time() - began
            if self.usage is not None and took_s > LONG_TEXT_S:
                self.usage.rests_until = trio.current_time() + RESTS * took_s

    @asynccontextmanager
    async def long_answer(self) -> AsyncIterator[None]:
        """Limit long answers: a few at once, and none while the client has too many bytes unread."""
        async with self._long_answers:
            await self.wait_taken()
            yield

    @contextmanager
    def waiting(self, ids: Sequence[str]) -> Iterator[Callable[[Sequence[str]], None]]:
        """Count a request as waiting for these ids, while the context lasts; yields how to count some off.

        Raises: TooMany, Draining.
        """
        most = MAX_PRODUCER_WAITING if self.tenant_load else MAX_WAITING
        if self._waited_for + len(ids) > most:
            message = f"too many waits: at most {most} tasks, batches and feeds per connection"
            raise TooMany(message, retry_in_ms=RETRY_MS)
        if self.tenant_load:
            self.tenant_load.check_waits(ids)
        left, tenants = dict.fromkeys(ids), frozenset(map(owner_of, ids)) if self.tenant_load else _NO_TENANTS

        def count(some: Sequence[str], more: int) -> None:
            self._waited_for += more * len(some)
            if self.tenant_load:
                self.tenant_load.count_waits(some, more)

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
        if self.tenant_load:
            self.tenant_load.count(tenants, requests)
        if self.usage is not None:
            self.usage.under_way += requests

    def reached_limit(self, request: Any) -> str:
        """Return which limit of requests under way is reached; empty if none is."""
        if self.tenant_load:
            if self.requests >= MAX_PRODUCER_REQUESTS:
                return f"at most {MAX_PRODUCER_REQUESTS} may be under way per connection"
            is_enqueue = isinstance(request, wire.Enqueue)  # it refuses tenants
            return "" if is_enqueue else self.tenant_load.reached_limit(tenants_of(request))
        if self.usage is not None and self.usage.under_way >= MAX_TENANT_REQUESTS:
            return f"at most {MAX_TENANT_REQUESTS} may be under way per tenant"
        return f"at most {MAX_REQUESTS} may be under way per connection" if self.requests >= MAX_REQUESTS else ""

    async def handle(self, request: Any) -> dict[str, Any]:
        """Do what a request asks, and count it as under way meanwhile; returns the reply's body. Raises: FairqError."""
        tenants = tenants_of(request) if self.tenant_load else _NO_TENANTS
        self._count(1, tenants)
        try:
            if type(request) in TASKLESS:
                return await self.handle_request(self, request) or {}
            await in_task()
            if self.has_gone:
                raise Draining("the connection has ended")
            async with self.long_answer() if isinstance(request, LONG_ANSWERS) else NO_CONTEXT:
                return await self.handle_request(self, request) or {}
        finally:
            self._count(-1, tenants)

    def unlink(self) -> None:
        """Break reference cycles at the end, so that the connection is freed at once.

        A garbage collection that looks at 10,000 connections takes 0.3 s.
        """
        self.account.owner, self.session.refused = None, nothing
