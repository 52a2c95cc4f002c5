"""Snapshots from nodes that fail half way or talk nonsense."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from fairq.errors import FairqError, StoreRefused, Unavailable
from fairq.store import backup, snapshot
from fairq.store.address import Address
from fairq.store.backup import back_up
from fairq.store.snapshot import read_snapshot

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


async def test_a_store_that_stops_answering_ends_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            while not silent.is_set():  # a busy machine may take the first answers for late ones
                with pytest.raises(Unavailable, match="does not answer"):
                    await back_up(f"redis://127.0.0.1:{listener.socket.getsockname()[1]}", io.BytesIO(), tmp_path)
            nursery.cancel_scope.cancel()
