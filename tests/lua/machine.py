"""The state machine: random calls go to the store and to the model, and both must say the same."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isclose
from typing import Any

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fairq.model.queue.accounts import OUT
from fairq.model.queue.batches import BATCH_KEEP_MS
from fairq.model.queue.model import Model
from fairq.model.queue.ready import LOOSE
from fairq.model.queue.schedules import Revision
from fairq.model.schedules import Timing
from fairq.model.tasks import MAX_LEASES, NewTask, leased_at_ms
from fairq.model.waiting import AT_MAX_RUNNING
from fairq.store.records import pack_options, pack_template, pack_timing, pack_waits
from tests import reports

from .calls import HEAD, Queue, leased_in, new_task, pairs, settle_args, unpack, words
from .expected_history import ExpectedHistory
from .expected_webhooks import ExpectedWebhooks
from .keyspace import Keyspace
from .rebuilt import check_other

# A walk's clock is its own: the store's ends no key of it, however long the walk takes.
USUAL_VARIANT = (
    ("return string.format('%.0f', ms + KEY_GRACE_MS)", "return '1000000000000'"),
    ("local PAGE = 100 ", "local PAGE = 1000 "),  # of what a jump of the clock has left: all, whatever their order
)
SMALL_VARIANT = (  # by which few tenants are drawn, and few tasks and bytes are many
    *USUAL_VARIANT,
    ("local FEW = 16 ", "local FEW = 1 "),
    ("local LOOKS = 2 ", "local LOOKS = 1 "),
    ("local FIRST = 4 ", "local FIRST = 1 "),
    ("local BLOCKS, WIDEST = 8, 64", "local BLOCKS, WIDEST = 1, 2"),
    ("local PAGE = 1024 ", "local PAGE = 2 "),
    ("local LARGE_BYTES = 4096", "local LARGE_BYTES = 3"),
    ("local ROUNDS = 8", "local ROUNDS, PAGE_BYTES = 8, 80"),
    (f"local LEASES_PER_CALL = {MAX_LEASES} ", "local LEASES_PER_CALL = 5 "),
    ("late_tasks.PER_CALL = 64 ", "late_tasks.PER_CALL = 3 "),
    ("local LATE_PER_TENANT = 16 ", "local LATE_PER_TENANT, PAGE_BYTES = 2, 80 "),
    ("local COSTLY_PER_CALL = 60 ", "local COSTLY_PER_CALL = 3 "),
    ("PAGE, LONG_PAGE, KEYS = 64, 4, 500", "PAGE, LONG_PAGE, KEYS = 2, 1, 5"),
    ("PLACES_PER_CALL = 64", "PLACES_PER_CALL = 2"),
    ("local KEYS_PER_CALL = 150", "local KEYS_PER_CALL = 10"),
    ("WEBHOOKS_PER_QUEUE, FAN_OUTS_PER_QUEUE = 64, 15", "WEBHOOKS_PER_QUEUE, FAN_OUTS_PER_QUEUE = 3, 1"),
)
# The same bounds of the model.
SMALL = {"few": 1, "looks": 1, "first": 1, "blocks": 1, "widest": 2, "large": 3, "page": 80}
SMALL |= {"most": 5, "late": 3, "late_each": 2, "costly": 3}
LEASE, HEAVIEST = 1000, 10_000_000
LONG = "bad luck " * 150  # a result, or an error, for which there may be no room
START = leased_at_ms(0) - 40_000  # the numbers of leases count from 1, and soon go with the time
NAMES = ["ada", "bob", "cyd", "dan"]
IDS = [f"id{n}" for n in range(10)]
MANY_IDS = [f"id{n}" for n in range(40)]
SPANS = [1, 2, 50, LEASE - 1, LEASE, LEASE + 1]
SETTINGS: dict[str, list[int]] = {
    "share": [0, 1],
    "lease_ms": [LEASE, LEASE, 100],
    "max_attempts": [3, 2, 1, 0],
    "retry_base_ms": [1, 100],
    "retry_cap_ms": [150, 1],
    "dead_keep_ms": [10**6, LEASE, 14 * 86_400_000],
    "dead_keep": [1000, 1000, 2, 0],
    "max_tenants": [1_000_000, 1_000_000, 1_000_000, 3, 2, 1_000_000],
}
LIMITED: dict[str, list[float]] = {
    "max_running": [-1, 0, 1, 2],
    "guaranteed": [-1, 1, 2, 3],
    "rate": [-1, 300, 1.5, 40, 0.01, 0],
    "burst": [-1, 0, 1, 2, 7],
    "queued": [-1, -1, 0, 5, 7],
    "stored_bytes": [-1, -1, 0, 5_000, 2_000],
    "delayed": [-1, -1, 0, 2, 3],
    "dead": [-1, -1, 0, 1, 2],
}
TENANTS = st.sampled_from(NAMES)
FEW_IDS = st.lists(st.sampled_from(IDS), min_size=1, max_size=4)
WINDOWS: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.fixed_dictionaries(
    {},
    optional={
        "delay": st.sampled_from(SPANS),
        "start_at": st.sampled_from([-5, 0, 1, 50, LEASE]),
        "expires_in": st.sampled_from(SPANS),
        "expires_at": st.sampled_from([-5, 0, 1, 51, LEASE + 1]),
        "expires_after_start": st.sampled_from(SPANS),
        "max_attempts": st.sampled_from([1, 2, 0]),
        "priority": st.sampled_from([0, 50, 99]),
        "dedupe_key": st.sampled_from(["k1", "k2"]),
        "replace": st.sampled_from([0, 1]),
        "dedupe_period": st.sampled_from([1, 50, LEASE]),
        "result_ttl": st.sampled_from([0, 50, LEASE]),
        "retry_base": st.sampled_from([0, 1, 40]),
        "retry_cap": st.sampled_from([0, 1, 60]),
        "events": st.sampled_from([0, 1, 1]),
        "batch": st.sampled_from(["b1", "b2", "b3"]),
        "group": st.sampled_from(["", "g1", "g2", "b1", "g:3"]),
        "name": st.sampled_from(["n1", "n2"]),
    },
)
ACTIONS = ["ack", "ack", "nack", "nack", "reject", "release", "reap", "extend", "take"]
LOST = ["lose", "reap", "lose_alone", "lose", "lose_alone"]  # ways to reap
GIVEN_BACK = ("release", *LOST)  # fenced by the connection too
BATCHES, STATES = ["b1", "b2", "b3"], ["", "open", "closed", "complete"]
EVENTS = ("complete", "success", "death")
DELAYS = [0, 0, None, 1, 50]
SAID = ["", "bad", LONG]
SETTLEMENTS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 15), st.sampled_from(DELAYS), st.sampled_from(SAID)),
    min_size=1,
    max_size=4,
)
LIMITS = st.integers(1, 6)
OWED = st.sampled_from([0, 0, 0, 1, 2, 5])
TICK_LIMITS = st.sampled_from([100, 3, 2, 1])
TIMES = st.sampled_from([0, 1, 50, LEASE - 1, LEASE, LEASE + 1, 1, 50, -5, -LEASE, 60_000, 10**7, -100_000])
BEHIND = st.sampled_from([0, 0, 0, 1, 60_001, 61_000, 10**6])
AGES = [0, 0, 1, 50, LEASE]
SLOTS = [4, 3, 2, 5, 10, 1]
RESERVES = [50, 20, 90, 34, 0, 50]
LOST_LEASES = {50: 3, 20: 2, 90: 1, 34: 3, 0: 0}  # their limit, with each reserve
KEEPS = [1000, 1000, 5, 1, 0]
FILTERS: st.SearchStrategy[tuple[str, str, str, int, int]] = st.tuples(
    st.sampled_from(["", "", *NAMES]),
    st.sampled_from(["", "", "exhausted", "rejected", "expired", "lease_lost"]),
    st.sampled_from(["", "", "ba", "good"]),
    st.sampled_from(AGES),
    st.sampled_from(AGES),
)
WEIGHTS = st.sampled_from([1000, 1, 500, 1023, 1024, 3000, HEAVIEST])
SEEDS = st.integers(0, 2**16)
FIELDS = ["ada/s1", "ada/s2", "bob/s1"]
HOOKED, HOOKS = ["add", "add", "pause", "remove"], ["0000000a", "0000000b", "0000000c", "0000000d"]
TIMINGS = [pack_timing(Timing("0 3 * * *", "Europe/Zürich")), pack_timing(Timing("", "UTC", 1_500))]
AFTER = [1, 50, 0, -1, LEASE, 70_000]
TEMPLATES = [
    new_task("", **asked)
    for asked in (
        {},
        {"expires_in": 50, "max_attempts": 2, "priority": 0, "events": True},
        {"dedupe_key": "k1"},
        {"expires_after_start": LEASE},
        {"dedupe_key": "k2", "dedupe_period": LEASE, "result_ttl": LEASE},
    )
]
WEIGHTS_OF_STEPS = [10, 8, 10, 8, 4, 4, 2, 2, 3, 3, 2, 5, 2, 5, 2, 2]
FIRES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(AFTER)), min_size=1, max_size=3)


class RandomValues:
    """The same numbers twice: packed for the store, one by one for the model."""

    def __init__(self, seed: int, count: int) -> None:
        source = random.Random(seed)
        self.numbers = [source.random() for _ in range(count)]
        self.packed = struct.pack(f"<{count}d", *self.numbers)

    def __iter__(self) -> Iterator[float]:
        """Iterate over the numbers."""
        return iter(self.numbers)


class QueueMachine(RuleBasedStateMachine):
    """A queue under random calls; `client`, `version` and the model's `bounds` are set by a subclass."""

    client: redis.Redis
    version = ""
    joins = True  # whether what is enqueued and claimed at once is one call
    later: frozenset[str] = frozenset()  # fields of the queue that only a later version tells
    bounds: Mapping[str, int] = {}

    def __init__(self) -> None:
        super().__init__()
        self.client.flushall()
        self.queue = Queue(self.client, version=self.version, now=START)
        self.model = self.new_model()
        self.now = self.latest = START
        self.claims = 0
        self.lowered: set[str] = set()  # tenants that may keep more than their limit: it was lowered
        self.given: list[tuple[str, int]] = []  # id and number of every lease so far
        self.lives: dict[str, int] = {}
        self.history, self.webhooks = ExpectedHistory(), ExpectedWebhooks(*((3, 1) if self.bounds else ()))
        self.cursor = ""
        self.attached = 10  # slots
        self.revisions: list[tuple[str, bytes, Revision | None]] = []  # as servers have read them, some long ago
        self.hours_revisions: dict[str, tuple[bytes, tuple[str, bool, float] | None]] = {}

    def new_model(self) -> Model:
        """Return the model of a queue that was just made."""
        model = Model()
        for name, bound in self.bounds.items():
            setattr(model, name, bound)
        return model

    def same(self, real: object, expected: object) -> None:
        """Assert that the store said what the model says."""
        assert real == expected, f"store: {real!r}\nmodel: {expected!r}"

    def call(self, verb: str, *args: object, random_values: bytes = b"") -> Any:
        """Call the store at the machine's time."""
        self.queue.now = self.now
        self.latest = max(self.latest, self.now)
        return self.queue.call(verb, *args, random_values=random_values)

    @initialize()
    def configure_short_leases(self) -> None:
        """Make leases short enough to run out; claims tell the run timeout."""
        first = {"lease_ms": LEASE, "max_attempts": 3, "run_timeout_ms": LEASE // 2, "queue_weight": 2_500}
        self.call("configure", *(word for pair in first.items() for word in pair))
        self.model.configure(self.now, **first)

    def attempt(self, verb: str, *args: object, random_values: bytes = b"") -> list[Any]:
        """Call a verb that may be refused: then return the refusal, without its notifications."""
        try:
            reply = self.call(verb, *args, random_values=random_values)
        except redis.ResponseError as error:
            return [" ".join(str(error).split()[:3]).encode()]
        return reply if isinstance(reply, list) else [reply]

    @rule(tenant=TENANTS, ids=FEW_IDS, window=WINDOWS, more=st.sampled_from([0, 0, 0, Model.large]))
    def enqueue(self, tenant: str, ids: list[str], window: dict[str, Any], more: int = 0) -> None:
        """Enqueue; ids come again, in one call and in many. Payloads are as long as the id says, or by so much more.

        Some calls, by their first id, are made by a server that claims at once, or knows one that shall.
        """
        parts, tasks = self.new_tasks(ids, window, more)
        notify = ("covered", "wake near", None)[int(ids[0][-1]) % 3]
        outcomes = words(self.attempt("enqueue", tenant, *parts, *filter(None, [notify])))
        self.enqueued(tenant, tasks, outcomes, notify=notify != "covered")

    @rule(tenant=TENANTS, ids=FEW_IDS, window=WINDOWS, limit=LIMITS, seed=SEEDS)
    def enqueue_and_claim(self, tenant: str, ids: list[str], window: dict[str, Any], limit: int, seed: int) -> None:
        """Enqueue, and claim right behind, in one call; where that is refused, nothing is claimed."""
        (parts, tasks), name, random_values = (
            self.new_tasks(ids, window),
            f"w{self.claims + 1}",
            RandomValues(seed, 1200),
        )
        args = (name, limit, "", "", self.attached, "")
        if self.joins:
            reply = self.attempt("enqueue_and_claim", *args, tenant, *parts, random_values=random_values.packed)
        else:
            reply = self.attempt("enqueue", tenant, *parts, "covered")
            if not reply[0].startswith(b"FAIRQ"):
                reply = [reply, self.call("claim", *args, random_values=random_values.packed)]
        outcomes, *claim = reply if isinstance(reply[0], list) else [reply]
        self.enqueued(tenant, tasks, words(outcomes), notify=False)
        for found in claim:
            self.claims += 1
            self.claimed(found, name, limit, random_values)

    def new_tasks(
        self, ids: list[str], window: dict[str, Any], more: int = 0
    ) -> tuple[list[str | bytes], list[NewTask]]:
        """Return new tasks as the store takes them, and as the model does."""
        given = {k: v + self.now if k in ("start_at", "expires_at") else v for k, v in window.items()}
        if not given.get("dedupe_key") or given.get("batch"):
            given.pop("replace", None)
        tasks = [new_task(id, b"1" * (int(id[-1]) + more), **given) for id in ids]
        return [part for task in tasks for part in (task.id, pack_options(task), task.payload)], tasks

    def enqueued(self, tenant: str, tasks: list[NewTask], outcomes: list[str], *, notify: bool) -> None:
        """Enqueue in the model, which must say the same."""
        self.same(outcomes, self.model.enqueue(self.now, tenant, tasks, notify=notify))
        for task, outcome in zip(tasks, outcomes, strict=False):  # refused as a whole: one word
            if outcome in ("ok", "replaced"):
                self.lives[task.id] = 0

    @rule(
        tenant=TENANTS, name=st.sampled_from(BATCHES), max_running=st.sampled_from([0, 1, 2]), called=st.integers(0, 15)
    )
    def open_batch(self, tenant: str, name: str, max_running: int, called: int) -> None:
        """Open a batch; a name may come again when it has been forgotten."""
        events = [event for i, event in enumerate(("complete", "success", "death")) if called & 1 << i]
        callbacks, found = [e if e in events else "" for e in EVENTS], called // 8
        names = {event: f"named-{event}" if max_running else "" for event in EVENTS}
        tasks = {event: NewTask("", event.encode(), name=names[event]) for event in events}
        (outcome,) = words(self.attempt("open_batch", tenant, name, max_running, *callbacks, found, *names.values()))
        self.same(outcome, self.model.open_batch(self.now, tenant, name, max_running, tasks, found))

    @rule(verb=st.sampled_from(["close_batch", "close_batch", "cancel_batch"]), name=st.sampled_from(BATCHES))
    def end_batch(self, verb: str, name: str) -> None:
        """Close or cancel a batch."""
        args = (name, "cancel") if verb == "cancel_batch" else (name,)
        if name in self.model.batches:
            self.same(self.call("close_batch", *args).decode(), getattr(self.model, verb)(self.now, name))
        else:
            with pytest.raises(redis.ResponseError, match="FAIRQ not_found batch"):
                self.call("close_batch", *args)

    @rule(slots=st.sampled_from(SLOTS))
    def attach(self, slots: int) -> None:
        """From now on claims say that so many slots are attached."""
        self.attached = slots

    @rule(percent=st.sampled_from(RESERVES))
    def keep_slots(self, percent: int) -> None:
        """Set the reserve, and the limit of lost leases."""
        self.call("configure", "reserve", percent, "max_lost_leases", LOST_LEASES[percent])
        self.model.configure(self.now, reserve=percent, max_lost_leases=LOST_LEASES[percent])

    @rule(limit=LIMITS, seed=SEEDS, back=st.sampled_from([-1, -1, -1, 0, 1, 2]), behind=BEHIND, owed=OWED)
    def claim(self, limit: int, seed: int, back: int = -1, behind: int = 0, owed: int = 0) -> None:
        """Claim; the model knows who must be served, in which order. With `back` an earlier claim is made again.

        The server's own clock is `behind`, or unknown. What is `owed` is claimed with the rest, or alone.
        """
        self.claims += back < 0
        limit = 0 if owed == 5 else limit
        random_values, name = RandomValues(seed, 1200), f"w{self.claims - max(back, 0)}"
        reply = self.call(
            "claim", name, limit, "again" * (back >= 0), self.witness(behind) or "", self.attached, owed or "",
            random_values=random_values.packed,
        )  # fmt: skip
        known = self.model.claim_again(self.now, name) if back >= 0 else []
        self.claimed(reply, name, limit, random_values, known, behind, owed)

    def witness(self, behind: int) -> int | None:
        """Return the time of a server whose clock is so far behind, or None if it is right."""
        return self.now - behind if behind else None

    def claimed(
        self,
        reply: list[Any],
        name: str,
        limit: int,
        random_values: RandomValues,
        known: Sequence[tuple[str, int, int]] = (),
        behind: int = 0,
        owed: int = 0,
    ) -> None:
        """Claim in the model, unless it knows what an earlier claim has taken; it must say the same."""
        leases = [(each.id, each.attempt, each.max_attempts) for each in leased_in(reply)]
        drawn, witness = iter(random_values), self.witness(behind) or inf
        self.same(leases, known or self.model.claim(self.now, drawn, name, limit, self.attached, owed, witness))
        number, wanted, kept, run_timeout_ms, weight, competing, alone, share, within, still_owed = (
            reply[2], reply[3], *reply[5:HEAD],
        )  # fmt: skip
        self.same(run_timeout_ms, self.model.settings["run_timeout_ms"])
        self.same((weight, competing), (self.model.settings["queue_weight"], self.model.weight_sum))
        self.same(share, self.model.settings["share"])
        self.same((words(within), still_owed), (self.model.within_guarantee, self.model.owed))
        self.same({id.decode() for id in alone}, {id for id, *_ in leases if self.model.runs_alone(id)})
        self.same(number, self.model.claims[name] if leases else 0)
        self.same(
            {id.decode() for id in wanted}, {id for id, *_ in leases if self.model.records[id].options.result_ttl_ms}
        )
        self.same([(kept[i].decode(), *kept[i + 1 : i + 4]) for i in range(0, len(kept), 4)], self.model.kept_out)
        assert known or len(leases) <= limit + owed
        for (id, attempt, max_attempts), record in zip(leases, reply[HEAD + 3 :: 4], strict=True):
            header = unpack("HEADER", record)
            task = self.model.records[id]
            self.same(len(record) - header.end, task.size)
            self.same((header.start_at, header.expires_at), (task.start_at, task.expires_at))
            if known:
                continue
            assert header.start_at <= self.latest, "delivered before its start"  # by the clock that let it in
            assert header.expires_at == 0 or reply[0] - self.model.ahead < header.expires_at, "delivered after its end"
            assert attempt <= max_attempts or max_attempts <= 0
            assert attempt == self.lives.get(id, 0) + 1 or id not in IDS, "attempts go up one by one"
            self.lives[id] = attempt
            self.given.append((id, number))

    def lease(self, back: int) -> tuple[str, int]:
        """Return id and number of a lease, counted from the last one given."""
        return self.given[-1 - back % len(self.given)] if self.given else ("id0", 1)

    def running(self) -> list[int]:
        """Return which leases run, counted likewise."""
        leased = {(id, self.model.runs[id].lease) for id in self.model.leases}
        return [back for back, each in enumerate(reversed(self.given)) if each in leased]

    @rule(chosen=SETTLEMENTS, seed=SEEDS)
    def settle(self, chosen: list[tuple[str, int, int | None, str]], seed: int) -> None:
        """Settle leases of all ages, the youngest most often; stale ones and twins are common."""
        settlements = []
        for action, back, delay, error in chosen:
            id, number = self.lease(back)
            action = LOST[seed % len(LOST)] if action == "reap" else action
            delay = delay if action in ("nack", "release") else None
            is_fenced = error and delay is None and action in GIVEN_BACK
            fence = f"{number}/{seed % 3}" if is_fenced else number
            traceback = f"{id} at {number}" * (100 if error == LONG else bool(error))
            settlements.append((action, id, fence, delay, error, traceback))
        parts = settle_args((*each[:3], "" if each[3] is None else each[3], *each[4:]) for each in settlements)
        random_values = RandomValues(seed, 4)
        outcomes = [word.decode() for word in self.call("settle", *parts, random_values=random_values.packed)]
        self.same(outcomes, self.model.settle(self.now, iter(random_values), settlements))

    @rule(back=st.integers(0, 15), ids=FEW_IDS, window=WINDOWS)
    def settle_linked(self, back: int, ids: list[str], window: dict[str, Any]) -> None:
        """Acknowledge a lease, of any age, with tasks that follow; their ids come again."""
        id, number = self.lease(back)
        (parts, links), known, result = self.new_tasks(ids, window), set(self.model.records), f"{id} at {number}"
        (outcome,) = words(self.attempt("settle_linked", id, number, result, *parts))
        self.same(outcome, self.model.settle_linked(self.now, id, number, result, links))
        self.lives |= dict.fromkeys(self.model.records.keys() - known, 0)

    @rule(limit=LIMITS, seed=SEEDS, chosen=SETTLEMENTS)
    def claim_and_settle(self, limit: int, seed: int, chosen: list[tuple[str, int, int | None, str]]) -> None:
        """Do what workers do all day."""
        self.claim(limit=limit, seed=seed)
        self.settle(chosen=chosen, seed=seed)

    @rule(ms=TIMES, limit=TICK_LIMITS, behind=BEHIND)
    def tick(self, ms: int, limit: int, behind: int = 0) -> None:
        """Let time pass, or go back, and tick; the server's own clock is `behind`, or unknown."""
        self.now += ms
        witness = self.witness(behind)
        self.same(tuple(self.call("tick", limit, witness or "")), self.model.tick(self.now, limit, witness or inf))

    @rule(ms=TIMES)
    def advance(self, ms: int) -> None:
        """Let time pass without a tick."""
        self.now += ms

    @rule(name=st.sampled_from(["", *NAMES]), limit=st.sampled_from(sorted(LIMITED)), choice=st.integers(0, 5))
    def set_limits(self, name: str, limit: str, choice: int) -> None:
        values: dict[str, float] = {limit: LIMITED[limit][choice % len(LIMITED[limit])]}
        if limit == "rate" and choice % 2:
            values["burst"] = 2
        if limit == "guaranteed" and not name:
            name = NAMES[0]
        self.same(self.queue_at_now().set_limits(name, **values), self.model.set_limits(self.now, name, values))
        self.lowered |= self.crowded()

    def crowded(self) -> set[str]:
        """Say which tenants keep more than their limits allow, or more events than half of them."""
        m = self.model
        kept = {t: (m.limit(t, "stored_bytes"), m.kept_by(t), m.kept_beside_feed(t)) for t in m.tenants.values()}
        return {t.name for t, (most, total, rest) in kept.items() if 0 < most < max(2 * (total - rest), total)}

    @rule(
        name=st.sampled_from(["", *NAMES]),
        text=st.sampled_from(["", "w1", "w2"]),
        is_open=st.booleans(),
        after=st.sampled_from(AFTER),
    )
    def set_opening_hours(self, name: str, text: str, is_open: bool, after: int) -> None:
        """Say when a tenant or the queue is open; or change it, as a server does, with a revision that may be old."""
        revision, known = self.hours_revisions.get(name, (b"", None)) if after in (1, 0, -1) else (b"", None)
        text, changes_at = known[0] if known else text, max(0, self.now + after)
        reply = self.call("set_opening_hours", name, text, int(is_open), changes_at, revision)
        expected = self.model.set_opening_hours(self.now, name, text, is_open, changes_at, known)
        self.same(None if reply is None else reply.decode(), expected)
        if after > 50 or name not in self.hours_revisions:
            rows = self.call("opening_hours", name)[1:]
            self.hours_revisions[name] = (rows[0][1], self.model.hours[name]) if rows else (b"", None)

    def queue_at_now(self) -> Queue:
        """Return the queue with the machine's clock."""
        self.queue.now = self.now
        return self.queue

    @rule(verb=st.sampled_from(["set_weight", "pause", "resume", "resume"]), tenant=TENANTS, weight=WEIGHTS)
    def operate(self, verb: str, tenant: str, weight: int) -> None:
        """Change a tenant; a tenth of the pauses pauses the queue."""
        if verb == "set_weight":
            self.same(self.call("set_weight", tenant, weight), self.model.set_weight(self.now, tenant, weight))
            return
        for name in [tenant, ""] if verb == "resume" or weight == HEAVIEST else [tenant]:
            paused = int(verb == "pause")
            self.same(self.call("set_paused", name, paused), self.model.set_paused(self.now, name, paused))

    @rule(ids=FEW_IDS)
    def cancel(self, ids: list[str]) -> None:
        """Cancel tasks, and unknown ids."""
        ids = list(dict.fromkeys(ids))
        self.same([word.decode() for word in self.call("cancel", "", *ids)], self.model.cancel(self.now, ids))

    @rule(tenant=TENANTS, leased=st.integers(0, 2))
    def purge_waiting(self, tenant: str, leased: int) -> None:
        """Cancel all that waits of a tenant; tasks that have been claimed meanwhile are among the ids."""
        self.queue.now = self.now
        ids = list(dict.fromkeys(self.queue.waiting(tenant)))
        self.same(sorted(ids), sorted(self.model.waiting(tenant)))
        ids = [*ids[:60], *sorted(self.model.leases)[:leased]]
        if ids:
            self.same(self.call("cancel", "waiting", *ids).count(b"ok"), self.model.cancel_waiting(self.now, ids))

    @rule(tenant=TENANTS)
    def drop_tenant(self, tenant: str) -> None:
        """Delete a tenant, if it has nothing."""
        self.same(self.call("drop_tenant", tenant)[0].decode(), self.model.drop_tenant(self.now, tenant))

    @rule()
    def forget_tenants(self) -> None:
        """Delete the tenants that have nothing now; how long they have had nothing is for a test of its own."""
        self.same(self.call("forget_tenants", "0", 200, 0, ""), [b"0", self.model.forget_tenants(self.now)])

    @rule(for_ms=st.sampled_from([0, 50, 60_000]))
    def forget_queue(self, for_ms: int) -> None:
        """Forget the queue, if it has had nothing for so long; then it is made anew."""
        outcome = self.call("forget_queue", for_ms, 0, "", 1).decode()
        expected = self.model.forget_queue(self.now, for_ms)
        self.same(outcome, "stays" if self.webhooks else expected)
        if outcome == "ok":
            self.call("make_queue")
            self.model, self.lives, self.history = self.new_model(), {}, ExpectedHistory()
            self.configure_short_leases()

    @rule(ids=FEW_IDS, span=st.sampled_from([-50, 0, *SPANS]))
    def reschedule(self, ids: list[str], span: int) -> None:
        """Move tasks to another start."""
        ids, delay = list(dict.fromkeys(ids)), max(span, 0) if span % 2 else 0
        start_at = 0 if delay else self.now + span
        outcomes = [word.decode() for word in self.call("reschedule", delay, start_at, *ids)]
        self.same(outcomes, self.model.reschedule(self.now, ids, delay, start_at))

    @rule(verb=st.sampled_from(["replay", "replay", "purge"]), ids=FEW_IDS)
    def replay_or_purge(self, verb: str, ids: list[str]) -> None:
        """Replay or purge dead letters, and unknown ids."""
        outcomes = [word.decode() for word in self.call(verb, *ids)]
        self.same(outcomes, getattr(self.model, verb)(self.now, ids))

    @rule(which=FILTERS, count=st.integers(1, 3), goes_on=st.booleans())
    def read_dead(self, which: tuple[str, str, str, int, int], count: int, goes_on: bool) -> None:
        """Read a page of dead letters: a walk begins, or goes on where the last one was, whatever was purged since."""
        args = (which[0], self.cursor if goes_on else "", count, *which[1:])
        cursor, left, *rows = self.call("dead", *args, "")
        found = [
            (i.decode(), t.decode(), r.decode(), n, float(at), e.decode(), b.decode(), lost)
            for i, t, r, n, at, e, _, b, lost in rows
        ]
        for id, *_, record, _, _ in rows:
            self.same(len(record) - unpack("HEADER", record).end, self.model.records[id.decode()].size)
        self.same((cursor.decode(), left, found), self.model.dead_page(self.now, *args))
        self.cursor = cursor.decode()

    @rule(tenant=TENANTS, after=st.integers(0, 12), count=st.integers(1, 4))
    def read_events(self, tenant: str, after: int, count: int) -> None:
        """Read a page of a tenant's feed, from anywhere."""
        oldest, newest, *rows = self.call("events", tenant, after, count)
        found = [(n, event.decode(), of.decode(), float(at), a, d.decode()) for n, event, of, at, a, d in rows]
        self.same((oldest, newest, found), self.model.feeds.read(tenant, after, count))

    @rule(tenant=st.sampled_from(["", *NAMES]), state=st.sampled_from(STATES), count=st.integers(1, 3))
    def list_batches(self, tenant: str, state: str, count: int) -> None:
        self.queue.now = self.now
        self.same(self.queue.list_batches(tenant, state, count), reports.batches(self.model, tenant, state))

    def read_batch_results(self, id: str, lease: int) -> str | list[tuple[str, str | None]]:
        """Read what the holder of a lease may read of a batch's results, page by page."""
        found, cursor = list[tuple[str, str | None]](), b""
        try:
            while cursor != b"0":
                cursor, *rows = self.call("batch_results", id, lease, cursor or 0)
                found += [(task.decode(), None if said is None else said.decode()) for task, said in pairs(rows)]
        except redis.ResponseError as error:
            return str(error).partition(" script:")[0]
        return found

    @rule(keep=st.sampled_from(KEEPS))
    def bound_feeds(self, keep: int) -> None:
        """Let feeds keep more, less or nothing."""
        self.call("configure", "events_keep", keep)
        self.model.configure(self.now, events_keep=keep)

    @rule(name=st.sampled_from(sorted(SETTINGS)), choice=st.integers(0, 5))
    def configure(self, name: str, choice: int) -> None:
        """Change a setting."""
        value = SETTINGS[name][choice % len(SETTINGS[name])]
        self.call("configure", name, value)
        self.model.configure(self.now, **{name: value})

    @rule(
        field=st.sampled_from(FIELDS), after=st.sampled_from(AFTER), misfire=st.integers(0, 1), choice=st.integers(0, 9)
    )
    def schedule(self, field: str, after: int, misfire: int, choice: int) -> None:
        """Create a schedule, change it, or say the same again; with `after` 0 it comes back to the fire that it had."""
        timing, template = TIMINGS[choice // 5], TEMPLATES[choice % 5]
        known = self.model.schedules.get(field)
        next_at = known.last_fired_at if known and known.last_fired_at and not after else self.now + after
        packed = pack_template(template)
        outcome, *at = self.attempt("schedule", *field.split("/"), next_at, misfire, timing, packed)
        expected = self.model.schedule(self.now, field, next_at, misfire, timing, template, len(packed))
        self.same((outcome.decode(), *(at or [0])), expected)

    def read_heads(self) -> None:
        """Read all schedules, as a server does before it fires."""
        rows = self.call("schedules", "", "", 0, 100)[1:]
        assert all(row[1] for row in rows), "a fire without a schedule"
        self.revisions += [(row[0].decode(), row[1], self.model.revision(row[0].decode())) for row in rows]

    @rule(chosen=FIRES, is_fresh=st.booleans())
    def fire(self, chosen: list[tuple[int, int]], is_fresh: bool) -> None:
        """Fire with heads of all ages, the youngest most often; twins are common."""
        if is_fresh or not self.revisions:
            self.read_heads()
        if not self.revisions:
            return
        fires = [(*self.revisions[-1 - back % len(self.revisions)], self.now + after) for back, after in chosen]
        parts = [part for field, revision, _, next_at in fires for part in (field, revision, next_at)]
        outcomes = [word.decode() for word in self.call("fire", *parts)]
        due = {field: self.model.schedules[field].next_at for field, *_ in fires if field in self.model.schedules}
        self.same(outcomes, self.model.fire(self.now, [(field, revision, at) for field, _, revision, at in fires]))
        for (field, *_), outcome in zip(fires, outcomes, strict=True):
            if outcome == "ok":
                self.lives[f"{field}-{due[field]:.0f}"] = 0

    @rule(
        verb=st.sampled_from(["unschedule", "pause", "resume", "resume"]),
        field=st.sampled_from(FIELDS),
        after=st.sampled_from(AFTER),
    )
    def change_schedule(self, verb: str, field: str, after: int) -> None:
        """Delete a schedule; or pause or resume it, with a revision that may be old."""
        if verb == "unschedule":
            outcome, expected = self.call(verb, *field.split("/")), self.model.unschedule(self.now, field)
            return self.same(outcome.decode(), expected)
        self.read_heads()
        known = [(revision, model) for name, revision, model in self.revisions[-4:] if name == field]
        revision, model = known[after % len(known)] if known else (b"", None)
        next_at = self.now + after if verb == "resume" else None
        outcome = self.call("pause_schedule", *field.split("/"), revision, "" if next_at is None else next_at)
        self.same(outcome.decode(), self.model.pause_schedule(self.now, field, model, next_at))

    @rule(
        verb=st.sampled_from(HOOKED), id=st.sampled_from(HOOKS), name=st.sampled_from(["", "n1"]), on=st.integers(0, 1)
    )
    def change_webhook(self, verb: str, id: str, name: str, on: int) -> None:
        """Register a webhook, remove, pause or resume it."""
        before, now = dict(self.webhooks), self.model.open(self.now)
        match verb:
            case "add":
                (outcome,) = words(self.attempt("add_webhook", id, "https://a.example/", name, on, ""))
                self.same(outcome, self.webhooks.add(now, id, "https://a.example/", name, on))
            case "pause":
                self.same(self.call("pause_webhook", id, on), self.webhooks.pause(id, on))
            case _:
                outcome = self.call("remove_webhook", id).decode()
                self.same(outcome, "ok" if self.webhooks.pop(id, None) else "gone")
        if self.webhooks != before:
            self.model.close(now)
        self.webhooks.check(self.queue)

    @rule(seed=SEEDS)
    def add_history(self, seed: int) -> None:
        """Add what a server has counted of some tenants, and of others, to the history; read it."""
        source, found, parts = random.Random(seed), Counter[Any](), list[object]()
        for name in [
            "",
            *source.sample(sorted(self.model.tenants), source.randrange(len(self.model.tenants) + 1))[:30],
        ]:
            counts = {count: source.randrange(3) for count in ("enqueued", "started", "failed")}
            waits = {source.randrange(61): source.randint(1, 3) for _ in range(source.randrange(3))}
            parts += (name, *counts.values(), pack_waits(waits))
            found.update(counts)
            found.update(waits)
        lost, now = source.randrange(3), self.model.open(self.now)
        self.same(self.call("add_history", lost, *parts), len(self.model.leases))
        self.history.add(self.model, now, lost, found)
        self.history.check(self.queue, now)

    @rule(is_restored=st.booleans())
    def rebuild(self, is_restored: bool) -> None:
        """Repair a copy of the queue, or restore it from a backup: all that counts is the same; then delete that."""
        self.queue.now = self.latest  # at which all that is ready has begun
        check_other(self.queue, self.version, is_restored=is_restored)

    @invariant()
    def all_say_the_same(self) -> None:
        """Compare what the store tells of queue, tenants and tasks, to the last bit, and read its keys."""
        self.queue.now = self.now
        ids = sorted({*IDS, *self.model.records})
        self.queue.fetch(
            [
                ("queue_state",),
                ("oldest", 100),
                ("tenants", "0", 100),
                ("tasks", *ids),
                ("results", *IDS),
                ("schedules", "", "", 0, 100),
                ("due_schedules", 100),
                *(("peek", name, 100) for name in self.model.tenants),
                *(("batches", name) for name in BATCHES),
                *(("events", name, 0, 500) for name in self.model.feeds.newest),
                *(("limits", name) for name in ["", *NAMES]),
                *((verb, id) for id in IDS for verb in ("dead_letter", "why")),
                *(("batch_results", id, run.lease + n, 0) for id, run in self.model.runs.items() for n in (0, 1)),
            ]
        )
        self.model.open(self.now)
        state = self.queue.queue_state()
        given = state.pop("delivered"), state.pop("entitled")
        self.same({name: state[name] for name in state if name not in self.later}, reports.queue_state(self.model))
        shares = {name: vars(share) for name, share in self.queue.tenants().items()}
        self.same(shares, {name: reports.share(self.model, name) for name in self.model.tenants})
        self.service_adds_up(*given, state)
        heads = []
        for name, t in self.model.tenants.items():
            peeked = list(pairs(self.call("peek", name, 100)))
            self.same([id.decode() for id, _ in peeked], list(t.ready))
            next_one = peeked[: int(shares[name]["is_eligible"])]
            heads += [(id.decode(), t.let_in_at if t.cause else 0) for id, _ in next_one]
            for id, record in peeked:
                self.same(len(record) - unpack("HEADER", record).end, self.model.records[id.decode()].size)
        now = self.model.open(self.now)
        ages = [
            max(0, now - max(self.model.ready_since(id), self.model.records[id].ready_at, since)) for id, since in heads
        ]
        self.same(self.call("oldest", 100), [max([-1, *ages]), len(heads)])
        self.same(self.queue.tasks(*ids), [reports.task(self.model, id, self.now) for id in ids])
        kept = [None if result is None else result.decode() for result in self.call("results", *IDS)]
        results = [self.model.results.get(id, (0, "")) for id in IDS]
        self.same(kept, [result if until > now else None for until, result in results])
        for name in BATCHES:
            self.same(self.queue.batch(name), reports.batch(self.model, name))
        for id, run in self.model.runs.items():
            for lease in (run.lease, run.lease + 1):
                found = self.read_batch_results(id, lease)
                self.same(found, self.model.batch_results(now, id, lease))
        for name in self.model.feeds.newest:
            self.read_events(name, 0, 500)
        rows = self.queue.call("schedules", "", "", 0, 100)[1:]
        self.same([row[0].decode() for row in rows], reports.schedules(self.model))
        self.due_are_the_same(now)
        expected = [self.model.revision(field) for field in reports.schedules(self.model)]
        self.same([reports.revision(row[1]) for row in rows], expected)
        for name in ["", *NAMES]:
            limits = {key.decode(): float(value) for key, value in pairs(self.call("limits", name))}
            self.same(limits, self.model.set_for(name))
        for id in IDS:
            self.reasons_are_the_same(id)
        self.lowered &= self.crowded()
        self.same(self.crowded() - self.lowered, set())
        keys = Keyspace(self.queue)
        keys.check()
        self.same(keys.parked, self.model.parked)
        self.same(keys.turns, reports.turns(self.model))

    def due_are_the_same(self, now: float) -> None:
        """Compare which schedules a server fires, and when it comes again."""
        _, next_at, *rows = self.call("due_schedules", 100)
        times = {field: self.model.due_at(field) for field in reports.schedules(self.model)}
        later = [at for at in times.values() if now < at < inf]
        self.same(next_at, [*later, -1][0])
        self.same([row[0].decode() for row in rows], [field for field, at in times.items() if at <= now])

    def service_adds_up(self, delivered: float, entitled: float, state: dict[str, float]) -> None:
        """Check that the queue has given what its tenants got, and were entitled to."""
        if not state["share"]:
            passed = min(max(0.0, self.now - state["now"]), self.model.longest_step(state["now"]))
            delivered += passed * state["leased"]
            entitled += passed * state["running"] * (state["weight_sum"] > 0)
        everyone = [reports.share(self.model, name) for name in self.model.tenants] + [self.model.dropped]
        assert isclose(delivered, sum(share["delivered"] for share in everyone), rel_tol=1e-9, abs_tol=1e-3)
        assert isclose(entitled, sum(share["entitled"] for share in everyone), rel_tol=1e-9, abs_tol=1e-3)

    def reasons_are_the_same(self, id: str) -> None:
        """Compare what the store tells of why a task waits, and of a dead one, with where the model has it."""
        letter, death = self.queue.letter(id), self.model.dead.get(id)
        self.same(letter and letter.reason, death and death.reason)
        _, row, *rest = self.call("why", id)
        facts = {key.decode(): float(value) for key, value in pairs(rest)}
        state = reports.task(self.model, id, self.now)[0]
        self.same(row[0].decode(), state)
        if state not in ("ready", "pending", "delayed"):
            return self.same(facts, {})
        t, b = self.model.records[id].tenant, self.model.batch_of(id)
        self.same(
            [
                facts[name]
                for name in ("weight", "ready", "leased", "blocked", "max_running", "rate", "competes", "queue_kept")
            ],
            [t.weight, len(t.ready), t.leased, t.blocked, self.model.limit(t, "max_running"),
             self.model.limit(t, "rate"), t.in_weight_sum, self.model.kept_slots],
        )  # fmt: skip
        if state == "delayed":
            return self.same(facts["ahead"], len(t.ready))
        own = t.ready.place(id) if state == "ready" and t.ready.has_groups else (0, 0)
        self.same((facts["group_ahead"], facts["groups"]), own)
        line = list(t.ready) if state == "ready" else sorted(b.pending, key=lambda other: b.pending[other])  # type: ignore[union-attr]
        assert facts["ahead"] <= line.index(id), "at least"
        assert not facts["is_exact"] or facts["ahead"] == line.index(id)


class Walk:
    """A walk of the machine with plain random numbers: no shrinking, but many times as many steps a second.

    With `compares` off a walk takes the same steps, and only its calls are compared: reads draw nothing.
    """

    compares = True

    def __init__(self, machine: QueueMachine, seed: int) -> None:
        self.machine, self.random, self.reader = machine, random.Random(seed), random.Random(seed)
        self.keeper = random.Random(seed)  # of history, copies of the queue and, in one of ten walks, webhooks
        # a walk goes without some of what is seldom: bugs hide where features get in each other's way, and elsewhere
        self.weights = [weight * (weight > 6 or self.random.random() < 0.7) for weight in WEIGHTS_OF_STEPS]
        self.teller = random.Random(seed)  # of events in feeds: they make no difference to the rest of the walk
        self.repeater = random.Random(seed)  # of claims that are made again, and of payloads that are large
        self.is_busy = self.repeater.random() < 0.3  # most tenants have tasks all the time
        self.purger = random.Random(seed)  # of purges, and of tenants that end
        self.grouper, self.replacer = random.Random(seed), random.Random(seed)
        self.has_groups = self.grouper.random() < 0.5
        self.namer = random.Random(seed)  # of what is postponed, and of tasks' names, in one of five walks
        self.has_names = self.namer.random() < 0.2
        self.talker = random.Random(seed)  # of long results and errors
        self.retrier = random.Random(seed)  # of how long tasks wait for their next attempts
        self.bounder = random.Random(seed)  # of how many tenants there may be, in one of seven walks
        self.has_max_tenants = self.bounder.random() < 0.15
        self.attacher = random.Random(seed)  # of slots and what is kept of them, in half of the walks
        self.has_reserve = self.attacher.random() < 0.5
        self.confirmer = random.Random(seed)  # of clocks that are behind the store's, in one of five walks
        self.is_ahead = self.confirmer.random() < 0.2
        self.owing = random.Random(seed)  # of claims of what is owed, in one of three walks
        self.is_owing = self.owing.random() < 0.33
        self.has_webhooks = self.keeper.random() < 0.1
        machine.configure_short_leases()
        if self.has_reserve:
            self.weights = [weight * (weight > 6 or self.attacher.random() < 0.4) for weight in self.weights]
            machine.attach(slots=self.attacher.choice(SLOTS))
            machine.keep_slots(percent=self.attacher.choice(RESERVES))

    def some(self, most: int, of: list[str]) -> list[str]:
        """Choose one to `most`, with repeats."""
        return self.random.choices(of, k=self.random.randint(1, most))

    def settlements(self) -> list[tuple[str, int, int | None, str]]:
        """Choose what to settle; half of the leases are among the last three."""
        choose = self.random.choice
        chosen = [
            (action, choose([0, 1, 2, self.random.randrange(16)]), choose(DELAYS), choose(["", "bad"]))
            for action in self.some(4, ACTIONS)
        ]
        for n, (action, back, delay, error) in enumerate(chosen):
            if action == "release":  # few have a delay
                chosen[n] = action, back, delay or 0 if self.namer.random() < 0.25 else None, error
        return [(*each[:3], LONG if self.talker.random() < 0.1 else each[3]) for each in chosen]

    def window(self) -> dict[str, Any]:
        """Choose a window, or none."""
        choose = self.random.choice
        starts, ends = {"delay": choose(SPANS)}, {"expires_in": choose(SPANS), "max_attempts": choose([1, 2, 0])}
        after = {"expires_after_start": choose([2, LEASE])}
        window = choose(
            [{}, {}, starts, ends, starts | ends, {"expires_at": choose([-5, 0, 1, 51])}, after, starts | after]
        )
        extras = {
            "priority": choose([0, 0, 50, 99]),
            "dedupe_key": choose(["", "k1", "k2"]),
            "replace": self.replacer.choice([0, 0, 1]),
            "dedupe_period": choose([0, 0, 1, 3 * 60_000]),
            "result_ttl": choose([0, 1, LEASE]),
        }
        batch = {"batch": choose(BATCHES), "result_ttl": choose([0, 0, LEASE])}
        found = self.teller.choice([{}, {}, {"events": 1}])
        asked = window | choose([extras, batch, batch, extras | batch, {}, {}])
        return asked | found | self.group() | self.named() | self.waits()

    def group(self) -> dict[str, Any]:
        """Choose a group, or none; in half of the walks there are none but batches."""
        if not self.has_groups or self.grouper.random() < 0.3:
            return {}
        return {"group": self.grouper.choice(["g1", "g2", "g3"])}

    def named(self) -> dict[str, Any]:
        """Choose a task's name, or none."""
        return {"name": self.namer.choice(["n1", "n2"])} if self.has_names and self.namer.random() < 0.5 else {}

    def behind(self) -> int:
        """Choose how far a server's clock is behind the store's."""
        return self.confirmer.choice([0, 1, 60_001, 60_050, 61_000, 10**6]) if self.is_ahead else 0

    def owed(self) -> int:
        """Choose how much of what is owed is claimed."""
        return self.owing.choice([0, 1, 2, 5]) if self.is_owing else 0

    def waits(self) -> dict[str, Any]:
        """Choose a task's longest waits, or none."""
        if self.retrier.random() < 0.8:
            return {}
        return {"retry_base": self.retrier.choice([0, 1, 40]), "retry_cap": self.retrier.choice([0, 2, 60])}

    def step(self) -> None:
        """Take one step; every fourth one reads the whole keyspace."""
        m, choose, seed = self.machine, self.random.choice, self.random.randrange(2**16)
        match self.random.choices(range(16), self.weights)[0]:
            case 0:
                more = Model.large if self.repeater.random() < 0.05 else 0
                ids = self.some(8, MANY_IDS) if self.is_busy else self.some(4, IDS)
                window = {} if self.is_busy and self.random.random() < 0.7 else self.window()
                m.enqueue(tenant=choose(NAMES), ids=ids, window=window, more=more)
            case 1:
                back = self.repeater.choice([0, 1, 2]) if self.repeater.random() < 0.15 else -1
                m.claim(limit=self.random.randint(1, 6), seed=seed, back=back, behind=self.behind(), owed=self.owed())
            case 2:
                m.settle(chosen=self.settlements(), seed=seed)
            case 3:
                m.advance(ms=choose([0, 1, 1, 50, 50, 999, 1000, 1001, -5, 60_000, 60_000, 86_400_000, -100_000]))
                if choose([True, True, False]):
                    m.tick(ms=0, limit=choose([100, 3, 2, 1]), behind=self.behind())
            case 4:
                m.operate(
                    verb=choose(["set_weight", "pause", "resume", "resume"]),
                    tenant=choose(NAMES),
                    weight=choose([1000, 1, 500, 1024, 3000, HEAVIEST]),
                )
            case 5:
                m.replay_or_purge(verb=choose(["replay", "replay", "purge"]), ids=self.some(4, IDS))
            case 6:
                name = choose(sorted(SETTINGS.keys() - {"max_tenants"}))
                m.configure(name=name, choice=self.random.randrange(6))
            case 7:
                m.cancel(ids=self.some(3, IDS))
            case 8:
                m.reschedule(ids=self.some(3, IDS), span=choose([-50, 0, *SPANS]))
            case 9:
                called = seed % 8 + self.teller.choice([0, 8])
                m.open_batch(tenant=choose(NAMES), name=choose(BATCHES), max_running=choose([0, 1, 2]), called=called)
            case 10:
                m.end_batch(verb=choose(["close_batch", "close_batch", "cancel_batch"]), name=choose(BATCHES))
            case 11:
                limit = choose([*sorted(LIMITED), "max_running", "rate", "rate", "burst", "guaranteed"])
                m.set_limits(name=choose(["", *NAMES]), limit=limit, choice=self.random.randrange(6))
            case 12:
                m.schedule(
                    field=choose(FIELDS), after=choose(AFTER), misfire=choose([0, 1]), choice=self.random.randrange(10)
                )
            case 13:
                chosen = [(choose([0, 1, 2, 3, 5]), choose(AFTER)) for _ in range(choose([1, 2, 3]))]
                m.fire(chosen=chosen, is_fresh=choose([True, False]))
            case 14:
                verb = choose(["unschedule", "pause", "resume", "resume"])
                m.change_schedule(verb=verb, field=choose(FIELDS), after=choose(AFTER))
            case 15:
                m.set_opening_hours(
                    name=choose(["", *NAMES]),
                    text=choose(["", "", "w1", "w2"]),
                    is_open=choose([True, False]),
                    after=choose(AFTER),
                )
        self.keep()
        if self.repeater.random() < 0.05:
            self.seek()
        if self.replacer.random() < 0.1:
            self.replace()
        if self.has_reserve and self.attacher.random() < 0.1:
            self.attach()
        if self.purger.random() < 0.03:
            self.purge()
        if self.has_max_tenants and self.bounder.random() < 0.1:
            m.configure(name="max_tenants", choice=self.bounder.randrange(6))
        if self.random.random() < 0.25:
            self.compare()
        if self.reader.random() < 0.25:
            self.read()
        if self.teller.random() < 0.25:
            m.read_events(tenant=self.teller.choice(NAMES), after=self.teller.randrange(12), count=3)
            m.list_batches(tenant=self.teller.choice(["", *NAMES]), state=self.teller.choice(STATES), count=1)
        if self.teller.random() < 0.01:
            m.bound_feeds(keep=self.teller.choice(KEEPS))

    def keep(self) -> None:
        """Add to the history, build the queue anew elsewhere, or change a webhook."""
        part = self.keeper.random()
        if part < 0.02:
            self.machine.rebuild(is_restored=part < 0.01)
        elif part < 0.06:
            self.machine.add_history(seed=self.keeper.getrandbits(16))
        elif self.has_webhooks and part < 0.15:
            verb, id, name = self.keeper.choice(HOOKED), self.keeper.choice(HOOKS), self.keeper.choice(["", "n1"])
            self.machine.change_webhook(verb=verb, id=id, name=name, on=self.keeper.randrange(2))

    def compare(self) -> None:
        if self.compares:
            self.machine.all_say_the_same()

    def purge(self) -> None:
        """Cancel what waits of a tenant; end it, as far as that is allowed."""
        tenant, choose = self.purger.choice(NAMES), self.purger.choice
        if choose([True, True, False]):
            self.machine.purge_waiting(tenant=tenant, leased=choose([0, 1, 2]))
        if choose([True, False]):
            self.machine.drop_tenant(tenant=tenant)

    def replace(self) -> None:
        """Give what another task asks for to one that holds a dedupe key, whether or not it waits."""
        m, choose = self.machine, self.replacer.choice
        if held := sorted(who for who, (_, id) in m.model.holders.items() if id in m.model.records):
            tenant, key = choose(held)
            starts, ends = (
                {"delay": choose([1, 50])},
                {"expires_in": choose([50, LEASE]), "max_attempts": choose([1, 2])},
            )
            windows: list[dict[str, Any]] = [{}, {}, starts, ends, starts | ends, {"priority": 0}, {"group": "g1"}]
            window = choose(windows)
            ids = self.replacer.sample(MANY_IDS, choose([1, 1, 2, 3]))
            m.enqueue(tenant=tenant, ids=ids, window={"dedupe_key": key, "replace": 1, **window})

    def attach(self) -> None:
        """Change how many slots there are, how many are kept, or how many a tenant may have."""
        m, choose = self.machine, self.attacher.choice
        match choose([0, 0, 0, 1, 2]):
            case 0:
                m.attach(slots=choose(SLOTS))
            case 1:
                m.keep_slots(percent=choose(RESERVES))
            case 2:
                m.set_limits(name=choose(["", *NAMES]), limit="max_running", choice=choose(range(6)))

    def seek(self) -> None:
        """Do what seldom comes by chance: widen a limit that keeps tenants out, replay what an earlier batch left.

        Or cancel all tasks without a group that have had a turn beside groups, or make a claim again after its leases.
        """
        m, model = self.machine, self.machine.model
        lines = (line for t in model.tenants.values() for line in t.ready.lines.values() if line.has_groups)
        if beside := next(
            (line.groups[LOOSE] for line in lines if LOOSE in line.groups and LOOSE in line.finish), None
        ):
            m.cancel(ids=list(beside))
        for name, number in model.claims.items():
            if any(id in model.leases and model.runs[id].lease != number for id in model.bundles.get(number, [])):
                m.claim(limit=3, seed=number % 2**16, back=m.claims - int(name[1:]))
                break
        if any(t.cause == AT_MAX_RUNNING and t.slot == OUT for t in model.tenants.values()):
            m.set_limits(name="", limit="max_running", choice=self.repeater.choice([0, 3]))
        ended = {name for name, b in model.batches.items() if b.state == "complete"}
        left = [id for id in sorted(model.dead) if model.records[id].options.batch in ended]
        for id in left[:1]:
            tenant, name = model.records[id].tenant.name, model.records[id].options.batch
            m.configure(name="dead_keep_ms", choice=2)
            m.tick(ms=BATCH_KEEP_MS + 1, limit=100)
            m.open_batch(tenant=tenant, name=name, max_running=0, called=0)
            m.replay_or_purge(verb="replay", ids=[id])

    def read(self) -> None:
        """Read a page of dead letters; numbers of its own, so that the walk stays the same."""
        choose = self.reader.choice
        reasons, errors = ["", "", "", "exhausted", "rejected", "expired", "lease_lost"], ["", "", "", "ba", "good"]
        which = (choose(["", "", *NAMES]), choose(reasons), choose(errors), choose(AGES), choose(AGES))
        self.machine.read_dead(which=which, count=choose([1, 2, 3]), goes_on=choose([True, True, False]))
