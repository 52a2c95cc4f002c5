"""A server process that is killed while requests wait at it, and comes back: nothing is lost, and nothing doubled."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.cli.harness import read_until, started

QUEUE = "/v1/queues/q"
ADA, WORKER = ({"Authorization": f"Bearer {token}"} for token in ("dev-tenant:ada", "dev-worker"))
LIMIT_S = 30.0
pytestmark = pytest.mark.deep("kills")


@pytest.fixture
def ports() -> tuple[int, int]:
    """Two free ports: of websockets, and of HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


@contextmanager
def serving(store: str, ports: tuple[int, int]) -> Iterator[Callable[[], None]]:
    """A server process, and what kills it."""
    flags = ("--port", str(ports[0]), "--http-port", str(ports[1]), "--store", store, "--unsafe-store", "--log-json")
    with started("serve", "--dev", *flags) as server:
        read_until(server, '"serving"')

        def kill() -> None:
            server.kill()
            server.wait(LIMIT_S)

        yield kill


@contextmanager
def asking(ports: tuple[int, int]) -> Iterator[httpx.Client]:
    """A client that connects anew for each request, as after a loss."""
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=f"http://127.0.0.1:{ports[1]}", timeout=LIMIT_S, limits=limits) as client:
        yield client


class Waiting:
    """A request that waits in a thread, and whose connection is lost."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.lost: list[httpx.TransportError] = []
        self.answers: list[Any] = []
        self._ask = ask
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.answers.append(self._ask())
        except httpx.TransportError as error:
            self.lost.append(error)

    def check_lost(self) -> None:
        """Check that there was no answer."""
        self._thread.join(LIMIT_S)
        assert (len(self.lost), self.answers) == (1, [])


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def post(client: httpx.Client, id: str, **more: Any) -> str:
    """Enqueue a task; returns the outcome."""
    answer = client.post(f"{QUEUE}/tasks", json={"payload": id, **more}, headers={**ADA, "Idempotency-Key": id})
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["outcome"])


def claim(client: httpx.Client, wait: float = 20) -> list[dict[str, Any]]:
    """Claim a task."""
    answer = client.post(f"{QUEUE}/claims", json={"wait": wait}, headers=WORKER)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["tasks"])


def settle(client: httpx.Client, task: dict[str, Any]) -> str:
    """End a task."""
    ended = {"queue": "q", "settlements": [{"action": "ack", "id": task["id"], "lease": task["lease"], "result": 7}]}
    return str(client.post("/v1/leases", json=ended, headers=WORKER).json()["outcomes"][0])


def test_a_wait_goes_on_at_the_next_request(server_store: str, ports: tuple[int, int]) -> None:
    with asking(ports) as client:
        with serving(server_store, ports) as kill:
            assert post(client, "t", result_ttl=60) == "ok"
            waiting = Waiting(lambda: client.get(f"{QUEUE}/tasks/t", params={"wait": 30}, headers=ADA))
            (task,) = claim(client)
            kill()
            waiting.check_lost()
        with serving(server_store, ports):
            assert settle(client, task) == "ok"  # its worker has lost nothing but the connection
            assert settle(client, task) == "gone"
            told = client.get(f"{QUEUE}/tasks/t", params={"wait": 30}, headers=ADA).json()
            assert (told["state"], told["result"]) == ("done", 7)
            assert post(client, "t", result_ttl=60) == "duplicate"
            assert claim(client, wait=0) == []
