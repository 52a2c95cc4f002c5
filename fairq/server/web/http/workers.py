"""Workers over HTTP: a claim waits for tasks as an attached worker does, and its leases are then the store's to keep.

A worker (a name, of a token, of a queue) is attached from its first claim until CALLER_S after its last request, and
while it holds leases. Its slots are as many as the claims that wait ask for, and one for each lease that it was given
and that has not ended, as far as is known here. The leases are not kept on its account: the server does not know
whether the client lives. So they end when it settles them, at any server, or when their time is over; one that ends at
another server counts here until its time is over.

A name that operators drain gets nothing more at any server that has heard of it, until it has not asked for DRAINED_S:
no connection ends between a drained client and the next one of that name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import structlog
import trio
from attrs import define, field

from fairq.errors import Draining, TooMany
from fairq.model.places import queue_of
from fairq.model.rules import QUEUE
from fairq.model.tasks import Lease, Outcome, Settlement
from fairq.server.engine.app import App
from fairq.server.engine.dispatch.giving_back import give_back
from fairq.server.engine.dispatch.worker_account import OVER_S, TaskKey
from fairq.server.engine.net.auth import Identity
from fairq.server.engine.net.drained_names import DRAINED_S
from fairq.server.web.http.bounds import CLAIM_BYTES, MAX_TOKEN_WORKERS, MAX_WORKERS, RETRY_MS
from fairq.server.web.http.connections import HttpConnection, make_connection
from fairq.wire import messages as wire
from fairq.wire import terms
from fairq.wire.server_session import why_not

log = structlog.get_logger("fairq.server")
_DRAINED = f"an operator has drained this worker; it gets tasks under another name, or after {DRAINED_S:g} s of silence"


@define(eq=False)
class Claim:
    """One request for tasks, and the tasks that it got."""

    wanted: int
    lease_ms: int = field(default=0, init=False)
    run_timeout_ms: int = field(default=0, init=False)
    leases: list[Lease] = field(factory=list, init=False)
    answered: trio.Event = field(factory=trio.Event, init=False)


@define(eq=False)
class HttpWorker(HttpConnection):
    """A worker that passes its tasks to waiting claims, the oldest first."""

    app: App = field(kw_only=True, default=None)
    attached: trio.Event = field(factory=trio.Event, init=False)  # or it has failed: then it is closing
    holders: dict[TaskKey, HttpWorker] = field(kw_only=True, factory=dict)  # of all leases handed out over HTTP here
    _claims: deque[Claim] = field(factory=deque, init=False)
    _handed: dict[TaskKey, tuple[int, float]] = field(factory=dict, init=False)  # -> number, when over; in order
    _lease_s: float = field(default=0.0, init=False)

    def push(self, place: str, lease_ms: int, leases: Sequence[Lease], run_timeout_ms: int, claimed_at: float) -> None:
        """Give leased tasks to the waiting claims; tasks without a claim are given back."""
        queue = queue_of(place)
        left, self._lease_s = list(leases), lease_ms / 1000
        while left and self._claims:
            claim = self._claims.popleft()
            claim.leases, left = left[: claim.wanted], left[claim.wanted :]
            self._hold({(queue, each.id): each.lease for each in claim.leases})
            claim.lease_ms, claim.run_timeout_ms = lease_ms, run_timeout_ms
            claim.answered.set()
        self._offer()
        if left:
            self.return_soon(queue, left)

    def stop_tasks(self, queue: str, leases: object) -> None:
        """Send nothing about cancelled tasks: the answer to their extension or settlement says so."""

    def return_soon(self, queue: str, leases: Sequence[Lease]) -> None:
        """Return leases that no client has received, though the caller may be cancelled."""
        self.ended({(queue, each.id): each.lease for each in leases})
        fenced = [(each.id, each.lease, 0) for each in leases]
        self.app.nursery.start_soon(give_back, self.app.store, queue, fenced, "release")

    def close_when_idle(self) -> None:
        """End the connection; claims that wait are answered."""
        for claim in self._claims:
            claim.answered.set()
        super().close_when_idle()

    def _offer(self) -> None:
        self.account.handed = len(self._handed)
        waiting = sum(claim.wanted for claim in self._claims)
        self.account.credit = min(terms.MAX_CREDIT, waiting) + self.account.handed
        self.app.queues.credit_changed(self)

    def _hold(self, leases: Mapping[TaskKey, int]) -> None:
        """Count leases from now on, until their time is over."""
        self.ended({key: self.holders[key]._handed[key][0] for key in leases if key in self.holders})
        over_at = trio.current_time() + self._lease_s + OVER_S
        self._handed |= {key: (lease, over_at) for key, lease in leases.items()}
        self.holders.update(dict.fromkeys(leases, self))

    def settled(self, queue: str, settlements: Sequence[Settlement], outcomes: Sequence[Outcome]) -> None:
        """Count the leases that it has extended, other servers' included, and stop counting those that ended."""
        settled = list(zip(settlements, outcomes, strict=True))
        extended = {(queue, s.id): s.lease for s, outcome in settled if (s.action, outcome) == ("extend", "ok")}
        self.ended({(queue, s.id): s.lease for s, _ in settled if (queue, s.id) not in extended})
        if self._lease_s and extended:
            self._hold(extended)
            self._offer()

    def ended(self, leases: Mapping[TaskKey, int]) -> None:
        """Stop counting leases that have ended, whichever worker here had them."""
        for key, lease in leases.items():
            holder = self.holders.get(key)
            if holder is not None and holder._handed[key][0] == lease:
                del holder._handed[key], self.holders[key]
                holder._offer()

    def _until(self) -> float:
        now = trio.current_time()
        while self._handed:
            key, (lease, over_at) = next(iter(self._handed.items()))
            if over_at > now:
                return over_at
            self.ended({key: lease})
        return super()._until()

    def unlink(self) -> None:
        """Break reference cycles at the end; only a server that stops has leases left here."""
        self.ended({key: lease for key, (lease, _) in self._handed.items()})
        super().unlink()

    async def _wait(self, claim: Claim, queue: str, wait_s: float) -> None:
        """Wait until a claim is answered or its time is over: without any, until the queue is known to be empty."""
        if wait_s:
            with trio.move_on_after(wait_s):
                await claim.answered.wait()
            return

        async def look(scope: trio.CancelScope) -> None:
            await self.app.queues.wait_empty(queue)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look, nursery.cancel_scope)
            await claim.answered.wait()
            nursery.cancel_scope.cancel()

    async def claim(self, queue: str, count: int, wait_s: float) -> Claim:
        """Wait for tasks. Cancelled: they are given back. Raises: Draining."""
        claim = Claim(count)
        self._count(1, frozenset())
        self._claims.append(claim)
        self._offer()
        try:
            with self.waiting([f"claim/{id(claim)}"]):
                await self._wait(claim, queue, wait_s)
        except BaseException:
            if claim.leases:
                self.return_soon(queue, claim.leases)
            raise
        finally:
            self._count(-1, frozenset())
            if claim in self._claims:
                self._claims.remove(claim)
                self._offer()
        if self.is_draining and not claim.leases:
            raise Draining("this worker is drained, or the server is stopping")
        return claim


def fitting(claim: Claim) -> tuple[list[Lease], list[Lease]]:
    """Split a claim's tasks into what fits in one answer and the rest."""
    size = 0
    for n, lease in enumerate(claim.leases):
        size += len(lease.payload)
        if n and size > CLAIM_BYTES:
            return claim.leases[:n], claim.leases[n:]
    return claim.leases, []


@define(eq=False)
class Workers:
    """The workers that claim over HTTP at this server."""

    app: App
    nursery: trio.Nursery
    _known: dict[tuple[Identity, str, str], HttpWorker] = field(factory=dict, init=False)
    _holders: dict[TaskKey, HttpWorker] = field(factory=dict, init=False)

    async def find(self, caller: HttpConnection, name: str, queue: str, *, claims: bool = False) -> HttpWorker:
        """Return a worker that is attached to a queue; `claims`: it is to get tasks. Raises: as `attach`, Draining."""
        if self.app.worker_registry.drained.asks(caller.identity, name) and claims:
            raise Draining(_DRAINED)
        worker = await self._attached(caller, name, queue)
        if claims and self.app.worker_registry.drained.asks(caller.identity, name):  # meanwhile
            raise Draining(_DRAINED)
        return worker

    async def _attached(self, caller: HttpConnection, name: str, queue: str) -> HttpWorker:
        key = caller.identity, name, queue
        while (known := self._known.get(key)) and not (known.closing or known.closes_when_idle):
            if known.attached.is_set():
                return known
            await known.attached.wait()  # by a request at the same time
        self._check_room(caller.identity)
        if refusal := why_not(wire.Attach(0, name, [queue], 0), caller.session.role, terms.State.OPEN):
            raise refusal
        caller.identity.check_queue(QUEUE.check(queue, "queue"))
        worker = make_connection(self.app, caller.identity, caller.remote, None, HttpWorker)
        assert isinstance(worker, HttpWorker)
        worker.app, worker.holders = self.app, self._holders
        self._known[key] = worker
        with worker.in_use():
            try:
                await self.nursery.start(self._keep, key, worker)
                await worker.ask(wire.Attach(0, name, [queue], 0))
            except BaseException:
                worker.close(1000, "not attached")
                raise
            finally:
                worker.attached.set()
        return worker

    def _check_room(self, identity: Identity) -> None:
        """Check that one more worker of a token may be remembered. Raises: TooMany."""
        if len(self._known) >= MAX_WORKERS:
            raise TooMany(f"at most {MAX_WORKERS} workers may be known over HTTP at this server", retry_in_ms=RETRY_MS)
        token = identity.role, identity.token_id  # an identity changes when its token's record does
        if sum((each.role, each.token_id) == token for each, _, _ in self._known) >= MAX_TOKEN_WORKERS:
            message = f"at most {MAX_TOKEN_WORKERS} workers of one token may be known over HTTP at this server"
            raise TooMany(message, retry_in_ms=RETRY_MS)

    async def _keep(
        self, key: tuple[Identity, str, str], worker: HttpWorker, *, task_status: trio.TaskStatus[None]
    ) -> None:
        task_status.started()
        try:
            await self.app.serve(worker)
        except Exception:  # as with a websocket, it ends no other connection
            log.exception("worker over HTTP failed", worker=worker.name)
        finally:
            if self._known.get(key) is worker:
                del self._known[key]
