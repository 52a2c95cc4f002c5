"""The server: its parts, and the order in which they stop.

A server is stateless: all lasting state is in the store, so any number of servers may serve one store. Stopping takes
three steps. First, there are no new connections and no new claims, and waiting requests are answered `draining`. Then
workers are asked to drain and get `grace` seconds to settle their leases. Then the remaining leases are released, so
that workers of other servers get the tasks at once. Leases over HTTP, and of workers closed as silent, run on.
"""

from __future__ import annotations

import platform
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from weakref import WeakValueDictionary

import structlog
import trio
from attrs import define, evolve, field

from fairq.errors import Retryable
from fairq.io.turns import turn_time
from fairq.model.operator_views import PartitionRow, Takers
from fairq.model.waiting import WAIT_CAUSES, Report
from fairq.model.workers import SilentWorker
from fairq.server.engine.attempts import AttemptSearch
from fairq.server.engine.leases import GIVE_BACK_S, Leases
from fairq.server.engine.net.auth import Auth
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.net.lease_holders import LeaseHolders
from fairq.server.engine.net.questions import LAGS, QUEUES, WAITS, Questions
from fairq.server.engine.net.refusals import Refusals
from fairq.server.engine.net.revocations import Revocations
from fairq.server.engine.net.server_slots import ServerSlots
from fairq.server.engine.net.token_uses import TokenUses
from fairq.server.engine.net.worker_registry import WorkerRegistry
from fairq.server.engine.queues import Queues
from fairq.server.engine.stats.recorder import Recorder
from fairq.server.engine.stats.wait_times import report_of
from fairq.server.engine.timers.forgetting import forget_idle
from fairq.server.engine.timers.migrating import migrate_in_time
from fairq.server.engine.timers.ticker import Ticker
from fairq.server.settings import Settings
from fairq.store import keys, library
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

PRODUCERS_CALLS = 500  # calls of the store at once for all producers, each for one tenant
MAX_SILENT = 10  # silent workers that an answer about a queue or a task names
IDLE_TICKS = 100  # ticks at once, for all workers that ask whether their queues are empty
_ANSWER_S = 1.0  # after the grace, for answers that are still due


@define(eq=False)
class App:
    """One server process's state: its connections, and the parts that serve them."""

    settings: Settings
    store: Store
    nursery: trio.Nursery
    name: str = field(factory=lambda: f"{platform.node() or 'fairq'}-{secrets.token_hex(3)}")
    auth: Auth = field(init=False)
    token_uses: TokenUses = field(init=False)
    ticker: Ticker = field(init=False)
    queues: Queues = field(init=False)
    leases: Leases = field(init=False)
    questions: Questions = field(init=False)
    lease_holders: LeaseHolders = field(init=False)
    attempts: AttemptSearch = field(init=False)
    worker_registry: WorkerRegistry = field(init=False)
    revocations: Revocations = field(init=False)
    recorder: Recorder = field(init=False)
    refusals: Refusals = field(factory=Refusals, init=False)
    connections: set[Connection] = field(factory=set, init=False)
    tenants_cancel: trio.Lock = field(factory=trio.Lock, init=False)  # one call of cancel_all at a time
    operators_cancel: trio.Lock = field(factory=trio.Lock, init=False)  # and so do operators
    own_cancels: WeakValueDictionary[str, trio.Lock] = field(factory=WeakValueDictionary, init=False)  # by tenant
    searches: trio.CapacityLimiter = field(factory=partial(trio.CapacityLimiter, 1), init=False)  # of next fires
    producers_calls: trio.CapacityLimiter = field(factory=partial(trio.CapacityLimiter, PRODUCERS_CALLS), init=False)
    idle_ticks: trio.CapacityLimiter = field(factory=partial(trio.CapacityLimiter, IDLE_TICKS), init=False)
    reports: trio.CapacityLimiter = field(factory=partial(trio.CapacityLimiter, 4), init=False)  # that ask all servers
    declared: dict[bytes, float] = field(factory=dict, init=False)  # when schedules were found to stand, by a hash
    is_draining: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.token_uses = TokenUses(self.store, self.connections)
        self.auth = Auth(self.store, self.settings.dev, self.token_uses.note)
        self.revocations = Revocations(self.store)
        self.recorder = Recorder(self.store, self.store.counts)
        elsewhere = ServerSlots()
        self.questions = Questions(self.name, self.store, self.nursery, elsewhere)
        self.queues = Queues(self.name, self.store, self.nursery, elsewhere)
        self.ticker = self.queues.ticker
        self.leases = leases = Leases(self.settings.reconnect_grace, self.store, self.nursery, self.queues)
        self.worker_registry = WorkerRegistry(
            self.name,
            self.store,
            self.nursery,
            self.questions,
            elsewhere,
            leases.end_leases,
            leases.end_kept_leases,
        )
        self.lease_holders = LeaseHolders(self.leases.owners, self.questions, self.nursery)
        self.attempts = AttemptSearch(self.store, self.questions, self.leases)
        self.questions.answers[QUEUES] = lambda queues: [each for each in queues if self.queues.is_taken_here(each)]
        self.questions.answers[LAGS] = lambda queue: self.queues.accounts.lags(queue, turn_time())
        self.questions.answers[WAITS] = lambda asked: self.queues.last_waits(*asked)

    async def start(self) -> None:
        """Subscribe to the store's channels, and start the background tasks."""
        for channel in (keys.REVOKED, keys.WORKERS, keys.DELETED, f"{keys.VERSIONS}{library.DATA_VERSION}"):
            await self.store.subscription.add(channel, sharded=False)
        for part in (self.queues, self.ticker, self.worker_registry, self.recorder, self.revocations, self.token_uses):
            self.nursery.start_soon(part.run)
        self.nursery.start_soon(self.worker_registry.renew)
        self.nursery.start_soon(forget_idle, self.store, self.takers)
        self.nursery.start_soon(migrate_in_time, self.store)

    def on_message(self, channel: str, message: str = "") -> None:
        """Handle a message from the store; an empty channel means that any message may have been missed."""
        if channel in ("", keys.REVOKED):
            self.revocations.on_message(message)
        if channel == keys.WORKERS and message:
            self.worker_registry.on_announcement(message)
        if channel == keys.DELETED and message:
            self.store.registry.forget(message)
            self.recorder.forget(message)
            self.store.attempts.forget(message)
            self.queues.forget(message)
        self.queues.on_message(channel, message)

    def attach(self, connection: Connection) -> None:
        """Start to give tasks to a worker."""
        log.info("worker attached", worker=connection.name, queues=connection.queues, credit=connection.account.credit)
        self.worker_registry.join(connection)
        self.leases.end_kept_leases(connection.identity.token_id, connection.name, connection.attach_order)
        self.queues.join(connection)

    async def takers(self, queues: Sequence[str]) -> dict[str, Takers]:
        """Return for each queue whether any server has workers for it; `unknown` if a server did not answer.

        A server that cannot write its list, since the store is full, is not waited for, but its reported slots count.
        The slots of a dead server are remembered for a minute.
        """
        if not queues:
            return {}
        try:
            answers, unanswered = await self.questions.ask(QUEUES, queues)
        except Retryable:
            return dict.fromkeys(queues, "unknown")
        taken = {queue for some in answers.values() for queue in some}
        takers: dict[str, Takers] = {}
        for queue in queues:
            is_unknown = unanswered or self.worker_registry.elsewhere.divided(queue)
            takers[queue] = "some" if queue in taken else "unknown" if is_unknown else "none"
        return takers

    def silent_workers(self) -> dict[str, list[SilentWorker]]:
        """Describe the workers of each queue that are silent, at any server, the longest silence in front."""
        found: defaultdict[str, list[SilentWorker]] = defaultdict(list)
        now_ms = time.time() * 1000
        for _, each in sorted(self.worker_registry.silences(), key=lambda named: named[1].since_ms):
            worker = SilentWorker(each.worker, round(now_ms - each.since_ms), each.held, each.lost)
            for queue in each.queues:
                found[queue].append(worker)
        return found

    async def partitions(self, queue: str) -> list[PartitionRow]:
        """Describe the partitions of a queue that answer, if it has several; a lag needs the answers of all servers."""
        rows = await self.store.partitions(queue)
        if not rows:
            return []
        try:
            async with self.reports:
                answers, unanswered = await self.questions.ask(LAGS, queue)
        except Retryable:
            return rows
        if unanswered:
            return rows
        lags: Counter[str] = Counter()
        for answer in answers.values():
            lags.update(answer)
        return [evolve(row, lag_s=lags[f"{queue}/{row.partition}"]) for row in rows]

    async def wait_reports(self, queue: str, tenants: Sequence[str]) -> dict[str, Report]:
        """Report for how long tenants' last tasks had waited, and for what, at all servers."""
        async with self.reports:
            answers, unanswered = await self.questions.ask(WAITS, [queue, tenants])
        found: dict[str, Report] = {}
        for n, tenant in enumerate(tenants):
            rows = (dict(zip(WAIT_CAUSES, row, strict=True)) for answer in answers.values() for row in answer[n])
            found[tenant] = report_of(tenant, list(rows), len(unanswered))
        return found

    async def serve(self, connection: Connection) -> None:
        """Serve a connection until it ends; see `Leases.end` for what becomes of a worker's leases."""
        self.connections.add(connection)
        self.revocations.join(connection)
        connection.account.owner, connection.account.owners = connection, self.leases.owners
        if self.is_draining:  # its handshake was under way when the drain began
            connection.session.drain()
            connection.close_when_idle()
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            self.revocations.leave(connection)
            self.worker_registry.leave(connection)
            self.queues.leave(connection)
            await self.leases.end(connection)

    async def drain(self, grace: float) -> None:
        """Stop gracefully; returns when all connections have ended, at most some seconds after `grace`."""
        self.is_draining = True
        self.queues.stop_claiming()
        for connection in list(self.connections):
            connection.session.drain()
            connection.close_when_idle()
            connection.wake_writer()
        self.leases.drain()
        log.info("draining", connections=len(self.connections), grace_s=grace)
        with trio.move_on_after(grace):
            while self.connections:
                await self.leases.ended.park()
        with trio.move_on_after(_ANSWER_S):
            while any(connection.owes_answers and not connection.account.held for connection in self.connections):
                await self.leases.ended.park()  # they close themselves after their last answer
        for connection in list(self.connections):
            connection.close(1001, "the server is stopping")
        with trio.move_on_after(GIVE_BACK_S):
            while self.connections or self.leases.kept:
                await self.leases.ended.park()
            await self.queues.stopped()
            await self.worker_registry.write()
            await self.recorder.finish()
