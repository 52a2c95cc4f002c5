"""A backup of each version of the data is restored by today's code, and all its tasks come out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fairq.store import keys, library
from tests import stores
from tests.cli.harness import fairq_here
from tests.lua.calls import Queue
from tests.lua.keyspace import Keyspace

from .make import FOLDER, WALKED, lines_of

FILES = sorted(FOLDER.glob("backup-*.jsonl.gz"))
DAY_MS = 86_400_000


def drain(queue: Queue) -> list[str]:
    """Lift all limits, then claim and acknowledge every task, also the delayed ones; returns the claimed ids."""
    queue.configure(reserve=0, dead_keep_ms=365 * DAY_MS)
    for name in ["", *queue.tenants()]:
        queue.set_limits(name, **dict.fromkeys(("max_running", "rate"), 0 if not name else -1))
        queue.call("set_paused", name, 0)
        queue.call("set_opening_hours", name, "", 1, 0, "")
    taken = list[str]()
    for _ in range(1_000):
        leases = queue.claim(20)
        taken += [lease.id for lease in leases]
        if leases:
            queue.settle(*(("ack", lease.id, lease.lease) for lease in leases))
            continue
        state = queue.queue_state()
        if not any(state[name] for name in ("ready", "pending", "delayed", "leased")):
            return taken
        queue.advance(DAY_MS)
        queue.tick()
    raise AssertionError(f"not all tasks come out: {queue.queue_state()}")


def test_there_is_a_backup_of_this_version() -> None:
    assert FOLDER / f"backup-{library.DATA_VERSION}.jsonl.gz" in FILES


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_a_backup_of_an_earlier_version_is_restored_and_drained(
    file: Path, start_store: Callable[..., stores.LocalServer]
) -> None:
    target, lines = start_store(), lines_of(file)
    queues = {line["queue"] for line in lines if line["kind"] == "queue"}
    assert {WALKED, "emails"} <= queues
    with stores.connect(target.url) as client:
        for name in sorted(queues):
            told = fairq_here("restore", file, "--store", stores.of_owner(target.url), "--replace", "--json")
            assert told.code == 0, told.err
            for kind, key in (("queue", keys.QUEUES), ("token", keys.TOKENS)):
                assert client.hlen(key) == sum(line["kind"] == kind for line in lines)
            prefix = keys.queue_prefix(name)
            for key in client.scan_iter():
                if not key.startswith(prefix.encode()):
                    client.delete(key)
            (made_at,) = (line["now"] for line in lines if line["kind"] == "state" and line["queue"] == name)
            queue = Queue(client, prefix, now=int(made_at))  # the time of the backup: no dead letter is too old yet
            ids = {line["id"] for line in lines if line["kind"] == "task" and line["queue"] == name}
            found = Keyspace(queue)
            assert set(found.records) == ids
            leased = {id: found.runs[id].lease for id in found.leases}
            for id, lease in leased.items():
                assert queue.settle(("ack", id, lease)) == ["ok"], id
            taken = [*leased, *drain(queue)]
            after = Keyspace(queue)
            after.check()
            assert len(taken) == len(set(taken))
            assert set(after.records) == set(after.dead)
            assert ids <= {*taken, *after.dead}
