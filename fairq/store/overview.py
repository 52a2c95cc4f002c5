"""Reads for pages about a queue with any number of tenants: in bounded steps, with the store's plain commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from attrs import frozen

from fairq.io.scopes import run_all
from fairq.model.checks import owner_of
from fairq.store import keys
from fairq.store.backup_lines import FORMATS, tell_map
from fairq.store.dumping import IS_LARGE, TASK
from fairq.store.partitions import place_in
from fairq.store.routes import NO_ANSWER, Away, everywhere
from fairq.store.store import Store

STEP, _STEPS = 4_000, 250  # of a search by name: the store takes some 1 ms for a step, and looks at a million tenants
_HOUR_MS = 3_600_000
MAX_SHOWN = 65_536  # bytes of a payload: a page that follows a task reads it each second


class Due(NamedTuple):
    """A tenant with delayed tasks: when the first one starts, or earlier, and how many there are."""

    tenant: str
    at_ms: int
    delayed: int


async def some_tenants(store: Store, queue: str, count: int, away: Away | None = None) -> tuple[int, list[str]]:
    """Return how many tenants a queue has, and the names of `count` of them, of all if there are fewer."""

    async def read(store: Store, place: str) -> tuple[int, list[bytes]]:
        key = f"{keys.queue_prefix(place)}:tenants"
        total = await store.connection.call("HLEN", key)
        _, pairs = await store.connection.call("HSCAN", key, "0", "COUNT", str(count))
        return total, pairs[::2]

    pages = await everywhere(read, store, await store.registry.places(queue), away=away)
    found = [name.decode() for _, names in pages for name in names]
    return sum(total for total, _ in pages), found[: max(count, 0)]


async def find_tenants(store: Store, queue: str, text: str, count: int) -> tuple[list[str], bool]:
    """Return up to `count` tenants with a text in their name, sorted, and whether that is all of them."""
    call, pattern = store.connection.call, "*" + re.sub(r"([*?^\[\]\\])", r"\\\1", text) + "*"
    places, steps, found, is_all = await store.registry.places(queue), _STEPS, set[str](), True
    for place in places:
        key, cursor = f"{keys.queue_prefix(place)}:tenants", b""
        with suppress(*NO_ANSWER):  # it is away
            while cursor != b"0" and steps and len(found) <= count:
                cursor, pairs = await call("HSCAN", key, cursor or "0", "MATCH", pattern, "COUNT", str(STEP))
                found.update(name.decode() for name in pairs[::2])
                steps -= 1
        is_all = is_all and cursor == b"0"
    return sorted(found)[:count], is_all and len(found) <= count


async def due(store: Store, queue: str, tenants: int, hours: int) -> tuple[int, list[Due], list[int]]:
    """Return the store's time, the tenants with the first starts, and how many of their tasks start in which hour.

    Those whose partition does not answer are left out.
    """
    call = store.connection.call

    async def read(store: Store, place: str) -> tuple[int, list[tuple[float, str, str]]]:
        now_ms, _ = await store.opening_hours(place, [""])
        flat = await call("ZRANGE", f"{keys.queue_prefix(place)}:due", "0", str(tenants - 1), "WITHSCORES")
        return now_ms, [(float(at), name.decode(), place) for name, at in zip(flat[::2], flat[1::2], strict=True)]

    pages = await everywhere(read, store, await store.registry.places(queue), away={})
    now_ms, first = max(now_ms for now_ms, _ in pages), [each for _, found in pages for each in found]
    found: list[Due] = []
    in_hour = [0] * hours

    async def count(key: str, hour: int) -> None:
        low = "-inf" if hour == 0 else str(now_ms + hour * _HOUR_MS)
        in_hour[hour] += await call("ZCOUNT", key, low, f"({now_ms + (hour + 1) * _HOUR_MS}")

    for at, name, place in sorted(first)[:tenants]:
        key = f"{keys.queue_prefix(place)}:delayed:{name}"
        await run_all(*(partial(count, key, hour) for hour in range(hours)), stops_at_failure=True)  # one round trip
        found.append(Due(name, int(at), await call("ZCARD", key)))
    return now_ms, found, in_hour


@frozen
class StoredTask:
    """The record of a stored task. A time that is not set is 0; a payload over MAX_SHOWN bytes is left out."""

    enqueued_at_ms: int
    start_at_ms: int
    expires_at_ms: int
    max_attempts: int
    name: str
    options: Mapping[str, Any]
    payload: bytes
    size: int  # of the payload, in bytes


async def stored_task(store: Store, queue: str, id: str) -> StoredTask | None:
    """Return the record of a task that has not ended, or is dead; None if it ended just now."""
    place = place_in(await store.registry.places(queue), owner_of(id))
    call, prefix = store.connection.call, keys.queue_prefix(place)
    packed = await call("HGET", f"{prefix}:tasks", id)
    if not packed or packed[0] != TASK:
        return None
    header, end = FORMATS["HEADER"].unpack(packed)
    options = await call("HGET", f"{prefix}:task_options", id)
    payload, size = packed[end:], len(packed) - end
    if header["features"] & IS_LARGE:
        size = await call("HSTRLEN", f"{prefix}:payloads", id)
        payload = await call("HGET", f"{prefix}:payloads", id) if size <= MAX_SHOWN else b""
    if size == 0 or payload is None:  # no payload is empty: it ended just now
        return None
    enqueued_at, start_at, expires_at = (int(header[name]) for name in ("enqueued_at", "start_at", "expires_at"))
    asked = tell_map(options) if options else {}
    return StoredTask(enqueued_at, start_at, expires_at, header["max_attempts"], header["name"], asked, payload, size)
