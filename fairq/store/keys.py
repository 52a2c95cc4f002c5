"""Key names that Python spells; the rest are computed inside the Lua functions (lua/KEYS.md lists all)."""

from __future__ import annotations

REGISTRY = "fq:{queues}"  # the prefix of the registry of queues: KEYS[1] of its functions
QUEUES = REGISTRY + ":names"  # hash: queue name -> when it was made, and who made it
QUEUES_BEFORE_5 = "fq:queues"  # set of queue names, in data of versions before 5
DELETED = "fq:deleted"  # channel: `begun` or `ended`, a space, and the name of a queue
DELETION_BEGUN, DELETION_ENDED = "begun", "ended"
TOKENS = "fq:tokens"  # hash: token id -> JSON
REVOKED = "fq:revoked"  # channel: token id
REVOCATIONS = "fq:revocations"  # how many tokens were deleted so far
DATA_VERSION = "fq:data_version"  # string: the version of what all keys hold
SERVERS = "fq:servers"  # set of servers' names
WORKERS = "fq:workers"  # channel: what servers tell each other of workers; JSON
# Messages on a queue's `ready` channel; the others are followed by an id, or a tenant's name.
READY = "1"  # there is work again; behind a space may stand the server that shall claim first
STOP = "stop "  # a leased task was cancelled
END = "end "  # a task whose result is kept has ended
BATCH = "batch "  # a batch is complete
EVENT = "event "  # there are new events in a tenant's feed


def queue_prefix(queue: str, partition: int = 0) -> str:
    """Return the prefix, and with it the hash tag, of a queue's keys."""
    return f"fq:{{{queue}/{partition}}}"


def workers_key(server: str) -> str:
    """Return the key under which a server tells who is attached to it."""
    return f"{WORKERS}:{server}"


def runs_key(token: str, worker: str) -> str:
    """Return the key of the runs of a worker, in the order in which they first attached under its name."""
    return f"fq:runs:{token}:{worker}"


def progress_key(queue: str, id: str) -> str:
    """Return the key of what a running task's handler says of its progress."""
    return f"{queue_prefix(queue)}:progress:{id}"


def ready_channel(queue: str) -> str:
    """Return the sharded channel on which a hungry queue says that there is work again."""
    return queue_prefix(queue) + ":ready"
