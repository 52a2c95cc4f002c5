"""Breaking a queue: one element of one structure is deleted or altered, at random, behind the library's back."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import ormsgpack

from .calls import FORMATS, Queue, unpack

GARBAGE = ["ghost", "id0", "id9"]
COUNTS = [
    "ready", "pending", "delayed", "leased", "dead", "tasks_with_options", "remembered", "weight_sum", "running",
    "servable",
]  # fmt: skip


def packed(name: str, record: Any) -> bytes:
    """Pack a record as `unpack` has read it."""
    return FORMATS[name].pack(vars(record))


class Breaker:
    """Breaks a queue; `done` says what it did."""

    def __init__(self, queue: Queue, seed: int) -> None:
        self.queue, self.random = queue, random.Random(seed)
        self.client: Any = queue.client  # its replies are bytes, which the types of redis do not say
        self.names = sorted(k.decode().removeprefix(f"{queue.prefix}:") for k in self.client.scan_iter(count=1000))
        self.done = ""

    def break_one(self) -> bool:
        """Break something of what there is; returns whether there was anything of the kind that was chosen."""
        kind = self.random.choice(sorted(BREAKS))
        names = [name for name in self.names if name.split(":")[0] == kind.split()[0]]
        if kind == "deaths of tenant":
            names = [name for name in self.names if name.startswith("deaths:")]
        if not names:
            return False
        name = self.random.choice(names)
        self.done = f"{kind}: {name}"
        return BREAKS[kind](self, self.queue.key(name)) is not False

    def chance(self, chances: float = 0.5) -> bool:
        return self.random.random() < chances

    def list_(self, key: str) -> None:
        """Delete a list, an entry; double one, add one that is nothing."""
        entries = self.client.lrange(key, 0, -1)
        entry = self.random.choice(entries)
        match self.random.randrange(5):
            case 0:
                self.client.delete(key)
            case 1 | 2:
                self.client.lset(key, self.random.randrange(len(entries)), "~")
                self.client.lrem(key, 1, "~")
            case 3:
                self.client.execute_command(self.random.choice(["LPUSH", "RPUSH"]), key, entry)
            case 4:
                garbage = b"\xff\xff\0\0" if key.endswith(":wake") else self.random.choice(GARBAGE)
                self.client.execute_command(self.random.choice(["LPUSH", "RPUSH"]), key, garbage)
                self.done += f" {garbage!r}"

    def set_(self, key: str) -> None:
        """Delete a member of a sorted set, or all; alter a score, add a member that is nothing."""
        member, score = self.random.choice(self.client.zrange(key, 0, -1, withscores=True))
        match self.random.randrange(5):
            case 0:
                self.client.delete(key)
            case 1 | 2:
                self.client.zrem(key, member)
            case 3 if not key.endswith((":leases", ":extended")) and ":pending:" not in key and ":delayed:" not in key:
                self.client.zadd(key, {member: score + self.random.choice([-5, 5])})
            case _:
                garbage = "12345" if key.endswith(":leases") else self.random.choice(["ghost", "id3", "id7"])
                if key.endswith((":due", ":dead_counts", ":cancelling")):
                    garbage = "ada"
                self.client.zadd(key, {garbage: 5})

    def record(self, format: str, fields: list[str], key: str, deletes: bool = True) -> None:
        """Delete a record of a hash, or alter a field of it."""
        field, record = self.random.choice(sorted(self.client.hgetall(key).items()))
        if deletes and self.chance(0.3):
            self.client.hdel(key, field)
            return
        values = unpack(format, record)
        name = self.random.choice(fields)
        value = getattr(values, name)
        changed = (
            1 - value if name in ("is_on_wake_list", "is_odd", "limited") else value + self.random.choice([-1, 1, 3])
        )
        if name not in ("slot", "class"):
            changed = max(changed, 0)
        setattr(values, name, changed)
        self.done += f" {name} {value}"
        self.client.hset(key, field, packed(format, values))

    def books(self, key: str) -> None:
        """Alter how many bytes a tenant keeps."""
        tag, record = self.random.choice(sorted(self.client.hgetall(key).items()))
        account = unpack("ACCOUNT", record)
        books = unpack("BOOKS", account.books)
        books.bytes = max(0, books.bytes + self.random.choice([-1, 1, 3]))
        account.books = packed("BOOKS", books)
        self.client.hset(key, tag, packed("ACCOUNT", account))

    def priority(self, key: str) -> None:
        """Alter the priority of a task."""
        id, packed = self.random.choice(sorted(self.client.hgetall(key).items()))
        asked = ormsgpack.unpackb(packed)
        asked["priority"] = min(max(asked.get("priority", 50) + self.random.choice([-1, 1, 3]), 0), 99)
        self.client.hset(key, id, ormsgpack.packb(asked))

    def queue_(self, key: str) -> None:
        """Alter a count of the queue, or how many tenants a class has."""
        whole = self.client.get(key)
        values = unpack("QUEUE", whole)
        tail = whole[values.end :]
        if tail and self.chance(0.2):
            name = "tail"
            tail = self.random.choice([tail[:-5], tail[:1] + b"\x09\0\0\0" + tail[5:], tail + struct.pack("<bI", 3, 1)])
        else:
            name = self.random.choice([*COUNTS, "numbers", "last_lease", "minute", "cursor", "limited"])
            value = getattr(values, name)
            change = self.random.choice([-value, -1, 1, 3]) if name not in ("numbers", "last_lease") else -1
            setattr(values, name, 1 - value if name == "limited" else max(0, value + change))
        self.done += f" {name}"
        self.client.set(key, packed("QUEUE", values) + tail)

    def class_(self, key: str) -> None:
        """Delete a class's string, cut it, or put another tag into it."""
        whole = self.client.get(key)
        match self.random.randrange(3):
            case 0:
                self.client.delete(key)
            case 1:
                self.client.set(key, whole[:-4] or b"\0")
            case 2:
                at = 4 * self.random.randrange(max(1, len(whole) // 4))
                self.client.setrange(key, at, struct.pack("<I", self.random.choice([1, 2, 3, 77])))

    def claims(self, key: str) -> None:
        """Let a claim's name stand for another bundle."""
        self.client.hset(key, self.random.choice([b"w1", b"other"]), "12345")


def record_of(format: str, *fields: str, deletes: bool = True) -> Callable[[Breaker, str], None]:
    """Alter a field of a record in a hash, or delete the record."""
    return lambda breaker, key: breaker.record(format, list(fields), key, deletes)


BREAKS: dict[str, Callable[[Breaker, str], Any]] = {
    "ready": Breaker.set_,
    "wake": Breaker.list_,
    "done": Breaker.list_,
    "class": Breaker.class_,
    "priorities": Breaker.set_,
    "group": Breaker.set_,
    "turns": Breaker.set_,
    "due": Breaker.set_,
    "leases": Breaker.set_,
    "extended": Breaker.set_,
    "expiring": Breaker.set_,
    "deaths": Breaker.set_,
    "deaths of tenant": Breaker.set_,
    "dead_counts": Breaker.set_,
    "pending": Breaker.set_,
    "delayed": Breaker.set_,
    "members": Breaker.set_,
    "claims": Breaker.claims,
    "queue": Breaker.queue_,
    "bundles": record_of("BUNDLE", "left", "together"),
    "accounts": record_of(
        "ACCOUNT", "leased", "ready", "slot", "class", "standing", "is_on_wake_list", "is_odd", "starts"
    ),
    "accounts books": Breaker.books,
    "tenants": record_of("DETAILS", "pending", "delayed", "dead", "grouped", "limited"),
    "batches": record_of("BATCH", "running", "admitted", "total", deletes=False),
    "runs": record_of("RUN", "features", deletes=False),
    "task_options": Breaker.priority,
}
