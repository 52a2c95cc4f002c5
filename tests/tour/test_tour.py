"""The same eight steps as programs of each kind, against a server and a worker that are processes too."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import environment, read_until, started

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
    "http": ["http_tour.py"],
}


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server for a first try, and a worker; gives where it serves."""
    data = tmp_path_factory.mktemp("data")
    with started("serve", "--dev", "--port", "0", "--http-port", "0", "--data-dir", data) as server:
        line = read_until(server, "ws://")
        url, http_url = re.findall(r"ws://\S+", line)[0], re.findall(r"http=(\S+)", line)[0]
        with started("worker", "jobs:app", cwd=HERE, extra={"FAIRQ_URL": url, "FAIRQ_TOKEN": "dev-worker"}):
            yield {"FAIRQ_URL": url, "FAIRQ_HTTP_URL": http_url}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_the_tour(kind: str, urls: dict[str, str]) -> None:
    variables = environment({**urls, "FAIRQ_TOKEN": f"dev-tenant:{kind}"})
    program = [sys.executable, *PROGRAMS[kind]]
    ran = subprocess.run(program, env=variables, cwd=HERE, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, TOLD, "")
