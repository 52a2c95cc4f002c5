"""A server, a Celery worker of two processes, and the project's app in the test's process.

The app's module is imported once, with the address of the server: so there is one server for each test process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

import fairq.sync
from tests.cli.harness import read_until, started

SHOP = "tests.celery.shop"


@contextmanager
def served(data: Path, port: int = 0, **variables: str) -> Iterator[int]:
    """Run a server process; gives its port."""
    with started("serve", "--dev", "--port", str(port), "--data-dir", data, extra=variables) as server:
        (found,) = re.findall(r"ws://\S+:(\d+)", read_until(server, "ws://"))
        yield int(found)


def variables_for(port: int, results: Path) -> dict[str, str]:
    """Return the variables of the project."""
    return {
        "SHOP_BROKER": f"fairq://:dev-worker,dev-producer@127.0.0.1:{port}",
        "SHOP_RESULTS": f"file://{results}",
    }


@contextmanager
def worker(variables: Mapping[str, str], *options: str, ready: str = "ready.") -> Iterator[Popen[str]]:
    """Run a Celery worker for the queues celery and emails, which has said that it is ready."""
    argv = ("-A", SHOP, "worker", "-l", "info", "-c", "2", "-Q", "celery,emails", *options)
    with started(*argv, extra={**variables, "C_FORCE_ROOT": "1"}, module="celery") as process:
        read_until(process, ready)
        yield process


@pytest.fixture(scope="session")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server."""
    with served(tmp_path_factory.mktemp("data")) as port:
        yield port


@pytest.fixture(scope="session")
def variables(port: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The project's variables."""
    return variables_for(port, tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def shop(variables: dict[str, str]) -> Iterator[Any]:
    """The project's module, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        from fairq.celery import clients
        from tests.celery import shop

        yield shop
        shop.app.close()
        for sender in clients.opened.values():
            sender.client.close()


@pytest.fixture(scope="session")
def working(variables: dict[str, str]) -> Iterator[None]:
    """A worker works."""
    with worker(variables):
        yield


@pytest.fixture(autouse=True)
def current(shop: Any) -> None:
    """Let the project's app be the process's, as it is in a project."""
    shop.app.set_current()


@pytest.fixture
def operator(port: int) -> Iterator[fairq.sync.OperatorClient]:
    """An operator's client."""
    with fairq.sync.open_operator(f"ws://127.0.0.1:{port}", token="dev-operator") as client:
        yield client


@pytest.fixture
def acme(port: int) -> Iterator[fairq.sync.Client]:
    """A client of the tenant acme."""
    with fairq.sync.open_client(f"ws://127.0.0.1:{port}", token="dev-tenant:acme") as client:
        yield client


def wait_for(condition: Callable[[], Any]) -> None:
    """Wait until something is so, for as long as a busy machine may take."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def get(result: Any) -> Any:
    """Wait for a result, for so long as a busy machine may take."""
    from kombu.exceptions import DecodeError  # the first tier has no kombu

    deadline = time.monotonic() + 60
    while True:
        try:
            return result.get(timeout=60, interval=0.02)
        except DecodeError:  # Celery's folder of results is read while a result is written
            assert time.monotonic() < deadline
