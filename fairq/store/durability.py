"""What a store says of itself that could lose acknowledged tasks.

INFO tells it, on managed stores too, which refuse CONFIG. What INFO does not tell, only the store's operator knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen


@frozen
class Risk:
    """A setting by which a store could lose acknowledged tasks, and what to do about it."""

    subject: str
    told: str
    remedy: str


def risks(info: Mapping[str, str]) -> list[Risk]:
    """Return what could lose tasks, by the sections `persistence` and `memory` of INFO."""
    found = []
    kept, policy = info.get("aof_enabled"), info.get("maxmemory_policy")
    if kept == "0":
        remedy = "`CONFIG SET appendonly yes`, then `CONFIG REWRITE`: if only its file says so, it restarts empty"
        found.append(Risk("persistence", "appendonly is no: a restart would lose acknowledged tasks", remedy))
    if kept is None:
        remedy = "ask who runs it; unsafe_store = true if it keeps all that it has acknowledged"
        found.append(Risk("persistence", "the store does not tell whether it has an append-only file", remedy))
    if info.get("maxmemory", "0") != "0" and policy != "noeviction":
        told = f"maxmemory-policy is {policy or 'not told'}: a full store would drop tasks"
        found.append(Risk("eviction", told, "`CONFIG SET maxmemory-policy noeviction`, and then `CONFIG REWRITE`"))
    return found
