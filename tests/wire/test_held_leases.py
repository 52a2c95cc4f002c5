"""Whether a task may begin: never late, whatever stands still, and at no call more where nothing does."""

from __future__ import annotations

import json
from collections import deque
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairq.model.tasks import Settlement
from fairq.wire.frames import HeldLease
from fairq.wire.held_leases import LOOK_S, STALL_S, ServerClock, Start, Watch
from fairq.wire.worker_session import WorkerSession

from .ends import End, ids, kind_of

LEASE_S = 6.0


class Worker(End):
    """A worker's session, and the server played by hand; the request to attach took `attach_s`."""

    session: WorkerSession

    def __init__(self, attach_s: float = 0.0) -> None:
        self.slept_s = 0.0  # how long the machine was suspended, and its clock stood
        watch = Watch(lambda: self.now + self.slept_s)
        super().__init__(WorkerSession(worker="w", queues=["q"], credit=10, watch=watch))
        self.connect()
        frame = self.only()
        self.now += attach_s
        self.attached_at = self.pushed_at = self.now
        self.reply(frame, leases=[])

    def attached_ms(self, ago_s: float = 0.0) -> int:
        return round((self.now - ago_s - self.attached_at) * 1000)

    def push(self, *names: str, ago_s: float = 0.0, lease: int = 1, lease_s: float = LEASE_S, **more: Any) -> None:
        """Take in a push whose leases began some time ago."""
        tasks = [
            {"id": id, "lease": lease, "attempt": 1, "max_attempts": 5, "tenant": "t", "enqueued_at_ms": 1,
             "payload": None}
            for id in names
        ]  # fmt: skip
        self.pushed_at = self.now
        found = {"attached_ms": self.attached_ms(ago_s)} | more
        self.hear({"type": "push", "queue": "q", "lease_ms": round(lease_s * 1000), "tasks": tasks} | found)

    def start(self, id: str, left_s: float = inf, lease: int = 1) -> Start:
        """Ask whether a task may begin that had so much time left before its expiry when it was leased."""
        return self.session.start_of("q", id, lease, self.pushed_at + left_s)

    def renewals(self) -> list[dict[str, Any]]:
        """Return the renewals that leave now; a driver keeps the deadlines before."""
        if self.now >= self.session.deadline():
            self.session.expire(self.now)
        return [frame for frame in self.sent() if kind_of(frame) == "extend"]

    def renew(self, outcome: str = "ok", after_s: float = 0.0) -> None:
        """Answer the one renewal that leaves now."""
        [frame] = self.renewals()
        attached_ms = self.attached_ms()
        self.pass_time(after_s)
        self.reply(frame, outcomes=[outcome] * len(frame["settlements"]), attached_ms=attached_ms)


def test_where_nothing_stands_still_leases_are_renewed_at_a_third_and_no_task_waits_for_that() -> None:
    worker = Worker(attach_s=0.2)
    worker.push("a", "b", "c", ago_s=0.3)
    renewals = 0
    for _ in range(300):
        for id in "abc":
            assert worker.start(id) is Start.NOW
        worker.pass_time(0.1)
        for frame in worker.renewals():
            renewals += 1
            worker.now += 0.05
            worker.reply(frame, outcomes=["ok"] * 3, attached_ms=worker.attached_ms())
    assert renewals == pytest.approx(300 * 0.1 / (LEASE_S / 3), abs=2)


def test_tasks_that_come_and_go_are_never_renewed() -> None:
    worker = Worker()
    for n in range(1, 1_000):
        worker.push("a", lease=n, ago_s=0.01)
        assert worker.start("a", lease=n) is Start.NOW
        assert worker.session.settle("q", Settlement("ack", "a", n))
        [frame] = worker.sent()
        assert kind_of(frame) == "settle"
        worker.stored(frame)
        worker.pass_time(0.7)


def test_a_task_of_a_late_push_begins_once_its_lease_is_renewed() -> None:
    worker = Worker()
    worker.now += 100
    worker.push("a", "b", ago_s=STALL_S + 0.1)
    assert worker.start("a") is Start.LATER
    [frame] = worker.renewals()
    assert ids(frame) == ["a", "b"]
    assert worker.renewals() == []
    worker.reply(frame, outcomes=["ok", "stale"], attached_ms=worker.attached_ms())
    assert worker.session.has_renewed
    assert worker.session.lost == [HeldLease("q", "b", 1)]
    assert (worker.start("a"), worker.start("b")) == (Start.NOW, Start.NEVER)


def test_what_is_held_while_the_worker_stands_still_is_renewed_first() -> None:
    worker = Worker()
    worker.push("a")
    worker.now += LOOK_S + STALL_S + 0.1
    assert worker.start("a") is Start.LATER
    worker.renew()
    assert worker.start("a") is Start.NOW


def test_news_that_came_in_while_the_worker_stood_still_does_not_hide_that() -> None:
    for is_heard in (True, False):
        worker = Worker()
        worker.push("a")
        worker.now += LOOK_S + STALL_S + 0.1
        if is_heard:
            worker.hear({"type": "ping"})
        else:
            worker.session.expire(worker.now)
        assert worker.start("a") is Start.LATER


def test_an_answer_to_what_was_asked_before_the_worker_stood_still_confirms_nothing() -> None:
    worker = Worker()
    worker.push("a")
    worker.pass_time(LEASE_S / 3)
    [frame] = worker.renewals()
    worker.now += 2
    worker.reply(frame, outcomes=["ok"], attached_ms=worker.attached_ms(2))
    assert worker.start("a") is Start.LATER
    worker.renew()
    assert worker.start("a") is Start.NOW


def test_a_renewal_that_is_overdue_is_waited_for() -> None:
    worker = Worker()
    worker.push("a")
    worker.pass_time(LEASE_S / 3)
    [frame] = worker.renewals()
    worker.pass_time(STALL_S - 0.1)
    assert worker.start("a") is Start.NOW
    worker.pass_time(0.2)
    assert worker.start("a") is Start.LATER
    worker.reply(frame, outcomes=["ok"], attached_ms=worker.attached_ms())
    assert worker.start("a") is Start.NOW


def test_the_answer_to_a_renewal_tells_whether_the_task_has_expired() -> None:
    for left_s, start in ((2.0, Start.NEVER), (4.0, Start.NOW)):
        worker = Worker()
        worker.push("a", ago_s=3.0)
        assert worker.start("a", left_s) is Start.LATER
        worker.renew()
        assert worker.start("a", left_s) is start


def test_a_task_that_may_have_expired_costs_one_call_at_most() -> None:
    worker = Worker(attach_s=0.9)  # so it is known to that only when the leases began
    worker.push("a", "b")
    worker.pass_time(0.05)
    assert worker.start("a", 0.9) is Start.LATER
    worker.renew(after_s=0.01)
    assert worker.start("a", 0.9) is Start.NOW
    worker.pass_time(1.0)
    assert worker.start("b", 0.9) is Start.NEVER
    assert worker.renewals() == []


def test_an_attach_that_took_long_costs_one_call_in_all() -> None:
    worker = Worker(attach_s=5.0)
    worker.push("a")
    assert worker.start("a") is Start.LATER
    worker.renew()
    assert worker.start("a") is Start.NOW
    worker.push("b")
    assert worker.start("b") is Start.NOW


def test_clocks_that_drift_cost_an_idle_worker_one_call() -> None:
    worker = Worker()
    worker.now += 86_400
    worker.push("a")
    assert worker.start("a") is Start.LATER
    worker.renew()
    assert worker.start("a") is Start.NOW
    worker.now += LOOK_S
    worker.push("b")
    assert worker.start("b") is Start.NOW


def test_a_server_that_does_not_date_its_pushes_is_believed_but_no_stall() -> None:
    worker = Worker()
    worker.push("a", "b", attached_ms=None)
    assert (worker.start("a", 2.0), worker.start("a", 0.0)) == (Start.NOW, Start.NEVER)
    worker.now += 1.9
    assert worker.start("b") is Start.LATER
    [frame] = worker.renewals()
    worker.stored(frame)
    assert (worker.start("b", 2.0), worker.start("b", 1.9)) == (Start.NOW, Start.NEVER)


def test_a_suspended_machine_has_stood_still_though_its_clock_has_not_gone_on() -> None:
    worker = Worker()
    worker.push("a")
    worker.slept_s += 3600
    assert worker.start("a") is Start.LATER
    worker.attached_at -= 3600  # by its server's clock
    worker.push("b", ago_s=0.1)
    worker.push("c", ago_s=5)
    assert [worker.start(id) for id in "bc"] == [Start.NOW, Start.LATER]


def test_a_lease_may_last_shorter_than_the_server_is_known_to_have_it() -> None:
    worker = Worker(attach_s=0.5)
    worker.push("a", lease_s=0.3)
    assert worker.start("a") is Start.LATER
    worker.renew()
    assert worker.start("a") is Start.NOW


def test_the_worker_looks_at_the_clock_only_while_it_holds_something() -> None:
    worker = Worker()
    worker.session.expire(worker.now)
    idle = worker.session.deadline()
    worker.push("a")
    worker.session.expire(worker.now)
    assert worker.session.deadline() == worker.now + LOOK_S
    worker.session.settle("q", Settlement("ack", "a", 1))
    worker.stored(worker.only())
    worker.pass_time(LEASE_S)
    assert worker.session.deadline() >= idle


def test_a_servers_clock_dates_nothing_too_late() -> None:
    clock = ServerClock()
    clock.attached(10.0)
    assert clock.earliest(5.0, 12.0) == 12.0  # it is known already
    assert clock.earliest(1.0, 12.0) == pytest.approx(11.0, abs=0.001)
    clock.measure(20.0, 9.5)  # the answer to the attach was 0.5 s late
    assert clock.earliest(9.5, 21.0) == pytest.approx(20.0, abs=0.001)
    clock.measure(30.0, 25.0)  # this one took longer
    assert clock.earliest(19.5, 31.0) == pytest.approx(30.0, abs=0.002)


DELAYS = st.sampled_from([0.0, 0.0, 0.01, 0.4, 0.9, 3.0, 12.0])


@given(
    attach=DELAYS, drift=st.sampled_from([-9e-5, 0.0, 9e-5]), idle=st.sampled_from([0.0, 5.0, 20_000.0]),
    lease_s=st.sampled_from([0.5, 5.0, 30.0]), left_s=st.sampled_from([0.3, 3.0, 7.0, inf]),
    steps=st.lists(st.tuples(st.sampled_from(["server", "up", "down", "stand", "work"]), DELAYS), max_size=12),
)  # fmt: skip
def test_whatever_stands_still_no_task_begins_outside_of_its_lease_or_after_its_expiry(
    attach: float, drift: float, idle: float, lease_s: float, left_s: float, steps: list[tuple[str, float]]
) -> None:
    worker = Worker(attach_s=attach)
    session, now = worker.session, worker.now + idle
    worker.now = now
    leased_at, over_at = now, now + lease_s  # by the store's clock, which is the test's

    def attached_ms(at: float) -> int:
        return int((at - worker.attached_at) * (1 + drift) * 1000) - 1

    up: deque[dict[str, Any]] = deque()  # renewals on their way
    down: deque[dict[str, Any]] = deque()  # their answers
    pushed = {"type": "push", "queue": "q", "lease_ms": round(lease_s * 1000), "attached_ms": attached_ms(now)}
    task = {"id": "a", "lease": 1, "attempt": 1, "max_attempts": 5, "tenant": "t", "enqueued_at_ms": 1, "payload": None}
    down.append({**pushed, "tasks": [task]})
    for what, wait_s in [*steps, ("up", 0.0), ("server", 0.0), ("down", 0.0), ("work", 0.0)]:
        if what == "stand":
            worker.now += wait_s
        else:
            worker.pass_time(wait_s)
        up += [frame for frame in worker.sent() if kind_of(frame) == "extend"]
        if what == "down" and down and down[0]["type"] == "push":
            worker.pushed_at = worker.now
        if what == "server" and up:
            is_held = worker.now < over_at
            over_at = worker.now + lease_s if is_held else -inf
            body = {"outcomes": ["ok" if is_held else "stale"], "attached_ms": attached_ms(worker.now)}
            down.append({"type": "reply", "ref": up.popleft()["ref"], "body": body})
        elif what == "down" and down:
            session.receive(json.dumps(down.popleft()), worker.now)
        elif what == "work" and session.holds("q", "a", 1) and worker.start("a", left_s) is Start.NOW:
            assert worker.now < over_at
            assert worker.now < leased_at + left_s + 0.001
