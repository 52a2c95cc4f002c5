"""Findings about a store; first of all, risks to acknowledged tasks.

INFO shows them, also on managed stores, which refuse CONFIG. Only the store's operator knows facts that INFO lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

Level = Literal["ok", "warning", "problem"]


@frozen
class Finding:
    """A finding about one subject: its state, and a remedy."""

    level: Level
    subject: str
    message: str
    remedy: str = ""
    node: str = ""


def risks(info: Mapping[str, str]) -> list[Finding]:
    """Return the settings that could lose tasks, by the sections `persistence` and `memory` of INFO."""
    found = []
    kept, policy = info.get("aof_enabled"), info.get("maxmemory_policy")
    if kept == "0":
        message = "appendonly is no: a restart would lose acknowledged tasks"
        remedy = "`CONFIG SET appendonly yes`, then `CONFIG REWRITE`: if only its file says so, it restarts empty"
        found.append(Finding("problem", "persistence", message, remedy))
    if kept is None:
        message = "the store does not report whether it has an append-only file"
        remedy = "ask who runs it; unsafe_store = true if it keeps all that it has acknowledged"
        found.append(Finding("problem", "persistence", message, remedy))
    if info.get("maxmemory", "0") != "0" and policy != "noeviction":
        message = f"maxmemory-policy is {policy or 'unknown'}: a full store would drop tasks"
        remedy = "`CONFIG SET maxmemory-policy noeviction`, and then `CONFIG REWRITE`"
        found.append(Finding("problem", "eviction", message, remedy))
    return found
