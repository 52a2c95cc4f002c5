"""Key names that Python uses; the others are computed inside the Lua functions (lua/KEYS.md lists all)."""

from __future__ import annotations

from hashlib import sha256

from fairq.model.places import is_partition

REGISTRY = "fq:{queues}"  # the prefix of the registry of queues: KEYS[1] of its functions
QUEUES = REGISTRY + ":names"  # hash: queue name -> when it was made, and by which tenant
PARTITIONS = REGISTRY + ":partitions"  # hash: queue name -> how many partitions it has, if more than one
DELETED = "fq:deleted"  # channel: the name of a queue
AUDIT = "fq:{audit}"  # the prefix of the audit of changes by operators: KEYS[1] of its functions
TENANTS_AUDIT = "fq:{audit-of-tenants}"  # the same for changes by tenants
TOKENS = "fq:tokens"  # hash: token id -> JSON
TOKEN_USES = "fq:token_uses"  # hash: token id -> when it was last used, to a minute
REVOKED = "fq:revoked"  # channel: token id
REVOCATIONS = "fq:revocations"  # the number of tokens deleted so far
DATA_VERSION = "fq:data_version"  # string: the version of the data in all keys (fairq/store/migrations.py)
MIGRATION = "fq:migration"  # hash: queue -> the progress of its migration
MIGRATOR = "fq:migrator"  # string: the lock of the server that migrates
VERSIONS = "fq:version:"  # channels: a server listens to that of the version of the data that it writes
RESTORING = "unfinished: fairq restore has not ended"  # in place of that version
WRITTEN = "fq:written"  # string: the server that last saw that the store can be written (/readyz)
SERVERS = "fq:servers"  # set of servers' names
WORKERS = "fq:workers"  # channel: JSON messages between servers about workers
# Messages on a queue's `ready` channel; the others are followed by an id, or a tenant's name.
READY = "1"  # there is work again; a space and the server that claims first may follow, and `/<weight>`
STOP = "stop "  # a leased task was cancelled
END = "end "  # a task with a kept result has ended
BATCH = "batch "  # a batch is complete
EVENT = "event "  # there are new events in a tenant's feed


def queue_prefix(place: str) -> str:
    """Return the prefix of the keys of a queue, or of one of its partitions; it contains the hash tag."""
    return f"fq:{{{place}}}" if is_partition(place) else f"fq:{{{place}/0}}"


def members_key(queue: str, batch: str) -> str:
    """Return the key of a batch's tasks that have not ended."""
    return f"{queue_prefix(queue)}:members:{batch}"


def session_key(cookie: str) -> str:
    """Return the key of a dashboard's session."""
    return f"fq:session:{sha256(cookie.encode()).hexdigest()}"


def workers_key(server: str) -> str:
    """Return the key of the list of a server's workers."""
    return f"{WORKERS}:{server}"


def runs_key(token: str, worker: str) -> str:
    """Return the key of a worker's runs, in the order in which they first attached."""
    return f"fq:runs:{token}:{worker}"


def attaches_key(token: str, worker: str) -> str:
    """Return the key of how often a worker's runs have attached."""
    return f"fq:attaches:{token}:{worker}"


def progress_key(queue: str, id: str) -> str:
    """Return the key of a running task's progress."""
    return f"{queue_prefix(queue)}:progress:{id}"


def ready_channel(queue: str) -> str:
    """Return a queue's sharded channel; it announces work to servers after a short claim, see READY above."""
    return queue_prefix(queue) + ":ready"
