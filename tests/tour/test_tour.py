"""The same eight steps as programs of each kind, against a server and a worker."""

from __future__ import annotations

import runpy
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from fairq.server.run import Served
from tests.cli.conftest import no_logs, server_store
from tests.cli.harness import ServerThread

from .jobs import app

__all__ = ["no_logs", "server_store"]

HERE = Path(__file__).parent
TOLD = """\
enqueue: first True
many tenants: x/a y/b x/c
delay: True
result: 42
batch: 3
schedule: 3 True
dead letter: [('odd', 'rejected', 'not now')]
replay: ok done
"""
PROGRAMS = {
    "asyncio": ["async_tour.py", "asyncio"],
    "trio": ["async_tour.py", "trio"],
    "sync": ["sync_tour.py"],
}


class WorkingServer(ServerThread):
    """A server with the tour's worker."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Served]:
        """Run both."""
        async with super().serving() as served, trio.open_nursery() as nursery:
            app.url, app.token = f"ws://{served.host}:{served.port}", "dev-worker"
            await nursery.start(lambda *, task_status: app.run(task_status=task_status))
            yield served
            nursery.cancel_scope.cancel()


@pytest.fixture
def server(server_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    """A server and a worker, which the environment names."""
    thread = WorkingServer(server_store)
    thread.start()
    monkeypatch.setenv("FAIRQ_URL", thread.url)
    yield thread
    thread.stop()


def test_the_tour(server: ServerThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, argv in PROGRAMS.items():
        monkeypatch.setenv("FAIRQ_TOKEN", f"dev-tenant:{kind}")
        monkeypatch.setattr(sys, "argv", argv)
        runpy.run_path(str(HERE / argv[0]), run_name="__main__")
        assert capsys.readouterr() == (TOLD, ""), kind
