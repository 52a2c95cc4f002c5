"""Random walks over links: acknowledgements, deliveries and what runs remember, beside an exact model."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from dataclasses import dataclass, field

import redis

from .calls import Leased, Queue, packed_link, words
from .keyspace import UNDELIVERED, Keyspace

DAY_MS = 86_400_000
STEPS = 150


def name_of(id: str, queue: str = "next", tenant: str = "ada") -> str:
    """Spell the name of a link in the outbox."""
    digest = hashlib.sha1(b"\n".join((queue.encode(), id.encode()))).hexdigest()
    return f"{tenant}/link-{digest}"


@dataclass
class Link:
    """A link that is due some time."""

    tenant: str
    id: str
    written: int
    due: int
    attempts: int = 0


@dataclass
class Outbox:
    """What an outbox is to hold: links by name, and dead letters of links."""

    links: dict[str, Link] = field(default_factory=dict)
    dead: dict[str, Link] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)  # tenant -> when it is looked at next

    def put(self, name: str, link: Link) -> None:
        """A link is due some time."""
        self.links[name] = link
        self.turns[link.tenant] = min(link.due, self.turns.get(link.tenant, link.due))

    def take_out(self, name: str, now: int) -> Link:
        """A link is due no more."""
        link = self.links.pop(name)
        self.put_off(link.tenant, now)
        return link

    def put_off(self, tenant: str, now: int) -> None:
        """A tenant's turn waits until its first link is due; one that is due keeps its turn."""
        due = [link.due for link in self.links.values() if link.tenant == tenant]
        if not due:
            del self.turns[tenant]
        elif min(due) > now:
            self.turns[tenant] = min(due)

    def add(self, tenant: str, id: str, now: int) -> None:
        """An acknowledgement links to another queue."""
        name = name_of(id, "next", tenant)
        if name not in self.links and name not in self.dead:
            self.put(name, Link(tenant, id, now, now))

    def take(self, now: int, limit: int, hold: int) -> list[str]:
        """A server takes links that are due: of each tenant as many, and each then goes behind the others."""
        taken: list[str] = []
        while not taken:
            tenants = sorted((turn, tenant) for tenant, turn in self.turns.items() if turn <= now)[:limit]
            if not tenants:
                break
            for _, tenant in tenants:
                own = {name: link for name, link in self.links.items() if link.tenant == tenant}
                due = sorted((link.due, name) for name, link in own.items() if link.due <= now)
                for _, name in due[: limit // min(len(tenants), 10)]:
                    own[name].due = now + hold
                    taken.append(name)
                self.turns[tenant] = max(now, min(link.due for link in own.values()))
        return taken

    def close(self, name: str, fate: str, delay: int, now: int) -> str:
        """A server tells what has become of a link."""
        if name not in self.links:
            return "gone"
        link = self.links[name]
        link.attempts += fate != "delivered"
        if fate == "later" and now < link.written + DAY_MS:
            link.due = now + delay
            self.put(name, link)
            self.put_off(link.tenant, now)
            return "ok"
        self.take_out(name, now)
        if fate != "delivered":
            self.dead[name] = link
        return "ok"

    def replay(self, name: str, now: int) -> str:
        """A dead letter is replayed."""
        if name not in self.dead:
            return "gone"
        link = self.dead.pop(name)
        self.put(name, Link(link.tenant, link.id, now, now))
        return "ok"


@dataclass
class LinkWalk:
    """A random walk over the outbox of a queue."""

    queue: Queue
    rng: random.Random
    staler: random.Random
    model: Outbox = field(default_factory=Outbox)
    leases: list[Leased] = field(default_factory=list)
    made: defaultdict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    tasks: int = 0
    compares: bool = True

    def lease(self) -> None:
        """Enqueue a task, and lease one."""
        self.tasks += 1
        tenant = self.rng.choice(["ada", "ada", "bob", "eve"])
        self.queue.enqueue(tenant, f"{tenant}-{self.tasks}", max_attempts=0)
        self.leases += self.queue.claim(1, f"to-{self.tasks}")

    def take_lease(self) -> Leased:
        """Choose one of the leases, which ends."""
        if not self.leases:
            self.lease()
        return self.leases.pop(self.rng.randrange(len(self.leases)))

    def link(self) -> None:
        """Acknowledge a task with links."""
        lease = self.take_lease()
        tenant, known = lease.id[:3], set(Keyspace(self.queue).records)
        links = [(f"{tenant}-l-{self.rng.randrange(30)}", self.rng.choice(["next", "next", ""])) for _ in range(4)]
        links = links[: self.rng.randint(1, 4)]
        packed = [packed_link(id, to, id.encode(), max_attempts=0) for id, to in links]
        assert self.queue.link(lease, *packed) == "ok"
        assert self.queue.state(lease.id) == "done" or lease.id in dict(links)
        for id, to in links:
            if to:
                self.model.add(tenant, id, self.queue.now)
            else:
                is_there = id in known or id in Keyspace(self.queue).records
                assert is_there or self.queue.state(id) in ("done", "cancelled")
        self.made.pop(lease.id, None)
        if self.rng.random() < 0.3:
            assert self.queue.link(lease, packed_link("again", "next")) == "gone"

    def fail(self) -> None:
        """End a lease in another way, and try to link then."""
        lease = self.take_lease()
        action = self.rng.choice(["nack", "postpone", "release", "reject"])
        assert self.queue.end(action, lease, 0) == "ok"
        if action == "reject":
            self.made.pop(lease.id, None)
        elif self.rng.random() < 0.3:
            self.queue.cancel(lease.id)
            self.made.pop(lease.id, None)
        assert self.queue.link(lease, packed_link("never", "next"), packed_link("never")) in ("gone", "stale")
        assert self.queue.made_by(lease.id, lease.lease, b"12345678") == [-1]

    def note(self) -> None:
        """Have a run remember what its handler enqueued."""
        lease, digest = self.take_lease(), self.rng.randbytes(8)
        self.leases.append(lease)
        assert set(self.queue.note_made(lease.id, digest, digest)) == {"ok"}
        self.made[lease.id].add(digest)
        asked = [*sorted(self.made[lease.id]), b"unknown!"]
        assert self.queue.made_by(lease.id, lease.lease, *asked) == [*[1] * (len(asked) - 1), 0]
        made = Keyspace(self.queue).runs[lease.id].made
        assert len(made) == 8 * len(self.made[lease.id])
        if len(made) > 8:
            across = made[3:11]
            assert self.queue.made_by(lease.id, lease.lease, across) == [across in self.made[lease.id]]

    def take(self) -> None:
        """Take links that are due; turns may have come too early in queues of before they were put off."""
        if self.model.turns and self.staler.random() < 0.3:
            tenant = self.staler.choice(sorted(self.model.turns))
            self.model.turns[tenant] = min(self.model.turns[tenant], self.queue.now - 1)
            self.queue.client.zadd(self.queue.key("outbox_due"), {tenant: self.queue.now - 1}, lt=True)
        limit, hold = self.rng.randint(1, 7), self.rng.randint(1, 2000)
        found = self.queue.take_links(limit, hold)
        assert list(found) == self.model.take(self.queue.now, limit, hold)
        for name, link in found.items():
            wanted = self.model.links[name]
            assert (link.tenant, link.id, link.attempts) == (wanted.tenant, wanted.id, wanted.attempts)
            assert (link.written_at, link.payload) == (wanted.written, wanted.id.encode())

    def close(self) -> None:
        """Tell what has become of a link."""
        name = self.rng.choice([*self.model.links, *self.model.dead, "ada/link-none"])
        fate, delay = self.rng.choice(["delivered", "delivered", "later", "later", "never"]), self.rng.randint(0, 5000)
        told = self.queue.close_link(name, fate, delay, "why")
        assert told == self.model.close(name, fate, delay, self.queue.now)

    def replay(self) -> None:
        """Replay a dead letter, or what is none."""
        name = self.rng.choice([*self.model.links, *self.model.dead, "none"])
        assert words(self.queue.call("replay", name)) == [self.model.replay(name, self.queue.now)]

    def purge(self) -> None:
        """Delete a dead letter."""
        name = self.rng.choice([*self.model.dead, "none"])
        assert words(self.queue.call("purge", name)) == ["ok" if self.model.dead.pop(name, None) else "gone"]

    def advance(self) -> None:
        """Let time pass; the leases that are lost are taken by another worker."""
        self.queue.advance(self.rng.choice([1, 100, 1000, 5000, 30_000_000]))
        while (tick := self.queue.tick(500)).reaped or tick.promoted or tick.trimmed:
            pass
        runs = Keyspace(self.queue).runs
        self.leases = [each for each in self.leases if each.id in runs and runs[each.id].state == 0]
        self.leases += self.queue.claim(500, f"at-{self.queue.now}-{self.tasks}")
        due = [turn <= self.queue.now for turn in self.model.turns.values()]
        later = [turn for turn in self.model.turns.values() if turn > self.queue.now]
        tick = self.queue.tick()
        assert tick.links == sum(due)
        assert tick.next_due == -1 or tick.next_due > self.queue.now, "what is due is the servers'"
        if later:
            assert 0 <= tick.next_due <= min(later)

    def repair(self) -> None:
        """Repair: all links are due now."""
        outcome, number = b"more", b""
        while outcome == b"more":
            outcome, number, *_ = self.queue.call("repair", number)
        for link in self.model.links.values():
            link.due = self.queue.now
        self.model.turns = {link.tenant: self.queue.now for link in self.model.links.values()}

    def step(self) -> None:
        """Take one step."""
        moves = [self.lease, self.link, self.link, self.take, self.close, self.close, self.replay, self.purge]
        more = [self.fail, self.note, self.note, self.advance, self.repair]
        self.rng.choice(moves if self.rng.random() < 0.6 else more)()
        self.compare()

    def compare(self) -> None:
        """Compare all."""
        if not self.compares:
            return
        keys = Keyspace(self.queue)
        keys.check()
        due = {name: at for names in keys.links.values() for name, at in names.items()}
        assert due == {name: link.due for name, link in self.model.links.items()}
        assert keys.outbox_due == self.model.turns
        assert {id for id, death in keys.dead.items() if death.reason == UNDELIVERED} == self.model.dead.keys()
        for name, link in self.model.dead.items():
            assert (keys.dead[name].attempts, keys.size(name)) == (link.attempts, len(link.id))


def walk_links(client: redis.Redis, walks: int, steps: int = STEPS, version: str = "") -> None:
    """Walk from fixed seeds."""
    for seed in range(walks):
        client.flushdb()
        walk = LinkWalk(Queue(client, version=version), random.Random(seed), random.Random(seed))
        for _ in range(steps):
            walk.step()
