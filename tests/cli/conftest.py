"""The command line's tests run against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tests.server.conftest import redis_store, server_store

from .backups import backed_up, filled, source
from .harness import Commands, ServerThread

__all__ = ["backed_up", "filled", "redis_store", "server_store", "source"]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that run inside the test see no settings of ours, leave its logging alone, and bear a busy machine."""
    monkeypatch.setattr("fairq.cli.options._QUIET_S", 60.0)
    for name in ("FAIRQ_URL", "FAIRQ_TOKEN", "FAIRQ_STORE", "FAIRQ_DATA_DIR", "FAIRQ_WEBHOOK_SECRET"):
        monkeypatch.delenv(name, raising=False)
    for module in ("options", "tokens"):
        monkeypatch.setattr(f"fairq.cli.{module}.configure_logging", lambda _: None)


@pytest.fixture(autouse=True)
def no_logs() -> Iterator[None]:
    """The server's thread shares this process's standard output with the commands: it logs nothing."""
    plain = structlog.processors.JSONRenderer()  # structlog's own shows every local variable of a traceback: seconds
    structlog.configure(processors=[plain], logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture
def server(server_store: str) -> Iterator[ServerThread]:
    thread = ServerThread(server_store)
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture
def commands(server: ServerThread, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(server.url, capsys)
