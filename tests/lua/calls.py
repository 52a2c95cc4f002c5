"""A thin caller of the function library: one method per verb, with the test's own clock and random_values."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import ormsgpack
import pytest
import redis

from fairq.model.queue.limits import bytes_of
from fairq.model.tasks import MAX_LEASES, OPTIONS, NewTask
from fairq.store import library
from fairq.store.records import pack_options, pack_template

VERBS = library.verbs("reads") | library.verbs("drains") | library.verbs("writes")
START = 1_700_000_000_000  # the test clock's first ms: before 2025, so that the numbers of leases count from 1
HEAD = 13  # values of a claim's reply before its tasks
FORMATS = library.formats()
COMMENT = re.compile(r"^ *--.*$", re.MULTILINE)  # without them a store loads the library in half the time
LEASE_MS = 30_000  # the default lease
CLAIMED, CLAIMED_BY_RATE = MAX_LEASES, 60  # tasks that one call leases at most; of tenants with a rate
CHANGES = 64  # tasks that one call changes, where much of each is changed
NO_RANDOM_VALUES = b""


class Leased(NamedTuple):
    """A task as `claim` gives it; id and lease number are its fence."""

    id: str
    lease: int
    attempt: int
    max_attempts: int
    record: bytes


class Ticked(NamedTuple):
    now: int
    next_due: int
    ready: int
    promoted: int
    expired: int
    reaped: int
    trimmed: int
    fires: int
    opening_changes: int
    lost: list[Any]  # leases: id, number, attempt


class Known(NamedTuple):
    """What `tasks` says of an id, but for the lease's number."""

    state: str
    tenant: str
    attempt: int
    at: float
    detail: str
    error: str
    lost_leases: int


class Letter(NamedTuple):
    id: str
    record: bytes
    reason: str
    attempts: int
    died_at: float
    error: str
    traceback: str
    lost_leases: int


class Progress(NamedTuple):
    """How far a batch is."""

    state: str
    tenant: str
    max_running: int
    total: int
    running: int
    done: int
    dead: int
    cancelled: int
    expired: int
    created_at: float
    completed_at: float


class FeedEvent(NamedTuple):
    """An event of a tenant's feed."""

    id: int
    event: str
    of: str
    at: float
    attempt: int
    detail: str


class Feed(NamedTuple):
    """What is read of a tenant's feed."""

    oldest: int
    newest: int
    events: list[FeedEvent]

    @property
    def short(self) -> list[tuple[str, str]]:
        """What became of whom."""
        return [(found.event, found.of) for found in self.events]


class Waiting(NamedTuple):
    """A page of waiting tasks."""

    cursor: str
    looked: int
    waiting: int
    ids: list[str]


class Page(NamedTuple):
    """A page of dead letters."""

    cursor: str
    left: int
    letters: list[Letter]

    @property
    def ids(self) -> list[str]:
        """The letters' ids, in their order."""
        return [letter.id for letter in self.letters]


@dataclass
class Share:
    """A tenant as `tenants` reports it."""

    weight: int
    ready: int
    pending: int
    delayed: int
    leased: int
    dead: int
    done: int
    delivered: float
    entitled: float
    is_eligible: int
    blocked: int
    limited: int
    bytes: int

    @property
    def waiting_tasks(self) -> int:
        return self.ready + self.pending + self.delayed


def unpack(name: str, packed: bytes) -> Any:
    """Read a packed record, as lua/base/formats.lua has its fields."""
    values, end = FORMATS[name].unpack(packed)
    return SimpleNamespace(**values, end=end)


def unpack_map(packed: bytes, defaults: Mapping[str, Any]) -> Any:
    """Read a map by name."""
    return SimpleNamespace(**{**defaults, **ormsgpack.unpackb(packed)})


def random_values(seed: int = 0, count: int = 1500) -> bytes:
    """Pack `count` random numbers in [0, 1)."""
    source = random.Random(seed)
    return struct.pack(f"<{count}d", *(source.random() for _ in range(count)))


_FIELDS = {name.removesuffix("_ms"): name for name in OPTIONS}
PLAIN = library.plain_options()


def new_task(id: str, payload: bytes = b"{}", **asked: Any) -> NewTask:
    """Make a task; its options are named without `_ms`, and 0 is as good as None, but for `max_attempts`."""
    given = {_FIELDS[name]: value for name, value in asked.items()}
    none = {name for name, value in given.items() if value == 0 and OPTIONS[name] is None} - {"max_attempts"}
    return NewTask(id, payload, **given | dict.fromkeys(none))


def options(**asked: Any) -> bytes:
    """Pack a task's options, as `new_task` takes them; empty when all are left to the queue."""
    return pack_options(new_task("", **asked))


def packed_template(payload: bytes = b"{}", **asked: Any) -> bytes:
    """Pack the task of a schedule, with options as `new_task` takes them."""
    return pack_template(new_task("", payload, **asked))


def packed_link(id: str, payload: bytes = b"{}", **asked: Any) -> tuple[object, ...]:
    """The arguments of a task that follows one which is acknowledged."""
    return id, options(**asked), payload


def counted(id: str, payload: int = 2, tenant: str = "ada", key: str = "") -> int:
    """Tell what a task counts among its tenant's bytes, with a dedupe key or without options."""
    return bytes_of(id, FORMATS["HEADER"].size + len(tenant) + payload + (bytes_of(key, 0) if key else 0))


def words(reply: list[bytes]) -> list[str]:
    """Decode a list of outcomes."""
    return [word.decode() for word in reply]


MORE_ARGS: dict[str, Callable[[Any, Any, Any], list[Any]]] = {
    "ack": lambda _="", result="", *__: [result],
    "nack": lambda delay, error, traceback: [delay, error, traceback],
    "release": lambda delay="", error="", *_: [delay, error],
    "reject": lambda _, error, traceback: [error, traceback],
}


def settle_args(settlements: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Spell (action, id, lease, delay_ms, error, traceback) as `settle` takes them: to each action what it uses."""
    args = []
    for action, id, lease, *more in settlements:
        args += [action, id, lease, *(MORE_ARGS[action](*more) if action in MORE_ARGS else ())]
    return args


def leased_in(reply: list[Any]) -> list[Leased]:
    """Read the tasks of a claim's reply."""
    rows = (reply[i : i + 4] for i in range(HEAD, len(reply), 4))
    return [Leased(id.decode(), reply[2], attempt, max_attempts, record) for id, attempt, max_attempts, record in rows]


def letter_of(row: list[Any]) -> Letter:
    """Read a dead letter as `dead` and `dead_letter` give it."""
    id, _, reason, attempts, died_at, error, record, traceback, lost = row
    texts = error.decode(), traceback.decode()
    return Letter(id.decode(), record, reason.decode(), attempts, float(died_at), *texts, lost)


def progress_of(row: list[Any]) -> Progress:
    """Read how far a batch is."""
    state, tenant, *counts, created, completed = row
    return Progress._make((state.decode(), tenant.decode(), *counts, float(created), float(completed)))


def pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Pair names with their values."""
    return zip(flat[::2], flat[1::2], strict=True)


def load_variant(client: redis.Redis, version: str, *changes: tuple[str, str]) -> None:
    """Load the library beside the real one, under a version of its own, with some of its text changed."""
    source = library.source()
    names = (
        (f"name={library.name()}", f"name=fairq_{version}"),
        (f"VERSION = '{library.version()}'", f"VERSION = '{version}'"),
    )
    for text, instead in (*names, *changes):
        assert source.count(text) == 1, text
        source = source.replace(text, instead)
    client.function_load(COMMENT.sub("", source), replace=True)


class Queue:
    """One queue in a store: `now` is its clock (unless it uses the store's), `seed` moves with every claim."""

    def __init__(self, client: redis.Redis, prefix: str = "fq:{mail/0}", version: str = "", now: int = START) -> None:
        self.client = client
        self.prefix = prefix
        self.now = now
        self.uses_store_time = False
        self.seed = 0
        self.claimed = CLAIMED
        self._functions = f"fq_{version or library.version()}_"
        self._fetched: dict[tuple[object, ...], Any] = {}
        client.set(f"{prefix}:test", 1)
        self.call("make_queue")

    def key(self, name: str) -> str:
        """Spell a key of this queue."""
        return f"{self.prefix}:{name}"

    def call(self, verb: str, *args: object, random_values: bytes = NO_RANDOM_VALUES) -> Any:
        """Call a verb with the clock, these random_values and these arguments."""
        if (verb, *args) in self._fetched:
            if isinstance(reply := self._fetched.pop((verb, *args)), redis.ResponseError):
                raise reply
            return reply
        run = self.client.fcall_ro if verb in library.verbs("reads") else self.client.fcall
        now = "" if self.uses_store_time else self.now
        return run(self._functions + verb, 1, self.prefix, now, random_values, *args)

    def fetch(self, reads: Sequence[tuple[object, ...]]) -> None:
        """Read all these (verb, argument, ...) in one go; the calls that follow take their replies from here."""
        pipeline = self.client.pipeline(transaction=False)
        for verb, *args in reads:
            pipeline.fcall_ro(f"{self._functions}{verb}", 1, self.prefix, self.now, NO_RANDOM_VALUES, *args)
        self._fetched = dict(zip(reads, pipeline.execute(raise_on_error=False), strict=True))

    def enqueue(self, tenant: str, *ids: str, payload: bytes = b"{}", **window: Any) -> list[str]:
        """Enqueue tasks that share their options; out: one outcome per id."""
        packed = options(**window)
        return words(self.call("enqueue", tenant, *(part for id in ids for part in (id, packed, payload))))

    def claim(
        self, limit: int = 1, worker: str = "w1", rolled: bytes | None = None, slots: int | str = ""
    ) -> list[Leased]:
        """Claim tasks with the next seed's random values, for so many slots, in as many calls as it takes."""
        found: list[Leased] = []
        while True:
            self.seed += 1
            at_once = min(limit - len(found), self.claimed)
            given = random_values(self.seed, 100 * at_once + 100) if rolled is None else rolled
            name = f"{worker}/{len(found)}" if found else worker
            some = leased_in(self.call("claim", name, at_once, "", "", slots, random_values=given))
            found += some
            if len(some) < at_once or len(found) == limit:
                return found

    def settle(self, *settlements: tuple[object, ...]) -> list[str]:
        """Settle leases: (action, id, lease, delay_ms, error, traceback) each, in as many calls as it takes."""
        padded = [(*s, "", "", "")[:6] for s in settlements]
        outcomes: list[str] = []
        while True:
            self.seed += 1
            answer = words(
                self.call("settle", *settle_args(padded[len(outcomes) :]), random_values=random_values(self.seed, 500))
            )
            outcomes += answer
            if len(outcomes) >= len(padded):
                return outcomes

    def link(self, lease: Leased, *links: tuple[object, ...], result: bytes = b"null") -> str:
        """Acknowledge a task with links."""
        args = (lease.id, lease.lease, result, *(word for link in links for word in link))
        return words([self.call("settle_linked", *args, random_values=random_values(0))])[0]

    def end(self, action: str, lease: Leased, delay: object = "", error: str = "", traceback: str = "") -> str:
        return self.settle((action, lease.id, lease.lease, delay, error, traceback))[0]

    def tick(self, limit: int = 100, witness: object = "", server: str = "") -> Ticked:
        """Tick once; `witness` is the caller's own time."""
        return Ticked(*self.call("tick", limit, witness, server)[: len(Ticked._fields)])  # behind them: who is woken

    def advance(self, ms: int) -> None:
        """Move the test clock."""
        self.now += ms

    def queue_state(self) -> dict[str, float]:
        """Read the queue's counts and settings."""
        reply = words(self.call("queue_state"))
        return {name: float(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}

    def tenants(self, *names: str) -> dict[str, Share]:
        """Read tenants, all of them when none is named."""
        found: dict[str, Share] = {}
        cursor = "0"
        while True:
            cursor, *lines = words(self.call("tenants", cursor, 100, *names))
            for line in lines:
                name, *values = line.split(" ")
                found[name] = Share(*(float(value) for value in values))  # type: ignore[arg-type]
            if cursor == "0":
                return found

    def tenant(self, name: str) -> Share:
        return self.tenants(name)[name]

    def tasks(self, *ids: str) -> list[Known]:
        return [
            Known(s.decode(), t.decode(), attempt, float(at), detail.decode(), error.decode(), lost)
            for s, t, attempt, at, detail, error, lost, _ in self.call("tasks", *ids)
        ]

    def state(self, id: str) -> str:
        """Read one task's state."""
        return self.tasks(id)[0].state

    def cancel(self, *ids: str) -> list[str]:
        """Cancel tasks, as many at once as one call takes."""
        parts = (ids[start : start + CHANGES] for start in range(0, max(len(ids), 1), CHANGES))
        return [outcome for part in parts for outcome in words(self.call("cancel", "", *part))]

    def waiting_page(self, tenant: str = "ada", cursor: str = "", older: int = 0, error: str = "") -> Waiting:
        """Read a page of a tenant's waiting tasks that match."""
        cursor, looked, count, *ids = self.call("waiting_tasks", tenant, cursor, older, error)
        return Waiting(cursor.decode(), looked, count, words(ids))  # type: ignore[attr-defined]

    def waiting(self, tenant: str = "ada", **which: Any) -> list[str]:
        """Walk over a tenant's waiting tasks that match; their ids."""
        page = self.waiting_page(tenant, **which)
        ids = page.ids
        while page.cursor:
            page = self.waiting_page(tenant, page.cursor, **which)
            ids = ids + page.ids
        return ids

    def cancel_waiting(self, *ids: str) -> int:
        """Cancel those of these tasks that wait, as many at once as one call takes."""
        parts = (ids[n : n + CHANGES] for n in range(0, len(ids), CHANGES))
        return sum(words(self.call("cancel", "waiting", *part)).count("ok") for part in parts)

    def purge(self, tenant: str = "ada", **which: Any) -> int:
        """Cancel a tenant's waiting tasks that match, page by page."""
        cursor, count = "", 0
        while True:
            page = self.waiting_page(tenant, cursor, **which)
            count, cursor = count + self.cancel_waiting(*page.ids), page.cursor
            if not cursor:
                return count

    def reschedule(self, *ids: str, delay: float = 0, start_at: float = 0) -> list[str]:
        """Give tasks another start, as many at once as one call takes."""
        parts = (ids[start : start + CHANGES] for start in range(0, max(len(ids), 1), CHANGES))
        return [outcome for part in parts for outcome in words(self.call("reschedule", delay, start_at, *part))]

    def open_batch(self, id: str, max_running: int = 0, tenant: str = "ada", events: int = 0, **payloads: str) -> str:
        """Open a batch; payloads are `complete`, `success` and `death`."""
        texts = [payloads.get(name, "") for name in ("complete", "success", "death")]
        return words([self.call("open_batch", tenant, id, max_running, *texts, events)])[0]

    def batch(self, id: str) -> Progress | None:
        """Read how far a batch is."""
        (row,) = self.call("batches", id)
        return progress_of(row) if row else None

    def list_batches(self, tenant: str = "", state: str = "", count: int = 100) -> dict[str, Progress]:
        """Read all batches that match, page by page."""
        found: dict[str, Progress] = {}
        cursor = b"0"
        while True:
            cursor, *rows = self.call("list_batches", tenant, state, cursor, count)
            found |= {id.decode(): progress_of(row) for id, row in zip(rows[::2], rows[1::2], strict=True)}
            if cursor == b"0":
                return found

    def events(self, tenant: str = "ada", after: int = 0, count: int = 100) -> Feed:
        """Read a tenant's feed."""
        oldest, newest, *rows = self.call("events", tenant, after, count)
        return Feed(
            oldest,
            newest,
            [
                FeedEvent(id, event.decode(), of.decode(), float(at), attempt, detail.decode(errors="replace"))
                for id, event, of, at, attempt, detail in rows
            ],
        )

    def peek(self, tenant: str, count: int = 100) -> list[str]:
        """Read the ids of a tenant's next tasks."""
        return words(self.call("peek", tenant, count)[::2])

    def dead_page(
        self, cursor: str = "", count: int = 100, *, tenant: str = "", reason: str = "", error: str = "",
        older: int = 0, younger: int = 0, brief: bool = False,
    ) -> Page:  # fmt: skip
        """Read a page of dead letters."""
        mode = "brief" if brief else ""
        reply = self.call("dead", tenant, cursor, count, reason, error, older, younger, mode)
        return Page(reply[0].decode(), reply[1], [letter_of(row) for row in reply[2:]])

    def dead(self, **which: Any) -> list[Letter]:
        """Read all dead letters that match, page by page."""
        page = self.dead_page(**which)
        letters = page.letters
        while page.cursor:
            page = self.dead_page(page.cursor, **which)
            letters += page.letters
        return letters

    def letter(self, id: str) -> Letter | None:
        """Read one dead letter."""
        row = self.call("dead_letter", id)
        return letter_of(row) if row else None

    def bury(self, tenant: str, *ids: str, error: str = "", traceback: str = "") -> None:
        """Make dead letters: enqueue, claim and reject; nothing else may be ready."""
        self.enqueue(tenant, *ids)
        self.settle(*(("reject", lease.id, lease.lease, "", error, traceback) for lease in self.claim(len(ids))))

    def set_limits(self, tenant: str, **values: float) -> dict[str, float]:
        """Set limits of a tenant (or, by the empty name, of all); returns the previous ones."""
        reply = self.call("set_limits", tenant, *(part for pair in values.items() for part in pair))
        return {name.decode(): float(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}

    def configure(self, **values: int) -> None:
        """Change settings."""
        self.call("configure", *(part for pair in values.items() for part in pair))


class Listener:
    """A second connection that subscribes to the queue's channel."""

    def __init__(self, queue: Queue) -> None:
        options = queue.client.connection_pool.connection_kwargs
        self._client = redis.Redis(host=options["host"], port=options["port"], socket_timeout=60.0)
        self._pubsub = self._client.pubsub()
        self._channel = queue.key("ready")

    def __enter__(self) -> Listener:
        """Subscribe, and wait until the store says so."""
        self._pubsub.ssubscribe(self._channel)
        assert self._next()["type"] == "ssubscribe"
        return self

    def __exit__(self, *_: object) -> None:
        self._pubsub.close()
        self._client.close()

    def heard(self) -> list[bytes]:
        """Return the notifications since the last call; a marker of our own says when all have come."""
        self._client.spublish(self._channel, "marker")
        found: list[bytes] = []
        while (message := self._next()["data"]) != b"marker":
            found.append(message)
        return found

    def _next(self) -> dict[str, Any]:
        message: dict[str, Any] | None = self._pubsub.get_sharded_message(timeout=60.0)
        assert message, "the store says nothing"
        return message


def refused(queue: Queue, code: str, verb: str, *args: object, random_values: bytes = NO_RANDOM_VALUES) -> None:
    """Assert that a call is refused with `FAIRQ <code>` and changes no key."""
    before = snapshot(queue)
    with pytest.raises(redis.ResponseError, match=f"^FAIRQ {code}( |$)"):
        queue.call(verb, *args, random_values=random_values)
    assert snapshot(queue) == before


def snapshot(queue: Queue) -> dict[bytes, bytes | None]:
    """Dump every key of the queue, to compare before and after."""
    keys = list(queue.client.scan_iter(match="*", count=1000))
    pipeline = queue.client.pipeline(transaction=False)
    for key in keys:
        pipeline.dump(key)
    return dict(zip(keys, pipeline.execute(), strict=True))


def writes(queue: Queue) -> int:
    """Count the changes to the store's keys so far; a call that leaves the count unchanged wrote nothing."""
    return int(queue.client.info("persistence")["rdb_changes_since_last_save"])
