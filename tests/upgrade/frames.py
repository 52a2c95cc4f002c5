"""Records what this version's SDK and server say to each other: `python -m tests.upgrade.frames`.

A row of the file is a message, as on the wire: the number of the SDK's session, the side (`>` the SDK's, `<` the
server's) and the text, with a line feed before payloads beside the frame. A row without a text is a new connection.
Times and names of servers are always the same ones.
"""

from __future__ import annotations

import gzip
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio

from fairq.wire.client_session import ClientSession
from tests import stores
from tests.server.harness import running

from .make import FOLDER, MADE_AT
from .talk import Ears, talk

Row = tuple[int, str, str]
FIRST = FOLDER / "frames-v1-1.jsonl.gz"  # a later one is made under the next number when the SDK says something new
LIMIT_S = 60.0
_TIME = re.compile(r"\b1[78]\d{11}\b")  # in ms; numbers of leases are higher
_SERVER = re.compile(r'("(?:server|session)":)"[^"]*"')


def head_of(message: str | bytes) -> dict[str, Any]:
    """Read the frame of a message, without the payloads beside it."""
    text = message.encode() if isinstance(message, str) else message
    head: dict[str, Any] = orjson.loads(text.partition(b"\n")[0])
    return head


@contextmanager
def overheard(ears: Ears, change: Callable[[Any], list[Any]] = lambda message: [message]) -> Iterator[list[Row]]:
    """Record all frames of the SDK's sessions, sent and received; these may be changed first."""
    rows, numbers = list[Row](), dict[ClientSession, int]()
    connected, receive, outgoing = ClientSession.connected, ClientSession.receive, ClientSession.outgoing

    def note(session: ClientSession, side: str, message: str | bytes) -> None:
        head = head_of(message)
        if head["type"] != "ping":
            rows.append((numbers[session], side, message if isinstance(message, str) else message.decode()))
            ears.hear(session, side, head)

    def connecting(session: ClientSession, now: float) -> None:
        rows.append((numbers.setdefault(session, len(numbers)), ">", ""))
        connected(session, now)

    def receiving(session: ClientSession, message: str | bytes, now: float) -> Any:
        note(session, "<", message)
        *earlier, last = change(message)
        for each in earlier:
            receive(session, each, now)
        return receive(session, last, now)

    def sending(session: ClientSession, now: float) -> list[Any]:
        messages = outgoing(session, now)
        for message in messages:
            note(session, ">", message)
        return messages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientSession, "connected", connecting)
        patch.setattr(ClientSession, "receive", receiving)
        patch.setattr(ClientSession, "outgoing", sending)
        yield rows


async def record(store: str, change: Callable[[Any], list[Any]] = lambda message: [message]) -> list[Row]:
    """Let the SDK say all that it can to a server on an empty store."""
    ears = Ears()
    with trio.fail_after(LIMIT_S), overheard(ears, change) as rows:
        async with running(store, reconnect_grace=60) as served:
            await talk(served, ears)
    return rows


def normalised(text: str) -> str:
    """Put the same times and names into every recording."""
    return _SERVER.sub(r'\1"server"', _TIME.sub(str(MADE_AT), text))


def read(file: Path) -> list[Row]:
    return [tuple(orjson.loads(line)) for line in gzip.decompress(file.read_bytes()).splitlines()]


def main() -> int:
    """Make the file, and tell how many messages of each kind it has."""
    with tempfile.TemporaryDirectory() as folder:
        server = stores.LocalServer("valkey", Path(folder))
        server.start()
        try:
            rows = trio.run(record, server.url)
        finally:
            server.stop()
    text = b"".join(orjson.dumps((number, side, normalised(text))) + b"\n" for number, side, text in rows)
    FIRST.write_bytes(gzip.compress(text, mtime=0))
    print(Counter(f"{side} {head_of(text)['type']}" for _, side, text in rows if text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
