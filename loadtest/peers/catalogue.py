"""The peers: how each is installed, and the setting in which it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

REDIS_PY = "redis[hiredis]"


@frozen
class Peer:
    """One row of the tables.

    `script` is in scripts/ and runs in the environment named `environment`. `slots` is the concurrency of the one worker
    process; for the quiet tenants' dwell, `ten_slots` is (processes, slots of each), none for a peer left out there.
    """

    name: str
    script: str
    setting: str
    environment: str = ""  # none: the one that fairq runs in
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    apt: str = ""  # also the name of the program
    store: str = "valkey"  # or fairq, beanstalkd, nats-server
    slots: int = 1
    ten_slots: tuple[int, int] | None = (1, 10)
    count: int = 20_000  # tasks in bulk; a slow peer has fewer
    flood: int = 20_000
    options: Mapping[str, Any] = field(factory=dict)


PEERS = [
    Peer(
        "raw, pipelined", "peer_raw.py", "LPUSH, LMOVE, LREM by redis-py, 100 in a pipeline, one thread",
        ten_slots=None, options={"pipeline": 100},
    ),
    Peer(
        "raw, one call each", "peer_raw.py", "the same, each waited for; BLMOVE for LMOVE",
        ten_slots=None, count=5_000, options={"pipeline": 1},
    ),
    Peer("fairq", "peer_fairq.py", "worker with concurrency 500, enqueue_many of 1,000", store="fairq", slots=500),
    Peer(
        "RQ", "peer_rq.py", "SimpleWorker, enqueue_many of 1,000, results not kept",
        "rq", (f"rq>=2", REDIS_PY), ten_slots=(10, 1), count=3_000, flood=5_000,
    ),
    Peer(
        "SAQ", "peer_saq.py", "concurrency 100, 1,000 enqueues at once (SAQ sends 20 at a time), results not kept",
        "saq", ("saq[redis,hiredis]",), slots=100, count=5_000, flood=5_000,
    ),
]  # fmt: skip
