"""A server that is killed half way through an operator's change: that leaves a trace, and is made or is not."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from fairq.store import keys, library
from tests import stores

from .harness import Commands, ServerThread, read_until, started

LIMIT_S = 60.0


class HeldStore:
    """A way to a store on which the first call of one of the library's functions is lost, and all after it."""

    def __init__(self, url: str, function: str) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        self._store = (parts.hostname, parts.port)
        self._function = f"\r\n{library.function_name(function)}\r\n".encode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f":{parts.port}", f":{self._listener.getsockname()[1]}")
        self.has_held = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                server, _ = self._listener.accept()
                store = socket.create_connection(self._store, LIMIT_S)
                store.settimeout(None)
                for args in ((server, store, self._function), (store, server, b"")):
                    threading.Thread(target=self._pass_on, args=args, daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket, held: bytes) -> None:
        with suppress(OSError), source, to:
            while part := source.recv(1 << 20):
                if held and held in part:
                    self.has_held.set()
                if not held or not self.has_held.is_set():
                    to.sendall(part)

    def close(self) -> None:
        """Accept nothing more."""
        self._listener.close()


@contextmanager
def held_store(url: str, function: str) -> Iterator[HeldStore]:
    """A store that a server can be killed at, while the block lasts."""
    store = HeldStore(url, function)
    try:
        yield store
    finally:
        store.close()


def outcomes(commands: Commands) -> list[tuple[str, str]]:
    """Return what the audit has: verbs and outcomes, the newest first, those that have begun on top."""
    return [(change["verb"], change["outcome"]) for change in commands("audit", "--json").json]


def weight(commands: Commands) -> Any:
    """Read a tenant's weight."""
    return next(row["weight"] for row in commands("tenants", "list", "q", "--json").json if row["tenant"] == "ada")


def limits(commands: Commands) -> Any:
    """Read two limits that are set together."""
    own = commands("tenants", "limits", "q", "ada", "--json").json["limits"]
    return own["max_running"], own["rate"]


WEIGHT = ("tenants", "set-weight", "q", "ada", "4")
LIMITS = ("tenants", "set-limits", "q", "ada", "--max-running", "3", "--rate", "5")


@pytest.mark.deep("kills")
@pytest.mark.parametrize(
    ("verb", "argv", "read", "old", "new"),
    [("set_weight", WEIGHT, weight, 2.0, 4.0), ("set_limits", LIMITS, limits, (None, None), (3, 5.0))],
)
@pytest.mark.parametrize("is_made", [False, True])
def test_a_change_whose_server_is_killed_is_made_or_not_and_shown_as_begun(
    start_store: Callable[..., stores.LocalServer], capsys: pytest.CaptureFixture[str], verb: str, argv: Sequence[str],
    read: Callable[[Commands], Any], old: Any, new: Any, is_made: bool,
) -> None:  # fmt: skip
    store = start_store().url
    with held_store(store, "end_change" if is_made else verb) as held, another_server(store) as server:
        commands = Commands(server.url, capsys)
        commands("tenants", "set-weight", "q", "ada", "2")
        with started("serve", "--dev", "--port", "0", "--store", held.url, "--unsafe-store", "--log-json") as killed:
            given = {"FAIRQ_URL": orjson.loads(read_until(killed, '"serving"'))["url"], "FAIRQ_TOKEN": "dev-operator"}
            with started(*argv, extra=given) as command:
                assert held.has_held.wait(LIMIT_S)
                killed.kill()
                said, _ = command.communicate(timeout=LIMIT_S)
        assert command.returncode == 1, said
        assert len(said.splitlines()) == 1, said
        assert outcomes(commands) == [(verb, "begun"), ("set_weight", "ok")]
        assert read(commands) == (new if is_made else old)
        let_minutes_pass(store)
        for _ in range(2):  # it may be done again, and once more
            assert commands(*argv).code == 0
            assert read(commands) == new
        assert outcomes(commands) == [(verb, "unknown"), (verb, "ok"), (verb, "ok"), ("set_weight", "ok")]


@contextmanager
def another_server(store: str) -> Iterator[ServerThread]:
    """A server in a thread while the block lasts."""
    server = ServerThread(store)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def let_minutes_pass(store: str) -> None:
    """Make the change that has begun one of long ago."""
    client: Any = stores.connect(store)
    name = f"{keys.AUDIT}:begun"
    ((_, fields),) = client.xrange(name)
    client.delete(name)
    client.xadd(name, fields, id="1-0")
    client.close()
