"""The embedded store: a child process that is ours alone, loses nothing, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from fairq.errors import FairqError, SettingsError, Unavailable
from fairq.model.tasks import NewTask
from fairq.store import embedded as module
from fairq.store.embedded import embedded_store, is_running, socket_path, store_url
from fairq.store.examination import examine
from fairq.store.opening import check_durability, open_store
from fairq.store.store import Store
from tests import processes
from tests.processes import commands
from tests.store.cases import raises_for

from .waiting import wait_until

OWNER = """
import sys, trio
from pathlib import Path
from fairq.store.embedded import embedded_store

async def main():
    async with embedded_store(Path(sys.argv[1])):
        print("running", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def store_pids(data_dir: Path) -> set[int]:
    """Find the processes of the embedded store of a data directory: one, or none while it is down."""
    title = f"valkey-server unixsocket:{socket_path(data_dir)}"  # of the process
    return {pid for pid, words in commands() if any(title in word for word in words)}


def store_pid(data_dir: Path) -> int:
    """Find the process of an embedded store that runs."""
    (pid,) = store_pids(data_dir)
    return pid


async def kill_store(data_dir: Path) -> None:
    """Kill an embedded store, and wait until there is a new one."""
    os.kill(pid := store_pid(data_dir), signal.SIGKILL)
    await wait_until(lambda: bool(store_pids(data_dir) - {pid}))


@asynccontextmanager
async def embedded(data_dir: Path) -> AsyncIterator[Store]:
    with trio.fail_after(30):
        async with embedded_store(data_dir) as url, open_store(url, connect_timeout=30) as store:
            yield store


async def test_the_log_of_a_store_that_runs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 100)
    monkeypatch.setattr(module, "LOG_S", 0.01)
    log, old = tmp_path / "store.log", tmp_path / "store.log.old"
    async with embedded(tmp_path) as store:
        await wait_until(lambda: old.exists() and not log.exists())
        first = old.read_text()
        await store.connection.call("BGREWRITEAOF")  # which it logs
        await wait_until(lambda: old.read_text() != first)


@pytest.fixture
def other_owner(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that owns the data directory `tmp_path`."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert any(line == b"running\n" for line in process.stdout)
    yield process
    process.terminate()
    process.wait(10)
    process.stdout.close()
    for pid, words in commands():
        if any(str(socket_path(tmp_path)) in word for word in words):
            os.kill(pid, signal.SIGKILL)


async def test_data_survives_a_stop_and_a_start_and_no_process_is_left(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        assert await check_durability(store) == []
        assert await store.enqueue("q", "ada", [NewTask("a", b"1")]) == ["ok"]
        pid = store_pid(tmp_path)
        assert processes.is_running(pid)
        assert await is_running(tmp_path)
    assert not processes.is_running(pid)
    assert not await is_running(tmp_path)
    async with embedded(tmp_path) as store:
        assert (await store.queue("q")).ready == 1
        assert await store.enqueue("q", "ada", [NewTask("a", b"1")]) == ["duplicate\nready"]


async def allocator(data_dir: Path) -> tuple[str, str]:
    """Start an embedded store, and return how `fairq doctor` finds its allocator, and what it says of it."""
    with trio.fail_after(30):
        async with embedded_store(data_dir) as url:
            (found,) = [each async for each in examine(url) if each.subject == "allocator"]
    return found.level, found.message


def libm() -> str:
    """Return the path of a library that every system has."""
    return next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libm" in line)


async def test_jemalloc_takes_the_place_of_libcs_allocator_where_the_system_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may lack it, so another library stands for it."""
    shutil.copy(libm(), tmp_path / "libjemalloc.so.2")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert await allocator(tmp_path / "data") == ("ok", "jemalloc, preloaded")


@pytest.mark.parametrize("library", ["", "absent.so", "/dev/null"])
async def test_a_store_starts_without_jemalloc_and_doctor_says_what_that_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setenv("LD_PRELOAD", library)
    assert await allocator(tmp_path) == ("warning", "libc's: it takes a fifth of the store's time")


async def test_it_listens_on_a_socket_that_only_its_owner_may_use(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        assert socket_path(tmp_path).stat().st_mode & 0o777 == 0o700
        assert await store.connection.call("CONFIG", "GET", "port") == [b"port", b"0"]
        assert await store.connection.call("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"always"]


@pytest.mark.parametrize("is_there", [False, True])
async def test_other_local_users_may_read_none_of_its_data(tmp_path: Path, is_there: bool) -> None:
    data = tmp_path / "data"
    if is_there:
        data.mkdir(mode=0o755)
    async with embedded(data) as store:
        await store.enqueue("q", "ada", [NewTask("a", b"1")])
        written = [data / "store.log", data / "appendonlydir", *(data / "appendonlydir").iterdir()]
        assert len(written) == 5
        assert [path for path in [*written, *([] if is_there else [data])] if path.stat().st_mode & 0o077] == []


async def test_a_killed_child_is_started_again_and_everything_acknowledged_is_there(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    enough = trio.Event()

    async def enqueue(store: Store, name: str) -> None:
        for number in range(10_000):
            try:
                await store.enqueue("q", "ada", [NewTask(f"{name}-{number}", b"1")])
            except FairqError:
                return
            acknowledged.append(f"{name}-{number}")
            if len(acknowledged) > 200:
                enough.set()

    async with embedded(tmp_path) as store:
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(enqueue, store, name)
            await enough.wait()
            await kill_store(tmp_path)
        await store.connection.wait_connected()
        for start in range(0, len(acknowledged), 500):
            found = await store.tasks("q", acknowledged[start : start + 500])
            assert {task.state for task in found} == {"ready"}


async def test_a_child_that_cannot_be_started_again_is_tried_again(tmp_path: Path) -> None:
    """A missing file stands for too many open ones."""
    config = tmp_path / "valkey.conf"
    async with embedded(tmp_path) as store:
        with capture_logs() as lines:
            config.rename(tmp_path / "away")
            os.kill(store_pid(tmp_path), signal.SIGKILL)
            await wait_until(lambda: any(line["event"] == "cannot start the embedded store" for line in lines), 20)
        (died,) = (line for line in lines if line["event"] == "embedded store died; starting it again")
        assert died["store_log"] == (tmp_path / "store.log").read_text().splitlines()[-1]
        (tmp_path / "away").rename(config)
        await wait_until(lambda: store.connection.is_connected, 20)


def left_over(data_dir: Path) -> list[Path]:
    """Name the files of rewrites that have not ended."""
    return list(data_dir.glob("temp-rewriteaof-*"))


async def test_what_a_rewrite_leaves_that_is_killed_with_its_store_is_deleted(tmp_path: Path) -> None:
    async with embedded(tmp_path) as store:
        for number in range(3):
            await store.connection.call("SET", f"fq:{number}", "x")
        await store.connection.call("CONFIG", "SET", "rdb-key-save-delay", 1_000_000)
        await store.connection.call("BGREWRITEAOF")
        await wait_until(lambda: bool(left_over(tmp_path)))
        await kill_store(tmp_path)
        assert left_over(tmp_path) == []


async def test_a_second_owner_of_the_data_directory_is_refused_by_the_name_of_the_first(
    tmp_path: Path, other_owner: subprocess.Popen[bytes]
) -> None:
    with trio.fail_after(30), raises_for("data_dir", SettingsError, match=f"process {other_owner.pid}"):
        async with embedded_store(tmp_path):
            pass
    assert await is_running(tmp_path)  # the first is unharmed


async def test_the_orphan_of_a_killed_owner_is_shut_down_before_its_data_is_used(
    tmp_path: Path, other_owner: subprocess.Popen[bytes]
) -> None:
    orphan = store_pid(tmp_path)
    with trio.fail_after(30):
        async with open_store(store_url(tmp_path)) as store:
            await store.enqueue("q", "ada", [NewTask("a", b"1")])
    other_owner.kill()
    other_owner.wait()
    assert processes.is_running(orphan)
    async with embedded(tmp_path) as store:
        assert not processes.is_running(orphan)
        assert store_pid(tmp_path) != orphan
        assert (await store.queue("q")).ready == 1


async def test_a_store_that_hangs_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with embedded(tmp_path):
        with trio.fail_after(60):
            await module.wait_loaded(tmp_path)
            monkeypatch.setattr(module, "SILENT_S", 0.5)
            pid = store_pid(tmp_path)
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(Unavailable, match=r"has not answered for 0 s$"):
                    await module.wait_loaded(tmp_path)
            finally:
                os.kill(pid, signal.SIGCONT)


async def test_it_stops_cleanly_when_cancelled_and_when_the_block_fails(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with embedded(tmp_path):
            cancelled = store_pid(tmp_path)
            scope.cancel()
            await trio.sleep_forever()
    assert not processes.is_running(cancelled)
    failed: list[int | None] = []

    async def fail() -> None:
        async with embedded(tmp_path):
            failed.append(store_pid(tmp_path))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not processes.is_running(failed[0])


async def test_a_data_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_for("data_dir", SettingsError, match="data directory"):
        async with embedded_store(tmp_path / "file"):
            pass


async def test_a_child_that_does_not_start_tells_why(tmp_path: Path) -> None:
    with raises_for("data_dir", SettingsError, match="did not start"):
        async with embedded_store(tmp_path, fsync="never-ever"):
            pass


@pytest.mark.parametrize("name", ["d" * 150, 'has "quotes" and spaces', "100%25 #1? a@b:c\\\\n [*]"])
async def test_long_and_odd_directory_names_work(tmp_path: Path, name: str) -> None:
    async with embedded(tmp_path / name) as store:
        assert await store.queues() == []
