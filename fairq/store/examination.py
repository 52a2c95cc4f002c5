"""Examines a store: risks of lost, refused or slow tasks, each finding with its remedy.

It changes nothing, and needs no more than a managed store allows: settings that a store hides are reported as hidden.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import evolve

from fairq.errors import FairqError, SettingsError, StoreRefused
from fairq.store import keys, library
from fairq.store.address import Address
from fairq.store.durability import Finding, Level, risks
from fairq.store.migrations import NEW, DataState, Migration, data_state, libraries_of
from fairq.store.node import BROKEN, Redirected, ask, cause_of, connect, read_info
from fairq.store.topology import read_topology

ANSWER_S = 5.0  # how long connecting to a node, and each of its answers, may take
OLDEST = (7, 0)
NEAR_FULL = 0.8
FAR_OFF_MS, OFF_MS = 60_000, 1_000  # a clock that is ahead by more lets nothing expire; one that is off by more is odd
SLOW_MS = 5.0  # a round trip
FEW_FILES = 4_096

Ask = Callable[..., Awaitable[Any]]


async def examine(url: str, ahead_of_ms: Callable[[], float] = lambda: time.time() * 1000) -> AsyncIterator[Finding]:
    """Examine the store at a URL, node by node. Raises: SettingsError for an invalid URL."""
    try:
        nodes = (await read_topology(url)).primaries
    except SettingsError:
        raise
    except (*BROKEN, trio.TooSlowError, FairqError) as error:
        yield _unreachable(error)
        return
    for address in nodes:
        node = address.shown if len(nodes) > 1 else ""
        try:
            with trio.fail_after(ANSWER_S):
                stream, reader = await connect(address)
            async with stream:
                found = await _of_node(address, lambda *command: _answer(stream, reader, *command), ahead_of_ms, stream)  # noqa: B023
        except (*BROKEN, trio.TooSlowError, FairqError) as error:
            found = [_unreachable(error)]
        for each in found:
            yield evolve(each, node=node)


async def _answer(stream: trio.abc.Stream, reader: Any, *command: Any) -> Any:
    with trio.fail_after(ANSWER_S):
        return await ask(stream, reader, *command)


def _unreachable(error: Exception) -> Finding:
    remedy = "check the URL and its password, that the store runs, and that no firewall is between"
    said = error.message if isinstance(error, FairqError) else f"the store does not answer: {cause_of(error)}"
    return Finding("problem", "connection", said, remedy)


async def _of_node(address: Address, call: Ask, now_ms: Callable[[], float], stream: trio.abc.Stream) -> list[Finding]:
    info = read_info(await call("INFO", "everything"))
    config = await _settings(call)
    return [
        *_version(info),
        *risks(info),
        *_persistence(info, config),
        *_replicas(info, config),
        *await _waits(info, call),
        *_memory(info),
        *_allocator(info, _preloaded(stream)),
        *await _permissions(call),
        *await _libraries(call),
        *await _data(call),
        *await _clock(call, now_ms),
        *_clients(info),
        *_transport(address),
    ]


async def _settings(call: Ask) -> dict[str, str] | None:
    """Read the store's settings; None if it hides them."""
    try:
        flat = await call("CONFIG", "GET", "*")
    except StoreRefused:
        return None
    return {flat[i].decode(): flat[i + 1].decode(errors="replace") for i in range(0, len(flat), 2)}


def _version(info: Mapping[str, str]) -> list[Finding]:
    valkey = info.get("valkey_version", "")
    title = f"Valkey {valkey}" if valkey else f"Redis {info.get('redis_version', '?')}"
    number = tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2] if part.isdecimal())
    if number < OLDEST:
        return [Finding("problem", "version", f"{title} is too old", "use Redis 7.0 or later, or Valkey")]
    return [Finding("ok", "version", title)]


def _persistence(info: Mapping[str, str], config: Mapping[str, str] | None) -> list[Finding]:
    found = []
    if info.get("loading", "0") != "0":
        found.append(Finding("problem", "persistence", "the store is still loading its data", "wait until it has"))
    if info.get("aof_last_write_status", "ok") != "ok":
        remedy = "free space on the store's disk; its log has the cause"
        found.append(Finding("problem", "persistence", "the store cannot write its append-only file", remedy))
    if info.get("rdb_last_bgsave_status", "ok") != "ok" and (config or {}).get("stop-writes-on-bgsave-error") == "yes":
        remedy = "see the store's log: no space, or no memory to fork (vm.overcommit_memory=1)"
        found.append(
            Finding("problem", "persistence", "the store's last snapshot failed, so it takes no writes", remedy)
        )
    if config is not None and info.get("aof_enabled") == "1" and config.get("appendfsync") != "always":
        message = f"appendfsync is {config.get('appendfsync')}: a power cut loses up to a second of acknowledged tasks"
        if config.get("appendfsync") == "no":
            message = "appendfsync is no: a power cut loses what the system had not written yet, perhaps half a minute"
        found.append(Finding("warning", "persistence", message, "CONFIG SET appendfsync always, if that matters"))
    hidden = "the append-only file is on; the store does not tell when it is synced"
    if found or info.get("aof_enabled") != "1":
        return found
    return [Finding("ok", "persistence", hidden if config is None else "what is acknowledged is kept")]


def _replicas(info: Mapping[str, str], config: Mapping[str, str] | None) -> list[Finding]:
    """Describe the cost of a failover: a promoted replica takes no writes while it has fewer replicas than it needs."""
    if info.get("role") == "slave":
        message, remedy = "this node is a replica and takes no writes", "name the primary, or its sentinels, in the URL"
        return [Finding("problem", "replicas", message, remedy)]
    count, least = int(info.get("connected_slaves", 0)), int((config or {}).get("min-replicas-to-write", 0))
    has = f"the primary has {count} replica{'s' * (count != 1)}"
    if least and count <= least:
        needs = f"min-replicas-to-write is {least}: a promoted replica takes no writes until it has {least}"
        remedy = f"attach another replica, or CONFIG SET min-replicas-to-write {max(count - 1, 0)}"
        return [Finding("warning", "replicas", f"{has}, and {needs}", remedy)]
    if count > 1 and not least and config is not None:
        message = f"{has} and min-replicas-to-write is 0: cut off from them it takes tasks that a failover loses"
        remedy = "serve with --wait-replicas 1, or CONFIG SET min-replicas-to-write 1 on every node"
        return [Finding("warning", "replicas", message, remedy)]
    return [Finding("ok", "replicas", has)]


async def _waits(info: Mapping[str, str], call: Ask) -> list[Finding]:
    """Find out whether servers may wait for the replicas that the store has."""
    if not int(info.get("connected_slaves", 0)):
        return []
    try:
        await call("WAIT", 0, 1)
    except StoreRefused as error:
        message = f"a server with --wait-replicas does not start: {error.message}"
        return [Finding("warning", "wait", message, "ACL SETUSER <user> +wait, if the store has it")]
    return []


def _memory(info: Mapping[str, str]) -> list[Finding]:
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if limit and used > NEAR_FULL * limit:
        message = f"{used * 100 // limit} % of maxmemory is used; a full store takes no new tasks"
        remedy = "raise maxmemory, or find the queue that grows: fairq queues list"
        return [Finding("warning", "memory", message, remedy)]
    message = f"{used >> 20:,} MiB used" + (f" of {limit >> 20:,}" if limit else "; maxmemory is not set")
    return [Finding("ok", "memory", message)]


def _preloaded(stream: trio.abc.Stream) -> str | None:
    """Name the allocator that the store's process has loaded in place of libc's: "" for libc's, None if unknown.

    The store does not know it. The kernel knows which process answers on a unix socket.
    """
    if sys.platform != "linux" or not isinstance(stream, trio.SocketStream) or stream.socket.family != socket.AF_UNIX:
        return None
    size = struct.calcsize("3i")
    pid, *_ = struct.unpack("3i", stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"/lib(jemalloc|mimalloc|tcmalloc)[^/\n]*$", maps, re.MULTILINE)
    return found[1] if found else ""


def _allocator(info: Mapping[str, str], preloaded: str | None) -> list[Finding]:
    built = info.get("mem_allocator", "")
    if built != "libc" or not info.get("os", "").startswith("Linux"):
        return [Finding("ok", "allocator", built or "the store does not tell")]
    if preloaded:
        return [Finding("ok", "allocator", f"{preloaded}, preloaded")]
    unseen = ", unless another is preloaded, which is seen only over a unix socket" if preloaded is None else ""
    message = f"libc's{unseen}: it takes a fifth of the store's time"
    remedy = "install jemalloc (Debian: libjemalloc2), and restart; build a store of your own with it"
    return [Finding("warning", "allocator", message, remedy)]


async def _permissions(call: Ask) -> list[Finding]:
    try:
        missing = await call("FCALL_RO", library.function_name("permissions"), 1, keys.queue_prefix("check"), "", "")
    except FairqError as error:
        if "Function not found" in error.message:
            return [Finding("ok", "permissions", "not checked: no server of this version has used the store yet")]
        if isinstance(error, Redirected):  # the node that has the slot answers
            return []
        remedy = "allow FCALL, FCALL_RO, FUNCTION and the keys and channels fq:* in the user's ACL"
        return [Finding("problem", "permissions", error.message, remedy)]
    if missing:
        names = ", ".join(name.decode() for name in missing)
        remedy = f"ACL SETUSER <user> {' '.join(f'+{name.decode().lower()}' for name in missing)} ~fq:* &fq:*"
        return [Finding("problem", "permissions", f"the store's user may not run {names}", remedy)]
    return [Finding("ok", "permissions", "the store's user may run all that fairq runs")]


async def _libraries(call: Ask) -> list[Finding]:
    try:
        names = await libraries_of(call)
    except StoreRefused as error:
        return [Finding("warning", "library", error.message, "allow FUNCTION in the user's ACL")]
    others = [name for name in names if name != library.name()]
    if others:
        message = f"function libraries of other versions: {', '.join(others)}"
        remedy = "fairq doctor --prune deletes them; a server that still runs one loads it again"
        return [Finding("warning", "library", message, remedy)]
    return [Finding("ok", "library", f"{library.name()}" if names else "none yet: a server loads it at its start")]


async def _data(call: Ask) -> list[Finding]:
    try:
        state = await data_state(call)
    except Redirected:  # the node that has the slot answers
        return []
    except SettingsError as error:
        message, _, remedy = error.message.partition(": ")
        return [Finding("problem", "data", message, remedy)]
    except FairqError as error:
        return [Finding("problem", "data", error.message, "extend the user's ACL")]
    if state is None:
        return [Finding("ok", "data", "the store is empty")]
    if not (pending := state.pending(NEW)):
        return [Finding("ok", "data", f"version {state.version}")]
    return [_migration(state, each) for each in pending]


def _migration(state: DataState, each: Migration) -> Finding:
    """Describe the effect of an upgrade to this fairq on the data."""
    message = f"version {state.version}; it will be migrated to {each.number}: {each.about}"
    remedy = "back up, then roll the servers: new ones do it when no older one runs; after that no older one can start"
    if each.number == state.target:
        message = f"version {state.version}; it is being migrated to {each.number}: {each.about}"
        remedy = "servers do it in the background; fairq migrate does it too"
    return Finding("warning", "data", message, remedy)


async def _clock(call: Ask, now_ms: Callable[[], float]) -> list[Finding]:
    began, sent = time.perf_counter(), now_ms()
    seconds, micros = await call("TIME")
    trip_ms = (time.perf_counter() - began) * 1000
    ahead_ms = int(seconds) * 1000 + int(micros) / 1000 - sent - trip_ms / 2
    found = []
    if abs(ahead_ms) > max(OFF_MS, trip_ms):
        way = "ahead of" if ahead_ms > 0 else "behind"
        message = f"the store's clock is {abs(ahead_ms) / 1000:.1f} s {way} this machine's"
        level: Level = "problem" if abs(ahead_ms) > FAR_OFF_MS else "warning"
        found.append(
            Finding(level, "clock", message, "let NTP set the clocks of both machines (chrony, systemd-timesyncd)")
        )
    if trip_ms > SLOW_MS:
        message = f"a round trip takes {trip_ms:.1f} ms; every call of a task waits for some"
        found.append(
            Finding("warning", "round trip", message, "run servers in the store's network; look at SLOWLOG GET 10")
        )
    return found or [Finding("ok", "clock", f"{abs(ahead_ms):.0f} ms off, a round trip takes {trip_ms:.1f} ms")]


def _clients(info: Mapping[str, str]) -> list[Finding]:
    used, limit = int(info.get("connected_clients", 0)), int(info.get("maxclients", 0))
    if limit and used > NEAR_FULL * limit:
        remedy = "raise maxclients, and the store's limit of open files"
        return [Finding("warning", "connections", f"{used:,} of {limit:,} connections of the store are used", remedy)]
    return [Finding("ok", "connections", f"{used:,}" + (f" of {limit:,}" if limit else ""))]


def _is_near(address: Address) -> bool:
    if address.path or address.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


def _transport(address: Address) -> list[Finding]:
    if _is_near(address):
        return [Finding("ok", "network", "the store is on this machine")]
    found = []
    if address.tls is None:
        message = "tasks, tokens' hashes and the password travel unencrypted"
        found.append(Finding("warning", "network", message, "use rediss:// (TLS), or a network of your own"))
    if address.password is None:
        found.append(
            Finding("warning", "network", "the store accepts anyone, without a password", "give it an ACL file")
        )
    return found or [Finding("ok", "network", "TLS, with a password")]


def examine_machine() -> list[Finding]:
    """Check this machine's limit of open files."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return []
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        message = f"processes here may open {soft:,} files: a server takes no more connections than that"
        return [Finding("warning", "open files", message, "LimitNOFILE=65536 in the unit, or ulimit -n 65536")]
    return [Finding("ok", "open files", f"up to {soft:,}" if soft != resource.RLIM_INFINITY else "no limit")]


async def prune(url: str) -> list[str]:
    """Delete fairq's function libraries of other versions from all primaries; returns their names."""
    deleted = []
    for address in (await read_topology(url)).primaries:
        with trio.fail_after(ANSWER_S):
            stream, reader = await connect(address)
        async with stream:
            for name in await libraries_of(lambda *command: _answer(stream, reader, *command)):  # noqa: B023
                if name != library.name():
                    await _answer(stream, reader, "FUNCTION", "DELETE", name)
                    deleted.append(name)
    return sorted(set(deleted))


def worst_of(findings: Sequence[Finding]) -> Level:
    """Return the level of the worst of findings."""
    levels: tuple[Level, ...] = ("ok", "warning", "problem")
    return max((each.level for each in findings), key=levels.index, default="ok")
