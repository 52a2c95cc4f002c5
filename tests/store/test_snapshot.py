"""Snapshots from nodes that fail half way or talk nonsense, and copies of large keys in pieces."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

from fairq.errors import FairqError, StoreRefused, Unavailable
from fairq.store import backup, copying, snapshot
from fairq.store.address import Address
from fairq.store.backup import back_up
from fairq.store.connection import Connection
from fairq.store.snapshot import read_snapshot
from tests import stores

from .cases import case

MARK = b"m" * 40
OK = b"+OK\r\n"


async def read_from(answers: Sequence[bytes | None]) -> bytes:
    """Read a snapshot of a node that answers PING and two REPLCONFs, and then so, in pieces; None: no more."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            for reply in (b"+PONG\r\n", OK, OK):
                await stream.receive_some()
                await stream.send_all(reply)
            assert await stream.receive_some() == b"PSYNC ? -1\r\n"
            for answer in answers:
                if answer is None:
                    await trio.sleep_forever()
                await stream.send_all(answer)
                await trio.testing.wait_all_tasks_blocked()

    got = b""
    error: FairqError | None = None
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(
                trio.serve_listeners, serve, await trio.open_tcp_listeners(0, host="127.0.0.1")
            )
            port = listener.socket.getsockname()[1]
            try:
                async for piece in read_snapshot(Address("test", port=port)):
                    got += piece
            except FairqError as raised:
                error = raised
            nursery.cancel_scope.cancel()
    if error is not None:
        raise error
    return got


DATA = bytes(range(256)) * 40
BEGUN = b"\n\n+FULLRESYNC " + b"0" * 40 + b" 0\r\n\n"


async def test_data_ends_at_its_mark_wherever_the_pieces_are_cut() -> None:
    for cut in [1, 39, 40, 41, 5_000, len(DATA) + 39]:
        with case(cut):
            text = DATA + MARK
            assert await read_from([BEGUN + b"$EOF:" + MARK + b"\r\n", text[:cut], text[cut:]]) == DATA
            assert (
                await read_from([BEGUN, b"$%d\r\n" % len(DATA) + DATA[:cut], DATA[cut:] + b"*1\r\n$4\r\nPING\r\n"])
                == DATA
            )


async def test_a_node_that_ends_early_or_talks_nonsense_is_an_error() -> None:
    for answers, error in [
        ([BEGUN + b"$EOF:" + MARK + b"\r\n", DATA], Unavailable),
        ([BEGUN + b"$9000000\r\n", DATA], Unavailable),
        ([BEGUN], Unavailable),
        ([], Unavailable),
        ([b"x" * 5_000], Unavailable),
        ([b":1\r\n"], Unavailable),
        ([b"-NOMASTERLINK Can't SYNC while not connected with my master\r\n"], StoreRefused),
    ]:
        with case(answers, error), pytest.raises(error):
            await read_from(answers)


async def test_a_node_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "SILENT_S", 0.2)
    with pytest.raises(Unavailable, match="no answer"):
        await read_from([BEGUN, b"$EOF:" + MARK + b"\r\n", None])


async def test_a_large_key_is_copied_in_pieces(store_url: str, redis_client: Any) -> None:
    for n in range(64):
        redis_client.hset("fq:{a/0}:payloads", str(n), bytes(200_000))
        redis_client.rpush("fq:{a/0}:ready:t", *(f"{n}-{m}-{'x' * 200}" for m in range(200)))
        redis_client.zadd("fq:{a/0}:due", {f"{n}-{m}-{'x' * 200}": n + m / 7 for m in range(200)})
        redis_client.xadd("fq:{a/0}:events:t", {"e": bytes(1_000)}, id=f"0-{n + 1}")
    redis_client.set("fq:{a/0}:class:1", bytes(5_000_000))
    redis_client.set("fq:{a/0}:gone", "x", px=1)
    longest, written = 0, dict[str, int]()
    connection = Connection(Address.parse(stores.of_owner(store_url)))

    def record(call: Callable[..., Any]) -> Callable[..., Any]:
        async def recorded(name: str, *words: Any) -> Any:
            nonlocal longest
            if name in ("UNLINK", "PEXPIREAT"):
                return 0
            if name in copying._LENGTHS.values():
                return await call(name, *words)
            size = sum(len(word) for word in words if isinstance(word, bytes))
            longest, written[name] = max(longest, size), written.get(name, 0) + size
            return None

        return recorded

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            await connection.wait_connected()
            copy = copying.Copying(connection.call, record(connection.call))
            await copy.run()
            nursery.cancel_scope.cancel()
    assert longest < 4 << 20
    assert written["HSET"] > 64 * 200_000
    assert written["SET"] + written["APPEND"] > 5_000_000
    assert written["EVAL"] > 64_000


async def test_a_store_that_stops_answering_ends_a_backup(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"+PONG\r\n")
            if b"SLOTS" in await stream.receive_some():
                await stream.send_all(b"-ERR This instance has cluster support disabled\r\n")
            else:
                silent.set()
            await trio.sleep_forever()

    silent = trio.Event()
    monkeypatch.setattr(backup, "SILENT_S", 0.1)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(
                trio.serve_listeners, serve, await trio.open_tcp_listeners(0, host="127.0.0.1")
            )
            with pytest.raises(Unavailable, match="does not answer"):
                await back_up(f"redis://127.0.0.1:{listener.socket.getsockname()[1]}", io.BytesIO())
            nursery.cancel_scope.cancel()
    assert silent.is_set()
