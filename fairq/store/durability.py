"""What is found when a store is looked at: first of all, what could lose acknowledged tasks.

INFO tells it, on managed stores too, which refuse CONFIG. What INFO does not tell, only the store's operator knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

Level = Literal["ok", "warning", "problem"]


@frozen
class Finding:
    """One thing that was looked at: how it is, and what to do about it."""

    level: Level
    subject: str
    told: str
    remedy: str = ""
    node: str = ""


def risks(info: Mapping[str, str]) -> list[Finding]:
    """Return what could lose tasks, by the sections `persistence` and `memory` of INFO."""
    found = []
    kept, policy = info.get("aof_enabled"), info.get("maxmemory_policy")
    if kept == "0":
        told = "appendonly is no: a restart would lose acknowledged tasks"
        remedy = "`CONFIG SET appendonly yes`, then `CONFIG REWRITE`: if only its file says so, it restarts empty"
        found.append(Finding("problem", "persistence", told, remedy))
    if kept is None:
        told = "the store does not tell whether it has an append-only file"
        remedy = "ask who runs it; unsafe_store = true if it keeps all that it has acknowledged"
        found.append(Finding("problem", "persistence", told, remedy))
    if info.get("maxmemory", "0") != "0" and policy != "noeviction":
        told = f"maxmemory-policy is {policy or 'not told'}: a full store would drop tasks"
        remedy = "`CONFIG SET maxmemory-policy noeviction`, and then `CONFIG REWRITE`"
        found.append(Finding("problem", "eviction", told, remedy))
    return found
