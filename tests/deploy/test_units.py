"""The units: systemd reads them without a warning, and finds them hardened; a start waits until the server is ready."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import trio

from tests.parts import program
from tests.server.conftest import server_store
from tests.server.harness import running

from .tools import DEPLOY, SECONDS, run

__all__ = ["server_store"]

pytestmark = pytest.mark.deep("deploy")

UNITS = ("fairq.service", "fairq-worker@.service")
EXPOSURE = 2.0  # of systemd's scale of 10; sockets are most of it


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with programs that are here: systemd looks for them."""
    for name in UNITS:
        text = (DEPLOY / name).read_text().replace("/opt/fairq/bin/fairq", "/bin/true")
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", UNITS)
def test_systemd_reads_a_unit_without_a_warning(units: Path, name: str) -> None:
    assert run("systemd-analyze", "verify", units / name) == ""


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_hardened(name: str) -> None:
    said = run("systemd-analyze", "security", "--offline=true", "--no-pager", DEPLOY / name)
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert float(exposure) < EXPOSURE, said


async def test_a_start_ends_when_the_server_is_ready_and_fails_if_it_never_is(server_store: str) -> None:
    (line,) = re.findall(r"^ExecStartPost=(.*)$", (DEPLOY / "fairq.service").read_text(), re.MULTILINE)

    def start(port: int, retries: int) -> int:
        words = shlex.split(re.sub(r"--retry \d+", f"--retry {retries}", line.replace(":7702", f":{port}")))
        assert words[0] == program("curl")
        return subprocess.run(words, timeout=SECONDS, check=False).returncode

    with trio.fail_after(60):
        async with running(server_store, admin_port=0) as served:
            assert served.admin is not None
            assert await trio.to_thread.run_sync(start, served.admin.port, 3) == 0
            served.app.is_draining = True
            await trio.sleep(0.6)  # a finding is reported for half a second
            assert await trio.to_thread.run_sync(start, served.admin.port, 1) != 0
