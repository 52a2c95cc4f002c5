"""`fairq backup` and `fairq restore` on full disks and full stores, with stores that go away, and stopped by ctrl-C."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from fairq.errors import SettingsError
from fairq.store import keys, loading
from fairq.store.backup_file import Writer
from fairq.store.loading import Loading
from fairq.store.migrations import NEW
from tests import stores
from tests.store.waiting import wait_for

from .backups import open_once
from .harness import EXIT_SECONDS, Finished, check_error, environment, read_until, started
from .harness import fairq_here as fairq

Start = Callable[..., stores.LocalServer]
HALF = 5  # tasks that have been written when something happens


def none_left(folder: Path) -> bool:
    """True if no file of a backup is there, nor a part of one."""
    return [path for path in folder.iterdir() if "b.jsonl.gz" in path.name or "fairq-" in path.name] == []


@contextmanager
def waiting_backup(store: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a backup that waits for the store's snapshot."""
    with stores.connect(store) as client:
        client.config_set("repl-diskless-sync-delay", 3_600)
        with started("backup", folder / "b.jsonl.gz", "--store", store) as process:
            wait_for(lambda: client.info("replication")["connected_slaves"] > 0)
            yield process


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_backup_that_is_stopped_leaves_nothing(filled: str, tmp_path: Path, number: signal.Signals) -> None:
    with waiting_backup(filled, tmp_path) as process:
        process.send_signal(number)
        out, _ = process.communicate(timeout=EXIT_SECONDS)
    assert (process.returncode, out) == (128 + number, "")
    assert none_left(tmp_path)


def test_a_store_that_goes_away_during_a_backup_leaves_no_file(start_store: Start, tmp_path: Path) -> None:
    server = start_store()
    trio.run(open_once, server.url)
    with waiting_backup(stores.of_owner(server.url), tmp_path) as process:
        server.kill()
        out, _ = process.communicate(timeout=EXIT_SECONDS)
    check_error(Finished(process.returncode, "", out), 1, "in the middle of its snapshot")
    assert none_left(tmp_path)


@contextmanager
def full_disk() -> Iterator[Callable[[], None]]:
    """Make files of this process that grow fail, once it is said."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def at_line(number: int, event: Callable[[], object]) -> Iterator[None]:
    """Let something happen before a line of a backup is written; the first one comes before the snapshot."""
    add = Writer.add

    def add_and_see(writer: Writer, line: bytes) -> None:
        if writer.lines == number:
            event()
        add(writer, line)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Writer, "add", add_and_see)
        yield


@pytest.mark.parametrize(("line", "file"), [(0, "node.rdb"), (9, ".b.jsonl.gz-")])
def test_a_full_disk_leaves_no_file(filled: str, tmp_path: Path, line: int, file: str) -> None:
    with full_disk() as fill_up, at_line(line, fill_up):
        done = fairq("backup", tmp_path / "b.jsonl.gz", "--store", filled)
    check_error(done, 1, "cannot write", "File too large", file)
    assert none_left(tmp_path)


def test_ctrl_c_amid_the_lines_leaves_no_file(filled: str, tmp_path: Path) -> None:
    with at_line(9, lambda: signal.raise_signal(signal.SIGINT)):
        done = fairq("backup", tmp_path / "b.jsonl.gz", "--store", filled)
    assert (done.code, done.err) == (130, "")
    assert none_left(tmp_path)


def test_a_store_that_is_away_leaves_no_file(start_store: Start, tmp_path: Path) -> None:
    server = start_store()
    server.stop()
    done = fairq("backup", tmp_path / "b.jsonl.gz", "--store", stores.of_owner(server.url))
    assert (done.code, "does not answer" in done.err) == (1, True)
    assert fairq("backup", tmp_path / "none" / "b.jsonl.gz", "--store", stores.of_owner(server.url)).code == 2
    assert none_left(tmp_path)


def test_a_snapshot_that_cannot_be_loaded_leaves_no_file(filled: str, tmp_path: Path) -> None:
    for program in ("/bin/false", "/none"):
        done = fairq("backup", tmp_path / "b.jsonl.gz", "--store", filled, "--server-program", program)
        assert done.code == 2, done.err
    assert none_left(tmp_path)


def restore_until(event: Callable[[], object], backup: Path, url: str) -> Finished:
    """Restore a backup line by line; something happens when half of its tasks are written."""
    flush, is_over = Loading.flush, list[bool]()

    async def flush_and_see(loading: Loading) -> None:
        await flush(loading)
        if loading.counts.tasks == HALF and not is_over:
            is_over.append(True)
            event()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "COMMANDS", 1)
        patched.setattr(Loading, "flush", flush_and_see)
        done = fairq("restore", backup, "--store", stores.of_owner(url))
    assert is_over
    return done


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [("away", 1, "connection to the store"), ("full", 1, "the store is full"), ("stopped", 130, "")],
)
def test_no_server_starts_on_a_store_whose_restore_has_not_ended(
    backed_up: Path, start_store: Start, tmp_path: Path, how: str, code: int, said: str
) -> None:
    target = start_store()
    with stores.connect(target.url) as client:
        events: dict[str, Callable[[], object]] = {
            "away": target.kill,
            "full": lambda: client.config_set("maxmemory", 1),
            "stopped": lambda: signal.raise_signal(signal.SIGINT),
        }
        done = restore_until(events[how], backed_up, target.url)
    assert (done.code, said in done.err, len(done.err.splitlines())) == (code, True, 1 if said else 0), done
    if how == "away":
        target.start()
    with stores.connect(target.url) as client:
        client.config_set("maxmemory", 0)
        found = client.hlen("fq:{emails/0}:tasks") + client.hlen("fq:{other/0}:tasks")
        assert HALF <= found <= HALF + (how == "stopped")  # a signal comes with the next turn
        assert client.get(keys.DATA_VERSION).startswith(b"unfinished")
        with pytest.raises(SettingsError, match="restore"):
            trio.run(open_once, target.url)
        done = fairq("doctor", "--store", stores.of_owner(target.url))
        assert (done.code, "repeat fairq restore with --replace" in done.out) == (1, True)
        assert fairq("backup", tmp_path / "half.jsonl.gz", "--store", stores.of_owner(target.url)).code == 2
        check_error(fairq("restore", backed_up, "--store", stores.of_owner(target.url)), 1, "not empty")
        assert client.get(keys.DATA_VERSION).startswith(b"unfinished")
        assert fairq("restore", backed_up, "--store", stores.of_owner(target.url), "--replace").code == 0
        assert client.get(keys.DATA_VERSION) == str(NEW).encode()


CHECKING = """
import sys, trio
from pathlib import Path
from fairq.store.backup import _serving

async def main():
    async with _serving(Path(sys.argv[1]), 0, None) as call:
        print((await call("INFO", "server")).decode(), flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child does not notice its parent's end")
def test_the_store_that_reads_a_snapshot_dies_with_its_command(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHECKING, str(tmp_path / "node.rdb")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        store = os.pidfd_open(int(read_until(process, "process_id:").partition(":")[2]))
        try:
            process.kill()
            assert select.select([store], [], [], EXIT_SECONDS)[0]
        finally:
            os.close(store)
