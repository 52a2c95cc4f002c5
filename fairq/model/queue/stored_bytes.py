"""The bytes that a tenant keeps in tasks, results, keys and events, and how many more it may."""

from __future__ import annotations

import math
import struct

from fairq.model.queue.accounts import Tenant
from fairq.model.queue.calls import Calls
from fairq.model.queue.limits import (
    EVENT_COST,
    NAMED_BYTES,
    bytes_of,
    bytes_of_error,
)
from fairq.model.queue.remembered import MINUTE_MS
from fairq.model.queue.tasks import Batch, Task


class StoredBytes(Calls):
    """Counts what tenants keep."""

    def batch_of(self, id: str) -> Batch | None:
        """Find the unfinished batch of a task."""
        task = self.records[id]
        b = self.batches.get(task.options.batch)
        return b if b and b.state != "complete" and b.created_at == task.opened_at else None

    def keeps_too_much(self, tenant: str, size: int) -> bool:
        """True if a tenant with these bytes in addition would exceed its limit."""
        t = self.tenants.get(tenant) or Tenant(tenant)
        return size > 0 and 0 < self.limit(t, "stored_bytes") < self.compared_by(t) + size

    def room(self, t: Tenant) -> float:
        """Return how many bytes more a tenant may keep."""
        most = self.limit(t, "stored_bytes")
        return most - self.kept_by(t) - self.incoming_bytes if most else math.inf

    def result_name(self, id: str) -> tuple[str, Batch] | None:
        """Return the entry of a task among the results of its batch, if it is done now, and the batch."""
        ttl, b = self.records[id].options.result_ttl_ms, self.batch_of(id)
        return (f"{self.call_now + ttl:.0f} {id}", b) if b and b.names_results and ttl else None

    def bytes_of_result_name(self, id: str) -> int:
        """Return the bytes that the entry will count."""
        found = self.result_name(id)
        return NAMED_BYTES + len(found[0]) if found else 0

    def name_result(self, id: str) -> None:
        """List the result of a task that is done; one of a cancelled batch is not a member any more, and comes last."""
        if found := self.result_name(id):
            name, b = found
            self.records[id].tenant.bytes += self.bytes_of_result_name(id)
            b.sequence += id not in b.members
            b.results[name] = b.members.get(id, b.sequence)

    def keep_result(self, task: Task, id: str, result: str) -> None:
        """Keep the result of a task that is no longer counted; without room, only that there was one."""
        until, size = self.call_now + task.options.result_ttl_ms, len(result.encode())
        if bytes_of(id, size) > self.room(task.tenant):
            result, size = "", 0
        self.results[id] = until, result
        self.keep(task.tenant, "r", id, size, until)

    def entry_of(self, t: Tenant, kind: str, name: str, size: int) -> bytes:
        """Name a result or a dedupe key that is kept, as the store does."""
        return kind.encode() + struct.pack("<II", t.number, bytes_of(name, size)) + name.encode()

    def keep(self, t: Tenant, kind: str, name: str, size: int, until: float) -> None:
        """Count a result or a dedupe key among its tenant's bytes, until then."""
        member = self.entry_of(t, kind, name, size)
        t.bytes += bytes_of(name, size) * (member not in self.ends)
        self.ends[member], self.kept_until = until, max(self.kept_until, until + MINUTE_MS)

    def trim_ends(self, now: float, limit: int) -> None:
        """Stop counting entries that were kept long enough."""
        for member in self.ends.first(limit, now):
            number, size = struct.unpack_from("<II", member, 1)
            self.touch(next(t.name for t in self.tenants.values() if t.number == number)).bytes -= size
            del self.ends[member]

    def bytes_of_task(self, id: str) -> int:
        """Return the bytes that a task counts, its run included."""
        run = self.runs.get(id)
        return self.records[id].bytes(id) + (bytes_of_error(run.error) if run else 0)

    def kept_beside_feed(self, t: Tenant) -> int:
        """Add up the bytes that a tenant keeps, without its feed."""
        return t.bytes + t.remembered.bytes(self.call_now)

    def kept_by(self, t: Tenant) -> int:
        """Add up the bytes that a tenant keeps."""
        return self.kept_beside_feed(t) + EVENT_COST * len(self.feeds.kept.get(t.name, ()))

    def compared_by(self, t: Tenant) -> float:
        """Add up the bytes that new ones have to leave room for: of the feed at most half of the tenant's limit."""
        most = self.limit(t, "stored_bytes")
        return min(self.kept_by(t), self.kept_beside_feed(t) + most / 2) if most else self.kept_by(t)

    def tell_of(self, id: str, event: str, now: float, attempt: int, detail: str = "") -> None:
        """Add an event to the feed of a task that asked for events."""
        if self.records[id].options.events:
            self.tell(self.records[id].tenant, event, id, now, attempt, detail)

    def tell(self, t: Tenant, event: str, of: str, at: float, attempt: int, detail: str) -> None:
        """Add an event to a tenant's feed, which keeps the newest that fit, in at most half of the limit."""
        most, keep = self.limit(t, "stored_bytes"), self.settings["events_keep"]
        if most:
            left = most - self.kept_beside_feed(t) - self.incoming_bytes
            keep = min(keep, max(0, math.floor(min(most / 2, left) / EVENT_COST)))
        self.feeds.tell(keep, t.name, event, of, at, attempt, detail)
