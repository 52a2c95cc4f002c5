"""The real keyspace of a queue, read whole and checked against the invariants: what KEYS.md promises of it."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import fairq
from fairq.model.queue.limits import ALL_UNSET, BATCH_BYTES, CUT, CUT_AT, DEFAULTS, NAMED_BYTES, RESULTS_BYTES, bytes_of

from .calls import FORMATS, PLAIN, Queue, unpack, unpack_map

KEYS = (Path(fairq.__file__).parent / "lua" / "KEYS.md").read_text()
TYPES = dict(
    re.findall(r"^\| `([a-z_]+:?)[^`]*` \| ([a-z ]+) \|", KEYS.partition("## Keys of the service")[0], re.MULTILINE)
)
GIFT = 2
OUT, AWAKE, LEASED, STOPPING, MINUTE_MS = 0, -1, 0, 3, 60_000
DEFAULT, COMPLETE, CLOSED, RATE_LIMITED = 50, 2, 2, 4
HAS_OPTIONS, IS_LARGE = 1, 4
QUEUE_SIZE = FORMATS["QUEUE"].size


def unpack_queue(packed: bytes | None) -> Any:
    """Read a queue's record; of one that never was, zeros."""
    q = unpack("QUEUE", packed or bytes(QUEUE_SIZE))
    q.classes = {c: n for c, n in struct.iter_unpack("<bI", q.classes) if n}
    return q


class Seat:
    """A tenant: its account, its books and its details."""

    def __init__(self, account: Any, details: Any) -> None:
        self.__dict__ |= vars(account) | vars(details) | vars(unpack("BOOKS", account.books))

    def is_eligible(self, max_running: float) -> bool:
        """True if the tenant can be served."""
        return bool(self.ready > 0 and not self.blocked and (not max_running or self.leased < max_running))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def bytes_of_error(text: bytes) -> int:
    """Tell what an error or a traceback counts among its tenant's bytes."""
    is_cut = text.endswith(CUT.encode()) and len(text) <= CUT_AT + len(CUT)
    return 0 if is_cut else len(text)


def is_task(record: bytes) -> bool:
    """True if a record is one of a task, and no mark of one that has ended."""
    return record[0] == 1


def check_times(kept: dict[str, float], computed: dict[str, float]) -> None:
    """Servers look at each when they have computed; or earlier, after the clock went back."""
    assert kept.keys() == computed.keys()
    assert all(at == computed[name] or at < computed[name] < math.inf for name, at in kept.items())


class Keyspace:
    """All keys of a queue at one moment, decoded."""

    def __init__(self, queue: Queue) -> None:
        client, prefix = queue.client, f"{queue.prefix}:"
        keys = sorted(key.decode() for key in client.scan_iter(f"{prefix}*", count=1000))
        self.names = [key.removeprefix(prefix) for key in keys]
        with client.pipeline(transaction=False) as pipeline:
            for name in self.names:
                self._ask(pipeline, name, prefix + name)
            values = dict(zip(self.names, pipeline.execute(), strict=True))
        hashes = {name: dict(values.get(name, {})) for name, type in TYPES.items() if type == "hash"}
        accounts = {tag: unpack("ACCOUNT", packed) for tag, packed in hashes.pop("accounts").items()}
        named = {name: {k.decode(errors="replace"): v for k, v in found.items()} for name, found in hashes.items()}
        self.ends = dict(values.get("ends", []))
        scores = {
            name: {k.decode(errors="replace"): v for k, v in values.get(name, [])}
            for name, type in TYPES.items()
            if type == "sorted set"
        }
        kept = named["tasks"]
        self.records = {id: record for id, record in kept.items() if is_task(record)}
        self.marks = {id: unpack("MARK", record) for id, record in kept.items() if not is_task(record)}
        self.headers = {id: unpack("HEADER", record) for id, record in self.records.items()}
        self.runs = {id: unpack("RUN", run) for id, run in named["runs"].items()}
        self.dead = {id: unpack("DEATH", death) for id, death in named["dead"].items()}
        self.bundles = {number: unpack("BUNDLE", bundle) for number, bundle in named["bundles"].items()}
        self.claims, self.payloads = named["claims"], named["payloads"]
        self.task_options = {id: unpack_map(packed, PLAIN) for id, packed in named["task_options"].items()}
        self.unique = {name: values[name].decode() for name in self.names if name.startswith("unique:")}
        self.deadlines, self.extended, self.due = scores["leases"], scores["extended"], scores["due"]
        self.expiring, self.deaths = scores["expiring"], scores["deaths"]
        self.leases = {id for id, run in self.runs.items() if run.state in (LEASED, STOPPING)}
        self.dead_counts, self.fires, self.templates = scores["dead_counts"], scores["fires"], named["templates"]
        self.tags = {tag: account.name for tag, account in accounts.items()}
        details = {name: unpack("DETAILS", packed) for name, packed in named["tenants"].items()}
        self.seats = {name: Seat(accounts[d.tag], d) for name, d in details.items()}
        self.wake = [self.tags[tag] for tag in values.get("wake", [])]
        self.queue = unpack_queue(values.get("queue"))
        self.now, self.clock = self.queue.now, max(self.queue.now, queue.now)
        self.slots = {
            (c, slot): self.tags[values[f"class:{c}"][4 * slot - 4 : 4 * slot]]
            for c, count in self.queue.classes.items()
            for slot in range(1, count + 1)
        }
        self.limits = {n: unpack_map(packed, ALL_UNSET if n else DEFAULTS) for n, packed in named["limits"].items()}
        self.opening_hours, self.parked, self.opening_changes = (
            named["opening_hours"],
            scores["parked"],
            scores["opening_changes"],
        )
        self.batches = {n: unpack("BATCH", packed) for n, packed in named["batches"].items()}
        self.cancelling = scores["cancelling"]
        self.idle = {self.tags[tag]: base for tag, base in values.get("idle", [])}
        self.pending = {
            n.partition(":")[2]: {k.decode() for k, _ in values[n]} for n in self.names if n[:8] == "pending:"
        }
        self.members = {
            n.partition(":")[2]: {k.decode() for k, _ in values[n]} for n in self.names if n[:8] == "members:"
        }
        self.batch_results = {
            n.partition(":")[2]: {k.decode(): order for k, order in values[n]}
            for n in self.names
            if n[:14] == "batch_results:"
        }
        self.loose = {t: {k.decode(): v for k, v in values.get(f"ready:{t}", [])} for t in self.seats}
        self.turns = {n[6:]: {k.decode(): v for k, v in values[n]} for n in self.names if n.startswith("turns:")}
        self.groups: dict[str, dict[str, list[str]]] = {}  # of a tenant and priority
        for name in self.names:
            if name.startswith("group:"):
                _, tenant, priority, group = name.split(":", 3)
                self.groups.setdefault(f"{tenant}:{priority}", {})[group] = [k.decode() for k, _ in values[name]]
        self.open_priorities = {t: {k.decode() for k, _ in values.get(f"priorities:{t}", [])} for t in self.seats}
        self.delayed = {t: {k.decode(): v for k, v in values.get(f"delayed:{t}", [])} for t in self.seats}
        self.buried = {t: {k.decode(): v for k, v in values.get(f"deaths:{t}", [])} for t in self.seats}
        self.revisions = {
            f"{t}/{k.decode()}": v for t in self.seats for k, v in dict(values.get(f"schedules:{t}", {})).items()
        }
        self.feeds = {n.partition(":")[2]: values[n] for n in self.names if n.startswith("events:")}
        self.ended = {
            int(n.removeprefix("done:")): [id.decode() for id in values[n]] for n in self.names if n.startswith("done:")
        }

    @staticmethod
    def _ask(pipeline: Any, name: str, key: str) -> None:
        kind, colon, _ = name.partition(":")
        match TYPES[kind + colon]:
            case "list":
                pipeline.lrange(key, 0, -1)
            case "sorted set":
                pipeline.zrange(key, 0, -1, withscores=True)
            case "stream":
                pipeline.xrange(key)
            case "hash":
                pipeline.hgetall(key)
            case _:
                pipeline.get(key)

    def check(self) -> None:
        """Assert every invariant."""
        self.check_names()
        ready = self.check_ready()
        self.check_places(ready)
        self.check_opening_hours(ready)
        self.check_runs()
        self.check_bundles()
        self.check_marks()
        self.check_task_options()
        self.check_turns()
        self.check_batches(ready)
        self.check_graves()
        self.check_seats()
        self.check_reserve()
        self.check_accounts()
        self.check_limits()
        self.check_schedules()
        self.check_feeds()

    def check_names(self) -> None:
        """No key outside the documented set, and none of a tenant that is not known."""
        for name in self.names:
            kind, colon, rest = name.partition(":")
            assert kind + colon in TYPES, name
            assert kind != "repair", name
            without_seat = {"done", "pending", "members", "batch_results", "result", "class", "history", "events"}
            if kind == "unique" and not self.unique[name].startswith("0 "):
                continue  # was held for a period, which is over; the store deletes it a minute late
            assert kind in without_seat or not rest or rest.split(":")[0] in self.seats, name
        named = (self.limits, self.opening_hours, self.opening_changes, self.parked, self.due, self.feeds)
        assert {name for names in named for name in names} <= {"", *self.seats}
        assert {member[1:5] for member in self.ends} <= self.tags.keys()

    def check_ready(self) -> dict[str, str]:
        """The ready tasks of a tenant are those that are nowhere else; returns id -> tenant."""
        elsewhere = {id for delayed in self.delayed.values() for id in delayed} | self.leases | self.dead.keys()
        elsewhere |= {id for ids in self.pending.values() for id in ids}
        ready: dict[str, str] = {}
        for tenant, loose in self.loose.items():
            grouped = [id for place, own in self.groups.items() if place.partition(":")[0] == tenant
                       for some in own.values() for id in some]  # fmt: skip
            assert len(grouped) == self.seats[tenant].grouped, tenant
            assert len(loose) + len(grouped) == self.seats[tenant].ready, tenant
            ready |= dict.fromkeys([*loose, *grouped], tenant)
        assert ready.keys() == self.records.keys() - elsewhere
        return ready

    def check_places(self, ready: dict[str, str]) -> None:
        """Every id is in exactly one place, and the counters are the sizes of the places."""
        delayed = [id for ids in self.delayed.values() for id in ids]
        pending = [id for ids in self.pending.values() for id in ids]
        places = Counter([*ready, *delayed, *pending, *self.leases, *self.dead])
        assert len(pending) == sum(seat.pending for seat in self.seats.values())
        assert all(count == 1 for count in places.values()), places
        assert places.keys() == self.records.keys()
        sizes = {"ready": len(ready), "delayed": len(delayed), "leased": len(self.leases), "dead": len(self.dead)}
        assert {name: getattr(self.queue, name) for name in sizes} == sizes
        for name in sizes:
            assert sizes[name] == sum(getattr(seat, name) for seat in self.seats.values()), name
        for tenant, seat in self.seats.items():
            assert seat.delayed == len(self.delayed[tenant])

    def check_opening_hours(self, ready: dict[str, str]) -> None:
        """Every waiting task's end is watched; every tenant's earliest start stands in `due` or has passed."""
        waiting = ready.keys() | {id for ids in (*self.delayed.values(), *self.pending.values()) for id in ids}
        ends = {id: self.headers[id].expires_at for id in waiting}
        assert self.expiring == {id: end for id, end in ends.items() if end}
        for tenant, delayed in self.delayed.items():
            if delayed:
                assert self.queue.sweeping or self.due[tenant] <= max(min(delayed.values()), self.now), tenant

    def check_runs(self) -> None:
        """A run belongs to a live task of its tenant, and its attempts are within bounds."""
        for id, run in self.runs.items():
            assert id in self.records
            assert id not in self.dead
            assert run.attempt >= 1 or run.lease == 0, id
            assert run.attempt <= run.max_attempts + run.uncounted_attempts or run.max_attempts == 0, id
            assert self.tags[run.tag] == self.headers[id].tenant
            assert run.lease <= self.queue.last_lease
            assert run.bytes == self.bytes_of(id)
            assert run.features == self.headers[id].features

    def check_bundles(self) -> None:
        """A lease is in its bundle, which has a deadline, or has been extended and has its own."""
        assert {number for number, bundle in self.bundles.items() if bundle.together} == self.deadlines.keys()
        assert self.extended.keys() == {id for id in self.leases if self.runs[id].is_extended}
        left = Counter(f"{self.runs[id].lease:.0f}" for id in self.leases)
        together = Counter(f"{self.runs[id].lease:.0f}" for id in self.leases - self.extended.keys())
        assert left == {number: bundle.left for number, bundle in self.bundles.items()}
        assert together == {number: bundle.together for number, bundle in self.bundles.items() if bundle.together}
        assert self.claims == {b.claim: number.encode() for number, b in self.bundles.items() if b.claim}
        for id in self.leases:
            assert id in self.bundles[f"{self.runs[id].lease:.0f}"].ids.decode().split("\n")

    def check_marks(self) -> None:
        """Ids that ended are named once for their end, and none that is named lives; payloads are those of tasks."""
        named = [id for ids in self.ended.values() for id in ids]
        assert sorted(named) == sorted(self.marks)
        assert len(named) == self.queue.remembered
        assert not named or min(self.ended) >= self.queue.minute
        large = {id for id, header in self.headers.items() if header.features & IS_LARGE}
        callbacks = {
            f"{id}-{event}-{b.created_at:.0f}"
            for id, b in self.batches.items()
            for event in ("complete", "success", "death")
            if getattr(b, f"on_{event}")
        }
        assert self.payloads.keys() - callbacks <= large <= self.payloads.keys()
        assert callbacks - self.records.keys() - self.marks.keys() <= self.payloads.keys()
        asking = {id for id, header in self.headers.items() if header.features & HAS_OPTIONS}
        assert self.task_options.keys() == asking

    def size(self, id: str) -> int:
        """Tell how long the payload of a task is."""
        return len(self.payloads[id]) if id in self.payloads else len(self.records[id]) - self.headers[id].end

    def bytes_of(self, id: str) -> int:
        """Tell what a task counts among its tenant's bytes."""
        header, run = self.headers[id], self.runs.get(id)
        extra = bytes_of_error(run.error) if run else 0
        return bytes_of(id, header.end + self.size(id) + header.extra + extra)

    def check_task_options(self) -> None:
        """What a task asks for is there as long as the task; a key is its holder's; a ready one has its score."""
        assert self.task_options.keys() <= self.records.keys()
        assert len(self.task_options) == self.queue.tasks_with_options
        for name, held in self.unique.items():
            until, _, id = held.partition(" ")
            key = name.split(":", 2)[2]
            assert until != "0" or self.task_options[id].dedupe_key == key, name
        for loose in self.loose.values():
            for id, score in loose.items():
                asked = self.task_options.get(id)
                assert round(score / 2**42) == (asked.priority if asked else DEFAULT), id
                assert not asked or not asked.group + asked.batch, id

    def check_turns(self) -> None:
        """Each group with ready tasks holds those of its name, and has a turn that is not before the clock."""
        assert self.groups.keys() == self.turns.keys()
        assert self.groups.keys() == {
            f"{t}:{priority}" for t, some in self.open_priorities.items() for priority in some
        }
        for place, groups in self.groups.items():
            priority = place.partition(":")[2]
            assert {"", *(f":{group}" for group in groups)} == self.turns[place].keys() - {":"}, place
            assert self.turns[place][""] <= min(self.turns[place].values()), place
            for group, ids in groups.items():
                for id in ids:
                    asked = self.task_options[id]
                    assert (asked.group or asked.batch, str(asked.priority)) == (group, priority), id

    def check_batches(self, ready: dict[str, str]) -> None:
        """A batch's counts are those of its tasks, and no more have a place than its limit allows."""
        assert self.batch_results.keys() <= self.batches.keys()
        for name, b in self.batches.items():
            named = sum(NAMED_BYTES + len(each) for each in self.batch_results.get(name, ()))
            assert b.result_bytes == RESULTS_BYTES + named or b.result_bytes == named == 0, name
            own = (name, b.created_at)
            belongs = {id for id, asked in self.task_options.items() if (asked.batch, asked.opened_at) == own}
            assert 0 <= b.expired <= b.dead, name
            if b.state == COMPLETE:
                assert b.total == b.done + b.dead + b.cancelled
                assert name not in self.pending
                continue
            alive = belongs - self.dead.keys()
            assert b.running == len(alive & self.leases), name
            assert b.admitted == len(alive & (ready.keys() | self.leases)), name
            assert not b.max_running or b.admitted <= b.max_running, name
            assert b.total - b.done - b.dead - b.cancelled == len(alive), name
            assert self.members.get(name, set()) <= alive
            stopped = {id for id in alive if id in self.runs and self.runs[id].state == STOPPING}
            assert name in self.cancelling or stopped | self.members.get(name, set()) == alive
            pending = self.pending.get(name, set())
            assert pending <= alive
            assert not pending or b.admitted == b.max_running, "a place is free while tasks are pending"

    def check_graves(self) -> None:
        """Every dead letter stands once among all deaths and once among its tenant's, at the time when it died."""
        died = {id: death.died_at for id, death in self.dead.items()}
        assert self.deaths == died
        assert sum(map(len, self.buried.values())) == len(died)
        for tenant, deaths in self.buried.items():
            assert deaths == {id: died[id] for id in deaths}
            assert all(self.headers[id].tenant == tenant for id in deaths)
        assert self.dead_counts == {tenant: len(deaths) for tenant, deaths in self.buried.items() if deaths}

    def check_seats(self) -> None:
        """Exactly the eligible tenants are seated and weighed; slots are dense, the wake list is covered."""
        eligible = {t: s for t, s in self.seats.items() if s.slot != OUT}
        for tenant, seat in self.seats.items():
            max_running = self.limits[tenant].max_running if tenant in self.limits else -1
            if max_running >= 0:  # a limit for all may have changed since it was seated
                assert (tenant in eligible) == seat.is_eligible(max_running), tenant
            elif tenant in eligible:
                assert seat.is_eligible(0), tenant
            else:  # one that a limit for all kept out, which is wider now, is let in by the next ticks
                max_running = self.limits[""].max_running if "" in self.limits else 0
                assert self.queue.sweeping or not seat.is_eligible(max_running), tenant
        assert self.queue.servable == len(eligible)
        competing = {t: s for t, s in eligible.items() if not 0 < self.guaranteed(t) >= s.leased}
        assert {t for t, s in self.seats.items() if s.standing == 2} == competing.keys()
        assert self.queue.weight_sum == sum(seat.weight for seat in competing.values())
        assert self.queue.running == sum(seat.leased for seat in competing.values() if seat.loan != GIFT)
        strings = {float(name[6:]) for name in self.names if name.startswith("class:")}
        assert strings == self.queue.classes.keys()
        assert {int(name[6:]) for name in self.names if name.startswith("class:")} == self.queue.classes.keys()
        assert self.slots == {(getattr(s, "class"), s.slot): t for t, s in eligible.items() if s.slot > 0}
        assert Counter(self.wake) == Counter(t for t, s in self.seats.items() if s.is_on_wake_list)
        assert {t for t, s in eligible.items() if s.slot == AWAKE} <= set(self.wake)
        assert all(seat.epoch <= self.queue.epoch for seat in self.seats.values())

    def guaranteed(self, tenant: str) -> float:
        """How many leases a tenant is guaranteed."""
        found = self.limits.get(tenant) or self.limits.get("")
        return found.guaranteed if found else 0

    def check_reserve(self) -> None:
        """Loans are counted, one to a tenant without other leases; who has a slot and no lease is written down."""
        borrowers = [seat for seat in self.seats.values() if seat.loan]
        assert len(borrowers) == self.queue.loans
        assert all(seat.leased == 1 for seat in borrowers)
        idle = {tenant: seat.base for tenant, seat in self.seats.items() if seat.slot > 0 and not seat.leased}
        if b"reserve" not in self.queue.settings:  # those that are not the default
            assert not self.idle
        elif not self.queue.sweeping:
            assert self.idle == idle
        else:
            assert self.idle.items() <= idle.items()

    def check_accounts(self) -> None:
        """The sum of starts is that of the leases: accounts of an earlier epoch are read as if all began with this."""
        starts = Counter[str]()
        for id in self.leases:
            starts[self.headers[id].tenant] += max(self.runs[id].began_at, self.queue.epoch_at)
        for tenant, seat in self.seats.items():
            assert seat.epoch != self.queue.epoch or seat.starts == starts[tenant], tenant

    def check_limits(self) -> None:
        """A mark says who has limits; tenants without tokens are parked; closed ones have opening hours that say so."""
        assert {name for name, seat in self.seats.items() if seat.limited} == self.limits.keys() - {""}
        assert self.queue.limited == ("" in self.limits)
        for tenant, seat in self.seats.items():
            assert seat.bytes == self.kept_by(tenant, seat.tag), tenant
            assert seat.events == len(self.feeds.get(tenant, ())), tenant
            assert not seat.blocked & RATE_LIMITED or tenant in self.parked, tenant
            odd = (seat.grouped, seat.blocked, seat.limited, seat.cause)
            assert seat.is_odd == any(odd), tenant
            assert not 0 < seat.leased < self.guaranteed(tenant) or seat.slot <= 0, "guaranteed tenants are not drawn"
        is_open = {name: unpack("HOURS", revision) for name, revision in self.opening_hours.items()}
        assert {name for name, seat in self.seats.items() if seat.blocked & CLOSED} == {
            name for name, window in is_open.items() if name and not window.is_open
        }
        assert bool(int(self.queue.blocked) & CLOSED) == ("" in is_open and not is_open[""].is_open)
        check_times(self.opening_changes, {name: window.changes_at for name, window in is_open.items()})

    def kept_by(self, tenant: str, tag: bytes) -> int:
        """Add up the bytes of all that a tenant keeps; what older servers stored counts less."""
        templates = {f: len(t) for f, t in self.templates.items() if f.partition("/")[0] == tenant}
        batches, callbacks = dict[str, int](), dict[str, int]()
        for id, batch in self.batches.items():
            if batch.tenant == tenant:
                sizes = {event: getattr(batch, f"on_{event}") for event in ("complete", "success", "death")}
                batches[id] = batch.result_bytes + (BATCH_BYTES if batch.reserves else sum(sizes.values()))
                callbacks |= {  # as the tasks that they will be
                    f"{id}-{event}-{batch.created_at:.0f}": FORMATS["HEADER"].size
                    + len(tenant + getattr(batch, f"{event}_name"))
                    + size
                    for event, size in sizes.items()
                    if size and batch.reserves
                }
        letters = [letter for letter in self.dead.values() if letter.tenant == tenant and letter.counted]
        return int(
            sum(self.bytes_of(id) for id, header in self.headers.items() if header.tenant == tenant)
            + sum(struct.unpack_from("<I", member, 5)[0] for member in self.ends if member[1:5] == tag)
            + sum(bytes_of(name, size) for kept in (batches, callbacks, templates) for name, size in kept.items())
            + sum(bytes_of_error(text) for each in letters for text in (each.error.encode(), each.traceback))
        )

    def check_schedules(self) -> None:
        """Every schedule has a revision, a template and a place among the fires: its next time, or infinity."""
        schedules = {field: unpack("SCHEDULE", revision) for field, revision in self.revisions.items()}
        assert self.templates.keys() == schedules.keys()
        next_at = {field: math.inf if each.paused else each.next_at for field, each in schedules.items()}
        check_times(self.fires, next_at)

    def check_feeds(self) -> None:
        """The ids of a feed count up by one, and it has no other fields; only a setting just lowered leaves more."""
        for tenant, feed in self.feeds.items():
            ids = [id.decode() for id, _ in feed]
            first = int(ids[0][2:]) if ids else 0
            assert ids == [f"0-{first + n}" for n in range(len(ids))], tenant
            assert all(list(found) == [b"event", b"id", b"at", b"attempt", b"detail"] for _, found in feed), tenant
