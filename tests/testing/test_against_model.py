"""The queue in memory against the exact model of the function library: the same calls leave the same states."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairq.errors import BatchClosed, NotFound
from fairq.model.batches import BatchState
from fairq.model.events import Event
from fairq.model.queue.model import Model
from fairq.model.queues import QueueSettings
from fairq.model.tasks import NewTask, Settlement
from fairq.testing.batches import MemoryBatch
from fairq.testing.memory import MemoryQueue, Record

MS = st.sampled_from([0, 0, 1, 7, 50, 400])
ENQUEUE = st.tuples(
    st.just("enqueue"),
    st.integers(0, 9),
    st.fixed_dictionaries(
        {
            "delay": MS,
            "expires_in": MS,
            "max_attempts": st.integers(0, 3),
            "batch": st.sampled_from(["", "", "b", "b", "b", "c"]),
        },
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
NAMES = st.sampled_from(["b", "b", "c"])
BATCH = st.one_of(
    st.tuples(st.just("open_batch"), NAMES, st.sampled_from([0, 1, 1, 2]), st.booleans()),
    st.tuples(st.sampled_from(["close_batch", "cancel_batch"]), NAMES),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
)
SETTLE = st.tuples(
    st.just("settle"),
    st.sampled_from(["ack", "nack", "reject", "release"]),
    st.sampled_from([None, 0, 5, 100]),
    st.integers(0, 9),
)
PASS = st.tuples(st.just("pass"), st.sampled_from([1, 5, 50, 400, 60_000, 86_400_000]))
CLAIM = st.just(("claim",))
STEPS = st.lists(
    st.one_of(ENQUEUE, ENQUEUE, ENQUEUE, CLAIM, CLAIM, CLAIM, SETTLE, SETTLE, PASS, BATCH), min_size=30, max_size=80
)


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
        batch = options["batch"]
        options["replace"] = bool(options.get("replace") and options.get("key") and not batch)
        options["group"] = "one"  # for all, as batches are groups, whose turns are left out in memory
        task = NewTask(
            id, b"null", options["delay"], 0, options["expires_in"], 0, options.get("after_start", 0),
            options["max_attempts"], options.get("priority", 50), options.get("key", ""), options.get("period", 0),
            options["replace"], options.get("result", 0), options.get("events", False), batch,
        )  # fmt: skip
        named = {"batch": f"ada/{batch}"} if batch else {}
        theirs = self.model.enqueue(self.now, "ada", [(id, {**options, **named})])
        try:
            mine = self.memory.enqueue_all(self.now, "ada", [task])
        except (NotFound, BatchClosed) as error:
            mine = [f"FAIRQ {error.code} {error.field}"]
        assert mine == theirs

    def open_batch(self, name: str, max_running: int, events: bool) -> None:
        """Open a batch; without callbacks, which would be tasks of another group."""
        new = MemoryBatch[Record](f"ada/{name}", "ada", max_running, {}, events, self.now)
        theirs = self.model.open_batch(self.now, "ada", new.id, max_running, {}, int(events))
        assert self.memory.open_batch(self.now, new) == theirs

    def kept_batch(self, name: str) -> MemoryBatch[Record] | None:
        """Find a batch that is remembered."""
        batch = self.memory.batches.get(f"ada/{name}")
        return batch if batch and batch.is_kept(self.now) else None

    def close_batch(self, name: str) -> None:
        """Close a batch, if there is one."""
        if batch := self.kept_batch(name):
            assert self.memory.close_batch(self.now, batch) == self.model.close_batch(self.now, batch.id)

    def cancel_batch(self, name: str) -> None:
        """Cancel a batch, if there is one."""
        if batch := self.kept_batch(name):
            assert self.memory.cancel_batch(self.now, batch)[0] == self.model.cancel_batch(self.now, batch.id)

    def cancel(self, number: int) -> None:
        """Cancel a task, if it is known."""
        if record := self.memory.records.get(f"ada/{number}"):
            assert [self.memory.cancel(self.now, record)] == self.model.cancel(self.now, [record.id])

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
        return self.memory.feeds.read("ada", 0, 1000).events

    def compare(self) -> None:
        """Both know the same of every task."""
        assert {r.id for r in self.memory if r.state not in ("done", "cancelled")} == set(self.model.records)
        kept = {batch.id: batch.told(batch.id) for batch in self.memory.batches.values() if batch.is_kept(self.now)}
        assert {
            id: BatchState(
                id, b.state, b.tenant, b.max_running, b.total, b.running, b.done, b.dead, b.cancelled,  # type: ignore[arg-type]
                round(b.created_at), round(b.completed_at), b.expired,
            )
            for id, b in self.model.batches.items()
        } == kept  # fmt: skip
        t = self.model.tenants.get("ada")
        assert [r.id for r in self.memory.ready("ada")] == (list(t.ready) if t else [])
        told = [
            (e.id, e.event, f"ada/{e.task or e.batch}", e.at_ms, e.attempt, e.detail or _ends(e)) for e in self.feed()
        ]
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


def _ends(event: Event) -> str:
    counts = (event.done, event.dead, event.cancelled, event.expired)
    return " ".join(map(str, counts)) if event.batch else ""


def walk(steps: list[tuple[Any, ...]], max_running: int) -> None:
    """Take the same steps on both sides."""
    pair = Pair()
    pair.open_batch("b", max_running, True)
    for kind, *args in steps:
        pair.step("pass_" if kind == "pass" else kind, *args)


def test_a_batch_is_told_of_after_all_tasks_that_expire_with_its_last() -> None:
    options = {"delay": 0, "expires_in": 7, "max_attempts": 1, "events": True}
    tasks = [("enqueue", n, {**options, "batch": batch}) for n, batch in enumerate(["b", ""])]
    walk([*tasks, ("close_batch", "b"), ("pass", 50)], 0)


@settings(max_examples=50)
@given(STEPS, st.sampled_from([0, 1, 1, 2]))
def test_the_queue_in_memory_does_what_the_model_does(steps: list[tuple[Any, ...]], max_running: int) -> None:
    walk(steps, max_running)


@pytest.mark.deep("longest")
@settings(max_examples=1_000)
@given(STEPS, st.sampled_from([0, 1, 1, 2]))
def test_it_does_so_on_many_walks(steps: list[tuple[Any, ...]], max_running: int) -> None:
    walk(steps, max_running)
