"""A backup and a store of each version of the data are taken over by today's code, and all their tasks come out."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from fairq.store import keys, library
from fairq.store.migrations import NEW, OLDEST
from tests import stores
from tests.cli.harness import check_error, fairq_here
from tests.lua.calls import Queue
from tests.lua.keyspace import Keyspace

from .make import FOLDER, WALKED, lines_of
from .served import write_served

FILES, STORES = sorted(FOLDER.glob("backup-*.jsonl.gz")), sorted(FOLDER.glob("store-*.rdb.gz"))
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


def test_there_are_a_backup_and_a_store_of_this_version() -> None:
    assert FOLDER / f"backup-{NEW}.jsonl.gz" in FILES
    assert FOLDER / f"store-{NEW}.rdb.gz" in STORES


def account_for(client: redis.Redis, name: str, lines: list[dict[str, Any]]) -> None:
    """Drain a queue of a store; all tasks that the lines of its backup have come out, each once."""
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


def served(file: Path, folder: Path) -> Path:
    """Write a backup with the walked queue among those of servers, as a restore requires."""
    write_served(file, to := folder / "served.jsonl.gz", WALKED)
    return to


def queues_of(lines: list[dict[str, Any]]) -> list[str]:
    """Name the queues of a backup."""
    queues = {line["queue"] for line in lines if line["kind"] == "queue"}
    assert {WALKED, "emails"} <= queues
    return sorted(queues)


def account_for_backup(file: Path, client: redis.Redis, url: str, folder: Path) -> None:
    """Restore a backup for each of its queues, and drain that."""
    file = served(file, folder)
    lines = lines_of(file)
    for name in queues_of(lines):
        done = fairq_here("restore", file, "--store", stores.of_owner(url), "--replace", "--json")
        assert done.code == 0, done.err
        for kind, key in (("queue", keys.QUEUES), ("token", keys.TOKENS)):
            assert client.hlen(key) == sum(line["kind"] == kind for line in lines)
        account_for(client, name, lines)


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_a_backup_of_an_earlier_version_is_restored_and_drained(
    file: Path, start_store: Callable[..., stores.LocalServer], tmp_path: Path
) -> None:
    target = start_store()
    with stores.connect(target.url) as client:
        account_for_backup(file, client, target.url, tmp_path)


@pytest.fixture
def open_file(tmp_path: Path) -> Iterator[Callable[[Path], stores.LocalServer]]:
    """Start stores on copies of a file of data."""
    opened: list[stores.LocalServer] = []

    def start(file: Path) -> stores.LocalServer:
        folder = tmp_path / f"of-file-{len(opened)}"
        folder.mkdir()
        (folder / "dump.rdb").write_bytes(gzip.decompress(file.read_bytes()))
        opened.append(stores.LocalServer("valkey", folder, {"appendonly": "no"}))
        opened[-1].start()
        return opened[-1]

    yield start
    for server in opened:
        server.stop()


@pytest.mark.one_store
@pytest.mark.parametrize("file", STORES, ids=[file.name for file in STORES])
def test_a_store_of_an_earlier_version_is_taken_over_and_drained(
    file: Path, open_file: Callable[[Path], stores.LocalServer], tmp_path: Path
) -> None:
    source, backup = open_file(file), tmp_path / "backup.jsonl.gz"
    made = fairq_here("backup", backup, "--store", stores.of_owner(source.url), "--no-verify")
    assert made.code == 0, made.err
    lines = lines_of(backup)
    for name in queues_of(lines):
        store = open_file(file)
        done = fairq_here("migrate", "--store", stores.of_owner(store.url))
        assert done.code == 0, done.err
        with stores.connect(store.url) as client:
            client.function_load(library.source(), replace=True)
            account_for(client, name, lines)


@pytest.mark.one_store
def test_a_store_of_a_version_that_is_not_read_is_not_backed_up(
    open_file: Callable[[Path], stores.LocalServer], tmp_path: Path
) -> None:
    store = open_file(STORES[0])
    with stores.connect(store.url) as client:
        for version in (14, OLDEST - 1, library.DATA_VERSION + 1):
            client.set(keys.DATA_VERSION, version)
            done = fairq_here("backup", tmp_path / "backup.jsonl.gz", "--store", stores.of_owner(store.url))
            check_error(done, 2, f"the store holds data of version {version}, but this fairq reads")
