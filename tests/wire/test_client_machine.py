"""A client's session under any order of calls, answers, refusals, broken connections and time.

A store of a few lines stands for the server: it knows the ids that it has, and what it has answered.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairq.errors import BadRequest, Closed, Draining, OutcomeUnknown, TooLarge, TooMany, Unavailable
from fairq.model.tasks import NewTask
from fairq.wire.calls import Call
from fairq.wire.client_session import LATE_S
from tests.frames import read_frame

from .ends import WELCOME, End, ids

QUEUES = ("bad", "good")
WINDOW = 2  # frames of tasks
OF_QUEUE, OF_SERVER = ("unavailable", "outcome_unknown", "repairing"), ("too_many", "draining")
SHORT, LONG, LONGEST = b"1", b'"' + b"x" * 40_000 + b'"', b'"' + b"x" * 70_000 + b'"'
CALM_S = 61.0  # after which a refusal no longer counts


@define(eq=False)
class Made:
    """A call that was made, and what the server has said of its tasks."""

    call: Call
    number: int
    deadline: float
    ids: tuple[str, ...] = ()  # none: a request
    is_bad: bool = False
    is_long: bool = False  # too long for the shortest messages
    was_sent: bool = False
    answers: dict[str, Any] = field(factory=dict)
    wakes: int = 0

    def wake(self) -> None:
        self.wakes += 1


class ClientMachine(RuleBasedStateMachine):
    """A tenant's session; `under_way` are the frames that the server has not answered."""

    def __init__(self) -> None:
        super().__init__()
        self.end = End()
        self.limits: dict[str, Any] = WELCOME
        self.calls: list[Made] = []
        self.owners: dict[str, Made] = {}  # of tasks
        self.stored: set[str] = set()
        self.under_way: list[dict[str, Any]] = []
        self.newest: dict[str, int] = defaultdict(int)  # call of the newest task or request that was sent, by line
        self.rows: dict[tuple[str, str], int] = defaultdict(int)  # refusals in a row
        self.held_until: dict[tuple[str, str], float] = defaultdict(float)
        self.all_rows, self.all_held_until = 0, 0.0
        self.is_draining = self.is_refused = False

    def remember(self, call: Call, **known: Any) -> None:
        made = Made(call, len(self.calls) + 1, call.deadline, **known)
        call.wake = made.wake
        self.calls.append(made)
        self.owners |= dict.fromkeys(made.ids, made)

    @rule(
        queue=st.sampled_from(QUEUES),
        count=st.integers(1, 4),
        payload=st.sampled_from([SHORT, SHORT, LONG, LONGEST]),
        is_rare=st.booleans(),
        is_bad=st.sampled_from([False, False, False, True]),
        timeout=st.sampled_from([0.05, 2, 90]),
    )
    def enqueue(self, queue: str, count: int, payload: bytes, is_rare: bool, is_bad: bool, timeout: float) -> None:
        """Enqueue tasks; a bad one is refused for good."""
        names = tuple(f"{'bad' if is_bad else 'id'}-{len(self.calls)}-{n}" for n in range(count))
        tasks = [NewTask(id, payload, priority=1 if is_rare else 50) for id in names]
        call = self.end.session.enqueue(queue, tasks, self.end.now + timeout)
        self.remember(call, ids=names, is_bad=is_bad, is_long=payload is LONGEST)
        self.flush()

    @rule(queue=st.sampled_from(QUEUES), timeout=st.sampled_from([0.05, 90]))
    def request(self, queue: str, timeout: float) -> None:
        """Ask something about a queue."""
        number = len(self.calls) + 1
        self.remember(self.end.session.request("tasks", {"queue": queue, "ids": [str(number)]}, self.end.now + timeout))
        self.flush()

    @rule(batch=st.sampled_from([1, 3, 500]), message=st.sampled_from([65_536, 100_000, 4 << 20]))
    @precondition(lambda self: not self.end.session.is_connected)
    def connect(self, batch: int, message: int) -> None:
        """Connect, to a server with its own limits."""
        self.limits = {**WELCOME, "role": "tenant", "max_batch": batch, "max_message_bytes": message}
        self.end.session.connected(self.end.now)
        assert self.end.session.outgoing(self.end.now) == [], "not before the welcome"
        self.end.hear(self.limits)
        self.is_draining = False
        self.flush()

    @rule(does=st.booleans())
    @precondition(lambda self: self.end.session.is_connected)
    def cut(self, does: bool) -> None:
        """Break the connection; the server has done the frames under way, or has not."""
        if does:
            for frame in self.under_way:
                self.store(frame)
        self.end.disconnect()
        assert self.end.session.reconnect_at <= self.end.now + 5
        self.under_way.clear()
        assert not self.end.session.under_way

    @rule(which=st.integers(0, 9))
    @precondition(lambda self: self.under_way)
    def answer(self, which: int) -> None:
        """Answer a frame; with a bad task in it, refuse it for good."""
        frame = self.under_way.pop(which % len(self.under_way))
        key = key_of(frame)
        if frame["type"] == "enqueue" and any(id.startswith("bad") for id in ids(frame)):
            self.end.refuse(frame, "bad_request", "payload")
        elif frame["type"] == "tasks":
            (number,) = frame["ids"]
            self.calls[int(number) - 1].answers["body"] = {"tasks": number}
            self.end.reply(frame, tasks=number)
            self.rows[key] = self.all_rows = 0
        else:
            outcomes = self.store(frame)
            for id, outcome in zip(ids(frame), outcomes, strict=True):
                self.owners[id].answers.setdefault(id, outcome)
            self.end.reply(frame, outcomes=outcomes)
            self.rows[key] = self.all_rows = 0
        self.flush()

    def store(self, frame: dict[str, Any]) -> list[str]:
        """Store tasks, each once."""
        if frame["type"] != "enqueue":
            return []
        found = ["duplicate" if id in self.stored else "ok" for id in ids(frame)]
        self.stored |= {id for id in ids(frame) if not id.startswith("bad")}
        return found

    @rule(which=st.integers(0, 9), code=st.sampled_from([*OF_QUEUE, *OF_SERVER]))
    @precondition(lambda self: self.under_way)
    def refuse(self, which: int, code: str) -> None:
        """Refuse a frame for now: no frame of its queue, or none at all, may leave for a while."""
        frame, now = self.under_way.pop(which % len(self.under_way)), self.end.now
        key, self.is_refused = key_of(frame), True
        if code == "outcome_unknown":
            self.store(frame)
        self.end.refuse(frame, code)
        if code in OF_SERVER:
            self.all_rows += 1
            self.all_held_until = now + pause_s(self.all_rows)
        elif self.held_until[key] <= now:
            self.rows[key] += 1
            self.held_until[key] = now + pause_s(self.rows[key])
        self.flush()

    @rule()
    @precondition(lambda self: self.end.session.is_connected)
    def drain(self) -> None:
        """Have the server stop: it takes no new tasks."""
        self.end.hear({"type": "drain"})
        self.is_draining = True
        self.flush()

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0, 3.0]))
    def pass_time(self, seconds: float) -> None:
        """Let time pass, keeping every deadline as a driver does."""
        until = self.end.now + seconds
        while self.end.now < until:
            due = self.end.session.deadline()
            self.end.now = due if self.end.now < due < until else until
            self.end.session.expire(self.end.now)
            self.flush()

    def flush(self) -> None:
        """Take the frames that leave, and check each."""
        if not self.end.session.is_connected:
            assert self.end.session.outgoing(self.end.now) == []
            return
        requests = defaultdict[str, list[int]](list)
        for message in self.end.session.outgoing(self.end.now):
            frame = read_frame(message)
            if frame["type"] == "ping":
                self.end.hear({"type": "pong"})
                continue
            assert len(message) <= self.limits["max_message_bytes"]
            key = key_of(frame)
            assert self.end.now >= max(self.held_until[key], self.all_held_until) - 1e-5, "it is held back"
            if frame["type"] == "tasks":
                number = int(frame["ids"][0])
                requests[frame["queue"]].append(number)
                made = [self.calls[number - 1]]
            else:
                assert not self.is_draining
                made = self.check_tasks(frame)
            for each in made:
                assert not each.call.is_done, "it was given up"
                each.was_sent = True
            frame["sent_at"] = self.end.now
            self.under_way.append(frame)
        for numbers in requests.values():
            assert numbers == sorted(numbers)

    def check_tasks(self, frame: dict[str, Any]) -> list[Made]:
        """Check a frame of tasks: its places, and the order of those that are sent for the first time."""
        made, queue = [self.owners[id] for id in ids(frame)], frame["queue"]
        places = sum(3 if "priority" in task else 1 for task in frame["tasks"])
        assert places <= self.limits["max_batch"] or len(frame["tasks"]) == 1
        new = [each.number for each in made if each.number > self.newest[queue]]
        assert all(one <= other for one, other in pairwise(new))
        self.newest[queue] = max([self.newest[queue], *new])
        return made

    @invariant()
    def frames_of_tasks_are_few(self) -> None:
        frames = [frame for frame in self.under_way if frame["type"] == "enqueue"]
        recent = [frame for frame in frames if self.end.now < frame["sent_at"] + LATE_S]
        assert len(recent) <= WINDOW + len(QUEUES) * self.is_refused
        assert all(sum(frame["queue"] == queue for frame in frames) <= WINDOW + self.is_refused for queue in QUEUES)

    @invariant()
    def queues_do_not_wait_for_a_late_one(self) -> None:
        """Nothing of a queue is under way, and it may send: then only frames that left just now hold it back."""
        session, under_way = self.end.session, [frame for frame in self.under_way if frame["type"] == "enqueue"]
        recent = sum(self.end.now < frame["sent_at"] + LATE_S + 1e-5 for frame in under_way)
        for _, queue, _ in session.enqueues.lines if session.is_open and not self.is_draining else ():
            may_send = self.end.now > max(self.held_until["enqueue", queue], self.all_held_until) + 1e-5
            is_served = queue in {frame["queue"] for frame in under_way}
            assert is_served or recent >= WINDOW or not may_send

    @invariant()
    def calls_end_as_the_server_has_answered(self) -> None:
        for made in self.calls:
            call, was_stored = made.call, not self.stored.isdisjoint(made.ids)
            assert made.wakes == call.is_done, "it wakes its caller once"
            assert call.is_done or made.deadline > self.end.now - 1e-5 or not self.end.session.is_connected
            if not call.is_done:
                continue
            if call.error is None:
                expected = [made.answers[id] for id in made.ids] if made.ids else made.answers["body"]
                assert call.result == expected
            elif isinstance(call.error, OutcomeUnknown):
                assert made.was_sent
            elif isinstance(call.error, BadRequest):
                assert made.is_bad
            elif isinstance(call.error, TooLarge):
                assert made.is_long
            else:
                assert isinstance(call.error, Unavailable | Draining | TooMany) or "repair" in call.error.code
                assert not was_stored, "what may have been done is never unavailable"

    def teardown(self) -> None:
        """Heal everything: all calls end, and nothing is kept of them."""
        if self.end.session.is_connected:
            self.cut(does=False)
        self.end.now += CALM_S
        self.connect(batch=500, message=4 << 20)
        for _ in range(500):
            if not self.under_way and not self.end.session.has_outgoing:
                break
            if self.under_way:
                self.answer(0)
            else:
                self.pass_time(3.0)
        self.end.session.expire(self.end.now)
        self.calls_end_as_the_server_has_answered()
        assert all(made.call.is_done for made in self.calls)
        assert self.end.session.under_way == {}
        late = self.end.session.request("queues", {}, self.end.now + 9)
        self.end.session.close()
        assert isinstance(late.error, Closed)


def pause_s(refusals: int) -> float:
    """Return how long frames are held back after so many refusals in a row, with this jitter."""
    return 0.0375 * 2.0 ** min(refusals, 5)


def key_of(frame: dict[str, Any]) -> tuple[str, str]:
    """Say with which other frames this one is held back."""
    return ("request" if frame["type"] == "tasks" else "enqueue"), frame["queue"]


TestClient = ClientMachine.TestCase
TestClient.settings = settings(max_examples=60)
