"""The peers: how each is installed, and the setting in which it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

ROOT = Path(__file__).parent.parent.parent
VARIABLE = "FAIRQ_LOADTEST_PEER"
REDIS_PY = "redis[hiredis]"
CELERY = ("celery[redis]", "hiredis", "-e", f"{ROOT}[celery]")
BULLMQ = ("bullmq@6", "ioredis", "pg")


@frozen
class Peer:
    """One row of the tables.

    `script` is in scripts/ and runs in the environment named `environment`. `slots` is the concurrency of the one
    worker process; behind a flood, `ten_slots` is (processes, slots of each), or none for a peer left out there.
    """

    name: str
    script: str
    setting: str
    environment: str = ""  # none: the one that fairq runs in
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    apt: str = ""  # also the name of the program
    store: str = "valkey"  # or fairq, postgres, nats-server
    slots: int = 1
    ten_slots: tuple[int, int] | None = (1, 10)
    count: int = 20_000  # tasks in bulk; a slow peer has fewer
    flood: int = 20_000
    options: Mapping[str, Any] = field(factory=dict)

    @property
    def family(self) -> str:
        """What it has in common with its other settings: its name up to the comma."""
        return self.name.partition(",")[0]


PEERS = [
    Peer(
        "raw, pipelined", "peer_raw.py", "LPUSH, LMOVE, LREM by redis-py, 100 in a pipeline, one thread",
        ten_slots=None, options={"pipeline": 100},
    ),
    Peer(
        "raw, one call each", "peer_raw.py", "the same, each waited for; BLMOVE for LMOVE",
        ten_slots=None, count=2_000, options={"pipeline": 1},
    ),
    Peer("fairq", "peer_fairq.py", "worker with concurrency 500, enqueue_many of 1,000", store="fairq", slots=500),
    Peer("fairq, 100", "peer_fairq.py", "the same with concurrency 100", store="fairq", slots=100, ten_slots=None),
    Peer(
        "RQ", "peer_rq.py", "SimpleWorker, enqueue_many of 1,000, results not kept",
        "rq", ("rq>=2", REDIS_PY), ten_slots=(10, 1), count=1_500, flood=2_000,
    ),
    Peer(
        "taskiq", "peer_taskiq.py", "RedisStreamBroker, --max-async-tasks 100, 50 callers enqueue, no result backend",
        "taskiq", ("taskiq", "taskiq-redis", "hiredis"), slots=100, count=4_000, flood=4_000,
    ),
    Peer(
        "dramatiq", "peer_dramatiq.py", "one process of 8 threads, 8 threads enqueue, no results",
        "dramatiq", ("dramatiq[redis]", "hiredis"), slots=8, count=5_000, flood=5_000,
    ),
    Peer(
        "Celery, prefork", "peer_celery.py", "prefork of 2, prefetch 4, acks_late, results ignored, 8 threads enqueue",
        "celery", CELERY, slots=2, ten_slots=None, count=1_500, options={"pool": "prefork"},
    ),
    Peer(
        "Celery, prefork, fairq", "peer_celery.py", "the same through fairq",
        "celery", CELERY, store="fairq", slots=2, ten_slots=None, count=1_500, options={"pool": "prefork"},
    ),
    Peer(
        "Celery, solo", "peer_celery.py", "solo, else the same; behind the flood a pool of 10 threads",
        "celery", CELERY, count=1_500, flood=2_000, options={"pool": "solo"},
    ),
    Peer(
        "Celery, solo, fairq", "peer_celery.py", "the same through fairq; behind the flood a prefetch multiplier of 1",
        "celery", CELERY, store="fairq", count=1_500, flood=2_000, options={"pool": "solo"},
    ),
    Peer(
        "BullMQ", "peer_bullmq.js", "concurrency 50, addBulk of 1,000, removeOnComplete",
        "bullmq", npm=BULLMQ, slots=50, count=8_000, flood=10_000,
    ),
    Peer(
        "BullMQ, PostgreSQL", "peer_bullmq.js", "the same, 50 connections; synchronous_commit as --fsync says",
        "bullmq", npm=BULLMQ, store="postgres", slots=50, count=8_000, flood=10_000, options={"backend": "postgres"},
    ),
    Peer(
        "NATS JetStream", "peer_nats.py", "file store, work queue, 250 publishes under way, pulls of 500; syncs rarely",
        "nats", ("nats-py",), apt="nats-server", store="nats-server", slots=500,
    ),
]  # fmt: skip
FAMILIES = list(dict.fromkeys(peer.family for peer in PEERS))


def chosen() -> list[Peer]:
    """Return the peers that `--peer` or its variable names, else all."""
    names = os.environ.get(VARIABLE, "").split(",")
    return [peer for peer in PEERS if names == [""] or peer.family in names]
