"""Stores with something of every kind in them, and their backups."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from fairq.store.opening import open_store
from fairq.sync import open_client, open_operator
from tests import stores
from tests.server.harness import OPERATOR, tenant

from .harness import ServerThread, fairq_here


@pytest.fixture
def source(server_store: str) -> str:
    """The session's store, with all permissions."""
    return stores.of_owner(server_store)


def fill(url: str) -> list[str]:
    """Put something of every kind into the store; returns the ids of tasks."""
    with open_client(url, token=tenant("ada")) as ada, open_client(url, token=tenant("bob")) as bob:
        tasks = [client.enqueue("emails", str(n)) for client in (ada, bob) for n in range(5)]
        tasks.append(ada.enqueue("emails", "x" * 200_000))
        tasks.append(ada.enqueue("emails", 1, delay=3600, priority=3))
        tasks.append(ada.enqueue("other", 1, dedupe_key="k", dedupe_period=3600))
        tasks.append(ada.enqueue("other", 1, events=True))
        ada.schedule("emails", "nightly", 1, cron="0 3 * * *")
    with open_operator(url, token=OPERATOR) as operator:
        operator.set_weight("emails", "ada", 3)
    return [task.id for task in tasks]


@pytest.fixture
def filled(source: str) -> str:
    """A store with tasks, that no server runs on."""
    thread = ServerThread(source)
    thread.start()
    fill(thread.url)
    thread.stop()
    return source


@pytest.fixture
def backed_up(filled: str, tmp_path: Path) -> Path:
    """A backup of that store."""
    file = tmp_path / "b.jsonl.gz"
    assert fairq_here("backup", file, "--store", filled, "--no-verify").code == 0
    return file


async def open_once(url: str) -> None:
    """Open a store as a server does."""
    with trio.fail_after(30):
        async with open_store(url):
            pass
