"""The audit in the store: capped streams of what operators change, and of what tenants set (lua/64_audit.lua)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson
from attrs import define

from fairq.model.audit import BEGUN, NO_CHANGE, AuditFilter, AuditPage, Change, Draft
from fairq.store.cluster import Cluster
from fairq.store.connection import Connection

AT_ONCE = 250  # changes that one call reads
LOOKED = 2_500  # that one request looks at: then its cursor says where the next goes on
BEGUN_SHOWN = 100
NEVER_BEGUN = "0-0"  # the id of a change that is only noted when it has ended


class Begun(NamedTuple):
    """A change that is noted, and may be carried out."""

    prefix: str
    id: str
    at_ms: int
    draft: Draft


class _Entry(NamedTuple):
    """An entry of a stream."""

    id: str
    fields: dict[str, str]

    def change(self) -> Change:
        """Return the change that it is."""
        rest = orjson.loads(self.fields["change"])
        ended = orjson.loads(self.fields["ended"]) if "ended" in self.fields else {"outcome": BEGUN}
        named = {name: self.fields[name] for name in ("token", "verb", "queue", "tenant")}
        return Change(id=self.id, at_ms=int(self.fields["at"]), **named, **rest, **ended)


def _entries(rows: Sequence[Any]) -> Iterator[_Entry]:
    for id, flat in rows:
        words = [word.decode() for word in flat]
        yield _Entry(id.decode(), dict(zip(words[::2], words[1::2], strict=True)))


@define(eq=False)
class Audit:
    """Notes changes, and reads them. `call(prefix, verb, ...)` calls the library."""

    connection: Connection | Cluster
    call: Callable[..., Awaitable[Any]]

    async def begin(self, prefix: str, draft: Draft) -> Begun:
        """Note a change that is about to be carried out: from now on it leaves a trace. It works on a full store."""
        id, at_ms = await self.call(prefix, "begin_change", *draft)
        return Begun(prefix, id.decode(), at_ms, draft)

    async def end(self, begun: Begun, ended: bytes) -> None:
        """Note what has become of it, as JSON: the outcome, the previous value, the result."""
        await self.call(begun.prefix, "end_change", begun.id, begun.at_ms, ended, *begun.draft)

    async def page(self, prefix: str, which: AuditFilter, cursor: str, after: str, count: int) -> AuditPage:
        """Read up to `count` changes: from a cursor on (empty: the newest) backwards, or those `after` one."""
        if after:
            return await self._read_on(prefix, which, after, count)
        if cursor == NO_CHANGE:  # the store refuses to look for what is older
            return AuditPage([], newest=cursor)
        begun = [] if cursor else await self._begun(prefix, which)
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
                return AuditPage(found, begun, "", newest or NO_CHANGE)
        return AuditPage(found, begun, at[1:], newest)

    async def _read_on(self, prefix: str, which: AuditFilter, after: str, count: int) -> AuditPage:
        found: list[Change] = []
        looked = 0
        while looked < LOOKED:
            rows = await self.connection.call("XRANGE", f"{prefix}:changes", f"({after}", "+", "COUNT", AT_ONCE)
            for entry in _entries(rows):
                after, looked = entry.id, looked + 1
                if which.takes(entry.fields):
                    found.append(entry.change())
                if len(found) == count:
                    return AuditPage(found, newest=after)
            if len(rows) < AT_ONCE:
                break
        return AuditPage(found, newest=after)

    async def _begun(self, prefix: str, which: AuditFilter) -> list[Change]:
        rows = await self.connection.call("XREVRANGE", f"{prefix}:begun", "+", "-", "COUNT", BEGUN_SHOWN)
        return [entry.change() for entry in _entries(rows) if which.takes(entry.fields)]
