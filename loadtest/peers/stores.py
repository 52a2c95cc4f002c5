"""The stores of the peers: Valkey, PostgreSQL or one of their own; each fresh, on loopback, as durable as it can be."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import redis
import trio
from attrs import frozen

from fairq.store.embedded import socket_path
from loadtest.peers.catalogue import Peer
from loadtest.processes import START_S, RunFailed, free_port, plain_store, running_server, stop
from tests import postgres


@frozen
class RunningStore:
    """Where a peer keeps its tasks: what its script must know, its processes, and how many bytes it has in use."""

    settings: Mapping[str, Any]
    pids: Mapping[str, int]
    bytes_used: Callable[[], int]


def _valkey_bytes(path: Path) -> int:
    with redis.Redis(unix_socket_path=str(path)) as client:
        return int(client.info("memory")["used_memory"])


def _file_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def _wait_listening(port: int, process: trio.Process | None = None) -> None:
    with trio.move_on_after(START_S):
        while process is None or process.poll() is None:
            try:
                await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
            except OSError:
                await trio.sleep(0.02)
            else:
                return
    raise RunFailed("the store did not start")


def _nats_configuration(directory: Path, port: int) -> Path:
    path = directory / "nats.conf"
    path.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory / "store"}" }}\n')
    return path


@asynccontextmanager
async def _nats(program: str, directory: Path) -> AsyncIterator[RunningStore]:
    """Run a NATS server, which syncs its files as it sees fit."""
    port = free_port()
    await trio.Path(directory).mkdir(parents=True, exist_ok=True)
    command = [program, "-c", str(_nats_configuration(directory, port)), "-l", str(directory / "store.log")]
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        await _wait_listening(port, process)
        yield RunningStore({"port": port}, {"store": process.pid}, lambda: _file_bytes(directory / "store"))
    finally:
        await stop(process, 5.0)


@contextmanager
def _postgres(fsync: str) -> Iterator[RunningStore]:
    """Run PostgreSQL. Each commit waits for the disk, or is synced within 0.6 s."""
    port = free_port()
    options = f"-c listen_addresses=127.0.0.1 -p {port} -c synchronous_commit={'on' if fsync == 'always' else 'off'}"
    try:
        with postgres.running(options) as database:
            pid, tables = database.pid, database.folder / "db" / "base"
            yield RunningStore({"port": port}, {"store": pid}, lambda: _file_bytes(tables))
    except subprocess.SubprocessError as error:
        raise RunFailed(f"PostgreSQL: {error}") from error


@asynccontextmanager
async def running_store(peer: Peer, program: str, directory: Path, fsync: str) -> AsyncIterator[RunningStore]:
    """Run a fresh store for a peer while the context lasts. Raises: RunFailed if it does not come up."""
    if peer.store == "fairq":
        async with running_server(directory, fsync=fsync) as server:
            path = socket_path(directory / "data")
            pids = {"server": server.pid, "store": server.store_pid}
            yield RunningStore({"url": server.url}, pids, lambda: _valkey_bytes(path))
    elif peer.store == "valkey":
        port = free_port()
        with plain_store(directory, fsync=fsync, port=port) as (path, pid):
            await _wait_listening(port)
            yield RunningStore({"port": port}, {"store": pid}, lambda: _valkey_bytes(path))
    elif peer.store == "postgres":
        with _postgres(fsync) as store:
            yield store
    else:
        async with _nats(program, directory) as store:
            yield store
