"""The audit in the store: capped streams of changes by operators, and by tenants (lua/service/audit.lua)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson
from attrs import define

from fairq.model.audit import BEGUN, NO_CHANGE, UNKNOWN, AuditFilter, AuditPage, Change, Draft
from fairq.store import keys
from fairq.store.cluster import Cluster
from fairq.store.connection import Connection

AT_ONCE = 250  # changes that one call reads
LOOKED = 2_500  # changes that one request looks at; its cursor continues behind them
BEGUN_KEPT, BEGUN_SHOWN = 1_000, 100
LOST_MS = 300_000  # after this a change that has begun will not be ended


class Entry(NamedTuple):
    """An entry of a stream."""

    id: str
    fields: dict[str, str]

    @property
    def at_ms(self) -> int:
        """When it was written."""
        return _moment(self.id)

    def change(self, outcome: str = "") -> Change:
        """Return the change that it is, with an outcome if it has not ended."""
        rest = orjson.loads(self.fields["change"])
        ended = orjson.loads(self.fields["ended"]) if "ended" in self.fields else {"outcome": outcome}
        named = {name: self.fields[name] for name in ("token", "verb", "queue", "tenant")}
        return Change(id=self.id, at_ms=self.at_ms, **named, **rest, **ended)


def _moment(id: str) -> int:
    """Return when an entry of that id was written: it begins with the store's time, in ms."""
    return int(id.partition("-")[0])


def _entries(rows: Sequence[Any]) -> Iterator[Entry]:
    for id, flat in rows:
        words = [word.decode() for word in flat]
        yield Entry(id.decode(), dict(zip(words[::2], words[1::2], strict=True)))


@define(eq=False)
class Audit:
    """Notes changes, and reads them. `call(prefix, verb, ...)` calls the library."""

    connection: Connection | Cluster
    call: Callable[..., Awaitable[Any]]

    async def begin(self, draft: Draft) -> bytes:
        """Record a change before it is carried out, also on a full store. Returns its id."""
        id: bytes = await self.call(keys.AUDIT, "begin_change", *draft.named())
        return id

    async def end(self, id: bytes, draft: Draft, ended: bytes) -> None:
        """Record the end of a change (no id: one by a tenant), as JSON: outcome, previous value, result."""
        prefix = keys.AUDIT if id else keys.TENANTS_AUDIT
        await self.call(prefix, "end_change", id, *draft.named(), "ended", ended)

    async def page(self, prefix: str, which: AuditFilter, cursor: str, after: str, count: int) -> AuditPage:
        """Read up to `count` changes: from a cursor on (empty: the newest) backwards, or those `after` one."""
        begun = [] if cursor else await self._begun(prefix, which)
        if after:
            later, after = await self._read_on(prefix, which, after, count)
            return AuditPage(later, begun, newest=after)
        if cursor == NO_CHANGE:  # the store refuses to look for what is older
            return AuditPage([], newest=cursor)
        found: list[Change] = []
        newest, at, looked = cursor, f"({cursor}" if cursor else "+", 0
        while looked < LOOKED:
            rows = await self.connection.call(
                "XREVRANGE", f"{prefix}:changes", at, which.since_ms or "-", "COUNT", AT_ONCE
            )
            for entry in _entries(rows):
                newest, looked = newest or entry.id, looked + 1
                if which.takes(entry.fields):
                    found.append(entry.change())
                if len(found) == count:
                    return AuditPage(found, begun, entry.id, newest)
                at = f"({entry.id}"
            if len(rows) < AT_ONCE:
                return AuditPage(found, begun, None, newest or NO_CHANGE)
        return AuditPage(found, begun, at[1:], newest)

    async def _read_on(self, prefix: str, which: AuditFilter, after: str, count: int) -> tuple[list[Change], str]:
        found: list[Change] = []
        looked, since_ms = 0, which.since_ms
        while looked < LOOKED:
            first = f"({after}" if _moment(after) >= since_ms else since_ms
            rows = await self.connection.call("XRANGE", f"{prefix}:changes", first, "+", "COUNT", AT_ONCE)
            for entry in _entries(rows):
                after, looked = entry.id, looked + 1
                if which.takes(entry.fields):
                    found.append(entry.change())
                if len(found) == count:
                    return found, after
            if len(rows) < AT_ONCE:
                break
        return found, after

    async def _begun(self, prefix: str, which: AuditFilter) -> list[Change]:
        since = which.since_ms or "-"
        rows = await self.connection.call("XREVRANGE", f"{prefix}:begun", "+", since, "COUNT", BEGUN_KEPT)
        now_ms = 1_000 * int((await self.connection.nodes()[0].call("TIME"))[0]) if rows else 0
        matching = [entry for entry in _entries(rows) if which.takes(entry.fields)]
        return [entry.change(BEGUN if entry.at_ms > now_ms - LOST_MS else UNKNOWN) for entry in matching[:BEGUN_SHOWN]]
