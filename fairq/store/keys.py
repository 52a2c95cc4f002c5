"""Key names that Python spells; the rest are computed inside the Lua functions (lua/KEYS.md lists all)."""

from __future__ import annotations

QUEUES = "fq:queues"  # set of queue names
TOKENS = "fq:tokens"  # hash: token id -> JSON
REVOKED = "fq:revoked"  # channel: token id
STOP = "stop "  # on a queue's `ready` channel: this, and the id of a leased task that was cancelled


def queue_prefix(queue: str, partition: int = 0) -> str:
    """Return the prefix, and with it the hash tag, of a queue's keys."""
    return f"fq:{{{queue}/{partition}}}"


def ready_channel(queue: str) -> str:
    """Return the sharded channel on which a hungry queue says that there is work again."""
    return queue_prefix(queue) + ":ready"
