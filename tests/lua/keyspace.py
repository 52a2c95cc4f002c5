"""The real keyspace of a queue, read whole and checked against the invariants: what KEYS.md promises of it."""

from __future__ import annotations

import math
import struct
from collections import Counter
from typing import Any, NamedTuple

from .calls import Queue

TENANT_FORMAT = "<17dIbBBBBB"
QUEUE_FORMAT = "<39d"
BATCH_FORMAT = "<10dBBB"
SCORES = ("leases", "due", "expiring", "deaths", "cancelling", "completed", "graveyards", "fires", "parked", "turns")
HASHES = ("tasks", "runs", "dead", "slots", "tenants", "extras", "batches", "templates", "limits", "windows")
PLAIN_KEYS = {"test", "queue", "wake", "sweep", *SCORES, *HASHES}
NUMBERED_KEYS = {
    "ready", "delayed", "void", "done", "levels", "unique", "held", "members", "result", "deaths", "schedules",
    "events",
}  # fmt: skip
OUT, AWAKE, LEASED, STOPPING, WINDOW_MS = 0, -1, 0, 3, 60_000
USUAL, COMPLETE, CLOSED, SPENT = "50", 2, 2, 4


class Seat(NamedTuple):
    """A packed tenant."""

    weight: float
    base: float
    starts: float
    leased: float
    estimate: float
    epoch: float
    slot: float
    ready: float
    delayed: float
    dead: float
    done: float
    delivered: float
    entitled: float
    joined: float
    held: float
    bytes: float
    spent: float
    voids: int
    rank: int
    barred: int
    listed: int
    levels: int
    limited: int
    counted: int

    def is_eligible(self, cap: float) -> bool:
        """Whether the tenant can be served."""
        return self.ready > 0 and not self.barred and (not cap or self.leased < cap)


def tenant_of(record: bytes) -> str:
    """Read whose a record is."""
    *_, size = struct.unpack_from("<BHdddB", record)
    return record[struct.calcsize("<BHdddB") :][:size].decode()


class Keyspace:
    """All keys of a queue at one moment, decoded."""

    def __init__(self, queue: Queue, has_gone_back: bool = False) -> None:
        self.has_gone_back = has_gone_back  # the queue's time: what it remembers of then may be of ids used since
        client, prefix = queue.client, f"{queue.prefix}:"
        keys = sorted(key.decode() for key in client.scan_iter(count=1000))
        assert all(key.startswith(prefix) for key in keys), keys
        self.names = [key.removeprefix(prefix) for key in keys]
        with client.pipeline(transaction=False) as pipeline:
            for name in self.names:
                self._ask(pipeline, name, prefix + name)
            values = dict(zip(self.names, pipeline.execute(), strict=True))
        hashes = {name: {k.decode(): v for k, v in dict(values.get(name, {})).items()} for name in HASHES}
        scores = {name: {k.decode(): v for k, v in values.get(name, [])} for name in SCORES}
        self.records, self.runs, self.dead, self.slots = (hashes[n] for n in ("tasks", "runs", "dead", "slots"))
        self.extras = hashes["extras"]
        self.unique = {name: values[name].decode() for name in self.names if name.startswith("unique:")}
        self.leases, self.due, self.expiring, self.deaths = (scores[n] for n in SCORES[:4])
        self.graveyards, self.fires, self.templates = scores["graveyards"], scores["fires"], hashes["templates"]
        self.wake = [name.decode() for name in values.get("wake", [])]
        self.seats = {n: Seat._make(struct.unpack_from(TENANT_FORMAT, v)) for n, v in hashes["tenants"].items()}
        packed = values.get("queue") or struct.pack(QUEUE_FORMAT, *[0] * 39)
        size = struct.calcsize(QUEUE_FORMAT)
        q = struct.unpack_from(QUEUE_FORMAT, packed)
        self.now, self.weight_sum, self.epoch = q[0], q[2], q[5]
        self.counts = dict(zip(("ready", "delayed", "leased", "dead"), q[14:18], strict=True))
        self.classes = dict(struct.iter_unpack("<dd", packed[size:]))
        self.running, self.servable, self.origin, self.epoch_at, self.sweeping = q[27], q[28], q[30], q[31], q[33]
        self.barred, self.special, self.limited, self.events_keep = q[4], q[23], q[25], q[26]
        self.last_lease = q[36]
        self.limits = {n: struct.unpack("<8d", packed) for n, packed in hashes["limits"].items()}
        self.windows, self.parked, self.turns = hashes["windows"], scores["parked"], scores["turns"]
        self.batches = {n: struct.unpack_from(BATCH_FORMAT, packed) for n, packed in hashes["batches"].items()}
        self.cancelling = scores["cancelling"]
        self.held = {n.partition(":")[2]: {k.decode() for k, _ in values[n]} for n in self.names if n[:5] == "held:"}
        self.members = {
            n.partition(":")[2]: {k.decode() for k, _ in values[n]} for n in self.names if n[:8] == "members:"
        }
        self.lists: dict[str, list[str]] = {t: [] for t in self.seats}
        self.levels: dict[str, dict[str, list[str]]] = {t: {} for t in self.seats}
        for name in self.names:
            kind, tenant, level = (*name.split(":"), USUAL)[:3] if name.startswith("ready:") else ("", "", "")
            if kind:
                self.levels[tenant][level] = [id.decode() for id in values[name]]
                self.lists[tenant] += self.levels[tenant][level]
        self.open_levels = {t: {k.decode() for k, _ in values.get(f"levels:{t}", [])} for t in self.seats}
        self.delayed = {t: {k.decode(): v for k, v in values.get(f"delayed:{t}", [])} for t in self.seats}
        self.buried = {t: {k.decode(): v for k, v in values.get(f"deaths:{t}", [])} for t in self.seats}
        self.voids: dict[str, Counter[str]] = {t: Counter() for t in self.seats}
        self.level_voids: dict[str, dict[str, Counter[str]]] = {t: {} for t in self.seats}
        for t in self.seats:
            for field, count in dict(values.get(f"void:{t}", {})).items():
                level, _, id = field.decode().rpartition(":")
                self.level_voids[t].setdefault(level or USUAL, Counter())[id] += int(count)
                self.voids[t][id] += int(count)
        self.heads = {
            f"{t}/{k.decode()}": v for t in self.seats for k, v in dict(values.get(f"schedules:{t}", {})).items()
        }
        self.feeds = {n.partition(":")[2]: values[n] for n in self.names if n.startswith("events:")}
        self.done = {
            int(n.removeprefix("done:")): {k.decode(): v.decode() for k, v in values[n].items()}
            for n in self.names
            if n.startswith("done:")
        }

    @staticmethod
    def _ask(pipeline: Any, name: str, key: str) -> None:
        kind = name.split(":")[0]
        if kind in ("queue", "test", "unique", "result", "sweep"):
            pipeline.get(key)
        elif kind in ("wake", "ready"):
            pipeline.lrange(key, 0, -1)
        elif kind in SCORES or kind in ("delayed", "levels", "held", "members"):
            pipeline.zrange(key, 0, -1, withscores=True)
        elif kind == "events":
            pipeline.xrange(key)
        else:
            pipeline.hgetall(key)

    def check(self) -> None:
        """Assert every invariant."""
        self.check_names()
        ready = self.check_lists()
        self.check_places(ready)
        self.check_windows(ready)
        self.check_runs()
        self.check_extras()
        self.check_batches(ready)
        self.check_graves()
        self.check_seats()
        self.check_accounts()
        self.check_limits()
        self.check_schedules()
        self.check_feeds()

    def check_names(self) -> None:
        """No key outside the documented set, and none of a tenant that is not known."""
        for name in self.names:
            kind, _, rest = name.partition(":")
            assert (name in PLAIN_KEYS) or (kind in NUMBERED_KEYS and rest), name
            without_seat = ("done", "held", "members", "result", "events")  # the last: a batch may have had no task
            assert kind in without_seat or not rest or rest.split(":")[0] in self.seats, name

    def check_lists(self) -> dict[str, str]:
        """A list holds the tenant's ready tasks once each, and its voids; returns id -> tenant."""
        elsewhere = {id for delayed in self.delayed.values() for id in delayed} | self.leases.keys() | self.dead.keys()
        elsewhere |= {id for held in self.held.values() for id in held}
        waiting = self.records.keys() - elsewhere
        ready: dict[str, str] = {}
        for tenant, ids in self.lists.items():
            entries = Counter(ids)
            real = entries - self.voids[tenant]
            assert self.voids[tenant].total() == self.seats[tenant].voids, tenant
            assert self.voids[tenant] <= entries, (tenant, ids, self.voids[tenant])
            assert all(count == 1 for count in real.values()), (tenant, ids)
            assert real.total() == self.seats[tenant].ready, tenant
            assert real or not (ids or self.voids[tenant]), "a list of nothing but voids is dropped"
            ready |= dict.fromkeys(real, tenant)
        assert ready.keys() == waiting, "ready tasks are those that are nowhere else"
        return ready

    def check_places(self, ready: dict[str, str]) -> None:
        """Every id is in exactly one place, and the counters are the sizes of the places."""
        delayed = [id for ids in self.delayed.values() for id in ids]
        held = [id for ids in self.held.values() for id in ids]
        places = Counter([*ready, *delayed, *held, *self.leases, *self.dead])
        assert len(held) == sum(seat.held for seat in self.seats.values())
        assert all(count == 1 for count in places.values()), places
        assert places.keys() == self.records.keys()
        sizes = {"ready": len(ready), "delayed": len(delayed), "leased": len(self.leases), "dead": len(self.dead)}
        assert self.counts == sizes
        for name in ("ready", "delayed", "leased", "dead"):
            assert self.counts[name] == sum(getattr(seat, name) for seat in self.seats.values()), name
        for tenant, seat in self.seats.items():
            assert seat.delayed == len(self.delayed[tenant])
        window = math.floor(self.now / WINDOW_MS)
        for recent in (window, window - 1):
            assert self.has_gone_back or not self.done.get(recent, {}).keys() & self.records.keys()

    def check_windows(self, ready: dict[str, str]) -> None:
        """Every waiting task's end is watched; every tenant's earliest start stands in `due` or has passed."""
        waiting = ready.keys() | {id for ids in (*self.delayed.values(), *self.held.values()) for id in ids}
        ends = {id: struct.unpack_from("<BHddd", self.records[id])[4] for id in waiting}
        assert self.expiring == {id: end for id, end in ends.items() if end}
        for tenant, delayed in self.delayed.items():
            if delayed:
                assert self.due[tenant] <= max(min(delayed.values()), self.now), tenant

    def check_runs(self) -> None:
        """A run belongs to a live task; it is leased exactly when it has a deadline; its numbers are in bounds."""
        for id, packed in self.runs.items():
            attempt, forgiven, max_attempts, state, _, _, lease = struct.unpack_from("<IIHBddd", packed)
            assert id in self.records
            assert id not in self.dead
            assert (state in (LEASED, STOPPING)) == (id in self.leases), id
            assert 1 <= attempt <= max_attempts + forgiven, id
            assert (1 if id in self.leases else 0) <= lease <= self.last_lease, id
        assert self.leases.keys() <= self.runs.keys()

    def check_extras(self) -> None:
        """What a task asks for is there as long as the task; a key is its holder's; tasks stand in their levels."""
        assert self.extras.keys() <= self.records.keys()
        assert len(self.extras) == self.special
        asked = {id: struct.unpack_from("<B", packed) for id, packed in self.extras.items()}
        for name, held in self.unique.items():
            until, _, id = held.partition(" ")
            key = name.split(":", 2)[2]
            assert until != "0" or self.asks(id)[0] == key, name
        for tenant, levels in self.levels.items():
            assert {level for level in levels if level != USUAL} <= self.open_levels[tenant]
            assert len(self.open_levels[tenant]) == self.seats[tenant].levels
            for level, ids in levels.items():
                void = self.level_voids[tenant].get(level, Counter())
                assert void <= Counter(ids), (tenant, level)
                live = Counter(ids) - void
                assert all(str(asked.get(id, (50,))[0]) == level for id in live), (tenant, level)

    def asks(self, id: str) -> tuple[str, str]:
        """Return the dedupe key and the batch of a task."""
        texts = self.extras[id][18:] if id in self.extras else b"\0\0"
        size = texts[0]
        return texts[1 : 1 + size].decode(), texts[2 + size :].decode()

    def check_batches(self, ready: dict[str, str]) -> None:
        """A batch's counts are those of its tasks, and no more have a place than its cap allows."""
        for name, (cap, _, total, admitted, running, done, dead, cancelled, at, _, state, *_) in self.batches.items():
            opened = {id for id, packed in self.extras.items() if struct.unpack_from("<Bdd", packed)[2] == at}
            belongs = {id for id in opened if self.asks(id)[1] == name}
            if state == COMPLETE:
                assert total == done + dead + cancelled
                assert name not in self.held
                continue
            alive = belongs - self.dead.keys()
            assert running == len(alive & self.leases.keys()), name
            assert admitted == len(alive & (ready.keys() | self.leases.keys())), name
            assert not cap or admitted <= cap, name
            assert total - done - dead - cancelled == len(alive), name
            assert self.members.get(name, set()) <= alive
            assert name in self.cancelling or self.stopped(alive) | self.members.get(name, set()) == alive
            held = self.held.get(name, set())
            assert held <= alive
            assert not held or admitted == cap, "a place is free while tasks are held"

    def stopped(self, ids: set[str]) -> set[str]:
        """Those that were told to stop."""
        return {id for id in ids if id in self.runs and struct.unpack_from("<IIHB", self.runs[id])[3] == STOPPING}

    def check_graves(self) -> None:
        """Every dead letter stands once among all deaths and once among its tenant's, at the time when it died."""
        died = {id: struct.unpack_from("<BIdd", packed)[3] for id, packed in self.dead.items()}
        assert self.deaths == died
        assert sum(map(len, self.buried.values())) == len(died)
        for tenant, deaths in self.buried.items():
            assert deaths == {id: died[id] for id in deaths}
            assert all(tenant_of(self.records[id]) == tenant for id in deaths)
        assert self.graveyards == {tenant: len(deaths) for tenant, deaths in self.buried.items() if deaths}

    def check_seats(self) -> None:
        """Whoever is eligible is seated and weighed, nobody else is; slots are dense, the wake list is covered."""
        eligible = {t: s for t, s in self.seats.items() if s.slot != OUT}
        for tenant, seat in self.seats.items():
            cap = self.limits[tenant][0] if tenant in self.limits else -1
            if cap >= 0:  # the cap for all may have changed since a tenant was seated
                assert (tenant in eligible) == seat.is_eligible(cap), tenant
            elif tenant in eligible:
                assert seat.is_eligible(0), tenant
            else:  # one that a cap for all kept out, which is wider now, is let in by the next ticks
                cap = self.limits.get("", (0,))[0]
                assert self.sweeping or not seat.is_eligible(cap), tenant
        assert self.servable == len(eligible)
        competing = {t: s for t, s in eligible.items() if not 0 < self.guaranteed(t) >= s.leased}
        assert {t for t, s in self.seats.items() if s.counted} == competing.keys()
        assert self.weight_sum == sum(seat.weight for seat in competing.values())
        assert self.running == sum(seat.leased for seat in competing.values())
        seated = {f"{s.rank}:{s.slot:.0f}": t for t, s in eligible.items() if s.slot > 0}
        assert {field: name.decode() for field, name in self.slots.items()} == seated
        counts = Counter(float(field.split(":")[0]) for field in seated)
        assert {c: n for c, n in self.classes.items() if n} == counts
        for field in seated:
            class_, slot = field.split(":")
            assert 1 <= int(slot) <= counts[float(class_)]
        assert Counter(self.wake) == Counter(t for t, s in self.seats.items() if s.listed)
        assert {t for t, s in eligible.items() if s.slot == AWAKE} <= set(self.wake)
        assert all(seat.epoch <= self.epoch for seat in self.seats.values())

    def guaranteed(self, tenant: str) -> float:
        """How many leases a tenant is guaranteed."""
        return self.limits.get(tenant, self.limits.get("", (0,) * 8))[1]

    def check_accounts(self) -> None:
        """The sum of starts is that of the leases: accounts of an earlier epoch are read as if all began with this."""
        starts = Counter[str]()
        for id in self.leases:
            began_at = struct.unpack_from("<IIHBd", self.runs[id])[4]
            starts[tenant_of(self.records[id])] += max(began_at, self.epoch_at)
        for tenant, seat in self.seats.items():
            assert seat.epoch != self.epoch or seat.starts == starts[tenant], tenant

    def check_limits(self) -> None:
        """Limits are told by a mark; who is out of tokens is parked; who is closed has a window that says so."""
        assert {name for name, seat in self.seats.items() if seat.limited} == self.limits.keys() - {""}
        assert self.limited == ("" in self.limits)
        for tenant, seat in self.seats.items():
            waiting = [r for id, r in self.records.items() if id not in self.leases and id not in self.dead]
            sizes = [len(r) - 28 - len(tenant) for r in waiting if tenant_of(r) == tenant]
            assert seat.bytes == sum(sizes), tenant
            assert not seat.barred & SPENT or tenant in self.parked, tenant
            assert not 0 < seat.leased < self.guaranteed(tenant) or seat.slot <= 0, "guaranteed tenants are not drawn"
        is_open = {name: struct.unpack_from("<Bd", head) for name, head in self.windows.items()}
        assert {name for name, seat in self.seats.items() if seat.barred & CLOSED} == {
            name for name, (opened, _) in is_open.items() if name and not opened
        }
        assert bool(int(self.barred) & CLOSED) == (not is_open.get("", (1, 0))[0])
        assert self.turns == {name: at for name, (_, at) in is_open.items()}

    def check_schedules(self) -> None:
        """Every schedule has a head, a template and a place among the fires: its next time, or the end of all time."""
        heads = {field: struct.unpack_from("<BBBdd", head) for field, head in self.heads.items()}
        assert self.templates.keys() == heads.keys()
        assert self.fires == {
            field: math.inf if paused else next_at for field, (_, paused, _, next_at, _) in heads.items()
        }

    def check_feeds(self) -> None:
        """The ids of a feed count up by one, and it has no other fields; only a setting just lowered leaves more."""
        for tenant, feed in self.feeds.items():
            ids = [id.decode() for id, _ in feed]
            first = int(ids[0][2:]) if ids else 0
            assert ids == [f"0-{first + n}" for n in range(len(ids))], tenant
            assert all(list(told) == [b"event", b"id", b"at", b"attempt", b"detail"] for _, told in feed), tenant
