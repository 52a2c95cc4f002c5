"""`fairq serve` with OpenTelemetry's variables: a process whose spans come out."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio
from opentelemetry.sdk.trace import TracerProvider

import fairq
from fairq import otel

from .harness import read_until, started

EXPORTING = {"OTEL_TRACES_EXPORTER": "console", "OTEL_SERVICE_NAME": ""}
STOP_S = 30


async def _do_a_task(url: str) -> None:
    """Have a traced task done."""
    app = fairq.Worker(url, token="dev-worker")

    @app.task("q")
    async def handle(task: fairq.Task) -> None:
        pass

    with trio.fail_after(STOP_S):
        async with fairq.open_client(url, token="dev-tenant:ada") as client:
            await client.enqueue("q", "secret-payload")
        await app.run(burst=True)


@pytest.mark.deep("deploy")
def test_a_server_exports_its_spans_until_its_end(tmp_path: Path) -> None:
    with started("serve", "--dev", "--port", "0", "--data-dir", tmp_path / "data", extra=EXPORTING) as server:
        read_until(server, "traces are exported")
        url = next(word for word in read_until(server, "serving ").split() if word.startswith("url=")).partition("=")[2]
        otel.instrument(TracerProvider())
        try:
            trio.run(_do_a_task, url)
        finally:
            otel.uninstrument()
        server.send_signal(signal.SIGTERM)
        told, _ = server.communicate(timeout=STOP_S)
    assert '"name": "claim q"' in told
    assert '"name": "push q"' in told
    assert '"service.name": "fairq"' in told
    assert "secret-payload" not in told
    assert "Traceback" not in told
    assert server.returncode == 0
