"""Key names that Python spells; the rest are computed inside the Lua functions (lua/KEYS.md lists all)."""

from __future__ import annotations

QUEUES = "fq:queues"  # set of queue names
TOKENS = "fq:tokens"  # hash: token id -> JSON
REVOKED = "fq:revoked"  # channel: token id
# Messages on a queue's `ready` channel; the last three are followed by an id.
READY = "1"  # there is work again
STOP = "stop "  # a leased task was cancelled
END = "end "  # a task whose result is kept has ended
BATCH = "batch "  # a batch is complete


def queue_prefix(queue: str, partition: int = 0) -> str:
    """Return the prefix, and with it the hash tag, of a queue's keys."""
    return f"fq:{{{queue}/{partition}}}"


def ready_channel(queue: str) -> str:
    """Return the sharded channel on which a hungry queue says that there is work again."""
    return queue_prefix(queue) + ":ready"
