"""Both ends joined in memory, under any order of work, loss and time.

A brain of a few lines stands for server and store: it leases tasks, fences settlements by (id, lease), remembers what
it has answered, and keeps a worker's account as fairq/server/engine/verbs/workers.py does.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairq.errors import Unavailable
from fairq.model.tasks import Lease, Settlement
from fairq.server.engine.dispatch.worker_account import Terms, WorkerAccount
from fairq.wire import frames
from fairq.wire import messages as wire
from fairq.wire.raw_payloads import Message
from fairq.wire.server_session import ServerSession
from fairq.wire.terms import Role, State
from fairq.wire.worker_session import WorkerSession

LEASE_S = 12.0
QUEUE = "q"


@define(eq=False)
class Brain:
    """A store of one queue: ready ids, leases with deadlines, and the first answer to every settlement."""

    ready: deque[str] = field(factory=deque)
    numbers: dict[str, int] = field(factory=dict)  # id -> its last lease
    last_lease: int = 0
    leased: dict[str, float] = field(factory=dict)  # id -> deadline
    settled: dict[tuple[str, int], str] = field(factory=dict)  # (id, lease) -> action that counted
    answers: dict[tuple[str, int], set[str]] = field(factory=dict)  # (id, lease) -> answers to its settlement

    def claim(self, limit: int, now: float) -> list[Lease]:
        leases: list[Lease] = []
        self.last_lease += 1
        while self.ready and len(leases) < limit:
            id = self.ready.popleft()
            self.numbers[id], self.leased[id] = self.last_lease, now + LEASE_S
            leases.append(Lease(id, self.last_lease, 1, 99, "acme", 1, 0, 0, b"null"))
        return leases

    def settle(self, settlement: Settlement, now: float) -> str:
        """Carry one settlement out, if its number is that of the last lease."""
        fence = (settlement.id, settlement.lease)
        if self.numbers[settlement.id] != settlement.lease or settlement.id not in self.leased:
            return "gone" if fence in self.settled else "stale"
        if settlement.action == "extend":
            self.leased[settlement.id] = now + LEASE_S
            return "ok"
        del self.leased[settlement.id]
        self.settled[fence] = settlement.action
        if settlement.action != "ack":
            self.ready.append(settlement.id)
        return "ok"

    def reap(self, now: float) -> None:
        """Take back the leases that are over."""
        for id in [id for id, deadline in self.leased.items() if deadline <= now]:
            self.give_back(id)

    def give_back(self, id: str) -> None:
        """End a lease without a settlement."""
        del self.leased[id]
        self.ready.append(id)


def handle_request(
    brain: Brain, session: ServerSession, account: WorkerAccount, request: Any, now: float
) -> dict[str, Any]:
    """Do what a worker's request asks, as the server's verbs do."""
    if isinstance(request, wire.Attach):
        outcomes = []
        for lease in request.leases:
            outcomes.append(brain.settle(Settlement("extend", lease.id, lease.lease), now))
            if outcomes[-1] == "ok":
                account.add((QUEUE, lease.id), lease.lease, Terms(LEASE_S), now)
        session.state, account.credit = State.ATTACHED, request.credit
        return {"leases": outcomes}
    if isinstance(request, wire.Credit):
        account.credit = request.credit
        return {}
    outcomes = []
    for each in request.settlements:
        outcomes.append(brain.settle(each, now))
        if each.action != "extend":
            brain.answers.setdefault((each.id, each.lease), set()).add(outcomes[-1])
        if (each.action != "extend" or outcomes[-1] != "ok") and account.has((QUEUE, each.id), each.lease):
            account.drop((QUEUE, each.id))
    return {"outcomes": outcomes}


class JoinedMachine(RuleBasedStateMachine):
    """One worker, one server, a wire that may break at any moment, and a clock that may jump."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.brain = Brain()
        self.worker = WorkerSession(worker="w", queues=[QUEUE], credit=4)
        self.worker.jitter = lambda: 0.5
        self.server: ServerSession | None = None
        self.account = WorkerAccount()
        self.to_server: deque[Message] = deque()
        self.to_worker: deque[Message] = deque()
        self.working: dict[str, int] = {}  # what handlers work on: id -> lease
        self.finished: set[tuple[str, int]] = set()  # settlements that the session has taken on
        self.released: set[tuple[str, int]] = set()  # of these
        self.refused: set[tuple[str, int]] = set()
        self.lost: set[tuple[str, int]] = set()  # which the session may give back by itself

    # --- the two drivers, one step at a time

    @property
    def is_connected(self) -> bool:
        """True if there is a wire."""
        return self.server is not None

    @property
    def is_attached(self) -> bool:
        """True if the server may push."""
        return self.server is not None and self.server.state is State.ATTACHED

    def hear(self) -> None:
        """Do what the worker's driver does after every step."""
        for lease in self.worker.lost:
            self.lost.add((lease.id, lease.lease))
            if self.working.get(lease.id) == lease.lease:
                del self.working[lease.id]
        self.refused |= {(lease.id, lease.lease) for lease in self.worker.stale_settlements}
        self.worker.lost.clear()
        self.worker.stale_settlements.clear()
        assert self.worker.fatal is None
        if self.worker.is_timed_out and self.is_connected:
            self.cut()

    def flush(self) -> None:
        """Put what both ends have to say onto the wire."""
        if self.server is not None:
            self.to_server.extend(self.worker.outgoing(self.now))
            self.to_worker.extend(self.server.outgoing(self.now))

    @rule()
    @precondition(lambda self: not self.is_connected)
    def connect(self) -> None:
        """Open a wire; the server welcomes."""
        self.server = ServerSession(last_received_at=self.now, last_sent_at=self.now, role=Role.WORKER)
        self.account = WorkerAccount()
        self.server.welcome(frames.Welcome("worker", "s", "x", 3, 1 << 20))
        self.worker.connected(self.now)
        self.flush()

    @rule()
    @precondition(lambda self: self.is_connected)
    def cut(self) -> None:
        """Lose the wire and all that is on it; the server gives the leases back."""
        assert self.server is not None
        for id, lease in self.account.held_of(QUEUE).items():
            if id in self.brain.leased and self.brain.numbers[id] == lease:
                self.brain.give_back(id)
        self.server = None
        self.to_server.clear()
        self.to_worker.clear()
        self.worker.disconnected(self.now)

    @rule(is_refused=st.booleans())
    @precondition(lambda self: self.to_server)
    def server_reads(self, is_refused: bool) -> None:
        """Have the server take in one frame; sometimes its store is away."""
        assert self.server is not None
        request = self.server.receive(self.to_server.popleft(), self.now)
        if request is not None and is_refused:
            self.server.refuse(request.ref, Unavailable("the store is away"))
        elif request is not None:
            self.server.reply(request.ref, handle_request(self.brain, self.server, self.account, request, self.now))
        self.flush()

    @rule()
    @precondition(lambda self: self.to_worker)
    def worker_reads(self) -> None:
        """Have the worker take in one frame; handlers begin."""
        push = self.worker.receive(self.to_worker.popleft(), self.now)
        self.hear()
        for task in push.tasks if push else ():
            assert self.working.get(task.id, 0) < task.lease
            self.working[task.id] = task.lease
        self.flush()

    @rule()
    @precondition(lambda self: self.to_server or self.to_worker)
    def talk(self) -> None:
        """Have both take in all frames, and those that these call forth."""
        self.talk_on()

    def talk_on(self) -> None:
        while self.to_server or self.to_worker:
            if self.to_server:
                self.server_reads(False)
            if self.to_worker:
                self.worker_reads()

    @rule(count=st.integers(1, 4))
    def enqueue(self, count: int) -> None:
        """Have tasks become ready."""
        for _ in range(count):
            id = f"t/t-{len(self.brain.numbers)}"
            self.brain.numbers[id] = 0
            self.brain.ready.append(id)

    @rule()
    @precondition(lambda self: self.is_attached and self.account.free and self.brain.ready)
    def push(self) -> None:
        """Have the server fill the worker's free places."""
        assert self.server is not None
        leases = self.brain.claim(self.account.free, self.now)
        assert leases
        self.account.lease(QUEUE, leases, LEASE_S, float("inf"))
        self.server.push(QUEUE, round(LEASE_S * 1000), leases)
        assert len(self.account.held) <= self.account.credit
        self.flush()

    @rule(action=st.sampled_from(["ack", "nack", "reject", "release"]), data=st.data())
    @precondition(lambda self: self.working)
    def finish(self, action: Any, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.working)))
        lease = self.working.pop(id)
        assert self.worker.settle(QUEUE, Settlement(action, id, lease))
        self.finished.add((id, lease))
        if action == "release":
            self.released.add((id, lease))
        self.flush()

    @rule(credit=st.integers(0, 6))
    def change_credit(self, credit: int) -> None:
        """Have the worker ask for more or less."""
        self.worker.credit = credit
        self.flush()

    @rule(seconds=st.sampled_from([0.1, 1.0, LEASE_S / 3, LEASE_S - 0.5, LEASE_S, 30.0]))
    def pass_time(self, seconds: float) -> None:
        """Let time pass, keeping all deadlines in steps of at most a second."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            self.worker.expire(self.now)
            self.hear()
            self.brain.reap(self.now)
            if self.server is not None:
                self.server.expire(self.now)
                if self.server.is_timed_out:
                    self.cut()
            self.flush()

    # --- what always holds

    @invariant()
    def handlers_work_only_on_leases_that_the_session_holds(self) -> None:
        held = {id: number for id, (number, _) in self.worker.held.get(QUEUE, {}).items()}
        assert held == self.working

    @invariant()
    def no_settlement_counts_twice_or_is_answered_two_ways(self) -> None:
        for answers in self.brain.answers.values():
            assert not {"stale", "ok"} <= answers
            assert not {"stale", "gone"} <= answers

    def teardown(self) -> None:
        """Heal everything, run until nothing moves and every lease was renewed, and take stock."""
        for second in range(200):
            if not self.is_connected:
                self.connect()
            self.talk_on()
            is_at_rest = not self.worker.unsettled and self.worker.sent_credit == self.worker.credit
            if self.worker.is_attached and is_at_rest and second > LEASE_S:
                break
            self.pass_time(1.0)
        else:
            raise AssertionError("the two never came to rest")
        assert self.server is not None
        assert self.account.held_of(QUEUE).items() == set(self.working.items())
        assert set(self.working) == set(self.brain.leased)
        assert self.finished == set(self.brain.answers) - self.lost, "a settlement was lost"
        stale = {fence for fence, answers in self.brain.answers.items() if "stale" in answers}
        assert (
            stale - self.released - self.lost == self.refused
        )  # that it was too late to give something back, nobody need hear
        assert self.account.credit == self.worker.credit
        everywhere = [
            *self.brain.ready,
            *self.brain.leased,
            *(t[0] for t, a in self.brain.settled.items() if a == "ack"),
        ]
        assert sorted(everywhere) == sorted(self.brain.numbers), "a task was lost or doubled"


TestJoined = JoinedMachine.TestCase
TestJoined.settings = settings(max_examples=30, stateful_step_count=40)
