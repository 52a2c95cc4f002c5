"""The queue in memory against the exact model of the function library: the same calls leave the same states."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairq.model.events import Event
from fairq.model.queues import QueueSettings
from fairq.model.tasks import NewTask, Settlement
from fairq.testing.memory import MemoryQueue
from tests.model import Model

MS = st.sampled_from([0, 0, 1, 7, 50, 400])
ENQUEUE = st.tuples(
    st.just("enqueue"),
    st.integers(0, 9),
    st.fixed_dictionaries(
        {"delay": MS, "expires_in": MS, "max_attempts": st.integers(0, 3)},
        optional={
            "priority": st.sampled_from([0, 50, 99]),
            "key": st.sampled_from(["a", "b"]),
            "period": MS,
            "replace": st.booleans(),
            "after_start": MS,
            "result": MS,
            "events": st.booleans(),
        },
    ),
)
SETTLE = st.tuples(
    st.just("settle"),
    st.sampled_from(["ack", "nack", "reject", "release"]),
    st.sampled_from([None, 0, 5, 100]),
    st.integers(0, 9),
)
PASS = st.tuples(st.just("pass"), st.sampled_from([1, 5, 50, 400, 60_000]))
CLAIM = st.just(("claim",))
STEPS = st.lists(st.one_of(ENQUEUE, ENQUEUE, CLAIM, CLAIM, SETTLE, SETTLE, PASS), min_size=30, max_size=80)


class Pair:
    """Both queues, and the leases that were given."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.memory = MemoryQueue(QueueSettings(), lambda: 0.5)
        self.model = Model()
        self.leases: list[tuple[str, int, int]] = []  # id, and the number that each queue gave

    def step(self, kind: str, *args: Any) -> None:
        """Do the same on both sides, and compare what they say."""
        getattr(self, kind)(*args)
        self.compare()

    def enqueue(self, number: int, options: dict[str, Any]) -> None:
        """Enqueue a task, perhaps one whose id is known."""
        id = f"ada/{number}"
        options["replace"] = bool(options.get("replace") and options.get("key"))
        task = NewTask(
            id, b"null", options["delay"], 0, options["expires_in"], 0, options.get("after_start", 0),
            options["max_attempts"], options.get("priority", 50), options.get("key", ""), options.get("period", 0),
            options["replace"], options.get("result", 0), options.get("events", False),
        )  # fmt: skip
        theirs = self.model.enqueue(self.now, "ada", [(id, {**options})])
        assert [self.memory.enqueue(self.now, "ada", task)] == theirs

    def claim(self) -> None:
        """Lease a task."""
        theirs = self.model.claim(self.now, repeat(0.5), "w", 1)
        mine = self.memory.claim(self.now)
        assert ([(mine.id, mine.attempt, mine.max_attempts)] if mine else []) == theirs
        if mine:
            self.leases.append((mine.id, self.model.last_lease, mine.lease))

    def settle(self, action: Any, delay: int | None, which: int) -> None:
        """End a lease."""
        if self.leases:
            id, their_lease, lease = self.leases.pop(which % len(self.leases))
            delay = delay if action == "nack" else None
            said = "ack_with_result" if action == "ack" else action
            assert self.model.settle(self.now, repeat(0.5), [(said, id, their_lease, delay, "e", "")]) == ["ok"]
            self.memory.settle(self.now, Settlement(action, id, lease, delay, "e", b"e"))

    def pass_(self, ms: int) -> None:
        """Let time pass, with a tick at each moment at which something is due; leases are kept."""
        end = self.now + ms
        while True:
            for id in self.model.leases:
                self.model.leases[id] = end + 1_000
            self.now = round(max(self.now, min(end, self.memory.next_due())))  # time does not go back
            self.model.tick(self.now, 500)
            self.memory.tick(self.now)
            if self.now == end:
                return

    def feed(self) -> list[Event]:
        """Read all that was told."""
        return self.memory.events("ada", 0, 1000).events

    def compare(self) -> None:
        """Both know the same of every task."""
        assert {r.id for r in self.memory if r.state != "done"} == set(self.model.records)
        t = self.model.tenants.get("ada")
        assert [r.id for r in self.memory.ready("ada")] == (list(t.ready) if t else [])
        told = [(e.id, e.event, f"ada/{e.task}", e.at_ms, e.attempt, e.detail) for e in self.feed()]
        assert told == self.model.feeds.read("ada", 0, 1000)[2]
        for record in self.memory:
            until, result = self.model.results.get(record.id, (0, ""))
            assert (self.memory.result(self.now, record.id) or b"").decode() == (result if until > self.now else "")
            if record.state == "delayed":
                assert t is not None
                assert t.delayed[record.id] == record.at_ms
            elif record.state == "dead":
                death = self.model.dead[record.id]
                assert (death.reason, death.attempts, death.error) == (record.reason, record.attempt, record.error)


@settings(max_examples=150)
@given(STEPS)
def test_the_queue_in_memory_does_what_the_model_does(steps: list[tuple[Any, ...]]) -> None:
    pair = Pair()
    for kind, *args in steps:
        pair.step("pass_" if kind == "pass" else kind, *args)
