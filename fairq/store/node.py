"""A node of the store: connecting, logging in, single commands, and its error replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import hiredis
import trio

from fairq.errors import FairqError, StoreFull, StoreRefused, Unavailable
from fairq.model.refusals import refusal
from fairq.store.address import Address

Word = str | bytes | int | float

_RETRYABLE = ("LOADING", "BUSY", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MISCONF", "NOREPLICAS")
_CROWDED = "ERR max number of clients"  # it has as many as it takes
BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, OSError, hiredis.ProtocolError)


class Redirected(Unavailable):
    """Another node of the cluster has, or will have, the key's slot; nothing was done here."""

    def __init__(self, text: str) -> None:
        super().__init__(f"the store is a cluster node and redirects: {text}")
        word, _, where = text.split(" ")[:3]
        host, _, port = where.rpartition(":")
        self.is_ask = word == "ASK"  # for this command only: the slot is moving
        self.host, self.port = host, int(port)  # no host: that of the node that answered


def as_error(reply: Exception) -> FairqError:
    """Translate the store's error reply into ours; ours stays."""
    if isinstance(reply, FairqError):
        return reply
    text = str(reply)
    word = text.partition(" ")[0]
    if known := refusal(text):
        return known
    if word in ("MOVED", "ASK"):
        return Redirected(text)
    if word == "OOM":
        return StoreFull("the store is full and takes no new tasks")
    if word in _RETRYABLE or text.startswith(_CROWDED):
        return Unavailable(f"the store cannot serve requests now: {text}")
    return StoreRefused(f"the store refused: {text}")


def cause_of(error: BaseException) -> str:
    """Say why a node does not answer: of several attempts to connect, the first."""
    cause = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return str(cause or error) or "no answer in time"


pack: Callable[[tuple[Word, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # writes a command


def read_info(reply: bytes) -> dict[str, str]:
    """Read a node's answer to INFO."""
    return dict(line.split(":", 1) for line in reply.decode(errors="replace").splitlines() if ":" in line)


def cpu_of(info: Mapping[str, str]) -> float | None:
    """Return the CPU time that a node's main thread has used since it began, in seconds; None if INFO lacks it."""
    used = [info.get(f"used_cpu_{mode}_main_thread") for mode in ("user", "sys")]
    return sum(map(float, filter(None, used))) if all(used) else None


async def connect(address: Address) -> tuple[trio.abc.Stream, hiredis.Reader]:
    """Open a stream to the store and log in. Raises: OSError, StoreRefused, Unavailable."""
    stream: trio.abc.Stream
    if address.path:
        stream = await trio.open_unix_socket(address.path)
    else:
        stream = await trio.open_tcp_stream(address.host, address.port)
    if address.tls:
        stream = trio.SSLStream(stream, address.tls, server_hostname=address.host)
    reader = hiredis.Reader()
    try:
        if address.password is not None:
            login = (address.username, address.password) if address.username else (address.password,)
            await ask(stream, reader, "AUTH", *login)
        if address.database:
            await ask(stream, reader, "SELECT", address.database)
        await ask(stream, reader, "PING")
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream, reader


async def ask_once(address: Address, *command: Word) -> Any:
    """Send one command on a connection of its own, and return its reply."""
    stream, reader = await connect(address)
    try:
        return await ask(stream, reader, *command)
    finally:
        await trio.aclose_forcefully(stream)


async def ask(stream: trio.abc.Stream, reader: hiredis.Reader, *command: Word) -> Any:
    """Send one command on a stream without other users, and wait for its reply."""
    await stream.send_all(pack(command))
    while (reply := reader.gets()) is False:
        data = await stream.receive_some()
        if not data:
            raise trio.BrokenResourceError("the store closed the connection")
        reader.feed(bytes(data))
    if isinstance(reply, Exception):
        raise as_error(reply)
    return reply
