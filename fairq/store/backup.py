"""Backups: the primary data of a store, in lines of one file. They are read from snapshots of its primaries.

Each snapshot is loaded into a private Valkey. A queue lives on one node, so its lines are from one point in time. The
nodes of a cluster are read one after the other. While a restore is under way, the store's data version says so, and no
server starts on it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import trio
from attrs import frozen

from fairq.errors import BadRequest, FairqError, NotEmpty, SettingsError, Unavailable
from fairq.io.scopes import background, run_all
from fairq.store import keys, library
from fairq.store.address import Address
from fairq.store.backup_check import Checking
from fairq.store.backup_file import Header, Writer, read_header, read_lines
from fairq.store.calls import load_library
from fairq.store.connection import Connection
from fairq.store.dumping import scan, write_lines
from fairq.store.embedded import log_tail, program
from fairq.store.loading import Counts, Loading
from fairq.store.migrations import OLDEST, PARTITIONS, READABLE
from fairq.store.node import BROKEN, Redirected, ask_once, cause_of, read_info
from fairq.store.opening import open_store
from fairq.store.placing import Placing
from fairq.store.snapshot import SILENT_S, read_snapshot
from fairq.store.store import Store
from fairq.store.topology import SLOTS, Topology, is_moving_slots, read_topology

_LOAD_S = 3_600.0  # the longest time to load a node's data
_PUT_BACK_S = 5.0  # the longest time to put back the version of the data
_SHOWN = 1_000  # lines between two reports of progress
_OF_SERVERS = (keys.SERVERS.encode(), f"{keys.WORKERS}:".encode(), keys.WRITTEN.encode())  # that run, or ran
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_CONFIG = """\
port 0
unixsocket {socket}
unixsocketperm 700
dir {folder}
dbfilename {name}
appendonly no
save ""
daemonize no
logfile {log}
"""

Show = Callable[[int], None]


@frozen
class Contents:
    """The contents of a backup."""

    header: Header
    counts: Counts


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Make a file that only its owner may read; it is complete or does not exist. Raises: SettingsError."""
    if path.exists():
        raise SettingsError(f"{path} already exists", field="file")
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    except OSError as error:
        raise SettingsError(f"cannot write to {path.parent}: {error.strerror}", field="file") from None
    part = Path(name)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except OSError as error:
        raise Unavailable(f"cannot write {part}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)


async def back_up(
    url: str, file: BinaryIO, near: Path, show: Show = lambda _: None, server: Path | None = None
) -> Header:
    """Write a backup of the store at a URL; `show` is called with the number of lines written.

    Snapshots go into a folder that is made in `near`, and deleted.

    Raises: SettingsError, Unavailable, StoreRefused (the store gives no snapshots to this user).
    """
    topology = await read_topology(url)
    primaries = topology.primaries
    await _check_nodes(topology)
    info = read_info(await _ask(primaries[0], "INFO", "server"))
    kind = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info.get('redis_version', '?')}"
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    header = Header(await _data_version(primaries), made_at, version("fairq"), kind, len(primaries))
    writer = Writer(file)
    writer.begin(header)

    def write(line: bytes) -> None:
        writer.add(line)
        if writer.lines % _SHOWN == 0:
            show(writer.lines)

    for address in primaries:
        with tempfile.TemporaryDirectory(prefix=".fairq-", dir=near) as made:
            data = Path(made) / "node.rdb"
            await _save(address, data)
            async with _serving(data, address.database, server) as call:
                await write_lines(call, write)
    if (await read_topology(url)).slots != topology.slots:
        raise Unavailable("slots of the cluster moved during the backup: repeat it when the move is done")
    await _check_nodes(topology)
    writer.end()
    return header


async def _save(address: Address, data: Path) -> None:
    """Write the snapshot of a node into a file."""
    try:
        with data.open("wb") as out:
            async with aclosing(read_snapshot(address)) as pieces:
                async for piece in pieces:
                    out.write(piece)
    except OSError as error:
        raise Unavailable(f"cannot write {data}: {error.strerror}") from None


async def _check_nodes(topology: Topology) -> None:
    """Check that each node is a primary, which no key leaves meanwhile. Raises: SettingsError, Unavailable."""
    for address in topology.primaries:
        info = read_info(await _ask(address, "INFO", "replication"))
        if info["role"] != "master":
            primary = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
            raise SettingsError(
                f"{address.shown} is a replica, which may lack the last tasks: back up its primary, {primary}",
                field="store",
            )
        if topology.slots and is_moving_slots(await _ask(address, "CLUSTER", "NODES")):
            raise Unavailable(
                f"slots of the cluster are moving from or to {address.shown}: make the backup when the move is done"
            )
    if topology.slots and sum(each.last - each.first + 1 for each in topology.slots) < SLOTS:
        raise Unavailable("some slots of the cluster have no primary: make the backup when they have one")


async def _ask(address: Address, *command: str) -> Any:
    """Ask a node. Raises: Unavailable after SILENT_S."""
    try:
        with trio.fail_after(SILENT_S):
            return await ask_once(address, *command)
    except (*BROKEN, trio.TooSlowError) as error:
        raise Unavailable(f"the store at {address.shown} does not answer: {cause_of(error)}") from None


async def _data_version(primaries: Sequence[Address]) -> int:
    for address in primaries:
        try:
            found = await _ask(address, "GET", keys.DATA_VERSION)
        except Redirected:
            continue
        if found is None:
            raise SettingsError("the store is empty: no server has used it yet", field="store")
        if not found.decode().isdecimal():
            raise SettingsError(f"the store cannot be backed up: it is {found.decode()}", field="store")
        if not OLDEST <= (known := int(found)) <= library.DATA_VERSION:
            raise SettingsError(
                f"the store holds data of version {known}, but this fairq reads {READABLE}", field="store"
            )
        return known
    raise Unavailable("no node of the cluster has the version of the data")


async def verify(path: Path, partitions: Mapping[str, int] = MappingProxyType({})) -> Contents:
    """Check a whole backup, and count. Raises: BadRequest, TooLarge if it cannot be used."""
    with path.open("rb") as file:
        return await _check(file, Placing.of(partitions))


async def _check(file: BinaryIO, placing: Placing) -> Contents:
    """Check a whole backup, in a thread: header, sum, each line. Raises: BadRequest, TooLarge."""

    def check() -> Contents:
        lines, checking = read_lines(file), Checking(placing)
        header = read_header(next(lines, b""))
        if not OLDEST <= header.data_version <= library.DATA_VERSION:
            cause = f"it holds data of version {header.data_version}, but this fairq reads {READABLE}"
            raise BadRequest(f"the backup cannot be used: {cause}: use the fairq that wrote it", field="file")
        for line in lines:
            checking.add(line)
        checking.end()
        return Contents(header, checking.counts)

    return await trio.to_thread.run_sync(check, abandon_on_cancel=True)


async def restore(
    path: Path,
    url: str,
    *,
    replace: bool,
    partitions: Mapping[str, int] = MappingProxyType({}),
    show: Show = lambda _: None,
) -> Contents:
    """Write the lines of a backup into a store, and rebuild its queues.

    Nothing is changed until the whole backup has been checked. `replace`: delete all data of fairq in the store first.
    `partitions`: how many these queues have from now on (fairq/store/placing.py).
    Raises: NotEmpty if there is any, or a server runs on it; BadRequest if the backup cannot be used;
    SettingsError, Unavailable.
    """
    placing = Placing.of(partitions)
    with path.open("rb") as file:
        async with open_store(url, is_checked=False) as store:
            await _refuse_servers(store)
            contents = await _check(file, placing)
            async with _reserved(store):
                await _refuse_servers(store)
                if not replace:
                    await _refuse_keys(store)
            await _delete_all(store)
            await _refuse_servers(store)
            await _write(file, store, placing, show)
            await _refuse_servers(store)
            least = PARTITIONS.number if max(partitions.values(), default=1) > 1 else 0
            await store.connection.call("SET", keys.DATA_VERSION, max(contents.header.data_version, least))
    return contents


async def _write(file: BinaryIO, store: Store, placing: Placing, show: Show) -> None:
    """Write the lines of a backup that was checked, and repair its queues."""
    loading, lines = Loading(store.connection.call, show, placing), read_lines(file)
    next(lines)
    for line in lines:
        await loading.add(line)
    await loading.end()
    for node in store.connection.nodes():
        await load_library(node.call)
    for queue in loading.queues:
        await store.repair(queue)


@asynccontextmanager
async def _reserved(store: Store) -> AsyncIterator[None]:
    """Keep servers from starting, from now on; if the block raises, as before."""
    call = store.connection.call
    version = await call("SET", keys.DATA_VERSION, keys.RESTORING, "GET")
    try:
        yield
    except BaseException:
        with trio.move_on_after(_PUT_BACK_S, shield=True), suppress(FairqError):
            await (call("DEL", keys.DATA_VERSION) if version is None else call("SET", keys.DATA_VERSION, version))
        raise


async def _refuse_servers(store: Store) -> None:
    """Raises: NotEmpty if a server runs on the store."""
    for node in store.connection.nodes():
        if (await node.call("PUBSUB", "NUMSUB", keys.WORKERS))[1]:
            raise NotEmpty("a server runs on the store: stop all servers first", field="store")


async def _refuse_keys(store: Store) -> None:
    """Raises: NotEmpty if the store has data of fairq."""
    async with aclosing(_keys_of(store)) as found:
        async for _, some in found:
            for key in some:
                if not key.startswith(_OF_SERVERS):
                    raise NotEmpty(
                        f"the store is not empty (it has {key.decode(errors='replace')[:80]}): use another one, or"
                        " --replace, which deletes all that fairq has there",
                        field="store",
                    )


async def _delete_all(store: Store) -> None:
    async with aclosing(_keys_of(store)) as found:
        async for node, some in found:
            await run_all(*(partial(node.call, "UNLINK", key) for key in some), stops_at_failure=True)


async def _keys_of(store: Store) -> AsyncGenerator[tuple[Connection, list[bytes]], None]:
    """List fairq's keys, except the version of the data, some of a node at a time."""
    for node in store.connection.nodes():
        async with aclosing(scan(node.call)) as found:
            async for some in found:
                yield node, [key for key in some if key != keys.DATA_VERSION.encode()]


def _dying_with_us() -> Callable[[], object] | None:
    """Return a function that ties a child to the thread that starts it: both end together. None if unsupported."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except AttributeError:  # macOS
        return None
    return partial(prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)


@asynccontextmanager
async def _serving(data: Path, database: int, server: Path | None) -> AsyncIterator[Callable[..., Any]]:
    """Run a Valkey on a file of data while the context lasts. Raises: BadRequest if it cannot read it."""
    with tempfile.TemporaryDirectory(prefix="fairq-") as short:  # the path of a socket has at most 107 bytes
        socket, log = Path(short) / "s", data.with_name("log")
        config = _CONFIG.format(socket=socket, folder=f'"{data.parent}"', name=data.name, log=f'"{log}"')
        command = [str(server or program()), "-"]
        try:
            # In this thread: the child dies with the thread that starts it, and trio's own threads end soon.
            process = subprocess.Popen(  # noqa: ASYNC220
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True, preexec_fn=_dying_with_us(),
            )  # fmt: skip
        except OSError as error:
            raise SettingsError(f"cannot run {command[0]}: {error.strerror}", field="server_program") from None
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError), process.stdin:  # it has ended: seen below
                process.stdin.write(config.encode())
            connection = Connection(Address.parse(f"unix://{socket}?db={database}"), timeout=60.0)
            async with background(connection.run):
                with trio.move_on_after(_LOAD_S):
                    while not connection.is_connected and process.poll() is None:
                        with trio.move_on_after(0.2):
                            await connection.wait_connected()
                if not connection.is_connected:
                    why = log_tail(log) or "no answer"
                    raise BadRequest(f"the Valkey that loads the snapshot failed: {why}", field="file")
                yield connection.call
        finally:
            process.kill()
            process.wait()
