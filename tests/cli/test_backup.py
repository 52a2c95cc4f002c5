"""`fairq backup` and `fairq restore` on real stores, single ones and clusters, while tasks flow and after damage."""

from __future__ import annotations

import gzip
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
import trio

from fairq.cli import stores as cli_stores
from fairq.cli.app import run
from fairq.errors import SettingsError
from fairq.model.tasks import NewTask
from fairq.server.engine.app import App
from fairq.store import backup, embedded, keys, library
from fairq.store.backup_file import Header, Writer
from fairq.store.migrations import NEW, OLDEST, PARTITIONS, READABLE
from fairq.store.opening import open_store
from tests import clusters, stores
from tests.server.harness import running, tenant

from .backups import fill, open_once
from .harness import Commands, ServerThread, check_error
from .harness import fairq_here as fairq

GUIDE = Path(__file__).parents[2] / "fairq" / "docs" / "backup.md"
Start = Callable[..., stores.LocalServer]


def lines_in(file: Path, *without: str) -> list[dict[str, Any]]:
    """Read the lines of a backup, but for these kinds, its header and its end."""
    lines = [orjson.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    return sorted((line for line in lines[1:-1] if line["kind"] not in without), key=orjson.dumps)


CHANGING = ("state", "tenant")  # kinds that have times and counts of a repair


def test_a_restored_store_has_the_same_lines(filled: str, start_store: Start, tmp_path: Path) -> None:
    file, again = tmp_path / "b.jsonl.gz", tmp_path / "again.jsonl.gz"
    made = fairq("backup", file, "--store", filled, "--json")
    assert made.code == 0, made.err
    assert made.json["verified"]
    counted = made.json["queues"], made.json["tasks"], made.json["data_version"]
    assert counted == (2, 14, NEW)
    assert file.stat().st_mode & 0o777 == 0o600
    target = start_store()
    done = fairq("restore", file, "--store", stores.of_owner(target.url), "--json")
    assert done.code == 0, done.err
    assert done.json["lines"] == made.json["lines"]
    assert fairq("backup", again, "--store", stores.of_owner(target.url)).code == 0
    there = lines_in(file, *CHANGING)
    assert len(there) > 15
    assert lines_in(again, *CHANGING) == there
    assert {path.name for path in tmp_path.iterdir() if "store" not in path.name} == {file.name, again.name}


def test_an_embedded_store_that_reads_its_data_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_CONFIG", f"{embedded._CONFIG}key-load-delay 200\n")  # us for each command
    monkeypatch.setattr(cli_stores, "PATIENCE_S", 0.1)

    async def fill_store() -> None:
        with trio.fail_after(60):
            async with embedded.embedded_store(tmp_path / "data") as url, open_store(url, connect_timeout=30) as store:
                await store.enqueue("emails", "ada", [NewTask(f"ada/{n}", b"1") for n in range(100)])
                with redis.Redis.from_url(url) as client, client.pipeline(transaction=False) as many:
                    for n in range(4_096):  # while it reads them it answers after each 1,024
                        many.set("fq:test", n)
                    many.delete("fq:test").execute()

    trio.run(fill_store)
    made = fairq("backup", tmp_path / "b.jsonl.gz", "--data-dir", tmp_path / "data", "--json")
    assert (made.code, made.json["tasks"]) == (0, 100), made.err
    assert "the store is reading its data" in made.err


def test_a_backup_goes_to_a_cluster_and_comes_from_one(
    backed_up: Path, cluster: clusters.Cluster, start_store: Start, tmp_path: Path
) -> None:
    again = tmp_path / "again.jsonl.gz"
    done = fairq("restore", backed_up, "--store", cluster.url)
    assert done.code == 0, done.err
    made = fairq("backup", again, "--store", cluster.url, "--json")
    assert made.code == 0, made.err
    assert made.json["nodes"] == 3
    assert lines_in(again, *CHANGING) == lines_in(backed_up, *CHANGING)
    single, third = start_store(), tmp_path / "third.jsonl.gz"
    assert fairq("restore", again, "--store", stores.of_owner(single.url)).code == 0
    assert fairq("backup", third, "--store", stores.of_owner(single.url)).code == 0
    assert lines_in(third, *CHANGING) == lines_in(backed_up, *CHANGING)


def test_what_was_acknowledged_when_it_began_is_in_it_while_tasks_flow(
    commands: Commands, source: str, start_store: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = fill(commands.url)
    more = [str(tmp_path / "lines")]
    (tmp_path / "lines").write_text("".join(f"{n}\n" for n in range(5_000)))
    file, target = tmp_path / "b.jsonl.gz", start_store()
    flowing = threading.Thread(
        target=run, args=(["enqueue", "emails", "--lines", *more, "--url", commands.url, "--token", tenant("cal")],)
    )
    flowing.start()
    made = fairq("backup", file, "--store", source, "--no-verify")
    assert made.code == 0, made.err
    flowing.join(60)
    assert not flowing.is_alive()
    assert fairq("restore", file, "--store", stores.of_owner(target.url)).code == 0
    thread = ServerThread(target.url)
    thread.start()
    try:
        restored = Commands(thread.url, capsys)
        for queue, some in (("emails", ids[:12]), ("other", ids[12:])):
            for id in some:
                owner = "bob" if id in ids[5:10] else "ada"
                shown = restored("tasks", "show", queue, id, "--json", token=tenant(owner))
                assert shown.json[0]["state"] in ("ready", "delayed"), shown
            repaired = restored("queues", "repair", queue, "--json")
            assert repaired.code == 0, repaired.err
    finally:
        thread.stop()


def test_a_store_that_is_in_use_is_refused(
    commands: Commands, source: str, filled: str, start_store: Start, tmp_path: Path
) -> None:
    file = tmp_path / "b.jsonl.gz"
    assert fairq("backup", file, "--store", source).code == 0
    again = fairq("backup", file, "--store", source)
    assert (again.code, "already exists" in again.err) == (2, True)
    done = fairq("restore", file, "--store", source, "--replace")
    assert (done.code, "a server runs" in done.err) == (1, True)
    target = start_store()
    with stores.connect(target.url) as client:
        client.set("fq:tokens", "theirs")
        client.set("other", "kept")
        done = fairq("restore", file, "--store", stores.of_owner(target.url))
        assert (done.code, "not empty" in done.err, client.get("fq:tokens")) == (1, True, b"theirs")
        assert fairq("restore", file, "--store", stores.of_owner(target.url), "--replace").code == 0
        assert client.get("other") == b"kept"
        assert client.type("fq:tokens") != b"string"


def test_a_server_that_starts_during_a_restore_ends(
    filled: str, backed_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = list[bool]()

    async def delete_all(store: Any) -> None:
        with pytest.raises(SettingsError, match="restore has not ended"):
            await open_once(filled)
        refused.append(True)
        await delete_all_keys(store)

    delete_all_keys = backup._delete_all
    monkeypatch.setattr(backup, "_delete_all", delete_all)
    assert fairq("restore", backed_up, "--store", filled, "--replace").code == 0
    assert refused == [True]


async def test_a_server_that_had_looked_already_when_a_restore_began_ends(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin(app: App) -> None:
        await app.store.connection.call("SET", keys.DATA_VERSION, keys.RESTORING)  # this server is not seen yet
        await start(app)

    start = App.start
    monkeypatch.setattr(App, "start", begin)
    with trio.fail_after(30), pytest.raises(SettingsError, match="restore has not ended"):
        async with running(server_store):
            pass
    with stores.connect(server_store) as client:
        client.delete(keys.DATA_VERSION)


def test_a_replica_and_slots_that_move_are_refused(
    backed_up: Path, cluster: clusters.Cluster, start_store: Start, tmp_path: Path
) -> None:
    file, replica = tmp_path / "again.jsonl.gz", start_store()
    with stores.connect(replica.url) as client:
        client.replicaof("127.0.0.1", str(stores.free_port()))
        done = fairq("backup", file, "--store", stores.of_owner(replica.url))
        assert (done.code, "is a replica" in done.err, "back up its primary, 127.0.0.1:" in done.err) == (2, True, True)
    assert fairq("restore", backed_up, "--store", cluster.url).code == 0
    with cluster.moving(keys.QUEUES, cluster.other(cluster.owner(keys.QUEUES))):
        done = fairq("backup", file, "--store", cluster.url)
        assert (done.code, "slots of the cluster are moving" in done.err) == (1, True), done.err
    assert not list(tmp_path.glob("*again.jsonl.gz*"))


def test_damage_is_found_and_nothing_is_changed(backed_up: Path, start_store: Start, tmp_path: Path) -> None:
    target, whole = start_store(), backed_up.read_bytes()
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in (0, 2, -5)]
    lines = gzip.decompress(whole).splitlines(keepends=True)
    for wrong in (
        [*lines[:1], *lines[2:]], [*lines[:2], *lines[1:]], [lines[1], lines[0], *lines[2:]], lines[:-1],
        [*lines, lines[1]], [lines[0].replace(b"made_at", b"made_by"), *lines[1:]],
    ):  # fmt: skip
        damaged.append(gzip.compress(b"".join(wrong)))
    for text in [*damaged, whole[:-1], whole[:-40], whole[: len(whole) // 2], whole + b"x", b"", b"PK\3\4" * 99]:
        bad = tmp_path / "bad.jsonl.gz"
        bad.write_bytes(text)
        for how in (["--store", stores.of_owner(target.url)], ["--check"]):
            done = fairq("restore", bad, *how)
            assert (done.code, done.err.startswith("fairq: the backup cannot be used")) == (2, True), done
    with stores.connect(target.url) as client:
        assert client.get(keys.DATA_VERSION) is None
    assert fairq("restore", backed_up, "--check").code == 0


@pytest.mark.parametrize("version", [library.DATA_VERSION + 1, OLDEST - 1])
def test_a_backup_of_a_version_that_is_not_read_is_refused(start_store: Start, tmp_path: Path, version: int) -> None:
    file, target = tmp_path / "b.jsonl.gz", start_store()
    with file.open("wb") as out:
        writer = Writer(out)
        writer.begin(Header(version, "2026-01-01", "0", "Valkey 9", 1))
        writer.end()
    done = fairq("restore", file, "--store", stores.of_owner(target.url))
    assert done.code == 2
    assert f"it holds data of version {version}, but this fairq reads {READABLE}" in done.err
    with stores.connect(target.url) as client:
        assert client.keys() == []


def test_a_wrong_line_under_a_right_sum_is_named_and_nothing_is_changed(filled: str, tmp_path: Path) -> None:
    file = tmp_path / "b.jsonl.gz"
    with file.open("wb") as out:
        writer = Writer(out)
        writer.begin(Header(library.DATA_VERSION, "2026-01-01", "0", "Valkey 9", 1))
        writer.add(b'{"kind":"done","queue":"a","id":"ada/x","how":256}')
        writer.end()
    with stores.connect(filled) as client:
        before = {key: client.dump(key) for key in client.scan_iter()}
        for how in (["--check"], ["--store", filled], ["--store", filled, "--replace"]):
            done = fairq("restore", file, *how)
            check_error(done, 2, "the backup cannot be used: line 2 (done): how must be")
        assert {key: client.dump(key) for key in client.scan_iter()} == before


def test_a_backup_that_cannot_be_read_twice_is_refused(filled: str) -> None:
    check_error(fairq("restore", "/dev/null", "--store", filled), 2, "is not a file, and a backup is read twice")
    check_error(fairq("restore", "/none", "--store", filled), 2, "/none does not exist")


def test_a_restore_gives_a_queue_other_partitions(
    commands: Commands,
    source: str,
    cluster: clusters.Cluster,
    start_store: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From one to four in a single store, to twelve in a cluster, and back to one."""
    for node in cluster.nodes:
        node.client.config_set("repl-diskless-sync-delay", 0)
    ids, file, version = fill(commands.url), tmp_path / "0.jsonl.gz", NEW
    assert fairq("backup", file, "--store", source).code == 0
    for n, count in enumerate((4, 12, 1)):
        version = max(version, PARTITIONS.number)
        target = cluster.url if count == 12 else start_store(settings={"repl-diskless-sync-delay": "0"}).url
        url = target if count == 12 else stores.of_owner(target)
        done = fairq("restore", file, "--store", url, "--partitions", f"emails={count}", "--json")
        assert (done.code, done.json["tasks"]) == (0, 14), done.err
        client = cluster.owner(keys.DATA_VERSION).client if count == 12 else stores.connect(target)
        with client:
            assert client.get(keys.DATA_VERSION) == str(version).encode()
        thread = ServerThread(target)
        thread.start()
        try:
            there = Commands(thread.url, capsys)
            for id in ids[:12]:
                shown = there(
                    "tasks", "show", "emails", id, "--json", token=tenant("bob" if id in ids[5:10] else "ada")
                )
                assert shown.json[0]["state"] in ("ready", "delayed"), shown
            rows = {row["queue"]: row for row in there("queues", "list", "--json").json}
            assert {name: row["settings"]["partitions"] for name, row in rows.items()} == {"emails": count, "other": 1}
            assert (rows["emails"]["ready"], rows["emails"]["delayed"]) == (11, 1)
            weights = {row["tenant"]: row["weight"] for row in there("tenants", "list", "emails", "--json").json}
            assert weights == {"ada": 3, "bob": 1}
            based = ("lease_ms=7000", "--if-version", rows["emails"]["version"])
            assert there("queues", "set", "emails", *based).code == 0
            assert there("queues", "set", "emails", "lease_ms=30000").code == 0
            refused = there("queues", "set", "emails", "partitions=7")
            assert "`fairq restore FILE --partitions emails=7`" in refused.err
        finally:
            thread.stop()
        file = tmp_path / f"{n + 1}.jsonl.gz"
        assert fairq("backup", file, "--store", url).code == 0


def test_partitions_that_cannot_be_are_refused(backed_up: Path, start_store: Start) -> None:
    target = start_store()
    for given in ("emails", "emails=x", "emails=0", "emails=65", "none=2", "=2", "emails=²"):
        for how in (["--store", stores.of_owner(target.url)], ["--check"]):
            check_error(fairq("restore", backed_up, *how, "--partitions", given), 2, "partitions")
    with stores.connect(target.url) as client:
        assert client.keys() == []


def test_a_user_that_may_not_replicate_learns_what_it_needs(filled: str, tmp_path: Path) -> None:
    with stores.connect(filled) as client:
        client.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~fq:*", "&fq:*", "+@all", "-psync")
        try:
            done = fairq("backup", tmp_path / "b", "--store", filled.replace("redis://", "redis://poor:pw@"))
        finally:
            client.execute_command("ACL", "DELUSER", "poor")
    assert done.code == 1
    assert "+psync" in done.err
    assert not list(tmp_path.glob("b*"))


def test_the_user_of_the_guide_may_back_up_and_restore(filled: str, start_store: Start, tmp_path: Path) -> None:
    (rules,) = re.findall(r"ACL SETUSER (backup on >PASSWORD [^`]+)`", GUIDE.read_text())
    file, target = tmp_path / "b.jsonl.gz", start_store()
    for url in (filled, target.url):
        with stores.connect(url) as client:
            client.execute_command("ACL", "SETUSER", *rules.split())
    with stores.connect(filled) as client:
        try:
            done = fairq("backup", file, "--store", filled.replace("redis://", "redis://backup:PASSWORD@"))
        finally:
            client.execute_command("ACL", "DELUSER", "backup")
    assert done.code == 0, done.err
    restored = fairq("restore", file, "--store", re.sub("//.*@", "//backup:PASSWORD@", target.url))
    assert restored.code == 0, restored.err


def test_the_line_of_the_guide_makes_that_user_in_a_file_of_users(start_store: Start, tmp_path: Path) -> None:
    (command,) = re.findall(r'^(echo "user backup on .*") >> deploy/redis.acl$', GUIDE.read_text(), re.MULTILINE)
    line = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True, timeout=30).stdout
    store = start_store()
    with stores.connect(store.url) as client:
        (store.directory / "users.acl").write_text(stores.users() + line)
        client.execute_command("ACL", "LOAD")
    trio.run(open_once, store.url)
    url = re.sub("//.*@", "//backup:PASSWORD@", store.url)
    done = fairq("backup", tmp_path / "b.jsonl.gz", "--store", url)
    assert done.code == 0, done.err


def test_the_embedded_store_is_backed_up_and_restored(backed_up: Path, tmp_path: Path) -> None:
    assert fairq("restore", backed_up, "--data-dir", tmp_path / "data").code == 0
    again = fairq("backup", tmp_path / "again.jsonl.gz", "--data-dir", tmp_path / "data", "--json")
    assert again.code == 0, again.err
    assert again.json["queues"] == 2
    assert fairq("backup", tmp_path / "x.jsonl.gz", "--data-dir", tmp_path / "none").code == 2
